/* The token cache: what ranks make of text that is not read byte by byte, and what they find again.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "data/data.h"
#include "harness.h"
#include "tests/job_text.h"
#include "tests/program/test.h"
#include "train/job_data.h"

enum { FILES = 3 };

struct setting {
    struct harness h;
    struct hd_job job;
    char path[FILES][224];
    struct hd_job_file files[FILES];
};

static void put(struct setting *s, int i, const char *name, const char *text)
{
    struct hd_text path = {0};

    hd_text_add(&path, "%s/%s", s->h.dir, name);
    memcpy(s->path[i], path.data, path.len_bytes + 1);
    hd_text_free(&path);
    assert_int_equal(hd_file_write_atomic(s->path[i], text, strlen(text), 0600), HD_OK);
    s->files[i] = (struct hd_job_file){.path = s->path[i], .size_bytes = (int64_t)strlen(text)};
}

static int set_up(void **state)
{
    struct setting *s = calloc(1, sizeof *s);

    if (!s)
        return -1;
    harness_setup(&s->h, 640);
    s->job = harness_job(&s->h, "llama", 1);
    put(s, 0, "a.jsonl",
        "{\"text\": \"one\"}\n\n{\"id\": 7, \"text\": \"z\\u00e9ro\"}\n  \n{\"text\": \"\"}\n"
        "{\"text\":\"last, without a newline\"}");
    put(s, 1, "b.txt", "plain text stays as it is");
    put(s, 2, "c.jsonl", "{\"text\": \"another file\"}\n");
    s->job.train = s->files;
    s->job.train_count = FILES;
    s->job.val_split = 0;
    s->job.context = 4;
    s->job.documents = HD_JOB_DOCUMENTS_BOUNDED;
    *state = s;
    return 0;
}

static int tear_down(void **state)
{
    struct setting *s = *state;

    harness_teardown(&s->h);
    free(s);
    return 0;
}

/* ---- one rank ---- */

static enum hd_status fill(const struct hd_job *job, const struct hd_token_cache_watch *watch,
                           struct hd_arena *arena, struct hd_token_cache *ret_cache)
{
    struct hd_job_tokenizer tokenizer = {.opened = NULL};
    const enum hd_status st = hd_token_cache_fill(job, &tokenizer, watch, arena, ret_cache);

    hd_job_tokenizer_close(&tokenizer);
    return st;
}

static int64_t fill_and_open(const struct setting *s, struct hd_arena *arena,
                             struct hd_job_data *ret_data)
{
    struct hd_token_cache cache;

    if (fill(&s->job, &(struct hd_token_cache_watch){.world = 1}, arena, &cache) ||
        hd_job_data_open(&s->job, NULL, &cache, arena, ret_data))
        fail_msg("%s", hd_err_message());
    return cache.made;
}

/* Goal: each line is a document, its text the member "text". Method: a.jsonl has "one", "zéro", ""
 * and a last line, with two blank ones between; then b.txt and c.jsonl as they are. End-of-text is
 * 0, so that each document's end is seen. */
static void each_line_is_a_document_with_its_end(void **state)
{
    static const char expected[] = "one\0z\xc3\xa9ro\0\0last, without a newline\0"
                                   "plain text stays as it isanother file";
    struct setting *s = *state;
    int32_t ids[sizeof expected];
    struct hd_job_data data;
    struct hd_arena arena;

    s->job.end_of_text = 0;
    hd_arena_init(&arena, 0);
    assert_int_equal(fill_and_open(s, &arena, &data), 2);
    assert_int_equal(hd_corpus_token_count(data.train_corpus), sizeof expected); /* NUL: c's end */
    assert_int_equal(hd_corpus_read(data.train_corpus, 0, sizeof expected, ids), HD_OK);
    for (size_t i = 0; i < sizeof expected; i++)
        assert_int_equal(ids[i], (unsigned char)expected[i]);
    hd_job_data_close(&data);
    hd_arena_done(&arena);
}

/* Goal: where no id ends a text, documents are bounded all the same. Method: targets of the first
 * windows of "one", "zéro" (5 bytes), "last, ...". */
