/* The record of an attempt's end, from what the supervisor knows of its ranks. No rank is a process
 * here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "daemon/supervisor/supervisor.h"
#include "tests/program/tells.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

enum { RANKS = 3 };

struct fixture {
    char dir[TEMPORARY_BYTES];
    struct sup sup;
    struct sup_rank ranks[RANKS];
};

/* Ranks 0 to 2 have ended well. */
static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    temporary_dir(f->dir, "heddle-end");
    (void)snprintf(f->sup.options.run_dir, sizeof f->sup.options.run_dir, "%s", f->dir);
    f->sup.ranks = f->ranks;
    f->sup.options.rank_count = RANKS;
    f->sup.options.world = RANKS;
    f->sup.job.job_id = 7;
    f->sup.job.attempt = 2;
    f->sup.daemon_fd = -1;
    f->sup.blamed = f->sup.elsewhere = f->sup.hanging = -1;
    assert_int_equal(hd_shm_control_new(RANKS, &f->sup.shm), HD_OK);
    for (int i = 0; i < RANKS; i++) {
        f->ranks[i].rank = i;
        f->ranks[i].link_fd = -1;
        f->ranks[i].exited = true;
    }
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    enum hd_status st = hd_file_remove_tree(f->dir);

    hd_shm_control_free(f->sup.shm);
    free(f);
    return (int)st;
}

static struct hd_link_end finish(struct fixture *f, int left)
{
    const int64_t before_ms = hd_clock_wall_ms();
    struct hd_link_report report;

    sup_finish(&f->sup, left);
    assert_int_equal(hd_attempt_read_end(f->dir, &report), HD_OK);
    assert_int_equal(report.job, 7);
    assert_int_equal(report.attempt, 2);
    assert_int_equal(report.rank, -1);
    assert_in_range(report.wall_ms, before_ms, hd_clock_wall_ms());
    return report.end;
}

/* Rank 1 is the one that failed, and the others were ended because of it. */
static void fail_rank_1(struct fixture *f, int code, enum hd_status st, const char *message)
{
    struct sup_rank *rank = &f->ranks[1];

    rank->gone_bad = true;
    rank->code = code;
    if (st) {
        rank->has_failure = true;
        rank->failure = (struct hd_link_failure){.status = st, .first_rank = 1};
        (void)snprintf(rank->failure.operation, sizeof rank->failure.operation, "all_reduce");
        (void)snprintf(rank->exit_text, sizeof rank->exit_text, "%s", message);
    }
    f->ranks[0].gone_bad = f->ranks[2].gone_bad = true;
    f->ranks[0].signal = f->ranks[2].signal = 15;
    hd_shm_control_mark_dead(f->sup.shm, 1, message);
    sup_begin_end(&f->sup, HD_LINK_CAUSE_RANK_EXIT, -1, false, "rank 1 ended");
}

static void ranks_that_are_done_have_completed(void **state)
{
    const struct hd_link_end end = finish(*state, 0);

    assert_int_equal(end.cause, HD_LINK_CAUSE_COMPLETED);
    assert_int_equal(end.first_rank, -1);
    assert_int_equal(end.bad_input, 0);
    assert_string_equal(end.message, "");
}

/* One that wrote its last checkpoint with steps left is enough. */
static void a_rank_that_stopped_makes_it_a_stop(void **state)
{
    struct fixture *f = *state;
    struct hd_link_end end;

    f->ranks[2].code = HD_LINK_EXIT_STOPPED;
    end = finish(f, 0);
    assert_int_equal(end.cause, HD_LINK_CAUSE_USER);
    assert_string_equal(end.message, "stopped after a checkpoint, as requested");
}

static void the_rank_that_failed_is_named_with_its_words(void **state)
{
    struct fixture *f = *state;
    struct hd_link_end end;

    fail_rank_1(f, HD_LINK_EXIT_FAILED, HD_IO, "the disk is full");
    end = finish(f, 0);
    assert_int_equal(end.cause, HD_LINK_CAUSE_RANK_EXIT);
    assert_int_equal(end.first_rank, 1);
    assert_int_equal(end.code, HD_LINK_EXIT_FAILED);
    assert_int_equal(end.signal, 0);
    assert_int_equal(end.secondary, 0);
    assert_string_equal(end.operation, "all_reduce");
    assert_string_equal(end.message, "the disk is full");
}

static void a_rank_that_could_not_write_makes_it_the_storage(void **state)
{
    struct fixture *f = *state;
    struct hd_link_end end;

    fail_rank_1(f, HD_LINK_EXIT_STORAGE, HD_STORAGE, "cannot write tokens: the disk is full");
    end = finish(f, 0);
    assert_int_equal(end.cause, HD_LINK_CAUSE_STORAGE);
    assert_int_equal(end.first_rank, 1);
    assert_int_equal(end.bad_input, 0);
    assert_string_equal(end.message, "cannot write tokens: the disk is full");
}

/* A stop is answered at once, but what was lost by it is told. */
static void a_stop_without_a_checkpoint_says_so(void **state)
{
    struct fixture *f = *state;
    struct hd_link_end end;

    f->ranks[2].code = HD_LINK_EXIT_STOPPED;
    sup_set_problem(&f->sup, "waits to write the last checkpoint: no space");
    end = finish(f, 0);
    assert_int_equal(end.cause, HD_LINK_CAUSE_USER);
    assert_tells(end.message, "stopped as requested", "without a checkpoint", "no space");
}

/* Trying again is useless after what the rank's status or its last words say, and after nothing
 * else. */
CASE_WITH(NULL, NULL)
static void hopeless_input_is_told_apart(void **state)
{
    static const struct {
        int code;
        enum hd_status st;
        bool bad_input;
    } cases[] = {
        {HD_LINK_EXIT_BAD_INPUT, HD_OK, true},       {HD_LINK_EXIT_FAILED, HD_INVALID, true},
        {HD_LINK_EXIT_FAILED, HD_UNSUPPORTED, true}, {HD_LINK_EXIT_FAILED, HD_IO, false},
        {HD_LINK_EXIT_FAILED, HD_DENIED, true},      {HD_LINK_EXIT_FAILED, HD_OK, false},
        {HD_LINK_EXIT_BAD_BASE, HD_CORRUPT, false},
    };
    void *one = NULL;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(set_up(&one), 0);
        fail_rank_1(one, cases[i].code, cases[i].st, "words");
        assert_int_equal(finish(one, 0).bad_input, cases[i].bad_input);
        assert_int_equal(tear_down(&one), 0);
    }
}

/* A rank that only saw another one leave knows which: that one is to blame, if it failed. */
static void a_rank_may_know_better_whose_fault_it_was(void **state)
{
    struct fixture *f = *state;

    fail_rank_1(f, HD_LINK_EXIT_FAILED, HD_ABORTED, "rank 2 left");
    f->ranks[1].failure.first_rank = 2;
    f->ranks[2].signal = 9;
    assert_int_equal(finish(f, 0).first_rank, 2);
}

static void what_could_not_be_killed_is_counted(void **state)
{
    struct fixture *f = *state;

    fail_rank_1(f, HD_LINK_EXIT_FAILED, HD_IO, "the disk is full");
    assert_string_equal(finish(f, 2).message, "the disk is full; 2 processes could not be killed");
}

RUN_EACH_CASE_WITH(set_up, tear_down)
