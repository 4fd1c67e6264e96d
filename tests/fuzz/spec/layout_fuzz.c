/* Layouts at random: sections model, parallel and resources of sizes that may or may not go
 * together. A job file is accepted exactly when plan/choose.h has a layout for it on a number of
 * devices that it may have; then every such number resolves to a job for the ranks, of which a mesh
 * of so many ranks can be made. What is refused has a story.
 *
 * LLVMFuzzerTestOneInput is the target for a coverage-guided fuzzer: a byte is a choice. The test
 * below draws them, from a fixed seed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "mesh/mesh.h"
#include "plan/choose.h"
#include "spec/spec.h"
#include "tests/program/test.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

enum { ROUNDS = 5000 };
enum { WRONG = -1000000 }; /* no value that may stand there */

/* One value that may be written, and what it means. */
struct choice {
    const char *text; /* NULL: nothing at all */
    int32_t value;
};

static const struct choice sizes[] = {
    {NULL, 0}, {"auto", 0}, {"1", 1},     {"2", 2},      {"3", 3},         {"4", 4},
    {"6", 6},  {"8", 8},    {"16", 16},   {"64", 64},    {"65536", 65536}, {"2", 2},
    {NULL, 0}, {"1", 1},    {"0", WRONG}, {"-2", WRONG}, {"1.5", WRONG},   {"[2]", WRONG},
};
static const struct choice unbuilt[] = {{NULL, 0}, {NULL, 0},   {NULL, 0}, {NULL, 0},
                                        {NULL, 0}, {"auto", 0}, {"1", 1},  {"2", 2}};
static const struct choice zeros[] = {{NULL, -1}, {NULL, -1}, {NULL, -1}, {"auto", -1},
                                      {"0", 0},   {"0", 0},   {"1", 1},   {"4", WRONG}};
static const struct choice switches[] = {{NULL, -1},   {"auto", -1}, {"true", 1},
                                         {"false", 0}, {"false", 0}, {"maybe", WRONG}};
static const struct choice exchanges[] = {/* values count `exchange_words` */
                                          {NULL, 0},
                                          {"auto", 0},
                                          {"ring", 1},
                                          {"all_gather", 2},
                                          {"tree", WRONG}};
static const char *const exchange_words[] = {"auto", "ring", "all_gather"};
static const int32_t counts[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 65, 128, 65536};

static const struct choice room[] = {{NULL, 0},  {NULL, 0},    {"auto", 0},
                                     {"1.5", 1}, {"0", WRONG}, {"0.99", WRONG}};

struct input {
    const uint8_t *bytes;
    size_t left;
    struct hd_text text;
    bool wrong; /* a value that may not stand there was written */
};

static size_t choose(struct input *in, size_t count)
{
    if (!in->left)
        return 0;
    in->left--;
    return *in->bytes++ % count;
}

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static int32_t write_choice(struct input *in, const char *key, const struct choice *choices,
                            size_t count)
{
    const struct choice *c = &choices[choose(in, count)];

    if (c->text)
        hd_text_add(&in->text, "%s: %s, ", key, c->text);
    in->wrong |= c->value == WRONG;
    return c->value;
}

static int64_t write_number(struct input *in, const char *key, const int32_t *numbers, size_t count)
{
    const int32_t number = numbers[choose(in, count)];

    hd_text_add(&in->text, "%s: %d, ", key, number);
    return number;
}

/* The model itself is sound. */
static void write_model(struct input *in, struct hd_plan_request *w)
{
    static const int32_t heads[] = {8, 1, 2, 3, 4, 6, 12, 16, 64};
    static const int32_t widths[] = {96, 32, 48, 100, 172, 128, 7};
    static const int32_t contexts[] = {32, 1, 8, 12, 24, 64, 96, 100, 4096};
    static const int32_t parts[] = {1, 2, 3, 4, 8};
    static const int32_t experts[] = {0, 8, 0, 1, 4, 6, 12, 64}, choices[] = {1, 2, 4, 64};
    int32_t per_token;
    int64_t part;

    w->experts = experts[choose(in, COUNT(experts))];
    hd_text_add(&in->text, "name: t\nmodel: {family: %s, layers: 1, hidden: 64, head_width: 8, ",
                w->experts ? "mixtral" : "llama");
    if (w->experts) {
        hd_text_add(&in->text, "experts: %d, ", (int)w->experts);
        per_token = (int32_t)write_number(in, "experts_per_token", choices, COUNT(choices));
        in->wrong |= per_token > w->experts;
    }
    w->heads = write_number(in, "heads", heads, COUNT(heads));
    part = parts[choose(in, COUNT(parts))];
    w->kv_heads = w->heads % part ? w->heads : w->heads / part;
    hd_text_add(&in->text, "kv_heads: %lld, ", (long long)w->kv_heads);
    w->ffn_hidden = write_number(in, "ffn_hidden", widths, COUNT(widths));
    w->context = write_number(in, "context", contexts, COUNT(contexts));
    hd_text_add(&in->text, "}\n");
}

