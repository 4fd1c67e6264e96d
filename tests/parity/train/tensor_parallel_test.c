/* Goal: tensor and sequence parallelism send and keep bytes, against closed forms worked out by
 * hand; and checkpoints that cross from one tp to another. That they train alike is the grid's
 * business.
 */
#include <stdio.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "compare.h"
#include "program/dry.h"
#include "tests/program/test.h"
#include "traffic.h"

/* The sizes of harness_job. */
enum { L = 2, C = 32, H = 4, G = 2, D = 8, F = 48, S = 16, B = 2, R = B * S, V = 256 };

static struct hd_job job_of(const struct harness *h, const char *family, int tp, bool sequence)
{
    struct hd_job job = harness_job(h, family, 1);

    job.tp = tp;
    job.sequence = sequence;
    job.micro_batch = B;
    return job;
}

/* ---- bytes sent ---- */

struct tp_bytes {
    int64_t all_reduce, all_gather, reduce_scatter;
};

/* Returns the bytes of one micro-batch of a llama over P = tp ranks, all of them together. A sum of
 * n bytes on every rank moves 2 (P-1) n; a gather of n bytes from each, or a scattered sum to each,
 * P (P-1) n.
 *
 * The pairs of enter and leave: two in each block; embedding has a leave alone, the head an enter.
 * Without sequence parallelism every leave sums [R, C] in F and every enter in B. With it:
 *   F: leave scatters sums, enter gathers;  B: enter scatters sums, leave gathers; and for the
 *   weights of a block's two column-parallel products enter gathers again. (The head's weight
 *   gradient is formed in F.)                         each time R/P rows on each rank
 * The head gathers its HD_CROSS_ENTROPY_STATS numbers per row, in one chunk. */
static struct tp_bytes micro_batch_bytes(int64_t P, bool sequence)
{
    const int64_t all = R * C * 4, mine = all / P, stats = R * HD_CROSS_ENTROPY_STATS * 4;
    const int64_t enters = 2 * L + 1, leaves = 2 * L + 1;
    struct tp_bytes bytes = {.all_gather = P * (P - 1) * stats};

    if (!sequence) {
        bytes.all_reduce = (enters + leaves) * 2 * (P - 1) * all;
        return bytes;
    }
    bytes.reduce_scatter = (enters + leaves) * P * (P - 1) * mine;
    bytes.all_gather += (enters + leaves + 2 * L) * P * (P - 1) * mine;
    return bytes;
}

/* At the end of a step the gradients are summed of what is held by all and sees local rows (with
 * sequence parallelism two norms per block and the head's), and of key/value heads that ranks
 * share: k and v of D rows, over groups of P / G. */
static int64_t sums_over_tp(int64_t P, bool sequence)
{
    return sequence ? 2 * (P - 1) * (L * 2 * C + C) * 4 : 0;
}

static int64_t sums_over_copies(int64_t P)
{
    const int64_t copies = P / G;

    return copies > 1 ? G * 2 * (copies - 1) * (L * 2 * D * C) * 4 : 0;
}

static void check_bytes(int P, bool sequence)
{
    const struct tp_bytes micro = micro_batch_bytes(P, sequence);
    struct traffic traffic = {0};
    struct harness h;
    struct hd_job job;
    int64_t micro_batches;

    harness_setup(&h, 20000);
    job = job_of(&h, "llama", P, sequence);
    micro_batches = job.global_batch / B;
    traffic_count(&job, &traffic);
    assert_int_equal(traffic_moved(&traffic, P, HD_GROUP_TP, HD_COMM_ALL_REDUCE),
                     micro_batches * micro.all_reduce + sums_over_tp(P, sequence));
    assert_int_equal(traffic_moved(&traffic, P, HD_GROUP_TP, HD_COMM_ALL_GATHER),
                     micro_batches * micro.all_gather);
    assert_int_equal(traffic_moved(&traffic, P, HD_GROUP_TP, HD_COMM_REDUCE_SCATTER),
                     micro_batches * micro.reduce_scatter);
    assert_int_equal(traffic_moved(&traffic, P, HD_GROUP_KV_REPLICA, HD_COMM_ALL_REDUCE),
                     sums_over_copies(P));
    traffic_check_dry(&traffic, &job);
    harness_teardown(&h);
}

static void tensor_parallelism_sums_twice_per_pair(void **state)
{
    check_bytes(2, false);
    check_bytes(4, false);
}

static void sequence_parallelism_gathers_and_scatters_instead(void **state)
{
    check_bytes(2, true);
    check_bytes(4, true);
}

/* ---- bytes kept ---- */

/* Returns the bytes that F leaves for B with tp ranks, in fp32, per rank and micro-batch; row by
 * row of R:
 *   block  x, its norm's rstd and result, q k v, attention's log-sum-exp and result,
 *          x behind the addition, rstd, norm's result, gate and up, their product
 *          = 4 C + 2 + (2 H + 2 G) D + H + 3 F                 all of it over tp
 *   head   x and rstd for the norm, and the gradient that F has formed already: 2 C + 1, over tp
 *   batch  tokens, targets, positions, index: 4 numbers of every row on every rank
 * (Korthikanti et al. 2022, table 2: with sequence parallelism no term of a layer is left that tp
 * does not divide.) Every tensor here is a multiple of 64 bytes, so nothing is lost to alignment.
 */
static int64_t kept_bytes(int64_t tp)
{
    const int64_t block = 4 * C + 2 + (2 * H + 2 * G) * D + H + 3 * F, head = 2 * C + 1;

    return 4 * R * (L * block + head) / tp + 4 * 4 * R;
}

static void sequence_parallelism_keeps_what_the_closed_form_says(void **state)
{
    struct harness h;

    harness_setup(&h, 20000);
    for (int tp = 1; tp <= 2; tp++) { /* 4: kv heads have copies, which tp does not divide */
        const struct hd_job job = job_of(&h, "llama", tp, tp > 1);
        struct hd_rank_program layout;
        struct hd_arena arena;

        hd_arena_init(&arena, 0);
        run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &layout);
        assert_int_equal(layout.memory.kept, kept_bytes(tp));
        hd_arena_done(&arena);
    }
    harness_teardown(&h);
}

/* ---- checkpoints ---- */

/* Goal: any layout reads what any other wrote, to the bit. Method: what the ranks of one layout
 * hold when they save, put together, against what those of another hold when they have loaded. Of
 * the padded vocabulary only what is real is written: the checkpoint's shapes are the model's. */
static void a_checkpoint_crosses_from_one_tp_to_another(void **state)
{
    static const struct {
        int tp, dp;
    } layouts[] = {{1, 1}, {2, 1}, {4, 1}, {2, 2}, {1, 2}};
    enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

    for (int from = 0; from < LAYOUTS; from++) {
        struct run *save = run_new(0);
        struct hd_saved saved;
        struct harness h;
        struct hd_job job;

        harness_setup(&h, 20000);
        job = job_of(&h, from % 2 ? "gpt2" : "llama", layouts[from].tp, layouts[from].tp > 1);
        job.vocab = 258; /* tp = 2: two shares of 160 rows, the second one with 98 */
        job.dp = layouts[from].dp;
        run_save(&job, 3, save, &saved);
        for (int to = 0; to < LAYOUTS; to++) {
            struct run *load = run_new(0);

            job.tp = layouts[to].tp;
            job.dp = layouts[to].dp;
            job.sequence = job.tp > 1;
            run_load(&job, &saved, load);
            run_compare_state(load, save);
            run_free(load);
        }
        run_free(save);
        harness_teardown(&h);
    }
}

RUN_CASES()
