/* data: which bytes a sample gets, whoever computes it, and what a bigram model makes of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/random.h"
#include "data/data.h"
#include "data/fingerprint.h"
#include "tests/program/test.h"
#include "tokenizer/tokenizer.h"

enum { FILES_MAX = 8, PATH_BYTES = 64 };

struct fixture {
    char *dir;
    char paths[FILES_MAX][PATH_BYTES + 8];
    struct hd_corpus_file files[FILES_MAX];
    size_t count;
    struct hd_corpus *corpus;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    if (!f)
        return -1;
    f->dir = strdup("/tmp/heddle-data-XXXXXX");
    *state = f;
    return f->dir && mkdtemp(f->dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    hd_corpus_close(f->corpus);
    (void)hd_file_remove_tree(f->dir);
    free(f->dir);
    free(f);
    return 0;
}

static void add_file(struct fixture *f, const void *bytes, size_t size_bytes)
{
    (void)snprintf(f->paths[f->count], sizeof f->paths[0], "%s/%zu", f->dir, f->count);
    assert_int_equal(hd_file_write_atomic(f->paths[f->count], bytes, size_bytes, 0600), HD_OK);
    f->files[f->count] =
        (struct hd_corpus_file){.path = f->paths[f->count], .size_bytes = (int64_t)size_bytes};
    f->count++;
}

static void open_corpus(struct fixture *f)
{
    assert_int_equal(hd_corpus_open(f->files, f->count, &f->corpus), HD_OK);
}

/* `size` bytes in which the byte at i is i modulo 251: windows of any even size differ. */
static void open_counting(struct fixture *f, size_t size)
{
    unsigned char *bytes = malloc(size);

    assert_non_null(bytes);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (unsigned char)(i % 251);
    add_file(f, bytes, size);
    free(bytes);
    open_corpus(f);
}

/* ---- corpus ---- */

static void files_read_as_one_sequence_in_the_given_order(void **state)
{
    struct fixture *f = *state;
    int32_t tokens[10];

    add_file(f, "abc", 3);
    add_file(f, "", 0);
    add_file(f, "\xff", 1);
    add_file(f, "\0efghi", 6);
    open_corpus(f);
    assert_int_equal(hd_corpus_token_count(f->corpus), 10);
    for (int64_t first = 0; first < 10; first++)
        for (int64_t count = 1; count <= 10 - first; count++) {
            assert_int_equal(hd_corpus_read(f->corpus, first, count, tokens), HD_OK);
            for (int64_t i = 0; i < count; i++)
                assert_int_equal(tokens[i], (unsigned char)"abc\xff\0efghi"[first + i]);
        }
}

static void a_missing_or_changed_file_is_named(void **state)
{
    struct fixture *f = *state;
    struct hd_corpus *corpus = NULL;

    add_file(f, "abc", 3);
    add_file(f, "def", 3);
    f->files[1].size_bytes = 4;
    assert_int_equal(hd_corpus_open(f->files, 2, &corpus), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), f->paths[1]));
    assert_non_null(strstr(hd_err_message(), "has 3 bytes now, but had 4"));
    f->files[1].size_bytes = -1; /* not recorded: any size will do */
    assert_int_equal(hd_corpus_open(f->files, 2, &corpus), HD_OK);
    hd_corpus_close(corpus);

    assert_int_equal(unlink(f->paths[0]), 0);
    assert_int_equal(hd_corpus_open(f->files, 2, &corpus), HD_NOT_FOUND);
    assert_non_null(strstr(hd_err_message(), f->paths[0]));
    f->files[0] = (struct hd_corpus_file){.path = f->dir, .size_bytes = -1};
    assert_int_equal(hd_corpus_open(f->files, 2, &corpus), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "is a folder, not a file"));
    assert_int_equal(hd_corpus_open(f->files, 0, &corpus), HD_INVALID);
}

/* Goal: a file that was replaced by one of its size is refused, however large it is. Method: with 3
 * places of 4096 bytes, a file of 20000 bytes is looked at from 0, (20000 - 4096) / 2 = 7952 and
 * 15904; one of 12288 = 3 * 4096 bytes everywhere. */