static void write_parallel(struct input *in, struct hd_plan_request *w)
{
    int32_t rows, exchange;

    hd_text_add(&in->text, "parallel: {");
    w->sizes.tp = write_choice(in, "tp", sizes, COUNT(sizes));
    w->sizes.cp = write_choice(in, "cp", sizes, COUNT(sizes));
    w->sizes.dp = choose(in, 4) ? 0 : write_choice(in, "dp", sizes, COUNT(sizes));
    w->sizes.pp = write_choice(in, "pp", unbuilt, COUNT(unbuilt));
    w->sizes.ep = choose(in, 2) ? 0 : write_choice(in, "ep", sizes, COUNT(sizes));
    rows = choose(in, 2) ? 0 : write_choice(in, "expert_rows", room, COUNT(room));
    in->wrong |= rows > 0 && !w->experts;
    w->sizes.zero = write_choice(in, "zero", zeros, COUNT(zeros));
    w->sizes.micro_batch = choose(in, 2) ? 0 : write_choice(in, "micro_batch", sizes, COUNT(sizes));
    w->sizes.sequence = write_choice(in, "sequence", switches, COUNT(switches));
    exchange = write_choice(in, "cp_exchange", exchanges, COUNT(exchanges));
    w->sizes.cp_exchange =
        hd_job_find_word(hd_job_cp_exchange_words, exchange_words[exchange < 0 ? 0 : exchange]);
    hd_text_add(&in->text, "}\n");
}

static void write_devices(struct input *in, int32_t *ret_min, int32_t *ret_max)
{
    *ret_min = *ret_max = 1;
    hd_text_add(&in->text, "resources: {");
    switch (choose(in, 4)) {
    case 0:
        break;
    case 1:
        *ret_min = counts[choose(in, COUNT(counts))];
        *ret_max = counts[choose(in, COUNT(counts))];
        in->wrong |= *ret_max < *ret_min || *ret_max > hd_plan_ranks_max(HD_JOB_DEVICE_AUTO, NULL);
        hd_text_add(&in->text, "devices: {min: %d, max: %d}", *ret_min, *ret_max);
        break;
    default:
        *ret_min = *ret_max = (int32_t)write_number(in, "devices", counts, COUNT(counts));
    }
    hd_text_add(&in->text, "}\n");
}

static enum hd_status read_text(const struct hd_text *text, struct hd_arena *arena,
                                struct hd_job *ret_job)
{
    struct hd_spec_source source = {
        .name = "job.yaml", .bytes = text->data, .size_bytes = text->len_bytes};
    char *folder = getcwd(NULL, 0); /* the project's: LICENSE is there */
    enum hd_status st;

    assert_non_null(folder);
    source.folder = folder;
    st = hd_spec_read_yaml(&source, arena, ret_job);
    free(folder);
    return st;
}

/* Resolves the job on so many devices, as the controller does, and checks that the result reaches
 * the ranks. */
