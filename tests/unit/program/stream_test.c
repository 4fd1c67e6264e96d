/* stream: on which stream a node runs, and for which nodes of other streams it waits.
 *
 * Programs are made by hand of kernels that write a store (zero), read one and write another (cast)
 * or read and write one in place (rope), and of collectives, which run on streams of their own.
 */
#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "program/emit.h"
#include "tests/program/test.h"

enum { STORES = 4, NODES_MAX = 16, STREAMS = HD_STREAM_COUNT };

struct case_ {
    struct hd_arena arena;
    struct hd_emit e;
    struct hd_operand x, y, z, w;
};

static void begin(struct case_ *c)
{
    memset(c, 0, sizeof *c);
    hd_arena_init(&c->arena, 0);
    c->e.arena = &c->arena;
    c->e.call = HD_CALL_F;
    c->x = hd_emit_temp(&c->e, "x", HD_F32, 1, 0);
    c->y = hd_emit_temp(&c->e, "y", HD_F32, 1, 0);
    c->z = hd_emit_temp(&c->e, "z", HD_F32, 1, 0);
    c->w = hd_emit_temp(&c->e, "w", HD_F32, 1, 0);
}

static void end(struct case_ *c)
{
    assert_int_equal(c->e.error.status, HD_OK);
    hd_arena_done(&c->arena);
}

static void writes(struct case_ *c, struct hd_operand out)
{
    (void)hd_emit_zero(&c->e, HD_ARGS(zero, 0), HD_OPERANDS(zero, .out = out));
}

static void copies(struct case_ *c, struct hd_operand out, struct hd_operand inp)
{
    (void)hd_emit_cast(&c->e, HD_ARGS(cast, 0), HD_OPERANDS(cast, .out = out, .inp = inp));
}

static void changes(struct case_ *c, struct hd_operand x)
{
    (void)hd_emit_rope(&c->e, HD_ARGS(rope, 0), HD_OPERANDS(rope, .x = x));
}

static struct hd_node *gathers(struct case_ *c, struct hd_operand received, struct hd_operand sent)
{
    return hd_emit_comm(&c->e, &(struct hd_comm_args){.kind = HD_COMM_ALL_GATHER},
                        &(struct hd_comm_operands){.received = received, .sent = sent});
}

/* Records a gather, on the stream of the sums of gradients. */
static void reduces(struct case_ *c, struct hd_operand received, struct hd_operand sent)
{
    gathers(c, received, sent)->stream = HD_STREAM_REDUCE;
}

/* The waits of each node as "", "0", "1 2". */
static void expect_waits(struct case_ *c, const char *const *expected)
{
    const struct hd_node_list *list = &c->e.lists[HD_CALL_F];

    hd_pass_stream(&c->e);
    for (int i = 0; i < list->count; i++) {
        char waits[64] = "";

        for (int k = 0; k < list->nodes[i]->wait_count; k++)
            (void)snprintf(waits + strlen(waits), sizeof waits - strlen(waits), "%s%d",
                           k ? " " : "", list->nodes[i]->waits[k]);
        if (strcmp(waits, expected[i]) != 0)
            fail_msg("node %d waits for \"%s\", not for \"%s\"", i, waits, expected[i]);
    }
    assert_null(expected[list->count]);
    end(c);
}
#define EXPECT_WAITS(c, ...) expect_waits(c, (const char *const[]){__VA_ARGS__, NULL})

/* ---- one pair of nodes at a time --------------------------------------------------------------*/

static void a_read_waits_for_the_write(void **state)
{
    struct case_ c;

    begin(&c);
    writes(&c, c.x);
    gathers(&c, c.y, c.x);
    copies(&c, c.z, c.y);
    EXPECT_WAITS(&c, "", "0", "1");
}