static void a_file_replaced_by_one_of_its_size_is_refused(void **state)
{
    static const struct {
        size_t size_bytes, changed;
        bool seen;
    } cases[] = {{20000, 0, true},     {20000, 4095, true},  {20000, 4096, false},
                 {20000, 7951, false}, {20000, 7952, true},  {20000, 15903, false},
                 {20000, 15904, true}, {20000, 19999, true}, {12288, 4096, true},
                 {12288, 12287, true}, {5000, 4999, true},   {1, 0, true}};
    static const unsigned char zeros[20000];
    struct fixture *f = *state;
    struct hd_corpus *corpus;
    char text[HD_FINGERPRINT_TEXT_MAX];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unsigned char bytes[sizeof zeros] = {0};
        enum hd_status st;

        f->count = 0;
        add_file(f, zeros, cases[i].size_bytes);
        assert_int_equal(hd_fingerprint(f->paths[0], 3, text), HD_OK);
        f->files[0].fingerprint = text;
        assert_int_equal(hd_corpus_open(f->files, 1, &corpus), HD_OK);
        hd_corpus_close(corpus);
        bytes[cases[i].changed] = 1;
        assert_int_equal(hd_file_write_atomic(f->paths[0], bytes, cases[i].size_bytes, 0600),
                         HD_OK);
        st = hd_corpus_open(f->files, 1, &corpus);
        if (st != (cases[i].seen ? HD_INVALID : HD_OK))
            fail_msg("case %zu: status %d", i, (int)st);
        if (!st)
            hd_corpus_close(corpus);
    }
    assert_int_equal(hd_corpus_open(f->files, 1, &corpus), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), f->paths[0]));
    assert_non_null(strstr(hd_err_message(), "restore it, or submit the job again"));
}

static void a_named_pipe_is_refused_without_waiting(void **state)
{
    struct fixture *f = *state;
    struct hd_corpus *corpus = NULL;

    (void)snprintf(f->paths[0], sizeof f->paths[0], "%s/pipe", f->dir);
    assert_int_equal(mkfifo(f->paths[0], 0600), 0);
    f->files[0] = (struct hd_corpus_file){.path = f->paths[0], .size_bytes = -1};
    assert_int_equal(hd_corpus_open(f->files, 1, &corpus), HD_INVALID);
}

static void a_change_after_opening_is_noticed(void **state)
{
    struct fixture *f = *state;

    add_file(f, "abc", 3);
    open_corpus(f);
    assert_int_equal(hd_corpus_check(f->corpus), HD_OK);
    assert_int_equal(hd_file_write_atomic(f->paths[0], "abd", 3, 0600), HD_OK);
    assert_int_equal(hd_corpus_check(f->corpus), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), f->paths[0]));
    assert_int_equal(unlink(f->paths[0]), 0);
    assert_int_equal(hd_corpus_check(f->corpus), HD_NOT_FOUND);
}

/* ---- sampler ---- */

