/* rank_tasks: answers the tasks of validate.tasks in validations, checks the answers as rewards rate
 * those of a policy, and reports in how many tasks one of K answers is right.
 *
 *     tasks of a file, a block at a time --hd_trainer_rollout--> answers --rank_rate--> right or wrong
 *         --every rank has all--> pass@1, pass@K
 *
 * An answer is drawn by a function of validate.tasks.seed, its task and its number: the same random numbers
 * at each validation, so that scores of two of them differ by the weights alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/math.h"
#include "base/random.h"
#include "job/choice_sets.h"
#include "train/pass_at.h"
#include "worker/rank_rewards.h"

enum { BLOCK_TASKS = 128 }; /* tasks whose answers are in memory at a time */

struct rank_tasks {
    struct rank_rater rater;
    struct hd_prompt_rows files[HD_CHOICE_SETS_MAX];
    int64_t count;
    bool said_unchecked; /* the warning about answers that were not checked was given */
};

enum hd_status rank_tasks_begin(struct rank *r)
{
    if (!*r->job.tasks)
        return HD_OK;
    r->tasks = calloc(1, sizeof *r->tasks);
    if (!r->tasks)
        return hd_err(HD_NO_MEMORY, "no memory for tasks");
    r->tasks->rater.group = r->job.tasks_samples;
    r->tasks->rater.max_tokens = r->job.tasks_tokens;
    return rank_rater_begin(r, "validate.tasks.check", r->job.tasks_check, &r->tasks->rater);
}

enum hd_status rank_tasks_open(struct rank *r)
{
    const int64_t count = hd_choice_set_count(&r->job, HD_QUESTIONS_TASKS);
    struct rank_tasks *t = r->tasks;
    enum hd_status st;

    if (!t || t->count) /* a job with spans opens a trainer for each */
        return HD_OK;
    st = rank_rater_open(&t->rater);
    for (int64_t i = 0; !st && i < count; i++) {
        st = hd_prompt_rows_open_tasks(&r->job, i, &t->rater.tokenizer, rank_say_set_up, r,
                                       &t->files[i]);
        t->count = i + 1;
    }
    return st;
}

void rank_tasks_close(struct rank *r)
{
    if (!r->tasks)
        return;
    for (int64_t i = 0; i < r->tasks->count; i++)
        hd_prompt_rows_close(&r->tasks->files[i]);
    rank_rater_close(&r->tasks->rater);
    free(r->tasks);
    r->tasks = NULL;
}

/* Answers to a block of tasks, and sums over the blocks before. */
struct task_block {
    struct rank *r;
    const struct hd_prompt_rows *rows;
    int64_t first, tasks; /* index of the first task; number of tasks */
    struct rank_answer *answers;
    struct hd_rollout_sequence *sequences;
    double *parts;
    bool *wanted;
    double pass, pass_k; /* sums over tasks */
    int64_t unchecked;   /* answers without a reward, which count as wrong */
};

static enum hd_status write_block(struct task_block *b, struct hd_arena *arena)
{
    const struct hd_job *job = &b->r->job;
    const int64_t n = job->tasks_samples, count = b->tasks * n;
    const uint64_t key = hd_random_key((uint64_t)job->tasks_seed, hd_random_hash("tasks"));
    const struct hd_rollout rollout = {
        .sequences = b->sequences,
        .count = count,
        .group = n,
        .max_tokens = job->tasks_tokens,
        .sampling = {.temperature = job->tasks_temperature, .top_p = job->tasks_top_p},
        .stops = &b->rows->stops,
        .drawn_max = b->rows->drawn_max,
        .alive = rank_say_alive,
        .stops_now = rank_is_to_stop,
        .ret_stopped = &b->r->tasks->rater.stopped,
        .user = b->r};

    for (int64_t i = 0; i < count; i++) {
        const struct hd_prompt_row *row = &b->rows->rows[b->first + i / n];

        b->sequences[i] = (struct hd_rollout_sequence){
            .prompt = row->ids,
            .prompt_count = row->count,
            .seed = hd_random_key(key, (uint64_t)(b->first * n + i)),
            .ids = hd_arena_array(arena, (size_t)job->tasks_tokens, sizeof(int32_t))};
        b->answers[i] = (struct rank_answer){.sequence = &b->sequences[i], .row = row};
    }
    if (hd_arena_failed(arena))
        return hd_err(HD_NO_MEMORY, "no memory for answers to tasks");
    return hd_trainer_rollout(b->r->trainer, &rollout);
}