/* A change in place is a write: the newest writer counts, not the one before it. */
static void a_read_waits_for_a_change_in_place(void **state)
{
    struct case_ c;

    begin(&c);
    writes(&c, c.x);
    changes(&c, c.x);
    gathers(&c, c.y, c.x);
    changes(&c, c.y);
    copies(&c, c.z, c.y);
    reduces(&c, c.w, c.y);
    EXPECT_WAITS(&c, "", "", "1", "2", "", "3 2");
}

static void a_write_waits_for_the_read(void **state)
{
    struct case_ c;

    begin(&c);
    writes(&c, c.x);
    gathers(&c, c.y, c.x);
    writes(&c, c.x);
    EXPECT_WAITS(&c, "", "0", "1");
}

static void a_change_in_place_waits_for_the_read(void **state)
{
    struct case_ c;

    begin(&c);
    writes(&c, c.x);
    gathers(&c, c.y, c.x);
    changes(&c, c.x);
    EXPECT_WAITS(&c, "", "0", "1");
}

static void a_write_waits_for_the_write(void **state)
{
    struct case_ c;

    begin(&c);
    writes(&c, c.x);
    gathers(&c, c.y, c.x);
    writes(&c, c.y);
    reduces(&c, c.y, c.x);
    EXPECT_WAITS(&c, "", "0", "1", "2 1");
}

static void a_write_waits_for_a_change_in_place(void **state)
{
    struct case_ c;

    begin(&c);
    writes(&c, c.x);
    writes(&c, c.y);
    changes(&c, c.x);
    gathers(&c, c.x, c.y);
    EXPECT_WAITS(&c, "", "", "", "2");
}

/* The flag of a bound that was exceeded is read and written by each exchange of rows. */
static void a_collective_that_changes_in_place_is_waited_for(void **state)
{
    struct case_ c;

    begin(&c);
    writes(&c, c.w);
    writes(&c, c.x);
    (void)hd_emit_comm(&c.e, &(struct hd_comm_args){.kind = HD_COMM_ALL_TO_ALL_V},
                       &(struct hd_comm_operands){.received = c.y, .sent = c.x, .exceeded = c.w});
    copies(&c, c.z, c.w);
    EXPECT_WAITS(&c, "", "", "1", "2");
}

/* ---- no more than that ------------------------------------------------------------------------*/

static void two_reads_do_not_wait_for_each_other(void **state)
{
    struct case_ c;

    begin(&c);
    writes(&c, c.x);
    gathers(&c, c.y, c.x);
    copies(&c, c.z, c.x);
    EXPECT_WAITS(&c, "", "0", "");
}

/* A stream runs in order, so what one of its nodes has waited for, later ones have waited for. */
static void a_stream_waits_once(void **state)
{
    struct case_ c;

    begin(&c);
    writes(&c, c.x);
    writes(&c, c.w);
    gathers(&c, c.y, c.w);
    gathers(&c, c.z, c.x);
    EXPECT_WAITS(&c, "", "", "1", "");
}

static void nodes_of_one_stream_do_not_wait(void **state)
{
    struct case_ c;

    begin(&c);
    writes(&c, c.x);
    changes(&c, c.x);
    copies(&c, c.y, c.x);
    writes(&c, c.x);
    EXPECT_WAITS(&c, "", "", "", "");
}

/* One wait per stream, in the order of streams: gather (1), then reduce (2). */
static void a_node_waits_for_each_stream(void **state)
{
    struct case_ c;

    begin(&c);
    writes(&c, c.x);
    gathers(&c, c.y, c.x);
    reduces(&c, c.z, c.x);
    (void)hd_emit_add(&c.e, HD_ARGS(add, 0), HD_OPERANDS(add, .out = c.w, .a = c.z, .b = c.y));
    EXPECT_WAITS(&c, "", "0", "0", "1 2");
}

static void each_program_begins_anew(void **state)
{
    struct case_ c;

    begin(&c);
    writes(&c, c.x);
    gathers(&c, c.y, c.x);
    c.e.call = HD_CALL_B;
    copies(&c, c.z, c.y);
    hd_pass_stream(&c.e);
    assert_int_equal(c.e.lists[HD_CALL_B].nodes[0]->wait_count, 0);
    end(&c);
}