static void targets_are_the_tokens_one_place_later(void **state)
{
    struct fixture *f = *state;
    int32_t tokens[3 * 4], targets[3 * 4], positions[3 * 4];
    int64_t ids[3];
    struct hd_sampler s;

    add_file(f, "abcdefg", 7); /* across two files: "abcdefg" + "hijklmn" */
    add_file(f, "hijklmn", 7);
    open_corpus(f);
    assert_int_equal(hd_sampler_init(&s, hd_corpus_all(f->corpus), 4, 3, HD_DATA_SEQUENTIAL, 1),
                     HD_OK);
    assert_int_equal(s.window_count, 3); /* 13 targets / 4 */
    assert_int_equal(hd_sampler_fill(&s, 5, 0, 3,
                                     &(struct hd_data_batch){.tokens = tokens,
                                                             .targets = targets,
                                                             .positions = positions,
                                                             .sample_ids = ids}),
                     HD_OK);
    for (int i = 0; i < 12; i++) {
        assert_int_equal(tokens[i], 'a' + i);
        assert_int_equal(targets[i], 'a' + i + 1);
        assert_int_equal(positions[i], i % 4);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(ids[i], 5 * 3 + i);
}

static void every_window_comes_once_per_epoch(void **state)
{
    enum { WINDOWS = 37, EPOCHS = 3 };
    struct fixture *f = *state;
    int order[EPOCHS][WINDOWS], same = 0;
    struct hd_sampler s;

    open_counting(f, WINDOWS * 8 + 1 + 5); /* the tail of 5 is dropped */
    assert_int_equal(hd_sampler_init(&s, hd_corpus_all(f->corpus), 8, 4, HD_DATA_SHUFFLED, 9),
                     HD_OK);
    assert_int_equal(s.window_count, WINDOWS);
    for (int e = 0; e < EPOCHS; e++) {
        int seen[WINDOWS] = {0};

        for (int i = 0; i < WINDOWS; i++) {
            order[e][i] = (int)hd_sampler_window(&s, e * WINDOWS + i, NULL);
            assert_in_range(order[e][i], 0, WINDOWS - 1);
            assert_int_equal(seen[order[e][i]]++, 0);
        }
    }
    /* Two independent orders of n agree in 1 place on average; 10 or more has odds below 1e-6. */
    for (int i = 0; i < WINDOWS; i++)
        same += order[0][i] == order[1][i];
    assert_true(same < 10);
    same = 0;
    for (int i = 0; i < WINDOWS; i++)
        same += order[0][i] == i;
    assert_true(same < 10);
}

static void another_seed_gives_another_order(void **state)
{
    struct fixture *f = *state;
    struct hd_sampler a, b;
    int same = 0;

    open_counting(f, 50 * 4 + 1);
    assert_int_equal(hd_sampler_init(&a, hd_corpus_all(f->corpus), 4, 2, HD_DATA_SHUFFLED, 1),
                     HD_OK);
    assert_int_equal(hd_sampler_init(&b, hd_corpus_all(f->corpus), 4, 2, HD_DATA_SHUFFLED, 2),
                     HD_OK);
    for (int i = 0; i < 50; i++)
        same += hd_sampler_window(&a, i, NULL) == hd_sampler_window(&b, i, NULL);
    assert_true(same < 10);
}

/* Goal: neither the split over ranks nor a restart changes a sample. Method: 6 steps by one rank
 * into one buffer; then the same steps by 1, 2, 3, 4, 6 and 12 ranks in micro-batches, from a fresh
 * sampler for every step, as after a resume. */
static void any_split_and_any_restart_give_the_same_samples(void **state)
{
    enum { STEPS = 6, BATCH = 12, S = 16 };
    static const int rank_counts[] = {1, 2, 3, 4, 6, 12};
    struct fixture *f = *state;
    static int32_t whole[STEPS][BATCH][S], target[STEPS][BATCH][S];
    int32_t tokens[S], targets[S];
    struct hd_sampler s;
    int64_t id;

    open_counting(f, 29 * S + 1); /* 29 windows, 72 samples: two and a half epochs */
    assert_int_equal(hd_sampler_init(&s, hd_corpus_all(f->corpus), S, BATCH, HD_DATA_SHUFFLED, 3),
                     HD_OK);
    for (int step = 0; step < STEPS; step++)
        assert_int_equal(hd_sampler_fill(&s, step, 0, BATCH,
                                         &(struct hd_data_batch){.tokens = whole[step][0],
                                                                 .targets = target[step][0]}),
                         HD_OK);

    for (size_t r = 0; r < sizeof rank_counts / sizeof rank_counts[0]; r++)
        for (int step = STEPS - 1; step >= 0; step--) {
            const int per_rank = BATCH / rank_counts[r];

            memset(&s, 0, sizeof s);
            assert_int_equal(
                hd_sampler_init(&s, hd_corpus_all(f->corpus), S, BATCH, HD_DATA_SHUFFLED, 3),
                HD_OK);
            for (int rank = rank_counts[r] - 1; rank >= 0; rank--)
                for (int i = 0; i < per_rank; i++) {
                    const int at = rank * per_rank + i;

                    assert_int_equal(hd_sampler_fill(&s, step, at, 1,
                                                     &(struct hd_data_batch){.tokens = tokens,
                                                                             .targets = targets,
                                                                             .sample_ids = &id}),
                                     HD_OK);
                    assert_memory_equal(tokens, whole[step][at], sizeof tokens);
                    assert_memory_equal(targets, target[step][at], sizeof targets);
                    assert_int_equal(id, step * BATCH + at);
                }
        }
}

static void too_little_text_says_how_much_is_needed(void **state)
{
    struct fixture *f = *state;
    struct hd_validation v;
    struct hd_sampler s;

    open_counting(f, 256);
    assert_int_equal(hd_sampler_init(&s, hd_corpus_all(f->corpus), 256, 1, HD_DATA_SHUFFLED, 1),
                     HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "training data has 256 tokens"));
    assert_non_null(strstr(hd_err_message(), "at least 257"));
    assert_int_equal(hd_validation_init(&v, hd_corpus_all(f->corpus), 256, 0), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "validation data"));
    assert_int_equal(hd_sampler_init(&s, hd_corpus_all(f->corpus), 255, 1, HD_DATA_SHUFFLED, 1),
                     HD_OK);
    assert_int_equal(s.window_count, 1);
}

