/* The end of documents as a job finds it: by its own key, else by the files beside its tokenizer
 * and in the folder of model.from; and tokens for which the model has no row. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "data/data.h"
#include "harness.h"
#include "tests/job_text.h"
#include "tests/program/test.h"
#include "tests/unit/tokenizer/letters.h"
#include "train/job_data.h"

enum { END = 258 }; /* <|im_end|> */

struct ends_setting {
    struct harness h;
    struct hd_job job;
    char text_path[224];
    struct hd_job_file file;
};

static void put(struct ends_setting *s, const char *name, const char *text)
{
    struct hd_text path = {0};

    hd_file_join(&path, s->h.dir, name);
    assert_int_equal(hd_file_write_atomic(path.data, text, strlen(text), 0600), HD_OK);
    hd_text_free(&path);
}

static void put_text(struct ends_setting *s, const char *name, const char *text)
{
    put(s, name, text);
    (void)snprintf(s->text_path, sizeof s->text_path, "%s/%s", s->h.dir, name);
    s->file = (struct hd_job_file){.path = s->text_path, .size_bytes = (int64_t)strlen(text)};
}

static int set_up(void **state)
{
    struct ends_setting *s = calloc(1, sizeof *s);
    struct hd_text json = {0};

    if (!s)
        return -1;
    harness_setup(&s->h, 640);
    s->job = harness_job(&s->h, "llama", 1);
    letters_write(LETTERS_THREE, "null", NULL, &json);
    put(s, "tokenizer.json", json.data);
    hd_text_free(&json);
    s->job.tokenizer = job_text("%s/tokenizer.json", s->h.dir);
    s->job.train = &s->file;
    s->job.train_count = 1;
    s->job.val_split = 0;
    s->job.context = 4;
    s->job.vocab = 300;
    s->job.end_of_text = -2; /* auto */
    s->job.documents = HD_JOB_DOCUMENTS_BOUNDED;
    put_text(s, "a.jsonl", "{\"text\":\"abcd\"}\n{\"text\":\"efgh\"}\n");
    *state = s;
    return 0;
}

static int tear_down(void **state)
{
    struct ends_setting *s = *state;

    harness_teardown(&s->h);
    free(s);
    return 0;
}

static enum hd_status fill(const struct hd_job *job, struct hd_arena *arena,
                           struct hd_token_cache *ret_cache)
{
    struct hd_job_tokenizer tokenizer = {.opened = NULL};
    const enum hd_status st = hd_token_cache_fill(
        job, &tokenizer, &(struct hd_token_cache_watch){.world = 1}, arena, ret_cache);

    hd_job_tokenizer_close(&tokenizer);
    return st;
}

/* All tokens of the job's training data, as text. */
static void read_tokens(const struct hd_job *job, struct hd_text *ret_text)
{
    struct hd_token_cache cache;
    struct hd_job_data data;
    struct hd_arena arena;
    int32_t ids[64];
    int64_t count;

    hd_arena_init(&arena, 0);
    if (fill(job, &arena, &cache) || hd_job_data_open(job, NULL, &cache, &arena, &data))
        fail_msg("%s", hd_err_message());
    count = hd_corpus_token_count(data.train_corpus);
    assert_in_range(count, 1, 64);
    assert_int_equal(hd_corpus_read(data.train_corpus, 0, count, ids), HD_OK);
    hd_text_clear(ret_text);
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 256)
            hd_text_add(ret_text, "%c", (char)ids[i]);
        else
            hd_text_add(ret_text, "[%d]", (int)ids[i]);
    hd_job_data_close(&data);
    hd_arena_done(&arena);
}

/* Goal: documents end with the token that the files name, whatever it is called; the job's own key
 * wins. Method: each file alone; ids as in letters.h, 259 is the next free one. */
