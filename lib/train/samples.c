/* samples: continues the prompts of validate.samples (rollout.h). */

#include "base/math.h"
#include "base/random.h"
#include "train/rollout.h"
#include "train/trainer.h"

enum hd_status hd_trainer_open_samples(struct hd_trainer *t, struct hd_job_tokenizer *tokenizer)
{
    const struct hd_job *job = &t->rank_program.job;
    enum hd_status st = hd_prompts_open(job, tokenizer, &t->prompts);

    if (st || !t->prompts.count)
        return st;
    t->sampled = hd_arena_array(&t->arena, (size_t)t->prompts.count, sizeof *t->sampled);
    for (int64_t i = 0; t->sampled && i < t->prompts.count; i++) {
        struct hd_rollout_sequence *s = &t->sampled[i];

        s->prompt = t->prompts.list[i].ids;
        s->prompt_count = t->prompts.list[i].count;
        /* a sample ends where the context is full, with one token that is not read */
        s->ids = hd_arena_array(&t->arena, (size_t)hd_min(job->samples_tokens, job->context),
                                sizeof *s->ids);
    }
    return hd_arena_failed(&t->arena) ? hd_err(HD_NO_MEMORY, "no memory for samples") : HD_OK;
}

int64_t hd_trainer_sample_count(const struct hd_trainer *t)
{
    return t->prompts.count;
}

enum hd_status hd_trainer_write_samples(struct hd_trainer *t, void (*alive)(void *user), void *user)
{
    const struct hd_job *job = &t->rank_program.job;
    const uint64_t of_step = hd_random_key((uint64_t)job->samples_seed, (uint64_t)t->steps_done);
    const struct hd_rollout rollout = {
        .sequences = t->sampled,
        .count = t->prompts.count,
        .group = 1,
        .max_tokens = job->samples_tokens,
        .sampling = {.temperature = job->samples_temperature, .top_p = job->samples_top_p},
        .stops = &t->prompts.stops,
        .drawn_max = t->prompts.drawn_max,
        .alive = alive,
        .user = user};

    for (int64_t i = 0; i < t->prompts.count; i++)
        t->sampled[i].seed = hd_random_key(of_step, (uint64_t)i);
    return t->prompts.count ? hd_trainer_rollout(t, &rollout) : HD_OK;
}

struct hd_sample_text hd_trainer_sample(const struct hd_trainer *t, int64_t index)
{
    const struct hd_rollout_sequence *s = &t->sampled[index];
    const bool stopped = s->end == HD_ROLLOUT_STOP;

    return (struct hd_sample_text){.prompt = t->prompts.list[index].text,
                                   .ids = s->ids,
                                   .count = s->count - stopped,
                                   .stopped = stopped,
                                   .not_finite = s->end == HD_ROLLOUT_NOT_FINITE};
}
