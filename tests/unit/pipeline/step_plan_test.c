/* Step plans: lists by hand, slot counts, the proof, and mistakes that the proof must find. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "pipeline/pipeline.h"
#include "tests/program/tells.h"
#include "tests/program/test.h"

enum { STAGES_MAX = 16 };

struct lists {
    struct hd_arena arena;
    struct hd_schedule schedule;
    struct hd_step_plan plans[STAGES_MAX];
};

static void make_plans(struct lists *l)
{
    for (int32_t s = 0; s < l->schedule.pipeline.stages; s++)
        if (hd_step_plan_build(&l->schedule, s, &l->arena, &l->plans[s]))
            fail_msg("%s", hd_err_message());
}

static void make(struct lists *l, enum hd_schedule_kind schedule_kind,
                 const struct hd_pipeline *pipeline, int32_t M, bool split)
{
    hd_arena_init(&l->arena, 0);
    if (hd_schedule_build(schedule_kind, pipeline, M, split, &l->arena, &l->schedule))
        fail_msg("%s", hd_err_message());
    make_plans(l);
}

static void make_from_text(struct lists *l, const char *text, const struct hd_pipeline *pipeline,
                           int32_t M)
{
    hd_arena_init(&l->arena, 0);
    if (hd_schedule_read(text, pipeline, M, &l->arena, &l->schedule))
        fail_msg("%s", hd_err_message());
    make_plans(l);
}

static void prove(const struct lists *l)
{
    if (hd_step_plan_check(&l->schedule, l->plans))
        fail_msg("%s", hd_err_message());
}

static void make_1f1b(struct lists *l, int32_t P, int32_t M)
{
    const struct hd_pipeline pipeline = {P, P, false};

    make(l, HD_SCHEDULE_1F1B, &pipeline, M, false);
}

/* ---- lists by hand ---- */

/* "send F0.1>1 o2": call, chunk, micro-batch, peer, slots: k(ept) d(eferred) i(n) o(ut) O(ut_grad)
 * I(n_grad); f(irst) and l(ast). */
static void print_plan(const struct hd_step_plan *plan, struct hd_text *ret_text)
{
    static const char *const kinds[] = {"begin",   "feed", "run",   "send",
                                        "receive", "join", "update"};
    static const char letters[] = "kdioOI";

    hd_text_clear(ret_text);
    for (int32_t i = 0; i < plan->count; i++) {
        const struct hd_instruction *in = &plan->list[i];

        hd_text_add(ret_text, "%s", kinds[in->kind]);
        if (in->kind >= HD_DO_FEED && in->kind <= HD_DO_RECEIVE)
            hd_text_add(ret_text, " %s%d.%d", in->kind == HD_DO_FEED ? "" : hd_call_name(in->call),
                        (int)in->chunk, (int)in->micro_batch);
        if (in->kind == HD_DO_SEND || in->kind == HD_DO_RECEIVE)
            hd_text_add(ret_text, "%c%d", in->kind == HD_DO_SEND ? '>' : '<', (int)in->peer);
        for (int use = 0; use < HD_SLOT_USES; use++)
            if (in->slot[use] >= 0)
                hd_text_add(ret_text, " %c%d", letters[use], (int)in->slot[use]);
        hd_text_add(ret_text, "%s%s\n", in->first ? " f" : "", in->last ? " l" : "");
    }
}

static void check_list(const struct lists *l, int32_t stage, const char *expected)
{
    struct hd_text text = {0};

    print_plan(&l->plans[stage], &text);
    assert_string_equal(text.data, expected);
    hd_text_free(&text);
}

static void one_stage_needs_one_slot_and_sends_nothing(void **state)
{
    const struct hd_pipeline one = {1, 1, false};
    struct lists l;

    make(&l, HD_SCHEDULE_1F1B, &one, 2, true);
    check_list(&l, 0,
               "begin\n"
               "feed 0.0 k0\nrun F0.0 k0 f\nrun B0.0 k0 d0 f\nrun W0.0 k0 d0 f\n"
               "feed 0.1 k0\nrun F0.1 k0 l\nrun B0.1 k0 d0 l\nrun W0.1 k0 d0 l\n"
               "join\nupdate\n");
    prove(&l);
    hd_arena_done(&l.arena);
}

/* Stage 0 runs F F B B, stage 1 F B F B. A value is received one program before its reader. Stage
 * 0: slot 0 is being sent when B0.0 is received and when F0.1 runs; it is used again behind F0.1.
 * Stage 1: hidden rows 1 arrive in slot 1 while slot 0 is read; its first gradient takes slot 2,
 * the second one slot 0, which B1.0 has given back. */
static void values_are_sent_behind_their_program_and_received_one_ahead(void **state)
{
    struct lists l;

    make_1f1b(&l, 2, 2);
    check_list(&l, 0,
               "begin\n"
               "feed 0.0 k0\nrun F0.0 k0 o0 f\nsend F0.0>1 o0\n"
               "receive B0.0<1 O1\nfeed 0.1 k1\nrun F0.1 k1 o2 l\nsend F0.1>1 o2\n"
               "receive B0.1<1 O0\nrun B0.0 k0 O1 f\n"
               "run B0.1 k1 O0 l\n"
               "join\nupdate\n");
    check_list(&l, 1,
               "begin\n"
               "receive F1.0<0 i0\nfeed 1.0 k0\nrun F1.0 k0 i0 f\n"
               "receive F1.1<0 i1\nrun B1.0 k0 i0 I2 f\nsend B1.0>0 I2\n"
               "feed 1.1 k0\nrun F1.1 k0 i1 l\n"
               "run B1.1 k0 i1 I0 l\nsend B1.1>0 I0\n"
               "join\nupdate\n");
    prove(&l);
    hd_arena_done(&l.arena);
}

