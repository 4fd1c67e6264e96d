/* packing: whole conversations in windows, and the samples that they make. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/random.h"
#include "data/packing.h"
#include "data/token_writer.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

static char dir[TEMPORARY_BYTES];

static int make_dir(void **state)
{
    temporary_dir(dir, "packing_test");
    return 0;
}

static int remove_dir(void **state)
{
    return hd_file_remove_tree(dir) ? -1 : 0;
}

/* One text per conversation: a letter is a token, and an upper-case one counts. */
static void write_conversations(const char *const *texts, int64_t count)
{
    struct hd_token_writer *w;
    char out[128];

    (void)snprintf(out, sizeof out, "%s/c", dir);
    assert_int_equal(hd_token_writer_open(out, HD_TOKEN_FORMAT_COUNTS, 2, &w), HD_OK);
    for (int64_t i = 0; i < count; i++) {
        const size_t n = strlen(texts[i]);
        int32_t ids[256];
        char counts[256];

        for (size_t t = 0; t < n; t++) {
            ids[t] = texts[i][t];
            counts[t] = texts[i][t] >= 'A' && texts[i][t] <= 'Z';
        }
        assert_int_equal(hd_token_writer_add_document(w, ids, counts, (int64_t)n), HD_OK);
    }
    assert_int_equal(hd_token_writer_finish(w), HD_OK);
}

static struct hd_data_range open_conversations(const char *source)
{
    struct hd_corpus *corpus;
    bool conversations;
    char path[128];

    (void)snprintf(path, sizeof path, "%s/c.bin", dir);
    assert_int_equal(
        hd_corpus_open(&(struct hd_corpus_file){.path = path, .size_bytes = -1, .source = source},
                       1, &corpus),
        HD_OK);
    hd_corpus_set_bounds(corpus, -1);
    assert_int_equal(hd_data_range_form(hd_corpus_all(corpus), &conversations), HD_OK);
    assert_true(conversations);
    return hd_corpus_all(corpus);
}

static void close_range(struct hd_data_range range)
{
    hd_corpus_close((struct hd_corpus *)(uintptr_t)range.corpus);
}

/* ---- lengths as people write ---- */

enum { MANY = 20000, CONTEXT = 2048 };

/* Lengths of a log-normal distribution of median 300 and sigma 0.9, cut at the context, as of
 * conversations that people publish: a few fill half a window, most are short. */
static void write_many(void)
{
    static const int32_t ids[CONTEXT];
    static char counts[CONTEXT];
    struct hd_token_writer *w;
    char out[128];

    memset(counts, 1, sizeof counts);
    (void)snprintf(out, sizeof out, "%s/c", dir);
    assert_int_equal(hd_token_writer_open(out, HD_TOKEN_FORMAT_COUNTS, 2, &w), HD_OK);
    for (int i = 0; i < MANY; i++) {
        const double n = 300 * exp(0.9 * (double)hd_random_normal(7, (uint64_t)i));
        const int64_t count = n < 8 ? 8 : n > CONTEXT ? CONTEXT : (int64_t)n;

        assert_int_equal(hd_token_writer_add_document(w, ids, counts, count), HD_OK);
    }
    assert_int_equal(hd_token_writer_finish(w), HD_OK);
}

static uint64_t hash_of(const struct hd_packing *p)
{
    uint64_t hash = 0;

    for (int64_t w = 0; w < hd_packing_get_facts(p)->windows; w++) {
        const struct hd_packed *packed;

        for (int64_t n = hd_packing_window(p, w, &packed); n > 0; n--)
            hash = hd_random_key(hash, (uint64_t)(packed++->first * 64 + w % 64));
    }
    return hash;
}

/* Every conversation is in one window, whole, and no window is longer than the context. */
static void check_whole(const struct hd_packing *p)
{
    bool *seen = calloc(MANY * CONTEXT, 1);
    int64_t conversations = 0;

    for (int64_t w = 0; w < hd_packing_get_facts(p)->windows; w++) {
        const struct hd_packed *packed;
        int64_t rows = 0;

        for (int64_t n = hd_packing_window(p, w, &packed); n > 0; n--, packed++) {
            assert_false(seen[packed->first]);
            seen[packed->first] = true;
            conversations++;
            rows += packed->count;
        }
        assert_true(rows > 0 && rows <= CONTEXT);
    }
    assert_int_equal(conversations, MANY);
    free(seen);
}

