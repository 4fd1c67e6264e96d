/* pipeline: which rank runs which program when, as lists that are made and proved before a step
 * runs.
 *
 * A model is cut into chunks, contiguous ranges of its units in layer order. A pipeline stage (the
 * ranks with one pp coordinate) holds one chunk or more. In a step each micro-batch passes forward
 * through all chunks (F), then backward (B); a schedule may part B into the gradient of the inputs
 * (B) and of the weights (W). Three pure functions, one after the other:
 *
 *   hd_schedule_build      a schedule -> the order of F, B and W of every stage
 *   hd_step_plan_build  the order -> the instructions of one stage: programs, transfers and slots
 *   hd_step_plan_check  proves the lists of all stages together, for any order
 *
 * Schedules. P stages, V chunks per stage, M micro-batches (any number, also fewer than P); tF, tB
 * and tW the times of all chunks of a stage for one micro-batch.
 *
 *   gpipe        all F, then all B (Huang et al. 2019). Every micro-batch is in flight at once.
 *   1f1b         stage s runs P - 1 - s F ahead, then F and B in turns (Narayanan et al. 2019):
 *                at most P - s micro-batches in flight. Idle, like gpipe: (P - 1)(tF + tB)
 *   interleaved  V chunks per stage, chunk c on stage c mod P; micro-batches in groups of P run one
 *                chunk after the other (Narayanan et al. 2021); the last group may have fewer.
 *                At most 2(P - 1 - s) + (V - 1)P + 1 (chunk, micro-batch) in flight.
 *                Idle, if P divides M: (P - 1)(tF + tB) / V
 *   zb-h1        1f1b with W apart: W fills the time in which a stage would wait (Qi et al. 2023).
 *                On every stage P micro-batches are in flight until their W, as many as in 1f1b
 *                on stage 0. With tF = tB = tW and M >= P, idle: (P - 1)(tF + tB - tW)
 *   zb-v         two chunks per stage, laid out as a V: chunk c and chunk 2P - 1 - c on one stage,
 *                so the first and the last chunk are on stage 0 (Qi et al. 2024). At most 2P
 *                (chunk, micro-batch) in flight until their W. With tF = tB = tW idle:
 *                (P - 1)tF / 2, in which the V fills, if M >= 2P - 1; below that the larger of
 *                it and (2P - 1 - M)tF
 *   forward      E only, for validation; on a V, or in groups of P
 *
 * With one stage, 1f1b is F0 B0 F1 B1 .. in one slot.
 *
 * Used by: train (layout, trainer), plan, spec (orders in job files), worker (draws schedules).
 * Uses: base, and the names of programs (mesh/call.h).
 * Threads: any; no state.
 */
#ifndef HD_PIPELINE_PIPELINE_H
#define HD_PIPELINE_PIPELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"
#include "mesh/call.h"

/* code, stable name (API: job.yaml) */
#define HD_SCHEDULE_LIST(X)       \
    X(1F1B, "1f1b")               \
    X(GPIPE, "gpipe")             \
    X(INTERLEAVED, "interleaved") \
    X(ZB_H1, "zb-h1")             \
    X(ZB_V, "zb-v")               \
    X(FORWARD, "forward")

enum hd_schedule_kind {
#define X(code, name) HD_SCHEDULE_##code,
    HD_SCHEDULE_LIST(X)
#undef X
        HD_SCHEDULE_COUNT
};
const char *hd_schedule_name(enum hd_schedule_kind schedule_kind);
bool hd_schedule_from_name(const char *text,
                           enum hd_schedule_kind *ret_schedule_kind); /* not "forward" */
bool hd_schedule_splits(
    enum hd_schedule_kind schedule_kind); /* B and W are programs of their own */

/* Which chunk lies on which stage. Chunks are numbered in layer order, 0 .. chunks - 1. */
struct hd_pipeline {
    int32_t stages;
    int32_t chunks; /* a multiple of stages: chunks / stages on each */
    bool folded;    /* as a V (zb-v): chunks = 2 stages, chunk c >= stages lies on stage
                       2 stages - 1 - c; else chunk c lies on stage c mod stages */
};
int32_t hd_pipeline_stage(const struct hd_pipeline *pipeline, int32_t chunk);
/* The k-th chunk of a stage, 0 <= k < chunks / stages, ascending; and the k of a chunk. */
int32_t hd_pipeline_chunk(const struct hd_pipeline *pipeline, int32_t stage, int32_t k);
int32_t hd_pipeline_index(const struct hd_pipeline *pipeline, int32_t chunk);