/* The bottom of a V: chunks 1 and 2 share a slot and nothing is sent between them. */
static void chunks_on_one_stage_share_a_slot(void **state)
{
    const struct hd_pipeline v = {2, 4, true};
    struct lists l;

    make(&l, HD_SCHEDULE_FORWARD, &v, 1, false);
    check_list(&l, 1,
               "receive F1.0<0 i0\nfeed 1.0 k0\nrun E1.0 k0 i0 o1 f l\n"
               "feed 2.0 k0\nrun E2.0 k0 i1 o0 f l\nsend F2.0>0 o0\n");
    prove(&l);
    hd_arena_done(&l.arena);
}

/* The receiver takes micro-batches of two chunks in another order than the sender makes them: it
 * receives in the sender's order. */
static void both_ends_of_a_channel_have_one_schedule(void **state)
{
    const struct hd_pipeline two = {2, 4, false};
    struct lists l;

    make_from_text(&l,
                   "0: F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1\n"
                   "1: F1.0 F3.0 F1.1 B3.0 F3.1 B3.1 B1.0 B1.1\n",
                   &two, 2);
    prove(&l);
    hd_arena_done(&l.arena);
}

/* Stage 0 runs 8 F before its first B, and so receives the first gradient late. If stage 1 wrote
 * its second gradient into the slot of the first one, it would wait there for stage 0, and stage 0
 * would wait for stage 1 to receive what it has sent. */
static void a_slot_is_not_used_again_before_its_receiver_has_come(void **state)
{
    const struct hd_pipeline two = {2, 2, false};
    struct hd_text text = {0};
    struct lists l;

    for (int stage = 0; stage < 2; stage++) {
        hd_text_add(&text, "%d:", stage);
        for (int m = 0; m < 8; m++) {
            hd_text_add(&text, " F%d.%d", stage, m);
            if (stage)
                hd_text_add(&text, " B1.%d", m);
        }
        for (int m = 0; m < 8 && !stage; m++)
            hd_text_add(&text, " B0.%d", m);
        hd_text_add(&text, "\n");
    }
    make_from_text(&l, text.data, &two, 8);
    prove(&l);
    hd_text_free(&text);
    hd_arena_done(&l.arena);
}

/* ---- counts ---- */

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Micro-batches in flight: 1f1b P - s; interleaved 2(P - 1 - s) + (V - 1)P + 1 of all chunks; gpipe
 * all; zb-h1 P on every stage until their W, of which stage s puts off s; zb-v 2P of both chunks.
 */
static void slots_are_the_published_ones(void **state)
{
    struct lists l;

    for (int32_t P = 1; P <= 6; P++)
        for (int32_t M = 1; M <= 14; M++) {
            const struct hd_pipeline plain = {P, P, false}, folded = {P, 2 * P, true};

            make(&l, HD_SCHEDULE_1F1B, &plain, M, false);
            for (int32_t s = 0; s < P; s++) {
                assert_int_equal(l.plans[s].saved_slots, least(M, P - s));
                assert_int_equal(l.plans[s].deferred_slots, 0);
            }
            hd_arena_done(&l.arena);
            make(&l, HD_SCHEDULE_GPIPE, &plain, M, true);
            for (int32_t s = 0; s < P; s++) {
                assert_int_equal(l.plans[s].saved_slots, M);
                assert_int_equal(l.plans[s].deferred_slots, M);
            }
            hd_arena_done(&l.arena);
            make(&l, HD_SCHEDULE_ZB_H1, &plain, M, false);
            for (int32_t s = 0; s < P; s++) {
                assert_int_equal(l.plans[s].saved_slots, least(M, P));
                assert_int_equal(l.plans[s].deferred_slots, least(M, s + 1));
            }
            hd_arena_done(&l.arena);
            make(&l, HD_SCHEDULE_ZB_V, &folded, M, false);
            for (int32_t s = 0; s < P; s++) {
                assert_true(l.plans[s].saved_slots <= 2 * P);
                assert_true(M < 2 * P - 1 || l.plans[s].saved_slots == 2 * P);
            }
            hd_arena_done(&l.arena);
            for (int32_t V = 2; V <= 3; V++) {
                const struct hd_pipeline chunks = {P, P * V, false};

                make(&l, HD_SCHEDULE_INTERLEAVED, &chunks, M, false);
                for (int32_t s = 0; s < P; s++) {
                    const int32_t published = least(M * V, 2 * (P - 1 - s) + (V - 1) * P + 1);

                    assert_true(l.plans[s].saved_slots <= published);
                    assert_true(M % P || l.plans[s].saved_slots == published);
                }
                hd_arena_done(&l.arena);
            }
        }
}

/* Rings of transfers between stages are small. 1f1b: P - s hidden rows that B reads again, one more
 * that is received ahead, and of each kind that passes through (rows out, gradient in, gradient
 * out) at most two. Validation: nothing is kept, so the count does not grow with the micro-batches.
 */