static void documents_end_with_the_token_that_the_files_name(void **state)
{
    static const struct {
        const char *name, *text; /* of a file beside the tokenizer; NULL: none */
        int64_t key;             /* data.end_of_text; -2: auto */
        const char *tokens;
    } cases[] = {
        {"tokenizer_config.json", "{\"eos_token\":\"<|im_end|>\"}", -2, "abcd[258]efgh[258]"},
        {"tokenizer_config.json", "{\"eos_token\":\"<|eos|>\"}", -2, "abcd[259]efgh[259]"},
        {"special_tokens_map.json", "{\"eos_token\":{\"content\":\"<|im_start|>\"}}", -2,
         "abcd[257]efgh[257]"},
        {"config.json", "{\"model_type\":\"gpt2\"}", -2, "abcd[256]efgh[256]"},
        {"tokenizer_config.json", "{\"eos_token\":\"<|im_end|>\"}", 257, "abcd[257]efgh[257]"},
        {"tokenizer_config.json", "{\"eos_token\":\"<|im_end|>\"}", -1, "abcdefgh"},
        {NULL, NULL, -2, "abcdefgh"}, /* of three tokens that are often called so, none */
    };
    struct ends_setting *s = *state;
    struct hd_text have = {0};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_text path = {0};

        if (cases[i].name) {
            put(s, cases[i].name, cases[i].text);
            hd_file_join(&path, s->h.dir, cases[i].name);
        }
        s->job.end_of_text = cases[i].key;
        read_tokens(&s->job, &have);
        assert_string_equal(have.data, cases[i].tokens);
        if (path.data)
            (void)remove(path.data);
        hd_text_free(&path);
    }
    hd_text_free(&have);
}

/* The case above for the token in the folder of model.from, where the tokenizer's own folder says
 * nothing. */
static void the_model_says_the_end_where_the_tokenizer_does_not(void **state)
{
    struct ends_setting *s = *state;
    struct hd_text have = {0}, dir = {0};

    hd_text_add(&dir, "%s/model", s->h.dir);
    assert_int_equal(hd_file_make_dirs(dir.data, 0700), HD_OK);
    s->job.from_dir = job_text("%s", dir.data);
    put(s, "model/config.json", "{\"eos_token_id\":257}");
    read_tokens(&s->job, &have);
    assert_string_equal(have.data, "abcd[257]efgh[257]");
    put(s, "model/generation_config.json", "{\"eos_token_id\":[258,256]}");
    read_tokens(&s->job, &have);
    assert_string_equal(have.data, "abcd[258]efgh[258]");
    hd_text_free(&have);
    hd_text_free(&dir);
}

/* Goal: a completion ends with the token at which generation will stop. */
static void a_completion_ends_with_the_same_token(void **state)
{
    struct ends_setting *s = *state;
    struct hd_text have = {0};

    s->job.data_format = HD_JOB_DATA_FORMAT_PROMPT_COMPLETION;
    s->job.data_loss = HD_JOB_DATA_LOSS_ANSWERS;
    s->job.too_long = HD_JOB_TOO_LONG_DROP;
    put_text(s, "c.jsonl", "{\"prompt\":\"a\",\"completion\":\"b\"}\n");
    put(s, "tokenizer_config.json", "{\"eos_token\":\"<|eos|>\"}");
    read_tokens(&s->job, &have);
    assert_string_equal(have.data, "ab[259]");
    hd_text_free(&have);
}

/* Goal: no job trains without an end of documents unless that was said. */
static void an_end_that_no_file_names_is_noted_with_the_key_to_set(void **state)
{
    struct ends_setting *s = *state;
    struct hd_job_tokenizer tokenizer = {.opened = NULL};
    struct hd_text notes = {0};

    assert_int_equal(hd_job_tokenizer_notes(&tokenizer, &s->job, &notes), HD_OK);
    assert_non_null(strstr(notes.data, "data.end_of_text"));
    assert_non_null(strstr(notes.data, "<|im_end|> 258")); /* what could be meant */
    hd_text_clear(&notes);
    s->job.end_of_text = -1; /* none, and said */
    assert_int_equal(hd_job_tokenizer_notes(&tokenizer, &s->job, &notes), HD_OK);
    assert_int_equal(notes.len_bytes, 0);
    hd_text_free(&notes);
    hd_job_tokenizer_close(&tokenizer);
}

/* Goal: a tokenizer may have more tokens than a model that exists has rows; a text that has one of
 * them is refused with the token's name. Method: a model of 258 rows, for which 258, <|im_end|>, is
 * too many. */