static void windows_are_full_and_a_function_of_the_seed(void **state)
{
    struct hd_packing *a, *same, *other;
    const struct hd_packing_facts *f;
    struct hd_data_range range;

    write_many();
    range = open_conversations(NULL);
    assert_int_equal(hd_packing_new(range, CONTEXT, HD_TOO_LONG_ERROR, 1, &a), HD_OK);
    assert_int_equal(hd_packing_new(range, CONTEXT, HD_TOO_LONG_ERROR, 1, &same), HD_OK);
    assert_int_equal(hd_packing_new(range, CONTEXT, HD_TOO_LONG_ERROR, 2, &other), HD_OK);
    f = hd_packing_get_facts(a);
    assert_int_equal(f->tokens, range.count);
    assert_int_equal(f->targets, range.count - MANY); /* all but the first token of each */
    assert_true((double)f->tokens >= 0.97 * (double)(f->windows * CONTEXT));
    check_whole(a);
    assert_true(hash_of(a) == hash_of(same));
    assert_true(hash_of(a) != hash_of(other));
    hd_packing_free(a);
    hd_packing_free(same);
    hd_packing_free(other);
    close_range(range);
}

/* ---- conversations that are too long ---- */

static const char *const LONG[] = {"abCD", "abCDefGHIJ", "abcdefghIJ", "ABCDEFGHIJ"};

static void a_conversation_that_is_too_long_is_an_error_with_its_line(void **state)
{
    static const struct {
        const char *name, *text, *place;
    } files[] = {{"chat.jsonl", "{}\n\n{}\n{}\n{}\n", ":3"}, /* the second line is blank */
                 {"chat.csv", "a\n1\n2\n3\n4\n", ": row 2"}};
    struct hd_packing *p;
    struct hd_data_range range;
    char path[128], want[256];

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, files[i].name);
        assert_int_equal(hd_file_write_atomic(path, files[i].text, strlen(files[i].text), 0600),
                         HD_OK);
        write_conversations(LONG, 4);
        range = open_conversations(path);
        assert_int_equal(hd_packing_new(range, 9, HD_TOO_LONG_ERROR, 1, &p), HD_INVALID);
        (void)snprintf(want, sizeof want,
                       "3 conversations are longer than model.context = 9 tokens; the first is "
                       "%s%s, with 10 tokens, the longest has 10",
                       path, files[i].place);
        if (!hd_text_starts(hd_err_message(), want))
            fail_msg("'%s' does not begin '%s'", hd_err_message(), want);
        close_range(range);
    }
}

static void what_is_too_long_is_dropped_or_cut_behind_an_answer(void **state)
{
    const struct hd_packed *packed;
    struct hd_packing *p;
    struct hd_data_range range;

    write_conversations(LONG, 4);
    range = open_conversations(NULL);
    assert_int_equal(hd_packing_new(range, 9, HD_TOO_LONG_DROP, 1, &p), HD_OK);
    assert_int_equal(hd_packing_get_facts(p)->dropped, 3);
    assert_int_equal(hd_packing_get_facts(p)->conversations, 1);
    hd_packing_free(p);
    assert_int_equal(hd_packing_new(range, 9, HD_TOO_LONG_CUT, 1, &p), HD_OK);
    /* the second ends behind CD, its fourth token: GHIJ would lose its end. The third has no answer
     * that fits. Of the fourth all tokens count: 9 are kept. The first one's 4 and the second's 4
     * share a window. */
    assert_int_equal(hd_packing_get_facts(p)->cut, 2);
    assert_int_equal(hd_packing_get_facts(p)->dropped, 1);
    assert_int_equal(hd_packing_get_facts(p)->windows, 2);
    assert_int_equal(hd_packing_window(p, 0, &packed), 2);
    assert_int_equal(packed[0].count, 4);
    assert_int_equal(packed[1].count, 4);
    assert_int_equal(packed[1].first, 4);
    assert_int_equal(hd_packing_window(p, 1, &packed), 1);
    assert_int_equal(packed[0].count, 9);
    hd_packing_free(p);
    close_range(range);
}

static void without_a_conversation_there_is_an_error(void **state)
{
    static const char *const silent[] = {"abcd", "Abcd"}; /* nothing predicts a first token */
    struct hd_packing *p;
    struct hd_data_range range;

    write_conversations(silent, 2);
    range = open_conversations(NULL);
    assert_int_equal(hd_packing_new(range, 9, HD_TOO_LONG_DROP, 1, &p), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "2 have no token that counts"));
    close_range(range);
}

/* ---- samples ---- */