/* ---- validation ---- */

static void split_parts_share_no_token_and_cut_at_the_context(void **state)
{
    struct fixture *f = *state;

    open_counting(f, 1003);
    for (int64_t context = 1; context <= 64; context++)
        for (double fraction = 0.1; fraction < 0.85; fraction += 0.1) {
            struct hd_data_range train, val;
            struct hd_sampler s;
            struct hd_validation v;

            assert_int_equal(hd_corpus_split(f->corpus, fraction, context, &train, &val), HD_OK);
            assert_int_equal(train.first, 0);
            assert_int_equal(train.count % context, 0);
            assert_int_equal(val.first, train.count);
            assert_int_equal(val.first + val.count, 1003);
            /* at least the fraction asked for, at most one context and one byte more */
            assert_true((double)val.count >= fraction * 1003 - 1e-6);
            assert_true((double)val.count <= fraction * 1003 + (double)context + 1);
            /* what is read, targets included, stays on its side */
            assert_int_equal(hd_sampler_init(&s, train, context, 1, HD_DATA_SHUFFLED, 1), HD_OK);
            assert_true(s.window_count * context + 1 <= train.count);
            assert_int_equal(hd_validation_init(&v, val, context, 0), HD_OK);
            assert_true(v.window_count * context + 1 <= val.count);
        }
}

static void a_split_that_leaves_a_side_empty_says_what_is_enough(void **state)
{
    struct fixture *f = *state;
    struct hd_data_range train, val;
    const char *message;
    char *enough;
    long bytes;

    open_counting(f, 100);
    assert_int_equal(hd_corpus_split(f->corpus, 0.1, 64, &train, &val), HD_INVALID); /* nor 0.9 */
    message = strstr(hd_err_message(), "lower model.context");
    assert_non_null(message);
    enough = strstr(hd_err_message(), "more): ");
    assert_non_null(enough);
    bytes = strtol(enough + 7, NULL, 10);
    assert_in_range(bytes, 650, 652); /* 65 bytes of validation text at a tenth */
    hd_corpus_close(f->corpus);
    f->corpus = NULL;
    f->count = 0;
    open_counting(f, (size_t)bytes);
    assert_int_equal(hd_corpus_split(f->corpus, 0.1, 64, &train, &val), HD_OK);
    assert_int_equal(hd_corpus_split(f->corpus, 1e-9, 64, &train, &val), HD_INVALID);
    message = strstr(hd_err_message(), "raise data.val_split to ");
    assert_non_null(message);
    assert_int_equal(hd_corpus_split(f->corpus, strtod(message + 24, NULL), 64, &train, &val),
                     HD_OK);
    assert_int_equal(hd_corpus_split(f->corpus, 0, 64, &train, &val), HD_INVALID);
    assert_int_equal(hd_corpus_split(f->corpus, 1, 64, &train, &val), HD_INVALID);
    assert_int_equal(hd_corpus_split(f->corpus, NAN, 64, &train, &val), HD_INVALID);
}