static void transfers_need_few_slots(void **state)
{
    struct lists l;

    for (int32_t P = 2; P <= 8; P++)
        for (int32_t M = 1; M <= 40; M += 3) {
            const struct hd_pipeline pipelines[] = {
                {P, P, false}, {P, 3 * P, false}, {P, 2 * P, true}};

            make_1f1b(&l, P, M);
            for (int32_t s = 0; s < P; s++)
                assert_true(l.plans[s].stage_io_slots <= P - s + 1 + 6);
            hd_arena_done(&l.arena);
            for (size_t i = 0; i < 3; i++) {
                make(&l, HD_SCHEDULE_FORWARD, &pipelines[i], M, false);
                for (int32_t s = 0; s < P; s++) {
                    assert_int_equal(l.plans[s].saved_slots, 1);
                    assert_true(l.plans[s].stage_io_slots <= P + 3);
                }
                hd_arena_done(&l.arena);
            }
        }
}

/* ---- mistakes ---- */

static int32_t find(const struct lists *l, int32_t stage, enum hd_instruction_kind kind,
                    enum hd_call call, int32_t chunk, int32_t micro_batch)
{
    for (int32_t i = 0; i < l->plans[stage].count; i++) {
        const struct hd_instruction *in = &l->plans[stage].list[i];

        if (in->kind == kind && in->call == call && in->chunk == chunk &&
            in->micro_batch == micro_batch)
            return i;
    }
    fail_msg("the list has no such instruction");
    return -1;
}

static struct hd_instruction *at(struct lists *l, int32_t stage, int32_t i)
{
    return &l->plans[stage].list[i];
}

static void exchange(struct lists *l, int32_t stage, int32_t i, int32_t j)
{
    const struct hd_instruction in = *at(l, stage, i);

    *at(l, stage, i) = *at(l, stage, j);
    *at(l, stage, j) = in;
}

static void drop(struct lists *l, int32_t stage, int32_t i)
{
    struct hd_step_plan *p = &l->plans[stage];

    memmove(p->list + i, p->list + i + 1, (size_t)(p->count - i - 1) * sizeof *p->list);
    p->count--;
}

static void move(struct lists *l, int32_t stage, int32_t from, int32_t to) /* to > from */
{
    for (int32_t i = from; i < to; i++)
        exchange(l, stage, i, i + 1);
}

/* The proof fails, its message names the place and contains `what`. Frees the lists. */
static void refused(struct lists *l, int32_t stage, int32_t i, const char *what)
{
    char place[64];

    (void)snprintf(place, sizeof place, i < 0 ? "stage %d" : "stage %d, instruction %d (",
                   (int)stage, (int)i);
    assert_int_equal(hd_step_plan_check(&l->schedule, l->plans), HD_INVALID);
    if (!strstr(hd_err_message(), place) || !strstr(hd_err_message(), what))
        fail_msg("\"%s\" names not \"%s\" and \"%s\"", hd_err_message(), place, what);
    hd_arena_done(&l->arena);
}

static void programs_in_a_wrong_place_are_refused(void **state)
{
    struct lists l;
    int32_t i, j;

    make_1f1b(&l, 3, 4); /* exchanged */
    i = find(&l, 0, HD_DO_RUN, HD_CALL_F, 0, 0);
    j = find(&l, 0, HD_DO_RUN, HD_CALL_F, 0, 1);
    exchange(&l, 0, i, j);
    refused(&l, 0, i, "RUN F0.1): micro-batch 0 comes next");
    make_1f1b(&l, 3, 4); /* twice */
    i = find(&l, 2, HD_DO_RUN, HD_CALL_B, 2, 1);
    *at(&l, 2, i + 1) = *at(&l, 2, i);
    refused(&l, 2, i + 1, "RUN B2.1): micro-batch 2 comes next");
    make_1f1b(&l, 3, 4); /* a program of another order, which would be sound by itself */
    i = find(&l, 0, HD_DO_RUN, HD_CALL_B, 0, 3);
    drop(&l, 0, i);
    refused(&l, 0, -1, "without B0.3");
    make_1f1b(&l, 3, 4);
    i = find(&l, 1, HD_DO_RUN, HD_CALL_F, 1, 2);
    at(&l, 1, i)->chunk = 2;
    refused(&l, 1, i, "the chunk is not on this stage");
    make_1f1b(&l, 3, 4);
    i = find(&l, 1, HD_DO_RUN, HD_CALL_F, 1, 2);
    at(&l, 1, i)->call = HD_CALL_W;
    refused(&l, 1, i, "no such program");
    make_1f1b(&l, 3, 4);
    drop(&l, 1, 0);
    refused(&l, 1, -1, "BEGIN");
    make_1f1b(&l, 3, 4);
    i = l.plans[1].count - 2;
    exchange(&l, 1, i, i + 1);
    refused(&l, 1, i, "SYNCHRONIZE");
}

/* Each W of zb-h1 in turn. */
static void a_missing_w_is_refused(void **state)
{
    const struct hd_pipeline three = {3, 3, false};

    for (int32_t s = 0; s < 3; s++)
        for (int32_t m = 0; m < 4; m++) {
            struct lists l;

            make(&l, HD_SCHEDULE_ZB_H1, &three, 4, false);
            drop(&l, s, find(&l, s, HD_DO_RUN, HD_CALL_W, s, m));
            refused(&l, s, -1, "");
        }
}

