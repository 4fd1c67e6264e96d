/* pipeline: decides which rank runs which program when, as instruction lists that are generated and
 * checked before a step runs.
 *
 * A model is cut into chunks, contiguous ranges of its units in layer order. A pipeline stage (the
 * ranks with one pp coordinate) holds one chunk or more. In a step each micro-batch passes forward
 * through all chunks (F), then backward (B); a schedule may split B into the gradient of the inputs
 * (B) and of the weights (W). Three pure functions, one after the other:
 *
 *   hd_schedule_build   kind of schedule -> the schedule: the order of F, B and W of every stage
 *   hd_step_plan_build  schedule -> the step plan of one stage: programs, transfers and slots
 *   hd_step_plan_check  checks the step plans of all stages together, for any schedule
 *
 * Schedules. P stages, V chunks per stage, M micro-batches (any number, also fewer than P); tF, tB
 * and tW the times of all chunks of a stage for one micro-batch.
 *
 *   gpipe        all F, then all B (Huang et al. 2019). Every micro-batch is in flight at once.
 *   1f1b         stage s runs P - 1 - s F ahead, then alternates F and B (Narayanan et al. 2019):
 *                at most P - s micro-batches in flight. Idle, like gpipe: (P - 1)(tF + tB)
 *   interleaved  V chunks per stage, chunk c on stage c mod P; micro-batches in groups of P run one
 *                chunk after the other (Narayanan et al. 2021); the last group may have fewer.
 *                At most 2(P - 1 - s) + (V - 1)P + 1 (chunk, micro-batch) in flight.
 *                Idle, if P divides M: (P - 1)(tF + tB) / V
 *   zb-h1        1f1b with W split off: W fills the time in which a stage would wait (Qi et al.
 *                2023). On every stage P micro-batches are in flight until their W, as many as in
 *                1f1b on stage 0. With tF = tB = tW and M >= P, idle: (P - 1)(tF + tB - tW)
 *   zb-v         two chunks per stage, laid out as a V: chunk c and chunk 2P - 1 - c on one stage,
 *                so the first and the last chunk are on stage 0 (Qi et al. 2024). At most 2P
 *                (chunk, micro-batch) in flight until their W. With tF = tB = tW idle:
 *                (P - 1)tF / 2, in which the V fills, if M >= 2P - 1; below that the larger of
 *                it and (2P - 1 - M)tF
 *   forward      E only, for validation; on a V, or in groups of P
 *
 * With one stage, 1f1b is F0 B0 F1 B1 .. with one saved slot.
 *
 * Used by: train (layout, trainer), plan, spec (schedules in job files), worker (draws schedules).
 * Uses: base, and the names of programs (mesh/call.h).
 * Threads: any; no state. */
#ifndef HD_PIPELINE_PIPELINE_H
#define HD_PIPELINE_PIPELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"
#include "mesh/call.h"

/* The kinds: code, stable name (part of the API: in job.yaml). */
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
                           /* true if the name is a kind other than "forward" */
                           enum hd_schedule_kind *ret_schedule_kind);
bool hd_schedule_splits(
    enum hd_schedule_kind schedule_kind); /* returns true if this kind runs B and W as separate
                                             programs */

/* The assignment of chunks to stages. Chunks are numbered in layer order, 0 .. chunks - 1. */
struct hd_pipeline {
    int32_t stages;
    int32_t chunks; /* number of chunks, a multiple of stages */
    bool folded;    /* true: laid out as a V (zb-v): chunks = 2 stages, and chunk c >= stages is on
                       stage 2 stages - 1 - c; false: chunk c is on stage c mod stages */
};
int32_t hd_pipeline_stage(const struct hd_pipeline *pipeline, int32_t chunk);
/* hd_pipeline_chunk returns the k-th chunk of a stage in layer order, 0 <= k < chunks / stages;
 * hd_pipeline_index returns the k of a chunk on its stage. */
int32_t hd_pipeline_chunk(const struct hd_pipeline *pipeline, int32_t stage, int32_t k);
int32_t hd_pipeline_index(const struct hd_pipeline *pipeline, int32_t chunk);

/* ---- the order of programs ---- */

enum { HD_STAGE_PROGRAMS_MAX = 1 << 24 }; /* most programs that one stage may run in one step */

struct hd_schedule_entry {
    enum hd_call call; /* F, B or W; forward: E */
    int32_t chunk, micro_batch;
};
struct hd_schedule {
    struct hd_pipeline pipeline;
    int32_t micro_batches;
    bool split; /* true: B and W are separate programs; false: B includes W */
    struct hd_stage_schedule {
        struct hd_schedule_entry *entries;
        int32_t count;
    } * stages;     /* [pipeline.stages]; programs of each stage in order */
    int32_t frozen; /* chunks 0 to frozen - 1 run only F, because they are not trained
                       (hd_schedule_freeze) */
};

