/* Mixtures: which source each sample reads, and that nothing but its number decides it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "data/data.h"
#include "tests/program/test.h"

static const double weights[] = {0.7, 0.2, 0.1, 1e-4};
enum { SOURCES = sizeof weights / sizeof weights[0] };

/* Goal: the number of a sample says its source and its place there, for all samples alike. Method:
 * count by hand from the first sample on, under several seeds. */
static void each_sample_is_the_next_one_of_its_source(void **state)
{
    for (uint64_t seed = 0; seed < 5; seed++) {
        struct hd_mixture m;
        int64_t seen[SOURCES] = {0};

        hd_mixture_init(&m, weights, SOURCES, seed);
        for (int64_t id = 0; id < 30000; id++) {
            int64_t number = -1, k;

            for (int64_t s = 0; s < SOURCES; s++)
                assert_int_equal(hd_mixture_count(&m, id, s), seen[s]);
            k = hd_mixture_source(&m, id, &number);
            assert_in_range(k, 0, SOURCES - 1);
            assert_int_equal(number, seen[k]++);
        }
    }
}

/* Goal: the shares hold everywhere, not only on average. Method: the bound of the header, 2 + K w
 * samples, at every sample of the beginning and at places up to 2^48, where 2^-32 of the place is
 * allowed besides. */
static void shares_hold_in_every_stretch(void **state)
{
    const double sum = 0.7 + 0.2 + 0.1 + 1e-4;
    struct hd_mixture m;

    hd_mixture_init(&m, weights, SOURCES, 3);
    for (int64_t id = 0; id < INT64_C(1) << 48; id += id < 5000 ? 1 : id / 3)
        for (int64_t k = 0; k < SOURCES; k++) {
            const double w = weights[k] / sum;
            const double allowed = 2 + SOURCES * w + 2 * SOURCES * (double)id * 0x1p-32;

            assert_true(fabs((double)hd_mixture_count(&m, id, k) - w * (double)id) <= allowed);
        }
}

static void one_source_has_every_sample(void **state)
{
    struct hd_mixture m;
    int64_t number;

    hd_mixture_init(&m, (const double[]){0.3}, 1, 9);
    for (int64_t id = 0; id < 100; id++) {
        assert_int_equal(hd_mixture_source(&m, id, &number), 0);
        assert_int_equal(number, id);
    }
}

static void another_seed_interleaves_otherwise(void **state)
{
    struct hd_mixture a, b;
    int64_t number;
    int same = 0;

    hd_mixture_init(&a, weights, SOURCES, 1);
    hd_mixture_init(&b, weights, SOURCES, 2);
    for (int64_t id = 0; id < 100; id++)
        same += hd_mixture_source(&a, id, &number) == hd_mixture_source(&b, id, &number);
    assert_true(same < 100);
}

/* ---- samples ---- */