/* Every flag of every program. */
static void wrong_first_and_last_are_refused(void **state)
{
    struct lists l;

    make_1f1b(&l, 2, 3);
    for (int32_t s = 0; s < 2; s++)
        for (int32_t i = 0; i < l.plans[s].count; i++)
            for (int flag = 0; flag < 2 && at(&l, s, i)->kind == HD_DO_RUN; flag++) {
                bool *f = flag ? &at(&l, s, i)->last : &at(&l, s, i)->first;

                *f = !*f;
                assert_int_equal(hd_step_plan_check(&l.schedule, l.plans), HD_INVALID);
                assert_non_null(strstr(hd_err_message(), "marked first"));
                *f = !*f;
            }
    prove(&l);
    hd_arena_done(&l.arena);
}

static void lost_and_exchanged_transfers_are_refused(void **state)
{
    struct lists l;
    int32_t i, j;

    make_1f1b(&l, 3, 4); /* a RECEIVE dropped: its reader finds nothing, or an old value */
    drop(&l, 1, find(&l, 1, HD_DO_RECEIVE, HD_CALL_F, 1, 2));
    refused(&l, 1, find(&l, 1, HD_DO_RUN, HD_CALL_F, 1, 2), "not the hidden rows of chunk 0");
    make_1f1b(&l, 3, 4); /* a SEND dropped: its slot is used again, or left full */
    drop(&l, 1, find(&l, 1, HD_DO_SEND, HD_CALL_B, 1, 3));
    refused(&l, 1, -1,
            "the gradient of the hidden rows of chunk 0, micro-batch 3 are still needed");
    make_1f1b(&l, 3, 4); /* two SENDs exchanged: the first has no value yet */
    i = find(&l, 1, HD_DO_SEND, HD_CALL_F, 1, 1);
    j = find(&l, 1, HD_DO_SEND, HD_CALL_F, 1, 2);
    exchange(&l, 1, i, j);
    refused(&l, 1, i, "not the hidden rows of chunk 1, micro-batch 2");
    make_1f1b(&l, 3, 4); /* two RECEIVEs exchanged, both before their readers */
    i = find(&l, 1, HD_DO_RECEIVE, HD_CALL_F, 1, 0);
    j = find(&l, 1, HD_DO_RECEIVE, HD_CALL_F, 1, 1);
    exchange(&l, 1, i, j);
    refused(&l, 1, i, "must have one order");
    make_1f1b(&l, 3, 4); /* a pair of SEND and RECEIVE, the RECEIVE alone twice */
    i = find(&l, 1, HD_DO_RECEIVE, HD_CALL_F, 1, 0);
    at(&l, 1, i)->peer = 2;
    refused(&l, 1, i, "the peer is not the stage");
    make_1f1b(&l, 3, 4);
    i = find(&l, 0, HD_DO_SEND, HD_CALL_F, 0, 0);
    at(&l, 0, i)->call = HD_CALL_W;
    refused(&l, 0, i, "a transfer is of F or B");
    make_1f1b(&l, 3, 4);
    i = find(&l, 0, HD_DO_SEND, HD_CALL_F, 0, 0);
    at(&l, 0, i)->call = HD_CALL_B;
    refused(&l, 0, i, "no chunk beyond");
}

/* Stage 1 has one slot more, and receives a value into it that no program takes. */
static void a_receive_without_a_send_is_refused(void **state)
{
    struct lists l;
    int32_t i;

    make_1f1b(&l, 2, 2);
    i = find(&l, 1, HD_DO_RUN, HD_CALL_B, 1, 1);
    at(&l, 1, l.plans[1].count - 2)->kind = HD_DO_RECEIVE; /* SYNCHRONIZE */
    *at(&l, 1, l.plans[1].count - 2) = *at(&l, 1, find(&l, 1, HD_DO_RECEIVE, HD_CALL_F, 1, 1));
    refused(&l, 1, -1, "SYNCHRONIZE");
    make_1f1b(&l, 2, 2); /* the SEND of stage 0 lacks, and its slot is not noticed */
    i = find(&l, 0, HD_DO_SEND, HD_CALL_F, 0, 1);
    *at(&l, 0, i) = *at(&l, 0, find(&l, 0, HD_DO_SEND, HD_CALL_F, 0, 0));
    refused(&l, 0, i, "what is left of the hidden rows of chunk 0, micro-batch 0");
}