/* Generates a schedule in `arena`. Each chunk runs each call of its micro-batches in ascending
 * order, so a gradient has the same bits under every schedule. `split` (for tests) splits W from B
 * also in kinds other than zb-h1 and zb-v. HD_INVALID: the kind does not fit the pipeline, such as
 * interleaved with one chunk per stage, zb-v not folded, or zb-h1 or 1f1b with several chunks per
 * stage; the message begins with the key of job.yaml. gpipe and forward run on any pipeline.
 * HD_LIMIT: more than HD_STAGE_PROGRAMS_MAX programs. */
enum hd_status hd_schedule_build(enum hd_schedule_kind schedule_kind,
                                 const struct hd_pipeline *pipeline, int32_t micro_batches,
                                 bool split, struct hd_arena *arena,
                                 struct hd_schedule *ret_schedule);

/* Removes B and W of the first `frozen` chunks: neither these chunks nor any below them are
 * trained, so no gradient is sent below chunk `frozen`. Does nothing with several chunks per stage,
 * or if the schedule is frozen already. A stage that runs only F waits until the next one takes its
 * results, so it does not store more values than before. */
void hd_schedule_freeze(struct hd_schedule *schedule, int32_t frozen);

/* Makes the schedule of a step that runs only the first `micro_batches` (1 to schedule->micro_batches)
 * of a schedule: in `arena`, the same order without the programs of the others. Programs of different
 * micro-batches do not need each other, so the result has no deadlock if the schedule has none. It may
 * need one slot of the boundary pool more than the schedule, because a receiver that has less to do
 * in between comes later. HD_NO_MEMORY. */
enum hd_status hd_schedule_shorten(const struct hd_schedule *schedule, int32_t micro_batches,
                                   struct hd_arena *arena, struct hd_schedule *ret_schedule);

/* Writes a schedule as text, a line per stage (docs/schedules.md): "0: F0.0 F0.1 B0.0 ..", each
 * word a call, a chunk and a micro-batch. hd_schedule_read parses that text for the caller's
 * pipeline and number of micro-batches. It checks that the text fits them, that each program occurs
 * once, and that there is no deadlock; `split` is true if there is a W. Only schedules of training
 * can be read, without E. HD_INVALID names line and word, counted from 1, and for a deadlock the
 * programs that wait for each other. */
void hd_schedule_write(const struct hd_schedule *schedule, struct hd_text *ret_text);
/* Finds the pipeline and the number of micro-batches of a text, from the largest numbers in it. The
 * chunks are folded if there are two per stage and stage 0 has the last one. HD_INVALID, naming
 * line and word: the text is not a schedule, or has numbers that a text of its length cannot
 * contain. */
enum hd_status hd_schedule_measure(const char *text, struct hd_pipeline *ret_pipeline,
                                   int32_t *ret_micro_batches);
enum hd_status hd_schedule_read(const char *text, const struct hd_pipeline *pipeline,
                                int32_t micro_batches, struct hd_arena *arena,
                                struct hd_schedule *ret_schedule);

/* ---- the instructions of a stage ---- */

enum hd_instruction_kind {
    HD_DO_BEGIN,       /* run program S, which starts the step */
    HD_DO_FEED,        /* the host writes the batch data that the chunk reads for the micro-batch */
    HD_DO_RUN,         /* run a program of a chunk */
    HD_DO_SEND,        /* start sending a slot of the boundary pool to the stage `peer` */
    HD_DO_RECEIVE,     /* start receiving into a slot of the boundary pool */
    HD_DO_SYNCHRONIZE, /* later launches wait for everything launched on any stream */
    HD_DO_UPDATE       /* run program U */
};

