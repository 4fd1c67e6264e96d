/* frozen_model: the model on the ranks of a job that only computes: a teacher (train.distill.teacher is a
 * folder with weights), or a reward model (train.rewards: {model: FOLDER}). A job has at most one. Also the
 * path of a teacher's file.
 *
 * The job has its architecture as one line of text, "model.family llama\tmodel.layers 6", the keys of
 * `model` with another value than the default, so that a plan needs no access to the folder. For a reward
 * model the line also has the keys that say how it reads a text: its tokenizer, template and context.
 *
 * Used by: spec, plan, train.   Uses: job.   Threads: any; no state.
 */
#ifndef HD_JOB_FROZEN_MODEL_H
#define HD_JOB_FROZEN_MODEL_H

#include "job/job.h"

/* Write the architecture of the model of `theirs` into job->distill_model, or, with the keys of its texts,
 * into job->reward_model. HD_LIMIT: it is too long. HD_INVALID: a path in it has a tab. */
enum hd_status hd_job_set_teacher_model(const struct hd_job *theirs, struct hd_job *job);
enum hd_status hd_job_set_reward_model(const struct hd_job *theirs, struct hd_job *job);

/* Makes, with texts in `arena`, the job whose programs of validation write a teacher's records of the batches of `job`: the
 * teacher's architecture and folder, nothing that trains, and the data, layout, precision and
 * micro-batches of `job`. HD_INVALID: job->distill_model is no list of keys. */
enum hd_status hd_job_of_teacher(const struct hd_job *job, struct hd_arena *arena,
                                 struct hd_job *ret_teacher);

/* Makes the job whose programs of validation rate the answers of a step of `job`, and whose chat template
 * and tokenizer are those of the reward model. Its windows are a little longer than those of answers, or as
 * long as the model's context, less what cp and tp ranks cannot share evenly, and as many as there are
 * answers. HD_INVALID: as above. */
enum hd_status hd_job_of_reward_model(const struct hd_job *job, struct hd_arena *arena,
                                      struct hd_job *ret_model);

/* Makes the job of the frozen model that `job` has (hd_job_has_frozen_model). */
enum hd_status hd_job_of_frozen(const struct hd_job *job, struct hd_arena *arena,
                                struct hd_job *ret_frozen);
/* Returns the path of that model in the job file, with which messages about it begin. */
const char *hd_job_frozen_path(const struct hd_job *job);

/* Writes the path of the teacher's file into `path`: train.distill.teacher itself, or the file within that
 * folder of a job, or of a run of `heddle local`. */
enum hd_status hd_job_teacher_file(const struct hd_job *job, struct hd_text *path);

#endif