static void a_sample_has_its_conversations_beside_each_other_and_blind(void **state)
{
    /* 5 + 3 tokens in a window of 10: two rows of padding */
    static const char *const texts[] = {"abCDe", "xYZ"};
    enum { S = 10, X = HD_DATA_TARGET_NONE };
    static const int32_t tokens[S] = {'a', 'b', 'C', 'D', 'e', 'x', 'Y', 'Z', 0, 0};
    static const int32_t targets[S] = {X, 'C', 'D', X, X, 'Y', 'Z', X, X, X};
    static const int32_t positions[S] = {0, 1, 2, 3, 4, 0, 1, 2, 0, 1};
    static const int32_t bounds[S] = {0, 0, 0, 0, 0, 5, 5, 5, 8, 8};
    static const int32_t lengths[S] = {5, 5, 5, 5, 5, 3, 3, 3, 0, 0}; /* of routers */
    int32_t got[6][S];
    const struct hd_data_batch batch = {.tokens = got[0],
                                        .targets = got[1],
                                        .positions = got[2],
                                        .bounds = got[3],
                                        .begins = got[4],
                                        .lengths = got[5]};
    struct hd_packing *p;
    struct hd_data_range range;
    struct hd_sampler sampler;
    struct hd_validation validation;

    write_conversations(texts, 2);
    range = open_conversations(NULL);
    assert_int_equal(hd_packing_new(range, S, HD_TOO_LONG_ERROR, 1, &p), HD_OK);
    assert_int_equal(hd_packing_get_facts(p)->targets, 4);
    assert_int_equal(hd_sampler_init_mixture(&sampler, &range, &p, (const double[]){1}, 1, S, 1,
                                             HD_DATA_SHUFFLED, 1),
                     HD_OK);
    assert_int_equal(sampler.window_count, 1);
    assert_int_equal(hd_sampler_fill(&sampler, 0, 0, 1, &batch), HD_OK);
    assert_memory_equal(got[0], tokens, sizeof tokens);
    assert_memory_equal(got[1], targets, sizeof targets);
    assert_memory_equal(got[2], positions, sizeof positions);
    assert_memory_equal(got[3], bounds, sizeof bounds);
    assert_memory_equal(got[4], bounds, sizeof bounds);
    assert_memory_equal(got[5], lengths, sizeof lengths);
    memset(got, 0x55, sizeof got);
    assert_int_equal(hd_validation_init_packed(&validation, range, p, 0), HD_OK);
    assert_int_equal(hd_validation_fill(&validation, 0, 1, &batch), HD_OK);
    assert_memory_equal(got[1], targets, sizeof targets);
    hd_packing_free(p);
    close_range(range);
}

/* Goal: what a step is said to hold is what it holds. Method: conversations of 1 to 1,400 tokens,
 * so that pieces in which they are counted end in the middle, against the rows of the batches. */
static void tokens_and_targets_of_a_step_are_those_of_its_rows(void **state)
{
    enum { S = 1500, CONVERSATIONS = 40, BATCH = 3 };
    static int32_t ids[S], targets[BATCH * S], tokens[BATCH * S], lengths[BATCH * S];
    static int32_t bounds[BATCH * S], further[BATCH * S];
    static char counts[S];
    struct hd_token_writer *w;
    struct hd_data_range range;
    struct hd_sampler sampler;
    struct hd_packing *p;
    char out[128];

    (void)snprintf(out, sizeof out, "%s/c", dir);
    assert_int_equal(hd_token_writer_open(out, HD_TOKEN_FORMAT_COUNTS, 4, &w), HD_OK);
    for (uint64_t d = 0; d < CONVERSATIONS; d++) {
        const int64_t n = 2 + (int64_t)(hd_random_u64(3, d) % 1400);

        for (int64_t i = 0; i < n; i++) {
            ids[i] = (int32_t)i;
            counts[i] = i == 1 || (hd_random_u64(d, (uint64_t)i) & 3) == 0;
        }
        assert_int_equal(hd_token_writer_add_document(w, ids, counts, n), HD_OK);
    }
    assert_int_equal(hd_token_writer_finish(w), HD_OK);
    range = open_conversations(NULL);
    assert_int_equal(hd_packing_new(range, S, HD_TOO_LONG_ERROR, 1, &p), HD_OK);
    assert_int_equal(hd_sampler_init_mixture(&sampler, &range, &p, (const double[]){1}, 1, S, BATCH,
                                             HD_DATA_SHUFFLED, 1),
                     HD_OK);
    assert_false(hd_sampler_fills_windows(&sampler));
    for (int64_t step = 0; step < 12; step++) {
        const struct hd_data_batch batch = {.tokens = tokens,
                                            .targets = targets,
                                            .lengths = lengths,
                                            .bounds = bounds,
                                            .further = {[2] = further}};
        int64_t rows = 0, first = 0, rest = 0, counted = 0, counted_further = 0;

        assert_int_equal(hd_sampler_fill(&sampler, step, 0, BATCH, &batch), HD_OK);
        for (int64_t i = 0; i < BATCH * S; i++) {
            rows += lengths[i] > 0;
            counted += targets[i] >= 0;
            counted_further += further[i] >= 0;
        }
        assert_int_equal(hd_sampler_tokens(&sampler, step, BATCH), rows);
        assert_int_equal(hd_sampler_targets(&sampler, step, 0, 1, 0, &first), HD_OK);
        assert_int_equal(hd_sampler_targets(&sampler, step, 1, BATCH - 1, 0, &rest), HD_OK);
        assert_int_equal(first + rest, counted);
        assert_int_equal(hd_sampler_targets(&sampler, step, 0, BATCH, 3, &first), HD_OK);
        assert_int_equal(first, counted_further);
    }
    hd_packing_free(p);
    close_range(range);
}