static void documents_without_an_end_of_text_are_bounded(void **state)
{
    static const int32_t none = HD_DATA_TARGET_NONE;
    const int32_t expected[] = {'n', 'e', none, 0xC3, 0xA9, 'r', 'o', none, 'a', 's', 't', ','};
    struct setting *s = *state;
    int32_t tokens[12], targets[12];
    struct hd_job_data data;
    struct hd_arena arena;

    s->job.end_of_text = -2; /* the tokenizer's; bytes have none */
    s->job.global_batch = 3;
    s->job.order = HD_JOB_ORDER_SEQUENTIAL;
    hd_arena_init(&arena, 0);
    (void)fill_and_open(s, &arena, &data);
    assert_int_equal(hd_sampler_fill(&data.sampler, 0, 0, 3,
                                     &(struct hd_data_batch){.tokens = tokens, .targets = targets}),
                     HD_OK);
    for (int i = 0; i < 12; i++)
        assert_int_equal(targets[i], expected[i]);
    hd_job_data_close(&data);
    hd_arena_done(&arena);
}

/* Goal: later attempts find what is there, and only that. Method: again as it is; with another
 * attempt; with another end-of-text; with a changed file; with an index
 * lost; with its ids lost. */
static void tokens_are_made_once_for_the_same_text(void **state)
{
    const struct timespec later[2] = {{.tv_sec = 4102444800}, {.tv_sec = 4102444800}}; /* 2100 */
    struct setting *s = *state;
    struct hd_token_cache cache;
    struct hd_job_data data;
    struct hd_arena arena;
    struct hd_text idx = {0};

    hd_arena_init(&arena, 0);
    assert_int_equal(fill_and_open(s, &arena, &data), 2);
    hd_job_data_close(&data);
    s->job.attempt_dir = job_text("%s/attempt-2", s->h.dir);
    assert_int_equal(fill_and_open(s, &arena, &data), 0);
    hd_job_data_close(&data);
    s->job.end_of_text = 10;
    assert_int_equal(fill_and_open(s, &arena, &data), 2);
    hd_job_data_close(&data);
    put(s, 2, "c.jsonl", "{\"text\": \"another text\"}\n"); /* as long as before, but later */
    assert_int_equal(utimensat(AT_FDCWD, s->path[2], later, 0), 0);
    assert_int_equal(fill_and_open(s, &arena, &data), 1);
    hd_job_data_close(&data);

    assert_int_equal(fill(&s->job, &(struct hd_token_cache_watch){.world = 1}, &arena, &cache),
                     HD_OK);
    hd_text_add(&idx, "%s", cache.train[2].path);
    memcpy(idx.data + idx.len_bytes - 3, "idx", 3);
    assert_int_equal(unlink(idx.data), 0);
    assert_int_equal(fill_and_open(s, &arena, &data), 1);
    hd_job_data_close(&data);
    assert_int_equal(unlink(cache.train[2].path), 0); /* an index alone is no token file */
    assert_int_equal(fill_and_open(s, &arena, &data), 1);
    hd_job_data_close(&data);
    hd_text_free(&idx);
    hd_arena_done(&arena);
}

/* Goal: all attempts of a job have the same tokens, or none. Method: the template is changed
 * between two attempts, and put back. */
static void a_template_that_has_changed_since_the_submission_is_refused(void **state)
{
    struct setting *s = *state;
    char path[HD_JOB_PATH_MAX + 16], folder[HD_JOB_PATH_MAX];
    const struct hd_text_origin origin = {.tokenizer = s->job.tokenizer,
                                          .date = s->job.date,
                                          .template = path,
                                          .folder = folder,
                                          .model_dir = "",
                                          .format = hd_job_data_format_words[s->job.data_format],
                                          .loss = hd_job_data_loss_words[s->job.data_loss]};
    struct hd_text_origin of_texts = origin;
    struct hd_token_cache cache;
    struct hd_arena arena;
    char identity[HD_TEXT_IDENTITY_MAX];
    uint64_t hash = 0, both[2], text_hash;

    hd_arena_init(&arena, 0);
    (void)snprintf(path, sizeof path, "%s/t.jinja", s->h.dir);
    s->job.template = path;
    hd_job_chat_folder(&s->job, folder);
    assert_int_equal(hd_file_write_atomic(path, "{{ 1 }}", 7, 0600), HD_OK);
    assert_int_equal(hd_text_identity(&origin, &hash), HD_OK);
    of_texts.template = NULL;
    assert_int_equal(hd_text_identity(&of_texts, &text_hash), HD_OK);
    assert_int_equal(hd_text_identities(&origin, &both[0], &both[1]), HD_OK);
    assert_true(both[0] == hash && both[1] == text_hash && hash != text_hash);
    hd_text_identity_format(hash, identity);
    s->job.text_identity = identity;
    for (int attempt = 1; attempt <= 3; attempt++) {
        const char *text = attempt == 2 ? "{{ 2 }}" : "{{ 1 }}";
        const enum hd_status expected = attempt == 2 ? HD_INVALID : HD_OK;

        assert_int_equal(hd_file_write_atomic(path, text, 7, 0600), HD_OK);
        assert_int_equal(fill(&s->job, &(struct hd_token_cache_watch){.world = 1}, &arena, &cache),
                         expected);
        if (expected)
            assert_non_null(strstr(hd_err_message(), "has changed since the job was submitted"));
    }
    hd_arena_done(&arena);
}