static void wrong_slots_are_refused(void **state)
{
    const struct hd_pipeline v = {2, 4, true};
    struct lists l;
    int32_t i;

    make_1f1b(&l, 2, 3); /* rows that B needs are overwritten by the next ones */
    i = find(&l, 1, HD_DO_RECEIVE, HD_CALL_F, 1, 1);
    at(&l, 1, i)->slot[HD_SLOT_IN] = at(&l, 1, i - 1)->slot[HD_SLOT_IN];
    refused(&l, 1, i,
            "overwrites boundary (in) slot 0, where the hidden rows of chunk 0, "
            "micro-batch 0 are still needed");
    make_1f1b(&l, 2, 3);
    i = find(&l, 0, HD_DO_FEED, HD_CALL_F, 0, 1);
    at(&l, 0, i)->slot[HD_SLOT_SAVED] = 0;
    refused(&l, 0, i, "overwrites saved slot 0");
    make_1f1b(&l, 2, 3);
    i = find(&l, 0, HD_DO_RUN, HD_CALL_F, 0, 1);
    at(&l, 0, i)->slot[HD_SLOT_OUT] = l.plans[0].stage_io_slots;
    refused(&l, 0, i, "the number of slots is 3");
    make_1f1b(&l, 2, 3);
    i = find(&l, 0, HD_DO_RUN, HD_CALL_F, 0, 1);
    at(&l, 0, i)->slot[HD_SLOT_IN] = 0;
    refused(&l, 0, i, "uses none");
    make_1f1b(&l, 2, 3);
    i = find(&l, 0, HD_DO_RUN, HD_CALL_B, 0, 1);
    at(&l, 0, i)->slot[HD_SLOT_OUT_GRAD] ^= 1;
    refused(&l, 0, i, "not the gradient of the hidden rows of chunk 0, micro-batch 1");
    make(&l, HD_SCHEDULE_ZB_V, &v, 4, false); /* what two W need in one deferred slot */
    i = find(&l, 1, HD_DO_RUN, HD_CALL_B, 2, 3);
    at(&l, 1, i)->slot[HD_SLOT_DEFERRED] ^= 1;
    refused(&l, 1, i,
            "overwrites deferred slot 0, where the deferred values of chunk 1, "
            "micro-batch 2 are still needed");
    make_1f1b(&l, 2, 3); /* F writes on what it reads */
    make_plans(&l);
    i = find(&l, 0, HD_DO_SEND, HD_CALL_F, 0, 0);
    exchange(&l, 0, i, i - 1);
    refused(&l, 0, i - 1, "holds nothing");
}

/* Stage 0 first gets the order F0.0 B0.0 F0.1 B0.1, which is sound, but not that of the lists. Then
 * stage 1 gets F1.0 F1.1 B1.0 B1.1: F1.1 waits for F0.1, and B0.0 for B1.0. */
static void a_circle_in_the_schedule_is_refused(void **state)
{
    struct hd_schedule_times times;
    struct hd_step_plan plan;
    struct lists l;

    make_1f1b(&l, 2, 2);
    for (int32_t s = 0; s < 2; s++) {
        struct hd_schedule_entry *e = l.schedule.stages[s].entries, entry = e[1];

        e[1] = e[2];
        e[2] = entry;
        if (s == 0) {
            assert_int_equal(hd_step_plan_check(&l.schedule, l.plans), HD_INVALID);
            assert_non_null(strstr(hd_err_message(), "the schedule has another program"));
        }
    }
    assert_int_equal(hd_schedule_walk(&l.schedule, NULL, &l.arena, &times), HD_INVALID);
    assert_tells(hd_err_message(), "deadlocks", "B0.0 (stage 0, position 1)",
                 "B1.0 (stage 1, position 2)", "F1.1 (stage 1, position 1)",
                 "F0.1 (stage 0, position 2)", "B0.0");
    assert_int_equal(hd_step_plan_build(&l.schedule, 0, &l.arena, &plan), HD_INVALID);
    refused(&l, 0, -1, "the schedule deadlocks");
}

/* Stage 0 runs all F before B. Its slot of F0.1 is used by F0.2, while it is being sent. Stage 1
 * receives it late, into a slot that is being sent to stage 0. Stage 0 receives that behind F0.2.
 */
static void a_circle_of_slots_is_refused(void **state)
{
    const struct hd_pipeline two = {2, 2, false};
    struct hd_instruction *in;
    int32_t i, receive, send;
    struct lists l;

    make_from_text(&l,
                   "0: F0.0 F0.1 F0.2 F0.3 B0.0 B0.1 B0.2 B0.3\n"
                   "1: F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3\n",
                   &two, 4);
    prove(&l);
    i = find(&l, 0, HD_DO_RUN, HD_CALL_F, 0, 2);
    in = at(&l, 0, i);
    in->slot[HD_SLOT_OUT] = at(&l, 0, find(&l, 0, HD_DO_RUN, HD_CALL_F, 0, 1))->slot[HD_SLOT_OUT];
    at(&l, 0, i + 1)->slot[HD_SLOT_OUT] = in->slot[HD_SLOT_OUT];
    prove(&l); /* so far F0.2 waits until stage 1 receives, and that ends */
    send = find(&l, 1, HD_DO_SEND, HD_CALL_B, 1, 0);
    receive = find(&l, 1, HD_DO_RECEIVE, HD_CALL_F, 1, 1);
    in = at(&l, 1, receive);
    in->slot[HD_SLOT_IN] = at(&l, 1, send)->slot[HD_SLOT_IN_GRAD];
    at(&l, 1, find(&l, 1, HD_DO_RUN, HD_CALL_F, 1, 1))->slot[HD_SLOT_IN] = in->slot[HD_SLOT_IN];
    at(&l, 1, find(&l, 1, HD_DO_RUN, HD_CALL_B, 1, 1))->slot[HD_SLOT_IN] = in->slot[HD_SLOT_IN];
    i = find(&l, 1, HD_DO_RUN, HD_CALL_B, 1, 1); /* its gradient gets a slot of its own */
    at(&l, 1, i)->slot[HD_SLOT_IN_GRAD] = at(&l, 1, i + 1)->slot[HD_SLOT_IN_GRAD] =
        l.plans[1].stage_io_slots++;
    move(&l, 1, receive, send);
    i = find(&l, 0, HD_DO_RUN, HD_CALL_F, 0, 2);
    refused(&l, 0, i, "(RUN F0.2) waits for stage 0, instruction");
}

