/* harness: ranks of a training job as threads or as processes, for tests.
 */
#ifndef HD_TESTS_TRAIN_HARNESS_H
#define HD_TESTS_TRAIN_HARNESS_H

#include "train/train.h"

enum { HARNESS_WORLD_MAX = 8 };
#define HARNESS_PEAK 1e9 /* FLOP/s: to measure it would take longer than a test */

/* A directory for one test, with a corpus of `corpus_bytes` bytes of text that a model can learn.
 */
struct harness {
    char dir[160], corpus[192];
    struct hd_job_file file;
};
void harness_setup(struct harness *h, int64_t corpus_bytes);
void harness_teardown(struct harness *h);

/* The backend of the test's ranks: of on_*.c the one that the test is built with, unless it takes
 * another (NULL: back to that one). */
const struct hd_backend_table *harness_backend(void);
void harness_use(const struct hd_backend_table *backend);
const struct hd_backend_table *on_backend(void); /* of on_*.c */

/* Returns how many of a test's steps to take: few on an emulated device (on_*.c). */
int on_steps(int steps);

/* Whether the ranks' trainers take the portable kernels, own products among them (false at first).
 */
void harness_plain(bool plain);

/* A small job: 2 layers, C = 32, 4 heads of 8, F = 48, context 16, global batch 8, fp32, 20 steps.
 */
struct hd_job harness_job(const struct harness *h, const char *family, int dp);

struct harness_rank {
    int rank, world;
    struct hd_comm *comm;
    struct hd_backend *instance; /* of a device, that comm uses too; NULL on the cpu */
    const struct hd_job *job;
    void *context; /* shared by all ranks (threads only) */
    void *shared;  /* memory that processes share as well */
};

/* Runs `body` once per rank; the first failed status of all, with its story. */
enum hd_status harness_threads(const struct hd_job *job, int world, void *context,
                               enum hd_status (*body)(struct harness_rank *r));
/* Runs the ranks in processes of their own (of a device's ranks, which are logical, still in
 * threads); `shared` points to memory that all may write. */
enum hd_status harness_processes(const struct hd_job *job, int world, void *shared,
                                 enum hd_status (*body)(struct harness_rank *r));
/* Runs the ranks in processes, connected by gloo over the loopback; HD_UNSUPPORTED in a build
 * without it. */
enum hd_status harness_gloo_processes(const struct hd_job *job, int world, void *shared,
                                      enum hd_status (*body)(struct harness_rank *r));
void *harness_shared(size_t size_bytes); /* zeroed, MAP_SHARED */
void harness_shared_free(void *memory, size_t size_bytes);

/* All ranks have come this far. */
enum hd_status harness_meet(struct harness_rank *r);

/* The weights of the start, and the reference where the objective has one. */
enum hd_status harness_init(struct hd_trainer *trainer);

enum hd_status harness_trainer(struct harness_rank *r, struct hd_trainer **ret_trainer);
/* After two steps, and with noise on every weight: biases and norms begin as zeros and ones, which
 * would fit anywhere, and positions hardly matter. The caller frees it, also after a failure. */
enum hd_status harness_trained(struct harness_rank *r, struct hd_trainer **ret_trainer);
/* Saves such a trainer; the context of the ranks is a struct hd_saved. A body of harness_threads. */
enum hd_status harness_save_trained(struct harness_rank *r);

/* A parameter's state of one kind, in memory of the caller's; put writes it back and frees it.
 * Neither fails. */
float *harness_take(struct hd_trainer *trainer, int param, enum hd_state_kind kind);
void harness_put(struct hd_trainer *trainer, int param, enum hd_state_kind kind, float *values);
void harness_clear_gradients(struct hd_trainer *trainer);

#endif
