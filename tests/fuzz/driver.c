#include "tests/fuzz/driver.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "tests/program/test.h"

enum { SEEDS_MAX = 64, INPUT_BYTES_MAX = 4096, MUTATIONS_MAX = 8 };

struct input {
    uint8_t bytes[INPUT_BYTES_MAX];
    size_t size_bytes;
};

struct dice {
    uint64_t key, thrown;
};

static size_t throw(struct dice * dice, size_t sides) /* 0 .. sides - 1 */
{
    return (size_t)(hd_random_u64(dice->key, dice->thrown++) % sides);
}

static void insert(struct input *input, size_t at, const uint8_t *bytes, size_t count)
{
    if (input->size_bytes + count > INPUT_BYTES_MAX)
        return;
    memmove(input->bytes + at + count, input->bytes + at, input->size_bytes - at);
    memcpy(input->bytes + at, bytes, count);
    input->size_bytes += count;
}

static void take_out(struct input *input, size_t at, size_t count)
{
    memmove(input->bytes + at, input->bytes + at + count, input->size_bytes - at - count);
    input->size_bytes -= count;
}

static void mutate(struct input *input, const struct input *other, struct dice *dice)
{
    static const uint8_t edges[] = {0, 1, 0x7f, 0x80, 0xff, '\n', '"', '-', '0', ' '};
    size_t at = throw(dice, input->size_bytes + 1), room = input->size_bytes - at, from;
    uint8_t piece[64];

    switch (throw(dice, room ? 7 : 2)) {
    case 0: /* a random byte more */
        piece[0] = (uint8_t) throw(dice, 256);
        insert(input, at, piece, 1);
        return;
    case 1: /* a piece of another seed */
        from = throw(dice, other->size_bytes);
        room = throw(dice, other->size_bytes - from) + 1;
        insert(input, at, other->bytes + from, room);
        return;
    case 2:
        input->bytes[at] ^= (uint8_t)(1u << throw(dice, 8));
        return;
    case 3:
        input->bytes[at] = edges[throw(dice, sizeof edges)];
        return;
    case 4:
        take_out(input, at, throw(dice, room) + 1);
        return;
    case 5: /* a piece of itself once more */
        room = throw(dice, room < sizeof piece ? room : sizeof piece) + 1;
        memcpy(piece, input->bytes + at, room);
        insert(input, at, piece, room);
        return;
    default: /* the end is missing */
        input->size_bytes = at;
        return;
    }
}

/* The target gets memory of exactly the input's size, so that reading beyond it can be seen. */
static void feed(const struct input *input)
{
    uint8_t *exact = malloc(input->size_bytes ? input->size_bytes : 1);

    assert_non_null(exact);
    memcpy(exact, input->bytes, input->size_bytes);
    assert_int_equal(LLVMFuzzerTestOneInput(exact, input->size_bytes), 0);
    free(exact);
}

static void mutated_inputs_break_no_promise(void **state)
{
    static struct input seeds[SEEDS_MAX];
    const char *runs_text = getenv("HEDDLE_FUZZ_RUNS");
    const bool verbose = getenv("HEDDLE_FUZZ_VERBOSE") != NULL;
    const long runs = runs_text ? atol(runs_text) : HD_FUZZ_RUNS;
    struct dice dice = {.key = hd_random_hash(HD_FUZZ_NAME)};
    unsigned count = 0;
    struct input input;

    while (count < SEEDS_MAX &&
           (seeds[count].size_bytes = hd_fuzz_seed(count, seeds[count].bytes, INPUT_BYTES_MAX)) > 0)
        feed(&seeds[count++]);
    assert_true(count > 0);
    for (long run = 0; run < runs; run++) {
        input = seeds[throw(&dice, count)];
        for (size_t i = throw(&dice, MUTATIONS_MAX) + 1; i; i--)
            mutate(&input, &seeds[throw(&dice, count)], &dice);
        if (verbose)
            fprintf(stderr, HD_FUZZ_NAME " run %ld: %zu bytes\n", run, input.size_bytes);
        feed(&input);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {HD_FUZZ_NAME ": mutated inputs break no promise", mutated_inputs_break_no_promise, NULL,
         NULL, NULL},
    };

    return cmocka_run_group_tests_name(HD_FUZZ_NAME, tests, NULL, NULL);
}