static void resolve(const struct hd_job *spec, struct hd_layout_sizes *s, int32_t devices)
{
    const struct hd_spec_attempt attempt = {.job_id = 1, .number = 1, .dir = "/j"};
    static struct hd_job job, back;
    struct hd_text text = {0};
    struct hd_arena arena;
    struct hd_mesh mesh;

    hd_arena_init(&arena, 0);
    s->precision = HD_JOB_PRECISION_AUTO;
    hd_plan_decide_device(HD_JOB_DEVICE_CPU, false, 1, s);
    if (hd_spec_resolve(spec, s, &attempt, &job))
        fail_msg("%s", hd_err_message());
    assert_int_equal(hd_job_write(&job, &text), HD_OK);
    assert_int_equal(hd_job_read(text.data, text.len_bytes, &arena, &back), HD_OK);
    assert_int_equal(hd_mesh_init(&mesh, &(struct hd_mesh_sizes){.pp = (int32_t)back.pp,
                                                                 .dp = (int32_t)back.dp,
                                                                 .cp = (int32_t)back.cp,
                                                                 .tp = (int32_t)back.tp,
                                                                 .ep = (int32_t)back.ep}),
                     HD_OK);
    assert_int_equal(mesh.world, devices);
    assert_int_equal(back.ep, s->ep);
    assert_true(back.ep == 1 || (back.experts > 0 && back.experts % back.ep == 0));
    assert_true(back.experts_per_token <= back.experts);
    assert_int_equal(back.sequence, s->sequence);
    assert_int_equal(back.cp_exchange, s->cp_exchange);
    assert_int_not_equal(back.cp_exchange, HD_JOB_CP_EXCHANGE_AUTO);
    assert_int_equal(back.global_batch % (back.dp * back.micro_batch), 0);
    hd_text_free(&text);
    hd_arena_done(&arena);
}

/* Returns whether the job file was accepted. */
static bool try_one(const uint8_t *bytes, size_t count)
{
    static const int32_t batches[] = {8, 1, 2, 6, 12, 24, 64, 120};
    struct input in = {.bytes = bytes, .left = count};
    struct hd_plan_request wish = {
        .layers = 1,
        .hidden = 64,
        .sizes = {.schedule = "auto", .recompute = "auto", .offload = HD_JOB_OFFLOAD_NONE}};
    struct hd_layout_sizes s;
    struct hd_arena arena;
    struct hd_job spec;
    const int32_t ranks = hd_plan_ranks_max(HD_JOB_DEVICE_AUTO, NULL);
    int32_t min, max, most = 0;
    char message[HD_ERR_MAX];
    enum hd_status st;

    write_model(&in, &wish);
    write_parallel(&in, &wish);
    write_devices(&in, &min, &max);
    hd_text_add(&in.text, "data: {train: [LICENSE]}\ntrain: {steps: 1, lr: 1, ");
    wish.global_batch = write_number(&in, "global_batch", batches, COUNT(batches));
    hd_text_add(&in.text, "}\n");
    hd_arena_init(&arena, 0);
    st = read_text(&in.text, &arena, &spec);
    (void)snprintf(message, sizeof message, "%s", st ? hd_err_message() : "");
    for (int32_t devices = min; !in.wrong && devices <= max && devices <= ranks; devices++) {
        if (hd_plan_size(&wish, devices, &s))
            continue;
        most = devices;
        if (!st)
            resolve(&spec, &s, devices);
    }
    wish.searched = true; /* what replicas cannot split may be split by other tp, pp and cp */
    for (int32_t devices = max < ranks ? max : ranks; !in.wrong && !most && devices >= min;
         devices--)
        if (hd_plan_first(&wish, devices, &s)) {
            most = devices;
            if (!st)
                resolve(&spec, &s, devices);
        }
    if ((st == HD_OK) != (most > 0))
        fail_msg("%s: %s\n%s", most ? "refused" : "accepted", message, in.text.data);
    if (!st)
        assert_int_equal(hd_spec_most_devices(&spec), most);
    else if ((st != HD_INVALID && st != HD_UNSUPPORTED) || !hd_text_starts(message, "job.yaml:"))
        fail_msg("status %d, %s\n%s", (int)st, message, in.text.data);
    hd_arena_done(&arena);
    hd_text_free(&in.text);
    return st == HD_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    (void)try_one(bytes, count);
    return 0;
}

static void a_layout_is_accepted_exactly_when_there_is_one(void **state)
{
    const uint64_t key = hd_random_key(1, 4);
    uint64_t draw = 0;
    int accepted = 0;

    for (int round = 0; round < ROUNDS; round++) {
        uint8_t bytes[28];

        /* a zero is the plainest choice: most keys stay so, or hardly any file would be sound */
        for (size_t i = 0; i < sizeof bytes; i++) {
            const uint64_t r = hd_random_u64(key, draw++);

            bytes[i] = r % 2 ? 0 : (uint8_t)(r >> 8);
        }
        accepted += try_one(bytes, hd_random_u64(key, draw++) % (sizeof bytes + 1));
    }
    print_message("%d of %d were sound\n", accepted, ROUNDS);
    assert_in_range(accepted, ROUNDS / 20, ROUNDS * 19 / 20); /* both ends were seen */
}

RUN_CASES()
