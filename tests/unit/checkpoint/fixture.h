/* fixture: a job's folder, and tensors whose every element says where it belongs. */
#ifndef HD_TESTS_CHECKPOINT_FIXTURE_H
#define HD_TESTS_CHECKPOINT_FIXTURE_H

#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "tests/program/test.h"

struct fixture {
    char job_dir[64], attempt_dir[96], dir[160]; /* dir: of the checkpoint of step 100 */
};

int set_up(void **state);
int tear_down(void **state);

/* The bytes of a piece, element by element: a function of the tensor's name and the element's place
 * in the whole tensor. The caller frees. */
unsigned char *make_data(const struct hd_ckpt_entry *piece);

/* Passes bytes to hd_ckpt_write_shard: context is an array of each entry's bytes. */
hd_ckpt_bytes_fn bytes_in_array;

/* One shard whose data are made by make_data. */
struct hd_ckpt_shard write_shard(const char *dir, int rank, const struct hd_ckpt_entry *entries,
                                 size_t count);

/* A manifest with some of everything for these shards. */
struct hd_ckpt_manifest make_manifest(const struct hd_ckpt_shard *shards, size_t count);

/* Asserts that reading the piece gives what make_data gives. */
void assert_reads(struct hd_ckpt *ckpt, const struct hd_ckpt_entry *piece);

/* A checkpoint of two ranks: w [4,6] cut by rows, b [5] whole on rank 0, n [] on rank 1. */
void write_small_checkpoint(const char *dir);
void assert_small_checkpoint(const char *dir);

void read_whole_file(const char *path, struct hd_text *ret_text);
void write_whole_file(const char *path, const void *data, size_t size_bytes);

#endif