/* ---- the order of programs ---- */

enum { HD_STAGE_PROGRAMS_MAX = 1 << 24 }; /* programs that a stage may run in a step */

struct hd_schedule_entry {
    enum hd_call call; /* F, B or W; forward: E */
    int32_t chunk, micro_batch;
};
struct hd_schedule {
    struct hd_pipeline pipeline;
    int32_t micro_batches;
    bool split; /* B and W apart */
    struct hd_stage_schedule {
        struct hd_schedule_entry *entries;
        int32_t count;
    } * stages;     /* [pipeline.stages] */
    int32_t frozen; /* so many first chunks run F alone (hd_schedule_freeze) */
};

/* The order of a schedule; it lives in `arena`. Each chunk runs each call of its micro-batches in
 * ascending order, so a gradient has the same bits under every schedule. `split`: for tests that
 * run another schedule than zb-h1 and zb-v with W apart. HD_INVALID: interleaved with one chunk per
 * stage and more than one stage, zb-v not folded, zb-h1 or 1f1b with several chunks per stage ...;
 * the message begins with the key of job.yaml. gpipe and forward run on any pipeline. HD_LIMIT:
 * more than HD_STAGE_PROGRAMS_MAX programs. */
enum hd_status hd_schedule_build(enum hd_schedule_kind schedule_kind,
                                 const struct hd_pipeline *pipeline, int32_t micro_batches,
                                 bool split, struct hd_arena *arena,
                                 struct hd_schedule *ret_schedule);

/* Leaves B and W of the first `frozen` chunks out: neither these train nor anything below them, so
 * no gradient goes below chunk `frozen`. Only with one chunk per stage; else, and with an order
 * that is frozen already, nothing happens. A stage that runs F alone waits for the next one to take
 * what it makes, so it keeps no more values than it would otherwise. */
void hd_schedule_freeze(struct hd_schedule *schedule, int32_t frozen);

/* The order as text, a line per stage (docs/schedules.md): "0: F0.0 F0.1 B0.0 ..", call, chunk,
 * micro-batch; and back. hd_schedule_read takes pipeline and number of micro-batches from the
 * caller
 * and checks that the text fits them, that each program is there once, and that nothing waits in a
 * circle; `split` is true if there is a W. It reads orders of training only: E is no program of it.
 * HD_INVALID names line and word, counted from 1; for a circle who waits for what. */
void hd_schedule_write(const struct hd_schedule *schedule, struct hd_text *ret_text);
/* The pipeline and the number of micro-batches that a text is for: the largest numbers in it. The
 * chunks are folded if there are two per stage and stage 0 has the last one. HD_INVALID names line
 * and word: no order, or numbers that so many lines and words cannot have. */
enum hd_status hd_schedule_measure(const char *text, struct hd_pipeline *ret_pipeline,
                                   int32_t *ret_micro_batches);
enum hd_status hd_schedule_read(const char *text, const struct hd_pipeline *pipeline,
                                int32_t micro_batches, struct hd_arena *arena,
                                struct hd_schedule *ret_schedule);

/* ---- the instructions of a stage ---- */

enum hd_instruction_kind {
    HD_DO_BEGIN,       /* run the program S: the step block and records of the step */
    HD_DO_FEED,        /* the host writes the batch fields of (chunk, micro_batch) */
    HD_DO_RUN,         /* run a program of a chunk */
    HD_DO_SEND,        /* start sending a slot of the boundary pool to the stage `peer` */
    HD_DO_RECEIVE,     /* start receiving into a slot of the boundary pool */
    HD_DO_SYNCHRONIZE, /* order later launches after everything that was launched on any stream */
    HD_DO_UPDATE       /* run the program U */
};

/* The slots that an instruction uses. Kept and deferred slots are the regions of those names; the
 * other four are slots of one pool, the boundary pool: hidden rows between two chunks, or their
 * gradient. What a chunk puts out and the next chunk on the same stage takes in is one slot, and
 * nothing is sent.
 *
 *   KEPT      from FEED to the last of B and W      DEFERRED   from B to W; only if split
 *   IN        hidden rows that F reads, and B and W again
 *   OUT       hidden rows that F writes
 *   OUT_GRAD  gradient of OUT: B and W read it
 *   IN_GRAD   gradient of IN: B writes it
 *
 * The first chunk has no IN and IN_GRAD, the last no OUT and OUT_GRAD. Forward: E uses IN and OUT,
 * and kept slot 0. A transfer has its one slot in the place that the chunk gives it: SEND of OUT or
 * IN_GRAD, RECEIVE of IN or OUT_GRAD. */
