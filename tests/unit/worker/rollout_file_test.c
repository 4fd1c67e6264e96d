/* rollout_file: what was recorded is read again, up to a record that a crash has cut, and only with
 * the same weights. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/program/cases.h"
#include "tests/program/test.h"
#include "tests/temporary.h"
#include "train/rollout_file.h"

enum { GROUP = 2, REWARDS = 2 };

static const struct hd_rollout_header header = {.step = 7,
                                                .group = GROUP,
                                                .max_tokens = 8,
                                                .rewards = REWARDS,
                                                .settings = 5,
                                                .loss = 0.25,
                                                .grad_norm = 2};

static void make_dir(char dir[64])
{
    temporary_dir(dir, "rollout");
}

/* Writes groups 3 and 1, of which only 3 is rated. */
static void write_groups(const char *dir, char ret_path[96])
{
    int32_t ids[3] = {4, 5, 6};
    float lps[3] = {-1, -2, -3};
    struct hd_rollout_sequence answers[GROUP] = {
        {.ids = ids, .log_probabilities = lps, .count = 3, .end = HD_ROLLOUT_STOP},
        {.ids = ids + 1, .log_probabilities = lps + 1, .count = 1, .end = HD_ROLLOUT_LENGTH}};
    const double rewards[GROUP * REWARDS] = {1, 0, 0.5, 2};
    struct hd_rollout_file *f = NULL;

    must(hd_rollout_file_create(dir, 2, &header, &f));
    must(hd_rollout_file_publish(f));
    must(hd_rollout_file_add(f, 3, answers));
    must(hd_rollout_file_rate(f, 3, rewards));
    must(hd_rollout_file_add(f, 1, answers));
    hd_rollout_file_close(f);
    (void)snprintf(ret_path, 96, "%s/7.2", dir);
}

static int64_t read_groups(const char *dir, const struct hd_rollout_header *wanted, bool any,
                           struct hd_arena *arena, struct hd_rollout_group **ret_groups)
{
    int64_t count = -1;

    must(hd_rollout_files_read(dir, wanted, any, arena, ret_groups, &count));
    return count;
}

static void groups_are_read_up_to_a_cut(void **state)
{
    struct hd_rollout_group *groups;
    char dir[64], path[96];
    struct hd_arena arena;
    struct stat info;

    (void)state;
    hd_arena_init(&arena, 0);
    make_dir(dir);
    write_groups(dir, path);
    assert_int_equal(read_groups(dir, &header, false, &arena, &groups), 2);
    assert_int_equal(groups[0].index, 1);
    assert_null(groups[0].rewards);
    assert_int_equal(groups[1].index, 3);
    assert_true(groups[1].rewards[3] == 2);
    assert_int_equal(groups[1].answers[0].count, 3);
    assert_int_equal(groups[1].answers[0].end, HD_ROLLOUT_STOP);
    assert_int_equal(groups[1].answers[0].ids[2], 6);
    assert_true(groups[1].answers[1].log_probabilities[0] == -2);
    /* one byte of the last record is missing */
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 1), 0);
    assert_int_equal(read_groups(dir, &header, false, &arena, &groups), 1);
    assert_int_equal(groups[0].index, 3);
    hd_rollout_files_remove(dir, 0, 0);
    assert_int_equal(rmdir(dir), 0);
    hd_arena_done(&arena);
}

static void files_of_other_weights_or_settings_are_not_read(void **state)
{
    struct hd_rollout_header other = header;
    struct hd_rollout_group *groups;
    char dir[64], path[96];
    struct hd_arena arena;

    (void)state;
    hd_arena_init(&arena, 0);
    make_dir(dir);
    write_groups(dir, path);
    other.loss = 0.25000001;
    assert_int_equal(read_groups(dir, &other, false, &arena, &groups), 0);
    assert_int_equal(read_groups(dir, &other, true, &arena, &groups), 2); /* a checkpoint says so */
    other = header;
    other.update = 5; /* another learning rate: other weights */
    assert_int_equal(read_groups(dir, &other, false, &arena, &groups), 0);
    assert_int_equal(read_groups(dir, &other, true, &arena, &groups), 2);
    other.settings = 6;
    assert_int_equal(read_groups(dir, &other, true, &arena, &groups), 0);
    hd_rollout_files_remove(dir, 5, 7); /* keeps it */
    assert_int_equal(access(path, F_OK), 0);
    hd_rollout_files_remove(dir, 0, 6);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(rmdir(dir), 0);
    hd_arena_done(&arena);
}

RUN_CASES()