static void tokens_without_a_row_matter_only_where_a_text_has_them(void **state)
{
    struct ends_setting *s = *state;
    struct hd_job_tokenizer tokenizer = {.opened = NULL};
    const struct hd_tokenizer *opened;
    struct hd_token_cache cache;
    struct hd_arena arena;
    struct hd_text text = {0};
    int64_t id;

    hd_arena_init(&arena, 0);
    s->job.vocab = END;
    assert_int_equal(hd_job_tokenizer_need(&tokenizer, &s->job, &opened), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "model.vocab: 258 is less than the 259 tokens"));
    s->job.from_dir = job_text("%s", s->h.dir);
    assert_int_equal(hd_job_tokenizer_need(&tokenizer, &s->job, &opened), HD_OK);
    assert_int_equal(hd_job_tokenizer_notes(&tokenizer, &s->job, &text), HD_OK);
    assert_non_null(strstr(text.data, "rows for 258 tokens"));
    read_tokens(&s->job, &text);
    assert_string_equal(text.data, "abcdefgh");

    put_text(s, "b.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"c<|im_end|>d\"}\n");
    assert_int_equal(fill(&s->job, &arena, &cache), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "b.jsonl:2: '<|im_end|>' is token 258"));
    put_text(s, "b.txt", "c<|im_end|>d");
    assert_int_equal(fill(&s->job, &arena, &cache), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "b.txt: '<|im_end|>' is token 258"));

    hd_job_tokenizer_close(&tokenizer);
    put(s, "tokenizer_config.json", "{\"eos_token\":\"<|im_end|>\"}");
    assert_int_equal(hd_job_tokenizer_end_of_text(&tokenizer, &s->job, &id), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "tokenizer_config.json, which is token 258"));
    hd_job_tokenizer_close(&tokenizer);
    hd_text_free(&text);
    hd_arena_done(&arena);
}

/* Goal: all attempts of a job have the same end, or none. Method: the file changes between the
 * submission and an attempt; a template beside it may change; identities of older jobs, which hash
 * the tokenizer alone, hold. */
static void an_end_that_has_changed_since_the_submission_is_refused(void **state)
{
    struct ends_setting *s = *state;
    const struct hd_text_origin origin = {.tokenizer = s->job.tokenizer,
                                          .folder = s->h.dir,
                                          .model_dir = "",
                                          .format = "text",
                                          .loss = "answers"};
    struct hd_token_cache cache;
    struct hd_arena arena;
    struct hd_text json = {0};
    char identity[HD_TEXT_IDENTITY_MAX];
    uint64_t hash = 0;

    hd_arena_init(&arena, 0);
    put(s, "tokenizer_config.json", "{\"eos_token\":\"<|im_end|>\"}");
    assert_int_equal(hd_text_identity(&origin, &hash), HD_OK);
    hd_text_identity_format(hash, identity);
    s->job.text_identity = identity;
    assert_int_equal(fill(&s->job, &arena, &cache), HD_OK);
    put(s, "tokenizer_config.json", "{\"eos_token\":\"<|im_end|>\",\"chat_template\":\"x\"}");
    assert_int_equal(fill(&s->job, &arena, &cache), HD_OK);
    put(s, "tokenizer_config.json", "{\"eos_token\":\"<|im_start|>\"}");
    assert_int_equal(fill(&s->job, &arena, &cache), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "has changed since the job was submitted"));

    assert_int_equal(hd_file_read(s->job.tokenizer, 1 << 20, &json), HD_OK);
    {
        struct hd_hash old;

        hd_hash_begin(&old); /* as builds before job version 12 did: size, bytes, NUL */
        hd_hash_add(&old, &json.len_bytes, sizeof json.len_bytes);
        hd_hash_add(&old, json.data, json.len_bytes);
        hd_hash_add(&old, "", 1);
        hd_hash_format(hd_hash_value(&old), identity);
    }
    assert_int_equal(fill(&s->job, &arena, &cache), HD_OK);
    hd_text_free(&json);
    hd_arena_done(&arena);
}

RUN_EACH_CASE_WITH(set_up, tear_down)
