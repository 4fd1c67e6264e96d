/* The members of a group launch the same collectives in the same order: asked of the compiled
 * programs of all ranks, so that sizes far beyond what a test can run are asked, too. What differs
 * between ranks by nature (uneven shares, blocks that a window hides) must not show there.
 */
#include <stdio.h>
#include <string.h>

#include "runs.h"
#include "tests/program/test.h"

enum { WORLD_MAX = 16 };

/* The next collective of the group in the chunk's programs, behind place *n of program *call. */
static const struct hd_node *next_of(const struct hd_chunk *chunk, enum hd_group_name group,
                                     int *call, int *n)
{
    for (; *call < HD_CALL_COUNT; ++*call, *n = 0)
        while (*n < chunk->program[*call].count) {
            const struct hd_node *node = chunk->program[*call].nodes[(*n)++];

            if (node->is_comm && node->group == group)
                return node;
        }
    return NULL;
}

static bool alike(const struct hd_node *a, const struct hd_node *b)
{
    if (!a || !b)
        return a == b;
    return a->comm == b->comm && a->count == b->count && a->dtype == b->dtype &&
           a->keep_fp32 == b->keep_fp32 && a->stream == b->stream && a->only_last == b->only_last &&
           a->rows.elements == b->rows.elements;
}

static void compare_chunks(const struct hd_chunk *mine, const struct hd_chunk *theirs,
                           enum hd_group_name group, int rank, int other)
{
    int call = 0, other_call = 0, n = 0, other_n = 0;
    const struct hd_node *node;

    do {
        const struct hd_node *peer = next_of(theirs, group, &other_call, &other_n);

        node = next_of(mine, group, &call, &n);
        if (!alike(node, peer) || call != other_call)
            fail_msg("group %s: %s of %lld in %s of rank %d, %s of %lld in rank %d",
                     hd_group_text(group), node ? hd_node_name(node) : "nothing",
                     node ? (long long)node->count : 0,
                     node ? hd_call_name((enum hd_call)call) : "the end", rank,
                     peer ? hd_node_name(peer) : "nothing", peer ? (long long)peer->count : 0,
                     other);
    } while (node);
}

static void check_job(const struct hd_job *job)
{
    static struct hd_rank_program layouts[WORLD_MAX];
    const int world = run_world(job);
    struct hd_arena arena;

    assert_in_range(world, 2, WORLD_MAX);
    hd_arena_init(&arena, 0);
    for (int r = 0; r < world; r++)
        run_layout_of(job, r, &(struct hd_rank_program_options){0}, &arena, &layouts[r]);
    for (int g = 0; g < HD_GROUP_COUNT; g++)
        for (int r = 0; r < world; r++) {
            const enum hd_group_name name = (enum hd_group_name)g;
            const int first = hd_mesh_find_group(&layouts[r].mesh, name, r).first;

            for (int k = 0; k < layouts[r].chunk_count; k++) {
                compare_chunks(layouts[r].train[k], layouts[first].train[k], name, r, first);
                compare_chunks(layouts[r].eval[k], layouts[first].eval[k], name, r, first);
            }
            compare_chunks(layouts[r].update, layouts[first].update, name, r, first);
        }
    hd_arena_done(&arena);
}

static struct hd_job job_of(const struct harness *h, const char *family, int tp, int cp, int dp)
{
    struct hd_job job = harness_job(h, family, dp);

    job.tp = tp;
    job.cp = cp;
    job.sequence = tp > 1;
    job.global_batch = job.micro_batch * dp;
    return job;
}

/* Logits in several chunks of rows on shares of which the last is short: GPT-2's and Qwen's
 * vocabularies, and one just beyond a multiple. */
static void heads_in_chunks_on_uneven_shares(void **state)
{
    static const struct {
        int64_t vocab, rows;
        int tp;
    } cases[] = {{4100, 8192, 2}, {50257, 10752, 8}, {50257, 32768, 16}, {151936, 32768, 8}};
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct hd_job job = job_of(&h, "llama", cases[i].tp, 1, 1);

            job.heads = job.kv_heads = 16;
            job.vocab = cases[i].vocab;
            job.context = cases[i].rows / 8;
            job.micro_batch = job.global_batch = 8;
            job.precision = hd_job_find_word(hd_job_precision_words, bf16 ? "bf16" : "fp32");
            check_job(&job);
        }
    harness_teardown(&h);
}

static void windows_that_hide_blocks_from_some_ranks(void **state)
{
    struct harness h;

    harness_setup(&h, 20000);
    for (int gather = 0; gather < 2; gather++)
        for (int64_t window = 0; window <= 96; window += 8) {
            struct hd_job job = job_of(&h, "mistral", 2, 8, 1);

            job.window = window;
            job.context = 128;
            job.cp_exchange =
                hd_job_find_word(hd_job_cp_exchange_words, gather ? "all_gather" : "ring");
            check_job(&job);
        }
    harness_teardown(&h);
}

static void blocks_of_experts_across_blocks_of_sequences(void **state)
{
    static const int sizes[][3] = {{3, 2, 3}, {3, 2, 6}, {2, 3, 2}, {4, 2, 4}, {2, 4, 8}};
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int capacity = 0; capacity < 2; capacity++) {
            struct hd_job job = job_of(&h, "mixtral", 1, sizes[i][1], sizes[i][0]);

            job.context = 48;
            job.experts = 24;
            job.ep = sizes[i][2];
            job.capacity = capacity;
            check_job(&job);
        }
    harness_teardown(&h);
}

RUN_CASES()