static bool counts_at(int64_t token)
{
    return hd_random_u64(11, (uint64_t)token) & 1;
}

/* Goal: which tokens count does not depend on the pieces in which they are read. Method:
 * conversations of lengths around multiples of 512 and 1024, with a short one beside each, and bits
 * by a random number of the token's place: a row's target is the next token if that one counts. */
static void targets_follow_their_bits_through_long_conversations(void **state)
{
    static const int64_t lengths[] = {2,    3,    511,  512,  513,  514,  1023, 1024,
                                      1025, 1026, 1537, 2047, 2048, 2049, 2600};
    enum { SHORT = 7, ROWS = 2600 + SHORT };
    static int32_t ids[ROWS], tokens[ROWS], targets[ROWS];
    static char counts[ROWS];
    const struct hd_data_batch batch = {.tokens = tokens, .targets = targets};

    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        const int64_t n = lengths[l], S = n + SHORT;
        struct hd_token_writer *w;
        struct hd_data_range range;
        struct hd_sampler sampler;
        struct hd_packing *p;
        int64_t expected = 0;
        char out[128];

        for (int64_t i = 0; i < S; i++) {
            ids[i] = (int32_t)i;
            counts[i] = i == 1 || i == n + 1 || counts_at(i); /* each has a target */
            expected += counts[i] && i != 0 && i != n;
        }
        (void)snprintf(out, sizeof out, "%s/c", dir);
        assert_int_equal(hd_token_writer_open(out, HD_TOKEN_FORMAT_COUNTS, 2, &w), HD_OK);
        assert_int_equal(hd_token_writer_add_document(w, ids, counts, n), HD_OK);
        assert_int_equal(hd_token_writer_add_document(w, ids + n, counts + n, SHORT), HD_OK);
        assert_int_equal(hd_token_writer_finish(w), HD_OK);
        range = open_conversations(NULL);
        assert_int_equal(hd_packing_new(range, S, HD_TOO_LONG_ERROR, 1, &p), HD_OK);
        assert_int_equal(hd_packing_get_facts(p)->targets, expected);
        assert_int_equal(hd_packing_get_facts(p)->windows, 1);
        assert_int_equal(hd_sampler_init_mixture(&sampler, &range, &p, (const double[]){1}, 1, S, 1,
                                                 HD_DATA_SHUFFLED, 1),
                         HD_OK);
        assert_int_equal(hd_sampler_fill(&sampler, 0, 0, 1, &batch), HD_OK);
        for (int64_t j = 0; j < S; j++) {
            const int64_t next = tokens[j] + 1; /* an id is the place of its token */
            const bool is_target = next != n && next != S && counts[next];

            if (targets[j] != (is_target ? next : HD_DATA_TARGET_NONE))
                fail_msg("%lld tokens: the target of token %d is %d", (long long)n, (int)tokens[j],
                         (int)targets[j]);
        }
        hd_packing_free(p);
        close_range(range);
    }
}