/* ---- 10,000 at random ---- */

struct dice {
    uint64_t key, thrown;
};

static int32_t draw(struct dice *dice, int32_t sides) /* 0 .. sides - 1 */
{
    return (int32_t)(hd_random_u64(dice->key, dice->thrown++) % (uint64_t)sides);
}

static void make_random(struct lists *l, struct dice *dice)
{
    const enum hd_schedule_kind schedule_kind =
        (enum hd_schedule_kind)draw(dice, HD_SCHEDULE_COUNT);
    const int32_t P = 1 + (draw(dice, 50) ? draw(dice, 8) : draw(dice, STAGES_MAX));
    const bool any = schedule_kind == HD_SCHEDULE_GPIPE || schedule_kind == HD_SCHEDULE_FORWARD;
    const bool folded = schedule_kind == HD_SCHEDULE_ZB_V || (any && draw(dice, 2));
    int32_t V = 1 + draw(dice, 4);

    if (folded)
        V = 2;
    else if (schedule_kind == HD_SCHEDULE_1F1B || schedule_kind == HD_SCHEDULE_ZB_H1)
        V = 1;
    else if (schedule_kind == HD_SCHEDULE_INTERLEAVED && V == 1)
        V = 2;
    make(l, schedule_kind, &(struct hd_pipeline){P, P * V, folded}, 1 + draw(dice, 20),
         draw(dice, 2));
}

/* An executor that knows only the rules of pipeline.h, and lets the stages and transfers go on in a
 * random order. A slot holds a number that names its value; a program computes it from what it
 * reads. Ends when nothing can go on; true: all lists are at their ends. */
struct stage_run {
    int32_t next;
    uint64_t *memory;   /* of the boundary pool */
    int32_t *sending;   /* transfers out of the slot that have not ended */
    int32_t *receiving; /* into it */
};

struct channel_run {
    int32_t sent[512], received[512]; /* slots, in order */
    int32_t sends, receives, ended;
};

static struct channel_run channels[STAGES_MAX][STAGES_MAX][2];

static uint64_t name_of(int32_t kind, int32_t chunk, int32_t micro_batch)
{
    return 1 + ((uint64_t)chunk << 20 | (uint64_t)micro_batch << 2 | (uint64_t)kind);
}

static bool run_program(struct stage_run *r, const struct hd_instruction *in)
{
    const int32_t rows = in->slot[HD_SLOT_IN], out = in->slot[HD_SLOT_OUT];
    const int32_t out_grad = in->slot[HD_SLOT_OUT_GRAD], grad = in->slot[HD_SLOT_IN_GRAD];

    if ((rows >= 0 && r->receiving[rows]) || (out_grad >= 0 && r->receiving[out_grad]) ||
        (out >= 0 && r->sending[out]) || (grad >= 0 && r->sending[grad]))
        return false;
    if (rows >= 0)
        assert_true(r->memory[rows] == name_of(0, in->chunk - 1, in->micro_batch));
    if (out_grad >= 0)
        assert_true(r->memory[out_grad] == name_of(1, in->chunk, in->micro_batch));
    if (out >= 0)
        r->memory[out] = name_of(0, in->chunk, in->micro_batch);
    if (grad >= 0)
        r->memory[grad] = name_of(1, in->chunk - 1, in->micro_batch);
    return true;
}

static bool run_instruction(struct stage_run *r, int32_t stage, const struct hd_instruction *in)
{
    const bool gradient = in->call == HD_CALL_B;
    struct channel_run *c;
    int32_t slot;

    switch (in->kind) {
    case HD_DO_RUN:
        return run_program(r, in);
    case HD_DO_SEND:
        slot = in->slot[gradient ? HD_SLOT_IN_GRAD : HD_SLOT_OUT];
        c = &channels[stage][in->peer][gradient];
        c->sent[c->sends++] = slot;
        r->sending[slot]++;
        return true;
    case HD_DO_RECEIVE:
        slot = in->slot[gradient ? HD_SLOT_OUT_GRAD : HD_SLOT_IN];
        c = &channels[in->peer][stage][gradient];
        c->received[c->receives++] = slot;
        r->receiving[slot]++;
        return true;
    default:
        return true;
    }
}

static bool end_transfer(struct stage_run *from, struct stage_run *to, struct channel_run *c)
{
    int32_t a, b;

    if (c->ended == c->sends || c->ended == c->receives)
        return false;
    a = c->sent[c->ended];
    b = c->received[c->ended];
    if (to->sending[b]) /* the slot is not free yet */
        return false;
    to->memory[b] = from->memory[a];
    from->sending[a]--;
    to->receiving[b]--;
    c->ended++;
    return true;
}