static void validation_windows_are_fixed_and_padded_at_the_end(void **state)
{
    struct fixture *f = *state;
    int32_t tokens[4][3], targets[4][3], positions[4][3], begins[4][3], lengths[4][3];
    struct hd_validation v;
    int64_t ids[4];

    add_file(f, "abcdefghijk", 11); /* 10 targets: 3 windows of 3 */
    open_corpus(f);
    assert_int_equal(hd_validation_init(&v, hd_corpus_all(f->corpus), 3, 0), HD_OK);
    assert_int_equal(v.window_count, 3);
    assert_int_equal(hd_validation_fill(&v, 1, 4,
                                        &(struct hd_data_batch){.tokens = tokens[0],
                                                                .targets = targets[0],
                                                                .positions = positions[0],
                                                                .begins = begins[0],
                                                                .lengths = lengths[0],
                                                                .sample_ids = ids}),
                     HD_OK);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++) {
            assert_int_equal(begins[i][j], 0);
            assert_int_equal(lengths[i][j], 3);
            assert_int_equal(tokens[i][j], 'a' + 3 * (i + 1) + j);
            assert_int_equal(targets[i][j], 'a' + 3 * (i + 1) + j + 1);
        }
    for (int i = 2; i < 4; i++)
        for (int j = 0; j < 3; j++) {
            assert_int_equal(tokens[i][j], 0);
            assert_int_equal(targets[i][j], HD_DATA_TARGET_NONE);
            assert_int_equal(positions[i][j], j);
            assert_int_equal(lengths[i][j], 0);
        }
    assert_int_equal(ids[3], 4);
    assert_int_equal(hd_validation_init(&v, hd_corpus_all(f->corpus), 3, 2), HD_OK);
    assert_int_equal(v.window_count, 2);
    assert_int_equal(hd_validation_fill(&v, 2, 1, &(struct hd_data_batch){.targets = targets[0]}),
                     HD_OK);
    assert_int_equal(targets[0][0], HD_DATA_TARGET_NONE);
}

/* ---- bigram ---- */

/* Goal: the number a model must beat is right. Method: "abab" by hand.
 * Pairs: ab 2, ba 1. N = 4, n(a) = 2, n(b) = 2, so p(a) = p(b) = 3/260, any other byte 1/260.
 * p(b|a) = (2 + 3/260) / 3,  p(a|b) = (1 + 3/260) / 2,  p(z|a) = (1/260) / 3, p(a|z) = 3/260 / 1.
 * Validation "abaz" in windows of 3: the targets are b after a, a after b, z after a. */
static void bigram_entropy_is_what_a_hand_computes(void **state)
{
    struct fixture *f = *state;
    struct hd_bigram *model = NULL;
    struct hd_validation v;
    double nats = 0, by_hand;

    add_file(f, "ab", 2); /* the pair "ba" lies across the files */
    add_file(f, "ab", 2);
    add_file(f, "abaz!", 5); /* "!" is in no window */
    open_corpus(f);
    assert_int_equal(
        hd_bigram_fit((struct hd_data_range){.corpus = f->corpus, .first = 0, .count = 4}, 256,
                      &model),
        HD_OK);
    assert_true(fabs(hd_bigram_probability(model, 'a', 'b') - (2 + 3 / 260.0) / 3) < 1e-15);
    assert_true(fabs(hd_bigram_probability(model, 'b', 'a') - (1 + 3 / 260.0) / 2) < 1e-15);
    assert_true(fabs(hd_bigram_probability(model, 'a', 'z') - 1 / 260.0 / 3) < 1e-15);
    assert_true(fabs(hd_bigram_probability(model, 'z', 'a') - 3 / 260.0) < 1e-15);

    assert_int_equal(
        hd_validation_init(&v, (struct hd_data_range){.corpus = f->corpus, .first = 4, .count = 5},
                           3, 0),
        HD_OK);
    by_hand = -(log((2 + 3 / 260.0) / 3) + log((1 + 3 / 260.0) / 2) + log(1 / 260.0 / 3)) / 3;
    assert_int_equal(hd_bigram_entropy(model, &v, &nats), HD_OK);
    assert_true(fabs(nats - by_hand) < 1e-12);
    hd_bigram_free(model);
}