static void collectives_have_streams_of_their_own(void **state)
{
    struct hd_node *shift, *gather, *reduce;
    struct case_ c;

    begin(&c);
    writes(&c, c.x);
    gather = gathers(&c, c.y, c.x);
    reduce = gathers(&c, c.z, c.x);
    reduce->stream = HD_STREAM_REDUCE; /* a pass has chosen */
    shift = gathers(&c, c.w, c.x);
    shift->comm = HD_COMM_SHIFT;
    hd_pass_stream(&c.e);
    assert_int_equal(c.e.lists[HD_CALL_F].nodes[0]->stream, HD_STREAM_COMPUTE);
    assert_int_equal(gather->stream, HD_STREAM_GATHER);
    assert_int_equal(reduce->stream, HD_STREAM_REDUCE);
    assert_int_equal(shift->stream, HD_STREAM_PIPELINE);
    end(&c);
}

/* ---- any program ------------------------------------------------------------------------------*/

/* Random nodes over a few stores; of each what it reads and what it writes, as sets of stores. */
static int draw_program(struct case_ *c, uint64_t key, unsigned *ret_reads, unsigned *ret_writes)
{
    const struct hd_operand stores[STORES] = {c->x, c->y, c->z, c->w};
    const int count = 4 + (int)(hd_random_u64(key, 0) % (NODES_MAX - 3));

    for (int i = 0; i < count; i++) {
        const uint64_t draw = hd_random_u64(key, 1 + (uint64_t)i);
        const int a = (int)(draw % STORES), b = (int)(draw / 8 % STORES);

        ret_reads[i] = 1u << b;
        ret_writes[i] = 1u << a;
        switch (draw / 64 % 5) {
        case 0:
            writes(c, stores[a]);
            ret_reads[i] = 0;
            break;
        case 1:
            changes(c, stores[a]);
            ret_reads[i] = 1u << a;
            break;
        case 2:
            copies(c, stores[a], stores[b]);
            break;
        case 3:
            (void)gathers(c, stores[a], stores[b]);
            break;
        default:
            reduces(c, stores[a], stores[b]);
        }
    }
    return count;
}

/* Goal: of two nodes that touch a store, one of which writes it, the second never starts before the
 * first has ended. Method: what comes before what follows from the order within streams and from
 * the waits, closed transitively; random programs of up to 16 nodes over 4 stores. */
static void whatever_conflicts_is_in_order(void **state)
{
    for (uint64_t round = 0; round < 3000; round++) {
        bool before[NODES_MAX][NODES_MAX] = {{false}};
        unsigned reads[NODES_MAX], written[NODES_MAX];
        struct hd_node *const *nodes;
        struct case_ c;
        int count;

        begin(&c);
        count = draw_program(&c, hd_random_key(round, 1), reads, written);
        hd_pass_stream(&c.e);
        nodes = c.e.lists[HD_CALL_F].nodes;
        for (int i = 0; i < count; i++) {
            for (int k = 0; k < i; k++)
                before[k][i] = nodes[k]->stream == nodes[i]->stream;
            assert_in_range(nodes[i]->wait_count, 0, STREAMS - 1);
            for (int k = 0; k < nodes[i]->wait_count; k++) {
                assert_in_range(nodes[i]->waits[k], 0, i - 1);
                before[nodes[i]->waits[k]][i] = true;
            }
            for (int k = i - 1; k >= 0; k--) /* by way of k, whose own row is complete */
                for (int j = 0; before[k][i] && j < k; j++)
                    before[j][i] |= before[j][k];
        }
        for (int i = 0; i < count; i++)
            for (int k = 0; k < i; k++)
                if ((written[i] & (reads[k] | written[k])) || (reads[i] & written[k]))
                    if (!before[k][i])
                        fail_msg("program %d: node %d may start before node %d has ended",
                                 (int)round, i, k);
        end(&c);
    }
}

RUN_CASES()