static enum hd_status check_block(struct task_block *b)
{
    struct rank_rater *rater = &b->r->tasks->rater;
    const int64_t n = rater->group;
    enum hd_status st;

    for (int64_t g = 0; g < b->tasks; g++)
        b->wanted[g] = rank_rater_of(rater, b->first + g) == b->r->rank;
    st = rank_rate(rater, b->answers, b->tasks, b->wanted, b->parts);
    if (!st && !rater->stopped)
        st = rank_share_rewards(rater, b->first, b->tasks, b->parts);
    for (int64_t g = 0; !st && !rater->stopped && g < b->tasks; g++) {
        int64_t right = 0;

        for (int64_t k = g * n; k < (g + 1) * n; k++) {
            const double reward =
                hd_rewards_sum(&rater->rewards, b->parts + k * rater->rewards.count);

            right += reward >= 1 - 1e-9; /* weights such as 1/3 add up to a little less */
            b->unchecked += isnan(reward);
        }
        b->pass += hd_pass_at(n, right, 1);
        b->pass_k += hd_pass_at(n, right, b->r->job.tasks_k);
    }
    return st;
}

/* Answers the tasks of a block. */
static enum hd_status answer_block(struct task_block *b)
{
    const struct rank_rater *rater = &b->r->tasks->rater;
    const size_t count = (size_t)(b->tasks * rater->group);
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    b->answers = hd_arena_array(&arena, count, sizeof *b->answers);
    b->sequences = hd_arena_array(&arena, count, sizeof *b->sequences);
    b->parts = hd_arena_array(&arena, count * (size_t)rater->rewards.count, sizeof *b->parts);
    b->wanted = hd_arena_array(&arena, (size_t)b->tasks, sizeof *b->wanted);
    st = hd_arena_failed(&arena) ? hd_err(HD_NO_MEMORY, "no memory for answers to tasks")
                                 : write_block(b, &arena);
    if (!st && !rater->stopped)
        st = check_block(b);
    hd_arena_done(&arena);
    return st;
}

static enum hd_status answer_file(struct rank *r, int64_t index)
{
    const struct hd_prompt_rows *rows = &r->tasks->files[index];
    struct task_block b = {.r = r, .rows = rows};
    char text[256];
    enum hd_status st = HD_OK;

    for (; !st && !r->tasks->rater.stopped && b.first < rows->count; b.first += b.tasks) {
        b.tasks = hd_min(BLOCK_TASKS, rows->count - b.first);
        st = answer_block(&b);
    }
    if (st || r->tasks->rater.stopped)
        return st;
    b.pass /= (double)rows->count;
    b.pass_k /= (double)rows->count;
    rank_report_score(r, (struct hd_val_metric){HD_VAL_PASS, index}, b.pass, rows->count);
    if (r->job.tasks_k > 1)
        rank_report_score(r, (struct hd_val_metric){HD_VAL_PASS_K, index}, b.pass_k, rows->count);
    hd_trainer_note_pass(r->trainer, index, b.pass, b.pass_k);
    if (!b.unchecked || r->tasks->said_unchecked)
        return HD_OK;
    r->tasks->said_unchecked = true;
    (void)snprintf(
        text, sizeof text,
        "validate.tasks: %lld of %lld answers could not be checked (a task lacks the column "
        "that a builtin compares with, or a program gave no reward): they count as wrong",
        (long long)b.unchecked, (long long)(rows->count * r->job.tasks_samples));
    rank_say(r, HD_LINK_LEVEL_WARN, text);
    return HD_OK;
}

enum hd_status rank_answer_tasks(struct rank *r)
{
    enum hd_status st = HD_OK;

    if (!r->tasks)
        return HD_OK;
    r->tasks->rater.stopped = false;
    for (int64_t i = 0; !st && i < r->tasks->count; i++)
        st = r->tasks->rater.stopped ? HD_OK : answer_file(r, i);
    return st;
}
