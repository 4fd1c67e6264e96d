/* How long each phase may be silent: what is learned, what the job sets, what is kept. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "daemon/supervisor/limits.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

enum { SECOND = 1000, MINUTE = 60 * SECOND };

/* A bin ends at most 2^(1/8) - 1 = 9.05% above what it holds. */
#define assert_learned(limit_ms, exact_ms) \
    assert_in_range(limit_ms, exact_ms, (int64_t)((double)(exact_ms)*1.0906))

static struct sup_limits fresh(const char *action, int ranks)
{
    struct sup_limits limits;
    struct hd_job job;

    hd_job_set_defaults(&job);
    job.hang_action = hd_job_find_word(hd_job_hang_action_words, action);
    assert_int_equal(sup_limits_init(&limits, &job, ranks, 0), HD_OK);
    return limits;
}

static void learn(struct sup_limits *limits, enum hd_link_phase phase, int count,
                  int64_t silence_ms)
{
    for (int i = 0; i < count; i++)
        sup_limits_learn(limits, phase, silence_ms);
}

static void a_limit_is_learned_from_sixteen_silences_of_each_rank(void **state)
{
    struct sup_limits limits = fresh("end", 2);

    learn(&limits, HD_LINK_PHASE_TRAINING, 31, 20 * SECOND);
    assert_int_equal(sup_limits_of(&limits, HD_LINK_PHASE_TRAINING).ends_ms, 30 * MINUTE);
    learn(&limits, HD_LINK_PHASE_TRAINING, 1, 20 * SECOND);
    assert_learned(sup_limits_of(&limits, HD_LINK_PHASE_TRAINING).ends_ms, 8 * 20 * SECOND);
    assert_int_equal(sup_limits_of(&limits, HD_LINK_PHASE_SETUP).ends_ms, 30 * MINUTE);
}

/* 9 of 1009 are 0.9%, so the 99th percentile is 1 s and 8 times that less than a minute; but a
 * silence that was survived is no hang, nor is one twice as long. */
static void rare_silences_count_by_their_longest(void **state)
{
    struct sup_limits limits = fresh("end", 1);

    learn(&limits, HD_LINK_PHASE_TRAINING, 1000, SECOND);
    assert_int_equal(sup_limits_of(&limits, HD_LINK_PHASE_TRAINING).ends_ms, MINUTE);
    learn(&limits, HD_LINK_PHASE_TRAINING, 9, 100 * SECOND);
    assert_learned(sup_limits_of(&limits, HD_LINK_PHASE_TRAINING).ends_ms, 200 * SECOND);
    learn(&limits, HD_LINK_PHASE_TRAINING, 3, 100 * SECOND); /* 12 of 1012: 1.2% */
    assert_learned(sup_limits_of(&limits, HD_LINK_PHASE_TRAINING).ends_ms, 800 * SECOND);
}

/* A disk may be slow for once. */
static void what_is_learned_of_other_phases_only_tells(void **state)
{
    struct sup_limits limits = fresh("end", 1);
    struct sup_limit limit;

    for (int p = 0; p < HD_LINK_PHASE_COUNT; p++)
        learn(&limits, (enum hd_link_phase)p, 16, SECOND);
    for (int p = 0; p < HD_LINK_PHASE_COUNT; p++) {
        limit = sup_limits_of(&limits, (enum hd_link_phase)p);
        assert_int_equal(limit.reported_ms, MINUTE);
        assert_int_equal(limit.ends_ms, p == HD_LINK_PHASE_TRAINING ? MINUTE : 30 * MINUTE);
    }
    limits = fresh("tell", 1);
    learn(&limits, HD_LINK_PHASE_TRAINING, 16, SECOND);
    limit = sup_limits_of(&limits, HD_LINK_PHASE_TRAINING);
    assert_int_equal(limit.reported_ms, MINUTE);
    assert_int_equal(limit.ends_ms, SUP_LIMIT_NEVER);
}