static void bigram_probabilities_sum_to_one(void **state)
{
    struct fixture *f = *state;
    struct hd_bigram *model = NULL;

    open_counting(f, 1000);
    assert_int_equal(hd_bigram_fit(hd_corpus_all(f->corpus), 256, &model), HD_OK);
    for (int a = 0; a < 256; a++) {
        double sum = 0;

        for (int b = 0; b < 256; b++)
            sum += hd_bigram_probability(model, (unsigned char)a, (unsigned char)b);
        assert_true(fabs(sum - 1) < 1e-12);
    }
    hd_bigram_free(model);
}

/* Goal: model and bigram are compared on the same bytes. Method: sum -log p over the targets that
 * the validation batches deliver. */
static void bigram_sees_the_targets_of_the_validation_batches(void **state)
{
    struct fixture *f = *state;
    struct hd_bigram *model = NULL;
    struct hd_data_range train, val;
    struct hd_validation v;
    unsigned char text[2000];
    double sum = 0, nats = 0;
    int64_t targets_seen = 0;

    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (unsigned char)('a' + hd_random_u64(5, i) % 6);
    add_file(f, text, 777);
    add_file(f, text + 777, sizeof text - 777);
    open_corpus(f);
    assert_int_equal(hd_corpus_split(f->corpus, 0.7, 16, &train, &val), HD_OK);
    assert_int_equal(hd_bigram_fit(train, 256, &model), HD_OK);
    assert_int_equal(hd_validation_init(&v, val, 16, 50), HD_OK);
    for (int64_t w = 0; w < 56; w += 7) { /* past the end on purpose */
        int32_t tokens[7 * 16], targets[7 * 16];

        assert_int_equal(
            hd_validation_fill(&v, w, 7,
                               &(struct hd_data_batch){.tokens = tokens, .targets = targets}),
            HD_OK);
        for (int i = 0; i < 7 * 16; i++)
            if (targets[i] != HD_DATA_TARGET_NONE) {
                sum -= log(hd_bigram_probability(model, (unsigned char)tokens[i],
                                                 (unsigned char)targets[i]));
                targets_seen++;
            }
    }
    assert_int_equal(targets_seen, 50 * 16);
    assert_int_equal(hd_bigram_entropy(model, &v, &nats), HD_OK);
    assert_true(fabs(nats - sum / (double)targets_seen) < 1e-9);
    hd_bigram_free(model);
}

/* ---- tokenizers and printing ---- */