struct fixture {
    char dir[32], path[3][64];
    struct hd_corpus *corpus;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    if (!f)
        return -1;
    (void)snprintf(f->dir, sizeof f->dir, "/tmp/heddle-mixture-XXXXXX");
    *state = f;
    return mkdtemp(f->dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    hd_corpus_close(f->corpus);
    (void)hd_file_remove_tree(f->dir);
    free(f);
    return 0;
}

enum { S = 8, BATCH = 10, STEPS = 30 };

/* Three files: one of 3 windows, then in one source one of 2 and one of 5. */
static void open_files(struct fixture *f, struct hd_sampler *ret_sampler)
{
    static const double shares[] = {3, 1};
    const size_t sizes[] = {3 * S + 1, 2 * S, 5 * S + 1};
    struct hd_corpus_file files[3];
    struct hd_data_range ranges[2];
    char text[6 * S];

    for (int i = 0; i < 3; i++) {
        struct hd_text path = {0};

        for (size_t j = 0; j < sizes[i]; j++) /* 16 times the file, and the window */
            text[j] = (char)(16 * (i + 1) + (int)(j / S));
        hd_text_add(&path, "%s/%d", f->dir, i);
        memcpy(f->path[i], path.data, path.len_bytes + 1);
        hd_text_free(&path);
        assert_int_equal(hd_file_write_atomic(f->path[i], text, sizes[i], 0600), HD_OK);
        files[i] = (struct hd_corpus_file){.path = f->path[i], .size_bytes = -1};
    }
    assert_int_equal(hd_corpus_open(files, 3, &f->corpus), HD_OK);
    ranges[0] = hd_corpus_files(f->corpus, 0, 1);
    ranges[1] = hd_corpus_files(f->corpus, 1, 2);
    assert_int_equal(ranges[1].count, 7 * S + 1);
    assert_int_equal(hd_sampler_init_mixture(ret_sampler, ranges, NULL, shares, 2, S, BATCH,
                                             HD_DATA_SHUFFLED, 4),
                     HD_OK);
    assert_int_equal(ret_sampler->window_count, 3 + 7);
}

/* Goal: each source has epochs of its own. Method: 300 samples in shares 3 : 1, so 75 epochs of the
 * first's 3 windows and 10 and a half of the second's 7; in each epoch every window once. */
CASE_WITH(set_up, tear_down)
static void each_source_has_its_own_epochs(void **state)
{
    struct hd_sampler s;
    int64_t seen[2] = {0};
    int windows[2][7] = {{0}};
    static const int64_t count[] = {3, 7};

    open_files(*state, &s);
    for (int64_t id = 0; id < BATCH * STEPS; id++) {
        int64_t source;
        const int64_t window = hd_sampler_window(&s, id, &source);

        assert_int_equal(windows[source][window]++, seen[source] / count[source]);
        seen[source]++;
    }
    assert_in_range(seen[1], 75 - 3, 75 + 3);
}

/* Goal: stages change the mixture at their steps, and a source goes on where it was left. Method: 30
 * steps in stages of 7, 5 and 18, the second without the first source; in each epoch of a source,
 * across all stages, every window once. The first stage is the plain mixture with its weights. */
CASE_WITH(set_up, tear_down)
static void a_stage_goes_on_in_a_source_where_it_was_left(void **state)
{
    static const double mixes[] = {3, 0, 1, 1, 5, 1}; /* [source, stage] */
    static const int64_t first_steps[] = {0, 7, 12}, count[] = {3, 7};
    struct hd_sampler s, stages[3];
    int64_t seen[2] = {0}, in_stage[3][2] = {{0}};
    int windows[2][7] = {{0}};

    open_files(*state, &s);
    hd_sampler_init_stages(&s, mixes, first_steps, 3, stages);
    for (int64_t id = 0; id < BATCH * STEPS; id++) {
        const int k = id < 70 ? 0 : id < 120 ? 1 : 2;
        int64_t source, plain;
        const int64_t window = hd_sampler_window(&stages[k], id, &source);
        const int global = stages[k].sources[source].range.first > 0; /* 0: the first source */

        if (k == 0) {
            assert_int_equal(window, hd_sampler_window(&s, id, &plain));
            assert_int_equal(source, plain);
        }
        assert_int_equal(windows[global][window]++, seen[global] / count[global]);
        seen[global]++;
        in_stage[k][global]++;
    }
    assert_int_equal(stages[1].mixture.count, 1);
    assert_int_equal(in_stage[1][0], 0);
    /* mixture.h: within 2 + K w of the share, here of 3 : 1 and 1 : 1 */
    assert_in_range(in_stage[0][0], 52 - 4, 53 + 4);
    assert_in_range(in_stage[2][0], 90 - 3, 90 + 3);
}

/* Goal: no rank, no cut into micro-batches and no restart changes a sample of a mixture. Method: as
 * one batch, and one by one backwards. */
CASE_WITH(set_up, tear_down)
static void any_split_gives_the_same_samples_of_a_mixture(void **state)
{
    static int32_t whole[STEPS][BATCH][S];
    int32_t tokens[S], targets[S];
    struct hd_sampler s;
    bool seen[3] = {false};

    open_files(*state, &s);
    for (int step = 0; step < STEPS; step++)
        assert_int_equal(
            hd_sampler_fill(&s, step, 0, BATCH, &(struct hd_data_batch){.tokens = whole[step][0]}),
            HD_OK);
    for (int step = STEPS - 1; step >= 0; step--)
        for (int i = BATCH - 1; i >= 0; i--) {
            assert_int_equal(
                hd_sampler_fill(&s, step, i, 1,
                                &(struct hd_data_batch){.tokens = tokens, .targets = targets}),
                HD_OK);
            assert_memory_equal(tokens, whole[step][i], sizeof tokens);
            for (int j = 1; j < S; j++) /* a window is one number; its targets stay in the source */
                assert_int_equal(tokens[j], tokens[0]);
            assert_true((tokens[0] >= 32) == (targets[S - 1] >= 32));
            seen[tokens[0] / 16 - 1] = true;
        }
    assert_true(seen[0] && seen[1] && seen[2]);
}

CASE_WITH(set_up, tear_down)
static void a_source_without_a_window_is_named(void **state)
{
    struct fixture *f = *state;
    struct hd_sampler s;
    struct hd_data_range ranges[2];

    open_files(f, &s);
    ranges[0] = hd_corpus_files(f->corpus, 0, 1);
    ranges[1] = hd_corpus_files(f->corpus, 1, 1); /* 2 S tokens */
    assert_int_equal(hd_sampler_init_mixture(&s, ranges, NULL, (const double[]){1, 1}, 2, 2 * S, 1,
                                             HD_DATA_SHUFFLED, 1),
                     HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "source 1: the training data has 16 tokens"));
}

RUN_CASES()
