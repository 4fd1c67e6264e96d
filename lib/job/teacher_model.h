/* teacher_model: the model of a teacher on the student's own ranks (train.distill.teacher is a folder
 * with weights), and the path of a teacher's file.
 *
 * The job has its architecture as one line of text, "model.family llama\tmodel.layers 6", the keys of
 * `model` with another value than the default, so that a plan needs no access to the folder.
 *
 * Used by: spec, plan, train.   Uses: job.   Threads: any; no state.
 */
#ifndef HD_JOB_TEACHER_MODEL_H
#define HD_JOB_TEACHER_MODEL_H

#include "job/job.h"

/* Writes the architecture of the model of `theirs` into job->distill_model. HD_LIMIT: it is too long. */
enum hd_status hd_job_set_teacher_model(const struct hd_job *theirs, struct hd_job *job);

/* Makes the job whose programs of validation write a teacher's records of the batches of `job`: the
 * teacher's architecture and folder, nothing that trains, and the data, layout, precision and
 * micro-batches of `job`. HD_INVALID: job->distill_model is no list of keys. */
enum hd_status hd_job_of_teacher(const struct hd_job *job, struct hd_job *ret_teacher);

/* Writes the path of the teacher's file into `path`: train.distill.teacher itself, or the file within that
 * folder of a job, or of a run of `heddle local`. */
enum hd_status hd_job_teacher_file(const struct hd_job *job, struct hd_text *path);

#endif