CASE_WITH(NULL, NULL)
static void bytes_go_to_ids_and_back(void **state)
{
    struct hd_tokenizer *t = NULL;
    struct hd_encoder *encoder = NULL;
    struct hd_id_list list = {0};
    struct hd_text back = {0};
    unsigned char text[256];
    int32_t wrong[] = {65, 256}, negative = -1;

    assert_int_equal(hd_tokenizer_open("bytes", &t), HD_OK);
    assert_int_equal(hd_tokenizer_vocab(t), 256);
    assert_int_equal(hd_encoder_new(t, &encoder), HD_OK);
    for (int i = 0; i < 256; i++)
        text[i] = (unsigned char)i;
    assert_int_equal(hd_encoder_add(encoder, text, 128, &list), HD_OK);
    assert_int_equal(hd_encoder_add(encoder, text + 128, 128, &list), HD_OK); /* adds */
    assert_int_equal(list.count, 256);
    for (int i = 0; i < 256; i++)
        assert_int_equal(list.ids[i], i);
    assert_int_equal(hd_tokenizer_decode(t, list.ids, 256, &back), HD_OK);
    assert_int_equal(back.len_bytes, 256);
    assert_memory_equal(back.data, text, 256);
    assert_int_equal(hd_tokenizer_decode(t, wrong, 2, &back), HD_INVALID);
    assert_int_equal(hd_tokenizer_decode(t, &negative, 1, &back), HD_INVALID);
    hd_text_free(&back);
    hd_id_list_free(&list);
    hd_encoder_free(encoder);
    hd_tokenizer_close(t);
    assert_int_equal(hd_tokenizer_open("words", &t), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "bytes"));
}

#define FFFD "\xEF\xBF\xBD"

/* Method: every way to cut the text into two pieces gives the same. */
static void assert_prints(const char *raw, size_t raw_bytes, const char *expected)
{
    for (size_t cut = 0; cut <= raw_bytes; cut++) {
        struct hd_utf8_printer printer = {0};
        struct hd_text out = {0};

        hd_utf8_printer_add(&printer, raw, cut, &out);
        hd_utf8_printer_add(&printer, raw + cut, raw_bytes - cut, &out);
        hd_utf8_printer_end(&printer, &out);
        hd_text_add(&out, "%s", "");
        assert_string_equal(out.data, expected);
        hd_text_free(&out);
    }
}

CASE_WITH(NULL, NULL)
static void printer_passes_text_and_disarms_the_rest(void **state)
{
    assert_prints("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\n\tz", 13,
                  "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\n\tz");
    assert_prints("\x1b[2J", 4, FFFD "[2J");
    assert_prints("\xC2\x9B"
                  "2J",
                  4, FFFD "2J"); /* a C1 control */
    assert_prints("\xC2\xA0", 2, "\xC2\xA0");
    assert_prints("a\0b\x7F", 4, "a" FFFD "b" FFFD);
    assert_prints("\xff\xfe", 2, FFFD FFFD);
    assert_prints("\xE2\x82", 2, FFFD); /* cut at the end */
    assert_prints("\xE2\x82"
                  "a",
                  3, FFFD "a");                        /* cut by another character */
    assert_prints("\xE2\xC3\xA9", 3, FFFD "\xC3\xA9"); /* cut by the start of another */
    assert_prints("\xED\xA0\x80", 3, FFFD FFFD FFFD);  /* a surrogate */
    assert_prints("\xE0\x80\x80", 3, FFFD FFFD FFFD);  /* overlong */
    assert_prints("\xF4\x90\x80\x80", 4, FFFD FFFD FFFD FFFD);
    assert_prints("\xE0\xA0\x80\xF4\x8F\xBF\xBF\xED\x9F\xBF\xF0\x90\x80\x80", 14,
                  "\xE0\xA0\x80\xF4\x8F\xBF\xBF\xED\x9F\xBF\xF0\x90\x80\x80");
}

/* Goal: whatever a model writes, the output is UTF-8. Method: random bytes, weighted to UTF-8's. */
CASE_WITH(NULL, NULL)
static void printer_output_is_always_utf8(void **state)
{
    for (uint64_t trial = 0; trial < 300; trial++) {
        struct hd_utf8_printer printer = {0};
        struct hd_text out = {0};

        for (uint64_t i = 0; i < 200; i++) {
            uint64_t r = hd_random_u64(trial, i);
            unsigned char byte = (unsigned char)(r & 1 ? r >> 8 : 0x80 | (r >> 8));

            hd_utf8_printer_add(&printer, &byte, 1, &out);
        }
        hd_utf8_printer_end(&printer, &out);
        assert_true(hd_text_is_utf8(out.data, out.len_bytes));
        hd_text_free(&out);
    }
}

RUN_EACH_CASE_WITH(set_up, tear_down)