enum hd_slot_use {
    HD_SLOT_SAVED,
    HD_SLOT_DEFERRED,
    HD_SLOT_IN,
    HD_SLOT_OUT,
    HD_SLOT_OUT_GRAD,
    HD_SLOT_IN_GRAD,
    HD_SLOT_USES
};

struct hd_instruction {
    enum hd_instruction_kind kind;
    enum hd_call call; /* RUN; FEED: F or E; BEGIN: S; UPDATE: U; SEND, RECEIVE: F for hidden
                          rows, B for a gradient */
    int32_t chunk, micro_batch; /* FEED, RUN, SEND, RECEIVE; of a transfer: of this stage's end */
    int32_t peer;               /* SEND, RECEIVE: the other stage */
    bool first, last;           /* RUN: the chunk's first, last micro-batch of the step */
    int32_t slot[HD_SLOT_USES]; /* -1: does not use one */
};

struct hd_step_plan {
    struct hd_instruction *list;
    int32_t count;
    int32_t saved_slots, deferred_slots, stage_io_slots;
};

/* The instructions of `stage` for one step (forward: for all micro-batches of a validation, without
 * BEGIN, JOIN and UPDATE). A SEND stands directly behind the program that made the value, a RECEIVE
 * one program ahead of the one that needs it, so both overlap with programs; a slot that is being
 * sent is not reused before another program has run and the receiver has come to its RECEIVE, if
 * programs take unit times. Slots are taken lowest first, so places repeat from step to step. The
 * list lives in `arena`. HD_NO_MEMORY only, if the order is sound.
 *
 * Who runs a list launches its instructions in order. A channel (two stages, one direction, forward
 * or backward) is a stream of its own. RUN waits for the RECEIVEs into slots that it reads and for
 * the SENDs out of slots that it writes; RECEIVE for the programs that read its slot and for the
 * SENDs out of it. */
enum hd_status hd_step_plan_build(const struct hd_schedule *schedule, int32_t stage,
                                  struct hd_arena *arena, struct hd_step_plan *ret_plan);

/* Proves the lists of all stages, plans[order->pipeline.stages]: every program runs exactly once on
 * every micro-batch with the values that it needs in its slots, no slot is overwritten while its
 * value is needed, every value that is sent is received once, in the same order at both ends of a
 * channel (two stages, one direction, forward or backward), micro-batches ascend, first and last
 * are right, slots are within the counts, and nothing waits in a circle, even if a SEND ends only
 * when its receiver has come to the RECEIVE, a RECEIVE begins only when its slot is free, and a
 * program stops the host. HD_INVALID: what is wrong, with stage, position in its list, and for a
 * circle who waits for what. */
enum hd_status hd_step_plan_check(const struct hd_schedule *schedule,
                                  const struct hd_step_plan *plans);

/* Makes the lists of all stages and proves them. ret_plans: [order->pipeline.stages], in `arena`.
 */
enum hd_status hd_schedule_check(const struct hd_schedule *schedule, struct hd_arena *arena,
                                 struct hd_step_plan **ret_plans);

/* Times of one micro-batch, any unit, [pipeline.chunks] each. */
struct hd_schedule_costs {
    const double *forward, *backward, *weights; /* not split: backward contains weights */
    double transfer; /* from the end of a program to the start of its reader on another stage */
};
struct hd_schedule_times {
    double total;  /* of the step, from the first program's start to the last one's end */
    double *busy;  /* [stages] running programs */
    double bubble; /* 1 - sum of busy / (stages x total) */
};
/* Walks the order; costs NULL: 1 per program, 2 for B that contains W. The result lives in `arena`;
 * HD_INVALID if the order lacks a program or waits for itself, with stage and position (from 0). */
enum hd_status hd_schedule_walk(const struct hd_schedule *schedule,
                                const struct hd_schedule_costs *costs, struct hd_arena *arena,
                                struct hd_schedule_times *ret_times);

/* Draws the order over time for people: a line per stage, a column per unit of time of F (uniform
 * costs 1, 1, 1; unsplit B: 2), e.g. "0  F0 F1 .  B0 -  .." with `.` where the stage waits and `-`
 * where a program goes on. With several chunks per stage "F2.0" is chunk 2, micro-batch 0. */
void hd_schedule_draw(const struct hd_schedule *schedule, struct hd_text *ret_text);

#endif