static void a_line_that_is_no_document_is_named(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {{"{\"text\": \"a\"}\n{\"text\": 1}\n", "a.jsonl:2: "},
                 {"{\"text\": \"a\"}\n\nno json\n", "a.jsonl:3: "},
                 {"{\"body\": \"a\"}\n", "text"},
                 {"{\"text\": \"a\"}\n[]\n", "a.jsonl:2: "},
                 {"[1]\n", "a.jsonl: row 1: it is no JSON object"}}; /* an array of rows */
    struct setting *s = *state;
    struct hd_token_cache cache;
    struct hd_arena arena;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put(s, 0, "a.jsonl", cases[i].text);
        hd_arena_init(&arena, 0);
        assert_int_equal(fill(&s->job, &(struct hd_token_cache_watch){.world = 1}, &arena, &cache),
                         HD_INVALID);
        if (!strstr(hd_err_message(), cases[i].message))
            fail_msg("'%s' does not say '%s'", hd_err_message(), cases[i].message);
        hd_arena_done(&arena);
    }
    s->files[0].size_bytes++;
    hd_arena_init(&arena, 0);
    assert_int_equal(fill(&s->job, &(struct hd_token_cache_watch){.world = 1}, &arena, &cache),
                     HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "when the job was submitted"));
    hd_arena_done(&arena);
    put(s, 0, "a.jsonl", "{\"text\": \"one\"}");
    s->files[0].fingerprint = "1:0123456789abcdef"; /* of another text */
    hd_arena_init(&arena, 0);
    assert_int_equal(fill(&s->job, &(struct hd_token_cache_watch){.world = 1}, &arena, &cache),
                     HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "a.jsonl is another file than when the job was"));
    hd_arena_done(&arena);
}

/* ---- several ranks ---- */

struct counts {
    int64_t made[HARNESS_WORLD_MAX];
    int calls;
};

static bool count_calls(void *context, int64_t done, int64_t total)
{
    (void)__atomic_add_fetch((int *)context, 1, __ATOMIC_RELAXED);
    return true;
}

static enum hd_status fill_rank(struct harness_rank *r)
{
    struct counts *c = r->context;
    const struct hd_token_cache_watch watch = {
        .rank = r->rank, .world = r->world, .alive = count_calls, .context = &c->calls};
    struct hd_trainer_options options = {.peak = HARNESS_PEAK,
                                         .backend = harness_backend(),
                                         .instance = r->instance,
                                         .comm = r->comm,
                                         .rank = r->rank};
    struct hd_token_cache cache;
    struct hd_trainer *t = NULL;
    struct hd_step_result result;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    if (r->rank == 0)
        (void)usleep(50 * 1000); /* so that the other one waits */
    st = fill(r->job, &watch, &arena, &cache);
    c->made[r->rank] = cache.made;
    options.tokens = &cache;
    if (!st)
        st = hd_trainer_new(r->job, &options, &t);
    if (!st)
        st = hd_trainer_init(t);
    if (!st)
        st = hd_trainer_step(t, 0, &result);
    hd_trainer_free(t);
    hd_arena_done(&arena);
    return st;
}

/* Goal: ranks share the work, wait for each other with signs of life, and train on the result. */
static void ranks_share_the_files_and_wait_for_each_other(void **state)
{
    struct setting *s = *state;
    struct counts c = {.calls = 0};

    s->job.dp = 2;
    if (harness_threads(&s->job, 2, &c, fill_rank))
        fail_msg("%s", hd_err_message());
    assert_int_equal(c.made[0], 1);
    assert_int_equal(c.made[1], 1);
    assert_true(c.calls > 0);
}

