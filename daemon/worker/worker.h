/* worker: the program that computes. `heddle-worker rank` is one rank of an attempt, started by the
 * supervisor; the other verbs do work for the command line, which links no compute libraries.
 *
 * Used by: the files of this folder only.
 * Threads: every verb runs on the main thread.
 */
#ifndef HD_WORKER_WORKER_H
#define HD_WORKER_WORKER_H

#include <stdint.h>

#include "base/status.h"
#include "data/bad_rows.h"

/* Each verb takes the arguments after its name and returns the exit status. */
int hd_worker_rank(int argc, char **argv);
int hd_worker_generate(int argc, char **argv);
int hd_worker_logits(int argc, char **argv);
int hd_worker_eval(int argc, char **argv);
int hd_worker_choices(int argc, char **argv);
int hd_worker_export(int argc, char **argv);
int hd_worker_tokenize(int argc, char **argv);
int hd_worker_train_tokenizer(int argc, char **argv);
int hd_worker_data(int argc, char **argv);
int hd_worker_samples(int argc, char **argv);
int hd_worker_bigram(int argc, char **argv);
int hd_worker_memory(int argc, char **argv);
int hd_worker_program(int argc, char **argv);
int hd_worker_schedule(int argc, char **argv);
int hd_worker_device_verb(int argc, char **argv);
int hd_worker_gpu_sample(int argc, char **argv);
int hd_worker_gpus(int argc, char **argv);
int hd_worker_probe(int argc, char **argv);

/* Exit statuses of the verbs that the heddle command runs, equal to its own; verb `rank` has those
 * of link.h. */
enum { HD_WORKER_OK = 0, HD_WORKER_USAGE = 2, HD_WORKER_NOT_FOUND = 4, HD_WORKER_FAILED = 6 };

/* Ends a verb that the heddle command runs: flushes stdout, and treats a failed write as the verb's
 * failure; prints the failure and returns the exit status. */
int hd_worker_finish(const char *verb, enum hd_status st);
/* Catches SIGINT, SIGTERM and SIGHUP: the first one makes hd_worker_stop_signal return its number, so
 * that the work can stop in order; a second one of the same kind ends the process at once. A signal
 * that the caller ignores, as nohup does with SIGHUP, stays ignored. */
void hd_worker_catch_stop(void);
int hd_worker_stop_signal(void); /* 0: none came */
/* Prints a verb's result, unless st is a failure, and frees the text. Returns st, or the failure to
 * print. */
enum hd_status hd_worker_print(enum hd_status st, struct hd_text *text);
/* Prints notes, one per line, on stderr: "heddle-worker VERB: note: ...". */
void hd_worker_note(const char *verb, const char *lines);
/* Prints the records that cannot be used on stderr, one per line, and how many more there are. */
void hd_worker_list_bad(const struct hd_bad_rows *bad);

#endif