/* The slots that an instruction uses. SAVED and DEFERRED slots lie in the regions of those names;
 * the other four are slots of one pool, the boundary pool: hidden rows between two chunks, or their
 * gradient. If the next chunk is on the same stage, it reads the slot that the chunk wrote, and
 * nothing is sent.
 *
 *   SAVED     from FEED to the last of B and W      DEFERRED   from B to W; only if split
 *   IN        hidden rows that F reads, and B and W read again
 *   OUT       hidden rows that F writes
 *   OUT_GRAD  gradient of OUT: B and W read it
 *   IN_GRAD   gradient of IN: B writes it
 *
 * The first chunk has no IN and IN_GRAD, the last no OUT and OUT_GRAD. E, which only runs forward,
 * uses IN, OUT and saved slot 0. A transfer has one slot: a SEND that of OUT or IN_GRAD, a RECEIVE
 * that of IN or OUT_GRAD. */
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
    enum hd_call call; /* RUN: the program; FEED: F or E; BEGIN: S; UPDATE: U; SEND, RECEIVE: F for
                          hidden rows, B for a gradient */
    int32_t chunk, micro_batch; /* FEED, RUN, SEND, RECEIVE: chunk and micro-batch; for a transfer
                                   the chunk on this stage */
    int32_t peer;               /* SEND, RECEIVE: index of the stage at the other end */
    bool first, last;           /* RUN: this is the chunk's first micro-batch of the step; its last
                                   one */
    int32_t slot[HD_SLOT_USES]; /* index of the slot for each use (enum hd_slot_use) in its pool or
                                   region; -1: the instruction does not use one */
};

struct hd_step_plan {
    struct hd_instruction *list;
    int32_t count;
    int32_t saved_slots, deferred_slots, stage_io_slots;
};

/* Generates the step plan of `stage` in `arena` (forward: for all micro-batches of a validation,
 * without BEGIN, SYNCHRONIZE and UPDATE). A SEND directly follows the program that wrote the value,
 * a RECEIVE is one program ahead of the reader, so both overlap with programs. A slot that is being
 * sent is not reused before another program has run and, if programs take unit times, the receiver
 * has launched its RECEIVE. The lowest free slot is taken, so slots repeat from step to step. A
 * schedule that was checked fails only with HD_NO_MEMORY.
 *
 * The executor launches a stage's instructions in order. Each channel (two stages, one direction,
 * forward or backward) is a stream. RUN waits for the RECEIVEs into slots that it reads and for the
 * SENDs out of slots that it writes; RECEIVE waits for the programs that read its slot and for the
 * SENDs out of it. */
enum hd_status hd_step_plan_build(const struct hd_schedule *schedule, int32_t stage,
                                  struct hd_arena *arena, struct hd_step_plan *ret_plan);

/* Checks the step plans of all stages, plans[schedule->pipeline.stages]: every program runs exactly
 * once on every micro-batch with the values that it needs in its slots; no slot is overwritten
 * while its value is needed; every sent value is received once, in one order at both ends of a
 * channel (two stages, one direction, forward or backward); micro-batches ascend; first and last
 * are right; slots are within the counts; and there is no deadlock, even if a SEND ends only when
 * its receiver has launched the RECEIVE, a RECEIVE begins only when its slot is free, and a program
 * blocks the host. HD_INVALID: the fault, with stage and index of the instruction, and for a
 * deadlock the instructions that wait for each other. */
enum hd_status hd_step_plan_check(const struct hd_schedule *schedule,
                                  const struct hd_step_plan *plans);

/* Generates the step plans of all stages and checks them. ret_plans: [schedule->pipeline.stages],
 * in `arena`. */
enum hd_status hd_schedule_check(const struct hd_schedule *schedule, struct hd_arena *arena,
                                 struct hd_step_plan **ret_plans);

/* Times of one micro-batch per chunk, any unit, [pipeline.chunks] each. */
struct hd_schedule_costs {
    const double *forward, *backward, *weights; /* time of F, B and W of each chunk; if B and W are
                                                   not split, `backward` is the time of both and
                                                   `weights` is not added */
    double transfer; /* time from a program's end to the start of its reader on another stage */
};
struct hd_schedule_times {
    double total;  /* duration of the step, from the first program's start to the last one's end */
    double *busy;  /* [stages] time in which a stage runs programs */
    double bubble; /* share of all stages' time that is idle: 1 - sum of busy / (stages x total) */
};
/* Computes when each program of a schedule would run and sets *ret_times to the total, busy and
 * idle times. costs NULL: 1 unit per program, 2 for a B that includes W. The result lives in
 * `arena`. HD_INVALID: the schedule lacks a program or deadlocks; the message has stage and
 * position (from 0). */
enum hd_status hd_schedule_walk(const struct hd_schedule *schedule,
                                const struct hd_schedule_costs *costs, struct hd_arena *arena,
                                struct hd_schedule_times *ret_times);

/* Draws a schedule over time for people: a line per stage, a column per unit of time of F (costs 1,
 * 1, 1; unsplit B: 2), e.g. "0  F0 F1 .  B0 -  .." with `.` for a stage that waits and `-` for a
 * program that continues. With several chunks per stage "F2.0" is chunk 2, micro-batch 0. */
void hd_schedule_draw(const struct hd_schedule *schedule, struct hd_text *ret_text);

#endif