static bool give_up(void *context, int64_t done, int64_t total)
{
    return false;
}

static void a_rank_whose_peer_is_gone_gives_up(void **state)
{
    struct setting *s = *state;
    struct hd_token_cache cache;
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    assert_int_equal(fill(&s->job,
                          &(struct hd_token_cache_watch){.rank = 1, .world = 2, .alive = give_up},
                          &arena, &cache),
                     HD_ABORTED);
    hd_arena_done(&arena);
}

/* Goes on while there is work, and waits for nobody. */
static bool wait_never(void *context, int64_t done, int64_t total)
{
    return total > 0;
}

/* On another node the same text may have another time of change. */
static bool change_times_and_be_rank_1(void *context, int64_t done, int64_t total)
{
    struct setting *s = context;
    const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    const struct hd_token_cache_watch watch = {.rank = 1, .world = 2, .alive = wait_never};
    struct hd_token_cache cache;
    struct hd_arena arena;

    if (total) /* it still works on its own file */
        return true;
    hd_arena_init(&arena, 0);
    for (int i = 0; i < FILES; i++)
        assert_int_equal(utimensat(AT_FDCWD, s->path[i], times, 0), 0);
    if (fill(&s->job, &watch, &arena, &cache))
        fail_msg("%s", hd_err_message());
    hd_arena_done(&arena);
    return true;
}

static void rank_0_names_the_tokens_for_all(void **state)
{
    struct setting *s = *state;
    const struct hd_token_cache_watch watch = {
        .world = 2, .alive = change_times_and_be_rank_1, .context = s};
    struct hd_token_cache cache;
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    if (fill(&s->job, &watch, &arena, &cache))
        fail_msg("%s", hd_err_message());
    assert_int_equal(cache.made, 1); /* of the two that need it; rank 1 made the other */
    hd_arena_done(&arena);
}

/* Goal: two ranks never write one file. Method: a.jsonl stands first and last; rank 1 finds it
 * missing and waits for rank 0, which it would not if the last were its own. */
static void a_file_listed_twice_is_one_ranks_to_make(void **state)
{
    struct setting *s = *state;
    struct hd_token_cache_watch watch = {.world = 2, .alive = wait_never};
    struct hd_token_cache cache;
    struct hd_text idx = {0};
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    s->files[2] = s->files[0];
    assert_int_equal(fill(&s->job, &watch, &arena, &cache), HD_OK);
    assert_int_equal(cache.made, 1);
    assert_string_equal(cache.train[0].path, cache.train[2].path);
    hd_text_add(&idx, "%s", cache.train[0].path);
    memcpy(idx.data + idx.len_bytes - 3, "idx", 3);
    assert_int_equal(unlink(idx.data), 0);
    watch.rank = 1;
    assert_int_equal(fill(&s->job, &watch, &arena, &cache), HD_ABORTED);
    assert_false(hd_file_exists(idx.data));
    hd_text_free(&idx);
    hd_arena_done(&arena);
}

/* Goal: what a killed rank had begun does not stay for ever. Method: such a file, and both ranks of
 * an attempt: rank 1 leaves it, it might be rank 0's. */
static void rank_0_removes_what_killed_ranks_left(void **state)
{
    struct setting *s = *state;
    struct hd_token_cache_watch watch = {.rank = 1, .world = 2, .alive = wait_never};
    struct hd_token_cache cache;
    struct hd_text bucket = {0};
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    hd_text_add(&bucket, "%.*s/tokens",
                (int)(strrchr(s->job.attempt_dir, '/') - s->job.attempt_dir), s->job.attempt_dir);
    assert_int_equal(hd_file_make_dirs(bucket.data, 0700), HD_OK);
    hd_text_add(&bucket, "/0123456789abcdef.bin.part.17.0x600000");
    assert_int_equal(hd_file_write_atomic(bucket.data, "half", 4, 0600), HD_OK);
    assert_int_equal(fill(&s->job, &watch, &arena, &cache), HD_ABORTED); /* there are no names */
    assert_true(hd_file_exists(bucket.data));
    watch.rank = 0;
    s->job.train_count = 2; /* without the file of rank 1, for which it would wait */
    assert_int_equal(fill(&s->job, &watch, &arena, &cache), HD_OK);
    assert_false(hd_file_exists(bucket.data));
    hd_text_free(&bucket);
    hd_arena_done(&arena);
}

RUN_EACH_CASE_WITH(set_up, tear_down)