static void the_job_sets_each_phase(void **state)
{
    static const int64_t expected_ms[HD_LINK_PHASE_COUNT] = {
        [HD_LINK_PHASE_SETUP] = 20 * MINUTE,
        [HD_LINK_PHASE_TRAINING] = 5 * SECOND,
        [HD_LINK_PHASE_VALIDATING] = 90 * SECOND,
        [HD_LINK_PHASE_CHECKPOINTING] = 60 * MINUTE,
        [HD_LINK_PHASE_ENDING] = 7 * SECOND};
    struct sup_limits limits;
    struct hd_job job;

    hd_job_set_defaults(&job);
    job.hang_setup = "20m";
    job.hang_step = "5s";
    job.hang_validation = "90s";
    job.hang_checkpoint = "1h";
    job.hang_ending = "7s";
    assert_int_equal(sup_limits_init(&limits, &job, 1, 0), HD_OK);
    learn(&limits, HD_LINK_PHASE_TRAINING, 100, 20 * SECOND); /* what is set is not learned */
    for (int p = 0; p < HD_LINK_PHASE_COUNT; p++) {
        const struct sup_limit limit = sup_limits_of(&limits, (enum hd_link_phase)p);

        assert_int_equal(limit.reported_ms, expected_ms[p]);
        assert_int_equal(limit.ends_ms, expected_ms[p]);
    }
    assert_int_equal(sup_limits_init(&limits, &job, 1, 700), HD_OK); /* an option is for all */
    for (int p = 0; p < HD_LINK_PHASE_COUNT; p++)
        assert_int_equal(sup_limits_of(&limits, (enum hd_link_phase)p).ends_ms, 700);
}

/* The next attempt knows the limit at its first step, and learns another pace soon: of 100,000
 * silences 256 are kept, and 10 of 266 are more than a hundredth. */
static void what_is_learned_is_kept_over_attempts(void **state)
{
    struct sup_limits limits = fresh("end", 1), next = fresh("end", 1);
    char dir[TEMPORARY_BYTES], path[TEMPORARY_BYTES + 16];

    temporary_dir(dir, "heddle-limits");
    (void)snprintf(path, sizeof path, "%s/silences", dir);
    sup_limits_read(&next, path); /* there is none */
    assert_int_equal(sup_limits_of(&next, HD_LINK_PHASE_TRAINING).ends_ms, 30 * MINUTE);
    learn(&limits, HD_LINK_PHASE_TRAINING, 100000, 20 * SECOND);
    assert_int_equal(sup_limits_write(&limits, path), HD_OK);
    sup_limits_read(&next, path);
    assert_learned(sup_limits_of(&next, HD_LINK_PHASE_TRAINING).ends_ms, 160 * SECOND);
    assert_int_equal(next.count[HD_LINK_PHASE_TRAINING], 256);
    learn(&next, HD_LINK_PHASE_TRAINING, 10, 100 * SECOND);
    assert_learned(sup_limits_of(&next, HD_LINK_PHASE_TRAINING).ends_ms, 800 * SECOND);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
}

static void a_damaged_file_is_none(void **state)
{
    static const char *const texts[] = {"",
                                        "heddle silences 2\n",
                                        "heddle silences 1\ntraining 1:",
                                        "heddle silences 1\ntraining 240:1\n",
                                        "heddle silences 1\ntraining 3:4 5\n",
                                        "heddle silences 1\ntraining 3:-4\n"};
    char dir[TEMPORARY_BYTES], path[TEMPORARY_BYTES + 16];

    temporary_dir(dir, "heddle-limits");
    (void)snprintf(path, sizeof path, "%s/silences", dir);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct sup_limits limits = fresh("end", 1);

        assert_int_equal(hd_file_write_atomic(path, texts[i], strlen(texts[i]), 0600), HD_OK);
        sup_limits_read(&limits, path);
        for (int p = 0; p < HD_LINK_PHASE_COUNT; p++)
            assert_int_equal(limits.count[p], 0);
    }
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
}

RUN_CASES()
