/* Hostile job files. Nothing may crash, hang or leak; what is refused has a story; what is accepted
 * survives a trip through its JSON form unchanged.
 *
 * LLVMFuzzerTestOneInput is the target for a coverage-guided fuzzer; the test below drives it with
 * random changes to sound files, from a fixed seed. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/random.h"
#include "spec/spec.h"
#include "tests/program/test.h"

enum { ROUNDS = 5000 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static enum hd_status read_bytes(const void *bytes, size_t count, struct hd_arena *arena,
                                 struct hd_job *ret_job)
{
    struct hd_text mistakes = {0};
    struct hd_spec_source source = {
        .name = "job.yaml", .bytes = bytes, .size_bytes = count, .mistakes = &mistakes};
    char *folder = getcwd(NULL, 0); /* the project's: LICENSE is there */
    enum hd_status st;

    assert_non_null(folder);
    source.folder = folder;
    st = hd_spec_read_yaml(&source, arena, ret_job);
    assert_true(st || !mistakes.len_bytes); /* what is accepted has no mistake */
    hd_text_free(&mistakes);
    free(folder);
    return st;
}

/* The JSON of a job; the caller frees it. */
static struct hd_text json_of(const struct hd_job *job)
{
    struct hd_text text = {0};
    struct hd_json_writer writer = {.out = &text};

    hd_spec_add_json(job, NULL, &writer);
    return text;
}

/* Through JSON, which is a job file, and through the message that travels. */
static void check_accepted(const struct hd_job *job, struct hd_arena *arena)
{
    struct hd_text first = json_of(job), second, third;
    struct hd_job again;

    assert_int_equal(hd_spec_check(job), HD_OK);
    assert_int_equal(read_bytes(first.data, first.len_bytes, arena, &again), HD_OK);
    second = json_of(&again);
    assert_string_equal(first.data, second.data);
    assert_int_equal(hd_spec_from_message(hd_spec_to_message(job, arena), arena, &again), HD_OK);
    third = json_of(&again);
    assert_string_equal(first.data, third.data);
    hd_text_free(&first);
    hd_text_free(&second);
    hd_text_free(&third);
}

/* Returns whether the job file is accepted. */
static bool try_file(const uint8_t *bytes, size_t count)
{
    struct hd_arena arena;
    struct hd_job job;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = read_bytes(bytes, count, &arena, &job);
    if (st) {
        assert_true(st == HD_INVALID || st == HD_UNSUPPORTED);
        assert_true(hd_text_starts(hd_err_message(), "job.yaml:"));
        assert_true(hd_text_is_utf8(hd_err_message(), strlen(hd_err_message())));
    } else {
        check_accepted(&job, &arena);
    }
    hd_arena_done(&arena);
    return !st;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    (void)try_file(bytes, count);
    return 0;
}

static const char *const sound[] = {
    "name: tiny\nmodel: {family: llama, layers: 2, hidden: 64, heads: 8, context: 32}\n"
    "data:\n  train: [LICENSE]\n  val_split: 0.1\ntrain:\n  steps: 100\n  global_batch: 8\n"
    "  lr: {peak: 1e-3, warmup: 3, decay: wsd, decay_steps: 9, min: 0}\n",
    "{\"name\":\"t\",\"model\":{\"family\":\"gpt2\",\"layers\":1,\"hidden\":16,\"heads\":2,"
    "\"context\":8},\"data\":{\"train\":[\"./LICENSE\"]},\"train\":{\"steps\":1,"
    "\"global_batch\":4,\"lr\":0.5},\"parallel\":{\"tp\":\"auto\",\"zero\":0}}",
    "name: mix\nmodel: {family: llama, layers: 1, hidden: 16, heads: 2, context: 8}\n"
    "data:\n  train:\n  - {path: LICENSE, weight: 0.7}\n  - {weight: 2, path: [./LICENSE]}\n"
    "  end_of_text: 10\n  documents: bounded\ntrain: {steps: 1, global_batch: 4, lr: 1}\n",
};

/* Bytes that mean something to YAML come more often than others. */
static uint8_t draw_byte(uint64_t r)
{
    static const char special[] = "\n\n  \t:-[]{},&*!|>'\"#%@`?\\0123456789.e~\xef\xbb\xbf\xc2\x85";

    return r % 4 ? (uint8_t)special[(r >> 8) % (sizeof special - 1)] : (uint8_t)(r >> 8);
}

static void changed_job_files_are_read_or_refused(void **state)
{
    const uint64_t key = hd_random_key(1, 3);
    uint64_t draw = 0;
    int accepted = 0;

    for (int round = 0; round < ROUNDS; round++) {
        const char *base = sound[round % 3];
        size_t n = strlen(base), cut;
        uint8_t *input = malloc(n + 1);

        assert_non_null(input);
        memcpy(input, base, n);
        for (uint64_t i = hd_random_u64(key, draw++) % 5; i > 0; i--) {
            uint64_t r = hd_random_u64(key, draw++);

            input[r % n] = draw_byte(r >> 20);
        }
        cut = round % 8 == 7 ? hd_random_u64(key, draw++) % n : 0;
        accepted += try_file(input, n - cut);
        free(input);
    }
    /* one round in five changes nothing, and seven in eight of these are not cut: the target must
     * have seen both ends */
    assert_in_range(accepted, ROUNDS / 5 * 7 / 8 / 2, ROUNDS / 2);
}

static void deep_and_wide_files_are_refused_quickly(void **state)
{
    const size_t max = HD_SPEC_FILE_BYTES_MAX;
    uint8_t *input = malloc(max);
    static const char *const repeated[] = {"[",  "{",    "- ",   "? ",  "a: ",    "\"",
                                           "!",  "a:\n", "#",    "- [", "--- \n", "%",
                                           "| ", "\n",   "a: {", ",",   "'"};

    assert_non_null(input);
    for (size_t i = 0; i < sizeof repeated / sizeof repeated[0]; i++) {
        size_t len = strlen(repeated[i]);

        for (size_t at = 0; at < max; at++)
            input[at] = (uint8_t)repeated[i][at % len];
        (void)LLVMFuzzerTestOneInput(input, max);
    }
    free(input);
}

RUN_CASES()
