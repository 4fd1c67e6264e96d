/* bench_job: what the benchmarks of training have in common: a model's step as a job, and a folder
 * for its data. */
#ifndef HD_TESTS_BENCH_JOB_H
#define HD_TESTS_BENCH_JOB_H

#include "job/job.h"

/* One rank, AdamW, clipping at 1; the one file of its data lives in `file`. The model's shape, the
 * batch and the words that the callers' cases differ in are left to them. */
struct hd_job bench_job(const char *family, const char *precision, const char *device,
                        struct hd_job_file *file);
void bench_job_word(char *ret_word, const char *text);

/* A new folder below TMPDIR, or /tmp. */
enum { BENCH_DIR_MAX = 512 };
enum hd_status bench_make_dir(char ret_dir[BENCH_DIR_MAX]);

/* The file DIR/corpus: random bytes, the same in each call. */
enum { BENCH_CORPUS_MAX = BENCH_DIR_MAX + sizeof "/corpus", BENCH_CORPUS_BYTES = 1 << 20 };
enum hd_status bench_write_corpus(const char *dir, char ret_corpus[BENCH_CORPUS_MAX]);

#endif