static bool execute(struct lists *l, struct dice *dice)
{
    const int32_t P = l->schedule.pipeline.stages;
    struct stage_run runs[STAGES_MAX] = {{0}};
    bool done = true;

    memset(channels, 0, sizeof channels);
    for (int32_t s = 0; s < P; s++) {
        const size_t slots = (size_t)l->plans[s].stage_io_slots + 1;

        runs[s].memory = hd_arena_array(&l->arena, slots, sizeof *runs[s].memory);
        runs[s].sending = hd_arena_array(&l->arena, slots, sizeof *runs[s].sending);
        runs[s].receiving = hd_arena_array(&l->arena, slots, sizeof *runs[s].receiving);
    }
    for (int quiet = 0; quiet < 64; quiet++) { /* rounds in which nothing went on */
        for (int32_t i = 0, first = draw(dice, P); i < P; i++) {
            const int32_t s = (i + first) % P;
            struct stage_run *r = &runs[s];

            for (int32_t n = 1 + draw(dice, 4); n && r->next < l->plans[s].count; n--) {
                if (!run_instruction(r, s, &l->plans[s].list[r->next]))
                    break;
                r->next++;
                quiet = 0;
            }
            for (int k = 0; k < 4; k++) { /* to both neighbours, rows and gradients */
                const int32_t to = (s + (k & 1 ? 1 : P - 1)) % P;

                if (to != s && draw(dice, 2) &&
                    end_transfer(r, &runs[to], &channels[s][to][k >> 1]))
                    quiet = 0;
            }
        }
    }
    for (int32_t s = 0; s < P; s++)
        done &= runs[s].next == l->plans[s].count;
    return done;
}

static void random_schedules_are_proved_and_run(void **state)
{
    struct dice dice = {.key = hd_random_hash("schedules")};
    struct hd_schedule_times times;
    struct lists l;

    for (int i = 0; i < 10000; i++) {
        double one[64], idle;

        for (int c = 0; c < 64; c++)
            one[c] = 1 + draw(&dice, 4);
        make_random(&l, &dice);
        prove(&l);
        assert_int_equal(hd_schedule_walk(&l.schedule,
                                          &(struct hd_schedule_costs){one, one, one, 0.25},
                                          &l.arena, &times),
                         HD_OK);
        idle = 0;
        for (int32_t s = 0; s < l.schedule.pipeline.stages; s++)
            idle += times.total - times.busy[s];
        assert_true(idle >= 0 && times.bubble >= -1e-9 && times.bubble < 1);
        if (i % 10 == 0)
            assert_true(execute(&l, &dice));
        hd_arena_done(&l.arena);
    }
}

/* One random change to one list: exchanged neighbours, another slot, an instruction less or twice.
 */
static void damage(struct lists *l, struct dice *dice)
{
    const int32_t stage = draw(dice, l->schedule.pipeline.stages);
    struct hd_step_plan *p = &l->plans[stage];
    const int32_t i = draw(dice, p->count - 1);
    struct hd_instruction *list;

    switch (draw(dice, 4)) {
    case 0:
        exchange(l, stage, i, i + 1);
        return;
    case 1:
        at(l, stage, i)->slot[draw(dice, HD_SLOT_USES)] = draw(dice, 6) - 1;
        return;
    case 2:
        drop(l, stage, i);
        return;
    default:
        list = hd_arena_array(&l->arena, (size_t)p->count + 1, sizeof *list);
        assert_non_null(list);
        memcpy(list, p->list, (size_t)(i + 1) * sizeof *list);
        memcpy(list + i + 1, p->list + i, (size_t)(p->count - i) * sizeof *list);
        p->list = list;
        p->count++;
    }
}

/* Goal: a list that the check accepts runs: in a random order, to its end, with the right values.
 */
static void damaged_lists_are_refused_or_still_run(void **state)
{
    struct dice dice = {.key = hd_random_hash("damage")};
    int refused_count = 0, run_count = 0;

    for (int i = 0; i < 2000; i++) {
        struct lists l;

        make_random(&l, &dice);
        damage(&l, &dice);
        if (hd_step_plan_check(&l.schedule, l.plans) == HD_OK) {
            assert_true(execute(&l, &dice));
            run_count++;
        } else {
            assert_non_null(strstr(hd_err_message(), "stage "));
            refused_count++;
        }
        hd_arena_done(&l.arena);
    }
    assert_true(refused_count > 1000 && run_count > 50);
}

/* ---- fewer micro-batches ---- */

/* The first m micro-batches of a schedule in its order, proved. Activations are a part of those of
 * the whole; of the boundary pool a stage needs at most a slot more. */
static void check_shorter(const struct lists *l, int32_t m)
{
    const struct hd_schedule *whole = &l->schedule;
    struct hd_step_plan *plans;
    struct hd_schedule shorter;

    assert_int_equal(hd_schedule_shorten(whole, m, (struct hd_arena *)&l->arena, &shorter), HD_OK);
    if (hd_schedule_check(&shorter, (struct hd_arena *)&l->arena, &plans))
        fail_msg("%s", hd_err_message());
    for (int32_t s = 0; s < whole->pipeline.stages; s++) {
        const struct hd_schedule_entry *next = whole->stages[s].entries;

        assert_int_equal(shorter.stages[s].count * whole->micro_batches,
                         whole->stages[s].count * m);
        for (int32_t i = 0; i < shorter.stages[s].count; i++) {
            while (next->micro_batch >= m)
                next++;
            assert_memory_equal(&shorter.stages[s].entries[i], next++, sizeof *next);
        }
        assert_in_range(plans[s].saved_slots, 0, l->plans[s].saved_slots);
        assert_in_range(plans[s].deferred_slots, 0, l->plans[s].deferred_slots);
        assert_in_range(plans[s].stage_io_slots, 0, l->plans[s].stage_io_slots + 1);
    }
}