/* The bits of the index follow the tokens through every place of a byte, and through documents. */
static void the_bits_of_the_index_are_those_written(void **state)
{
    enum { COUNT = 3000 };
    struct hd_token_writer *w;
    struct hd_data_range range;
    bool got[COUNT];
    char out[128];
    int64_t at = 0;

    (void)snprintf(out, sizeof out, "%s/c", dir);
    assert_int_equal(hd_token_writer_open(out, HD_TOKEN_FORMAT_COUNTS, 4, &w), HD_OK);
    while (at < COUNT) {
        int32_t ids[64];
        char counts[64];
        int64_t n = 1 + (int64_t)(hd_random_u64(3, (uint64_t)at) % 60);

        n = n < COUNT - at ? n : COUNT - at;
        for (int64_t i = 0; i < n; i++) {
            ids[i] = (int32_t)(at + i);
            counts[i] = hd_random_u64(5, (uint64_t)(at + i)) & 1;
        }
        assert_int_equal(hd_token_writer_add_document(w, ids, counts, n), HD_OK);
        at += n;
    }
    assert_int_equal(hd_token_writer_finish(w), HD_OK);
    range = open_conversations(NULL);
    for (int64_t first = 0; first < COUNT; first += 97) {
        const int64_t n = COUNT - first < 97 ? COUNT - first : 97;

        hd_corpus_read_counts(range.corpus, first, n, got);
        for (int64_t i = 0; i < n; i++)
            assert_int_equal(got[i], hd_random_u64(5, (uint64_t)(first + i)) & 1);
    }
    close_range(range);
}

/* ---- pairs ---- */

/* Pairs of 3 + 4, 2 + 2 and 5 + 3 tokens in windows of 11: the first two share one. Rows say which
 * answer they belong to, and the reference of the token that they predict. */
static void a_pair_is_in_one_window(void **state)
{
    static const char *const texts[] = {"aBC", "aDEF", "bG", "bH", "cIJKL", "cMN"};
    static const int answers[] = {0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3};
    enum { S = 11, TOKENS = 19 };
    float reference[TOKENS], got[S];
    int32_t tokens[S], answer[S], bounds[S], lengths[S];
    struct hd_validation v;
    struct hd_packing *p;
    struct hd_data_range range, train, val;

    write_conversations(texts, 6);
    range = open_conversations(NULL);
    hd_corpus_set_pairs((struct hd_corpus *)(uintptr_t)range.corpus);
    for (int i = 0; i < TOKENS; i++)
        reference[i] = (float)i;
    hd_corpus_set_reference((struct hd_corpus *)(uintptr_t)range.corpus, reference);
    assert_int_equal(hd_packing_new(range, S, HD_TOO_LONG_ERROR, 1, &p), HD_OK);
    assert_int_equal(hd_packing_get_facts(p)->windows, 2);
    assert_int_equal(hd_packing_get_facts(p)->conversations, 3);
    assert_true(hd_packing_get_facts(p)->pairs);
    assert_int_equal(hd_packing_get_facts(p)->targets, 2 + 3 + 1 + 1 + 4 + 2);
    assert_int_equal(hd_validation_init_packed(&v, range, p, 0), HD_OK);
    assert_int_equal(hd_validation_fill(&v, 0, 1,
                                        &(struct hd_data_batch){.tokens = tokens,
                                                                .bounds = bounds,
                                                                .lengths = lengths,
                                                                .answers = answer,
                                                                .reference = got}),
                     HD_OK);
    for (int j = 0; j < S; j++) {
        assert_int_equal(answer[j], answers[j]);
        /* the last row of a document predicts nothing */
        assert_true(got[j] == (j + 1 < S && answers[j + 1] == answers[j] ? (float)(j + 1) : 0));
    }
    assert_int_equal(bounds[6], 3); /* of the rejected answer, which begins in row 3 */
    assert_int_equal(lengths[6], 4);
    hd_packing_free(p);

    /* a boundary in the middle of the last pair, at 0.8 of 19, goes behind it: nothing is left */
    assert_int_equal(hd_corpus_split(range.corpus, 0.2, S, &train, &val), HD_INVALID);
    /* at 0.5, behind the chosen answer of the second pair (9 of 19): the pair is for training */
    assert_int_equal(hd_corpus_split(range.corpus, 0.5, S, &train, &val), HD_OK);
    assert_int_equal(train.count, 3 + 4 + 2 + 2);
    close_range(range);
}

static void a_pair_that_is_too_long_is_not_cut(void **state)
{
    static const char *const texts[] = {"aBC", "aDEF", "cIJKL", "cMN"};
    struct hd_data_range range;
    struct hd_packing *p;

    write_conversations(texts, 4);
    range = open_conversations(NULL);
    hd_corpus_set_pairs((struct hd_corpus *)(uintptr_t)range.corpus);
    assert_int_equal(hd_packing_new(range, 7, HD_TOO_LONG_ERROR, 1, &p), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "1 pair is longer than model.context = 7"));
    assert_int_equal(hd_packing_new(range, 7, HD_TOO_LONG_CUT, 1, &p), HD_OK);
    assert_int_equal(hd_packing_get_facts(p)->conversations, 1);
    assert_int_equal(hd_packing_get_facts(p)->dropped, 1);
    hd_packing_free(p);
    close_range(range);
}

RUN_CASES_BETWEEN(make_dir, remove_dir)