static void any_schedule_runs_its_first_micro_batches(void **state)
{
    static const int32_t per_stage[] = {[HD_SCHEDULE_GPIPE] = 2,
                                        [HD_SCHEDULE_1F1B] = 1,
                                        [HD_SCHEDULE_INTERLEAVED] = 2,
                                        [HD_SCHEDULE_ZB_H1] = 1,
                                        [HD_SCHEDULE_ZB_V] = 2};

    for (int k = 0; k < 10; k++)
        for (int32_t P = 1; P <= 4; P++)
            for (int32_t M = 2; M <= 9; M += M < 5 ? 1 : 4) {
                const enum hd_schedule_kind kind = (enum hd_schedule_kind)(k / 2);
                const struct hd_pipeline pipeline = {P, P * per_stage[kind],
                                                     kind == HD_SCHEDULE_ZB_V};
                struct lists l;

                make(&l, kind, &pipeline, M, k % 2);
                for (int32_t m = 1; m <= M; m++)
                    check_shorter(&l, m);
                hd_arena_done(&l.arena);
            }
}

/* ---- chunks in which nothing trains ---- */

static int count_of(const struct hd_step_plan *plan, enum hd_instruction_kind kind,
                    enum hd_call call)
{
    int count = 0;

    for (int32_t i = 0; i < plan->count; i++)
        count += plan->list[i].kind == kind && plan->list[i].call == call;
    return count;
}

static void make_frozen(struct lists *l, enum hd_schedule_kind schedule_kind, int32_t P, int32_t M,
                        bool split, int32_t frozen)
{
    const struct hd_pipeline pipeline = {P, P, false};

    hd_arena_init(&l->arena, 0);
    if (hd_schedule_build(schedule_kind, &pipeline, M, split, &l->arena, &l->schedule))
        fail_msg("%s", hd_err_message());
    hd_schedule_freeze(&l->schedule, frozen);
    make_plans(l);
}

/* Below the first stage that trains there are F and hidden rows alone: no B, no W, no gradient.
 * Such a stage keeps one micro-batch. Of hidden rows it has at most the ones that it reads, those
 * that come next, those that it writes, and those of the two micro-batches that it is ahead. */
static void check_frozen(const struct lists *l, int32_t frozen)
{
    const int32_t P = l->schedule.pipeline.stages, M = l->schedule.micro_batches;

    prove(l);
    for (int32_t s = 0; s < P; s++) {
        const struct hd_step_plan *plan = &l->plans[s];

        assert_int_equal(count_of(plan, HD_DO_RUN, HD_CALL_F), M);
        assert_int_equal(count_of(plan, HD_DO_RUN, HD_CALL_B), s < frozen ? 0 : M);
        assert_int_equal(count_of(plan, HD_DO_RUN, HD_CALL_W),
                         s < frozen || !l->schedule.split ? 0 : M);
        assert_int_equal(count_of(plan, HD_DO_SEND, HD_CALL_B), s > frozen ? M : 0);
        assert_int_equal(count_of(plan, HD_DO_RECEIVE, HD_CALL_B),
                         s >= frozen && s < P - 1 ? M : 0);
        if (s < frozen) {
            assert_int_equal(plan->saved_slots, 1);
            assert_int_equal(plan->deferred_slots, 0);
            assert_in_range(plan->stage_io_slots, 1, 5);
        }
    }
}

static void chunks_that_do_not_train_run_forward_alone(void **state)
{
    static const enum hd_schedule_kind schedules[] = {HD_SCHEDULE_1F1B, HD_SCHEDULE_GPIPE,
                                                      HD_SCHEDULE_ZB_H1};

    for (int k = 0; k < 6; k++)
        for (int32_t P = 2; P <= 7; P++)
            for (int32_t M = 1; M <= 17; M += M < 8 ? 1 : 9)
                for (int32_t frozen = 1; frozen < P; frozen++) {
                    struct lists l;

                    make_frozen(&l, schedules[k / 2], P, M, k % 2, frozen);
                    check_frozen(&l, frozen);
                    hd_arena_done(&l.arena);
                }
}

/* Goal: a stage with several chunks runs all of them. */
static void several_chunks_on_a_stage_run_all_of_it(void **state)
{
    const struct hd_pipeline two = {2, 4, false};
    struct lists l;

    hd_arena_init(&l.arena, 0);
    assert_int_equal(
        hd_schedule_build(HD_SCHEDULE_INTERLEAVED, &two, 4, false, &l.arena, &l.schedule), HD_OK);
    hd_schedule_freeze(&l.schedule, 2);
    make_plans(&l);
    prove(&l);
    assert_int_equal(count_of(&l.plans[0], HD_DO_RUN, HD_CALL_B), 8);
    hd_arena_done(&l.arena);
}

/* The proof refuses lists of an order in which everything trains. */
static void a_gradient_for_chunks_that_do_not_train_is_refused(void **state)
{
    struct lists l;

    make_1f1b(&l, 3, 4);
    prove(&l);
    hd_schedule_freeze(&l.schedule, 1);
    assert_int_equal(hd_step_plan_check(&l.schedule, l.plans), HD_INVALID);
    hd_arena_done(&l.arena);
}

RUN_CASES()
