/* Sizes of a layout: which go together, what auto becomes, and what a refusal says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mesh/mesh.h"
#include "plan/choose.h"
#include "tests/program/tells.h"
#include "tests/program/test.h"
#include "tests/sanitized.h"

static const struct hd_plan_request plain = {.sizes = {.zero = -1,
                                                       .sequence = -1,
                                                       .cp_exchange = HD_JOB_CP_EXCHANGE_AUTO,
                                                       .schedule = "auto",
                                                       .recompute = "auto",
                                                       .offload = HD_JOB_OFFLOAD_NONE},
                                             .global_batch = 24,
                                             .heads = 12,
                                             .kv_heads = 4,
                                             .ffn_hidden = 48,
                                             .context = 48};

/* ---- the rules, once more, by handing out ---- */

/* Query heads dealt to tp ranks in order: each rank's must use whole key/value heads, or all of
 * them one, and each rank gets as many as the others. */
static bool heads_can_be_dealt(const struct hd_plan_request *w, int tp)
{
    const int64_t each = w->heads / tp, group = w->heads / w->kv_heads;

    if (each * tp != w->heads)
        return false;
    for (int rank = 0; rank < tp; rank++) {
        const int64_t first = rank * each, end = first + each;
        const bool whole = first % group == 0 && end % group == 0;
        const bool within = first / group == (end - 1) / group && group % each == 0;

        if (!whole && !within)
            return false;
    }
    return true;
}

/* Tokens dealt to cp ranks as chunk i and its mirror image: each gets the same number. */
static bool tokens_can_be_dealt(const struct hd_plan_request *w, int cp)
{
    return cp == 1 || w->context / (2 * cp) * (2 * cp) == w->context;
}

static bool is_legal(const struct hd_plan_request *w, int tp, int cp, int devices)
{
    const bool sequence = w->sizes.sequence == 1 || (w->sizes.sequence == -1 && tp > 1);
    int sequences = 0;

    if (!heads_can_be_dealt(w, tp) || !tokens_can_be_dealt(w, cp) || w->ffn_hidden % tp)
        return false;
    if (sequence && (tp == 1 || w->context / cp % tp))
        return false;
    for (int dp = 1; dp <= devices; dp++) {
        if (dp * cp * tp != devices || (w->sizes.dp && w->sizes.dp != dp))
            continue;
        for (sequences = dp; sequences < w->global_batch;)
            sequences += dp;
        return sequences == w->global_batch &&
               (!w->sizes.micro_batch || sequences / dp % w->sizes.micro_batch == 0);
    }
    return false;
}

static void check_sizes(const struct hd_plan_request *w, int devices,
                        const struct hd_layout_sizes *s)
{
    const struct hd_mesh_sizes sizes = {
        .pp = (int)s->pp, .dp = (int)s->dp, .cp = (int)s->cp, .tp = (int)s->tp, .ep = (int)s->ep};
    struct hd_mesh mesh;

    assert_int_equal(hd_mesh_init(&mesh, &sizes), HD_OK);
    assert_int_equal(mesh.world, devices);
    assert_int_equal(s->dp * s->micro_batch * hd_layout_micro_batches(s, w->global_batch),
                     w->global_batch);
    assert_int_equal(s->sequence, w->sizes.sequence >= 0 ? w->sizes.sequence == 1 : s->tp > 1);
    assert_int_equal(s->ep, w->sizes.ep ? w->sizes.ep : 1);
    assert_int_equal(s->zero, 0);
}

/* Goal: a layout exists exactly where everything can be dealt out. Method: all small wishes. */
static void sizes_are_legal_where_everything_can_be_dealt_out(void **state)
{
    static const int heads[][2] = {{12, 12}, {12, 4}, {12, 1}, {8, 2}, {9, 3}};
    static const int contexts[] = {48, 20};
    int legal = 0, illegal = 0;

    for (size_t h = 0; h < sizeof heads / sizeof heads[0]; h++)
        for (int code = 0; code < 2 * 3 * 3 * 4 * 9 * 7; code += HD_TEST_SANITIZED ? 11 : 1) {
            struct hd_plan_request w = plain;
            struct hd_layout_sizes s;
            int c = code, tp, cp;

            w.heads = heads[h][0];
            w.kv_heads = heads[h][1];
            w.context = contexts[c % 2], c /= 2;
            w.sizes.sequence = c % 3 - 1, c /= 3;    /* auto, off, on */
            w.sizes.micro_batch = c % 3 * 2, c /= 3; /* auto, 2, 4 */
            w.sizes.dp = c % 4, c /= 4;
            w.sizes.tp = c % 9, c /= 9;
            w.sizes.cp = c % 7;
            tp = w.sizes.tp ? w.sizes.tp : 1;
            cp = w.sizes.cp ? w.sizes.cp : 1;
            for (int devices = 1; devices <= 24; devices++) {
                const bool fits = hd_plan_size(&w, devices, &s) == HD_PLAN_FITS;

                assert_int_equal(fits, is_legal(&w, tp, cp, devices));
                legal += fits;
                illegal += !fits;
                if (!fits)
                    continue;
                assert_int_equal(s.tp, tp);
                assert_int_equal(s.cp, cp);
                check_sizes(&w, devices, &s);
            }
        }
    assert_true(legal > 1000 && illegal > 1000);
}

static void an_automatic_micro_batch_divides_and_is_at_most_eight(void **state)
{
    struct hd_plan_request w = plain;
    struct hd_layout_sizes s;

    for (int64_t share = 1; share <= 200; share++) {
        w.global_batch = 3 * share;
        assert_int_equal(hd_plan_size(&w, 3, &s), HD_PLAN_FITS);
        assert_in_range(s.micro_batch, 1, 8);
        assert_int_equal(share % s.micro_batch, 0);
        for (int64_t larger = s.micro_batch + 1; larger <= 8; larger++)
            assert_int_not_equal(share % larger, 0);
    }
}

/* Goal: a value in the job goes before the devices' default. */
static void devices_decide_what_is_auto(void **state)
{
    struct hd_layout_sizes automatic = {.precision = HD_JOB_PRECISION_AUTO};
    struct hd_layout_sizes said = {.precision = HD_JOB_PRECISION_FP32, .threads = 5};

    hd_plan_decide_device(HD_JOB_DEVICE_CPU, true, 3, &automatic);
    assert_int_equal(automatic.precision, HD_JOB_PRECISION_BF16);
    assert_int_equal(automatic.device, HD_JOB_DEVICE_CPU);
    assert_int_equal(automatic.threads, 3);
    hd_plan_decide_device(HD_JOB_DEVICE_CUDA, true, 3, &said);
    assert_int_equal(said.precision, HD_JOB_PRECISION_FP32);
    assert_int_equal(said.device, HD_JOB_DEVICE_CUDA);
    assert_int_equal(said.threads, 5);
}

static void auto_means_plain_data_parallelism(void **state)
{
    struct hd_layout_sizes s;

    assert_int_equal(hd_plan_size(&plain, 6, &s), HD_PLAN_FITS);
    assert_true(s.tp == 1 && s.cp == 1 && s.dp == 6 && s.pp == 1 && !s.sequence);
    assert_int_equal(s.cp_exchange, HD_JOB_CP_EXCHANGE_RING);
}

/* 24 sequences: 8 replicas of 4 are 32 devices, 7 do not share them, 6 of 4 do. */
static void the_most_devices_are_whole_replicas(void **state)
{
    struct hd_plan_request w = plain;

    w.sizes.tp = 2;
    w.sizes.cp = 2;
    assert_int_equal(hd_plan_most(&w, 1, 64), 48); /* 12 replicas; 24 would be 96 */
    assert_int_equal(hd_plan_most(&w, 1, 31), 24);
    assert_int_equal(hd_plan_most(&w, 1, 3), 0);
    assert_int_equal(hd_plan_most(&w, 25, 31), 0);
    assert_int_equal(hd_plan_unit(&w), 2);
}

/* ---- words ---- */

struct refusal {
    struct hd_plan_request wish; /* what differs from plain: 0 is as there */
    int min, max;
    const char *says;
};

static const struct refusal refusals[] = {
    {{.sizes = {.tp = 5}},
     12,
     12,
     "parallel.tp: 5 does not divide model.heads = 12; use 1, 2, 4 or 12"},
    {{.sizes = {.tp = 6}},
     12,
     12,
     "parallel.tp: 6 neither divides model.kv_heads = 4 nor is a multiple of it; use 1, 2, 4 or "
     "12"},
    {{.sizes = {.tp = 4}, .ffn_hidden = 6},
     12,
     12,
     "parallel.tp: 4 does not divide model.ffn_hidden = 6; use 1 or 2"},
    {{.sizes = {.tp = 4}, .shared_ffn_hidden = 6},
     12,
     12,
     "parallel.tp: 4 does not divide model.shared_ffn_hidden = 6; use 1 or 2"},
    {{.sizes = {.tp = 4}, .dense_ffn_hidden = 6},
     12,
     12,
     "parallel.tp: 4 does not divide model.dense_ffn_hidden = 6; use 1 or 2"},
    {{.sizes = {.tp = 4}, .vocab = 5}, /* shares of 2: nothing is left for the fourth */
     12,
     12,
     "parallel.tp: 4 shares of model.vocab = 5 leave a rank without a token; use 1 or 2"},
    {{.sizes = {.cp = 5}},
     8,
     8,
     "parallel.cp: 5 ranks take two chunks each of model.context = 48, which 10 does not divide; "
     "use 1, 2, 4 or 8"}, /* 3 and 6 divide the context, but not the devices */
    {{.sizes = {.cp = 8}, .delta_conv_width = 5}, /* 4 before a token */
     8,
     8,
     "parallel.cp: 8 ranks take chunks of 3 tokens of model.context = 48, fewer than the 4 before "
     "a "
     "token that model.delta.conv_width = 5 needs; use 1, 2 or 4"}, /* 6: not on 8 devices */
    {{.sizes = {.cp = 8}, .conv_width = 5},
     8,
     8,
     "parallel.cp: 8 ranks take chunks of 3 tokens of model.context = 48, fewer than the 4 before "
     "a token that model.conv.width = 5 needs; use 1, 2 or 4"},
    {{.sizes = {.tp = 4}, .conv_layers = 1, .hidden = 6},
     12,
     12,
     "parallel.tp: 4 does not divide model.hidden = 6; use 1 or 2"},
    {{.sizes = {.tp = 4, .cp = 3}, .context = 18},
     12,
     12,
     "parallel.sequence: parallel.tp = 4 does not divide the 6 tokens of a sequence on a rank "
     "(model.context / parallel.cp); write false, or change model.context"},
    {{.sizes = {.tp = 2, .cp = 2, .device = HD_JOB_DEVICE_CUDA}},
     6,
     6,
     "resources.devices: 6 is no multiple of parallel.tp x parallel.cp = 4; use 4, 8, 12, 16, 24, "
     "32, 48 or 96"},
    {{.sizes = {.tp = 2}},
     10,
     10,
     "resources.devices: 10 are 5 replicas of tp x cp = 2, which do not divide "
     "train.global_batch = 24; use 2, 4, 6, 8, 12, 16, 24 or 48"},
    {{.sizes = {.tp = 2, .dp = 5}}, /* no other number of devices has 5 replicas */
     10,
     10,
     "resources.devices: 10 are 5 replicas of tp x cp = 2, which do not divide "
     "train.global_batch = 24; make train.global_batch a multiple of 5"},
    {{.sizes = {.dp = 7, .micro_batch = 2}},
     7,
     7,
     "resources.devices: 7 does not divide train.global_batch = 24; make train.global_batch a "
     "multiple of 14"},
    {{.sizes = {.tp = 4, .cp = 8, .device = HD_JOB_DEVICE_CUDA}, .context = 192, .global_batch = 1},
     4,
     4, /* one replica of 32 would do */
     "resources.devices: 4 is no multiple of parallel.tp x parallel.cp = 32; use 32"},
    {{.sizes = {.tp = 12, .cp = 512, .device = HD_JOB_DEVICE_CUDA}, .context = 12288},
     64,
     64, /* a replica of 6,144 is more than nccl connects */
     "resources.devices: 64 is no multiple of parallel.tp x parallel.cp = 6144; change tp or cp so "
     "that their product divides it"},
    {{.sizes = {.tp = 2, .micro_batch = 5}},
     4,
     4,
     "parallel.micro_batch: 5 does not divide the 12 sequences of a rank (train.global_batch / the "
     "replicas); use 1, 2, 3, 4, 6 or 12"},
    {{.sizes = {.tp = 2, .dp = 3}},
     1,
     4,
     "parallel.dp: 3 replicas of tp x cp = 2 devices are 6, not resources.devices = 4; write auto, "
     "or let them agree"},
    {{.sizes = {.tp = 4}},
     5,
     7,
     "resources.devices: no number from 5 to 7 is a multiple of parallel.tp x parallel.cp = 4; "
     "change one of them"},
    {{.sizes = {.tp = 4}},
     20,
     22,
     "resources.devices: no number from 20 to 22 shares train.global_batch = 24 evenly; change one "
     "of them"},
};

static void a_refusal_says_what_to_write_instead(void **state)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *r = &refusals[i];
        struct hd_plan_request w = plain;

        w.sizes.tp = r->wish.sizes.tp;
        w.sizes.cp = r->wish.sizes.cp;
        w.sizes.dp = r->wish.sizes.dp;
        w.sizes.micro_batch = r->wish.sizes.micro_batch;
        w.context = r->wish.context ? r->wish.context : w.context;
        w.global_batch = r->wish.global_batch ? r->wish.global_batch : w.global_batch;
        w.shared_ffn_hidden = r->wish.shared_ffn_hidden;
        w.dense_ffn_hidden = r->wish.dense_ffn_hidden;
        w.delta_conv_width = r->wish.delta_conv_width;
        w.conv_width = r->wish.conv_width;
        w.conv_layers = r->wish.conv_layers;
        w.hidden = r->wish.hidden ? r->wish.hidden : w.hidden;
        w.vocab = r->wish.vocab;
        if (r->wish.sizes.device)
            w.sizes.device = r->wish.sizes.device;
        w.ffn_hidden = r->wish.ffn_hidden ? r->wish.ffn_hidden : w.ffn_hidden;
        assert_int_equal(hd_plan_check(&w, r->min, r->max), HD_INVALID);
        assert_string_equal(hd_err_message(), r->says);
    }
}

/* Goal: a story for every refusal, none without. Method: sizes beyond reason among them. */
static void what_has_no_layout_has_a_story(void **state)
{
    static const int32_t some[] = {0, 1, 2, 3, 4, 64, 4096, 65536};
    enum { SOME = sizeof some / sizeof some[0] };

    for (int code = 0; code < SOME * SOME * SOME; code++) {
        struct hd_plan_request w = plain;

        w.sizes.tp = some[code % SOME];
        w.sizes.cp = some[code / SOME % SOME];
        w.sizes.dp = some[code / SOME / SOME];
        for (int32_t devices = 1; devices <= 256; devices *= 4) {
            const enum hd_status st = hd_plan_check(&w, devices, devices);
            struct hd_layout_sizes sizes;

            if (st == HD_UNSUPPORTED)
                assert_true(devices > hd_plan_ranks_max(w.sizes.device, NULL));

            assert_int_equal(st == HD_OK, hd_plan_most(&w, devices, devices) == devices);
            sizes = (struct hd_layout_sizes){0};
            assert_int_equal(hd_plan_decide(&w, devices, &sizes), st);
            if (!st)
                assert_int_equal(sizes.tp * sizes.cp * sizes.dp * sizes.pp, devices);
            if (st)
                assert_true(strstr(hd_err_message(), "parallel.") ||
                            strstr(hd_err_message(), "resources.devices: "));
        }
    }
}

/* Does what the message of a refusal says: the first value of its list, or what it says in words.
 * False: it has no remedy in numbers. */
static bool follow(const char *message, struct hd_plan_request *w, int32_t *devices)
{
    const char *use = strstr(message, "; use "), *batch = strstr(message, "a multiple of ");
    const struct {
        const char *key;
        int64_t *value;
    } sizes[] = {{"parallel.tp:", &w->sizes.tp},
                 {"parallel.cp:", &w->sizes.cp},
                 {"parallel.ep:", &w->sizes.ep},
                 {"parallel.micro_batch:", &w->sizes.micro_batch}};

    assert_null(strstr(message, "use , or"));
    if (strstr(message, "; make train.global_batch a multiple of "))
        return (w->global_batch = strtoll(batch + strlen("a multiple of "), NULL, 10)) > 0;
    if (strstr(message, "write auto or 1"))
        return (w->sizes.ep = 1);
    if (strstr(message, "write auto"))
        return (w->sizes.dp = 0) == 0;
    if (strstr(message, "write false"))
        return (w->sizes.sequence = 0) == 0;
    if (strstr(message, "change tp or cp so that"))
        return (w->sizes.tp = w->sizes.cp = 1);
    if (!use)
        return false;
    assert_in_range(use[strlen("; use ")], '1', '9');
    if (strncmp(message, "resources.devices:", 18) == 0)
        return (*devices = (int32_t)strtol(use + strlen("; use "), NULL, 10)) > 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (strncmp(message, sizes[i].key, strlen(sizes[i].key)) == 0)
            return (*sizes[i].value = strtoll(use + strlen("; use "), NULL, 10)) > 0;
    return false;
}

/* Goal: a remedy is right, also where no value of a size would do. Method: all small wishes; what
 * the messages say is followed, and ends with a layout after as many messages as there are sizes.
 */
static void remedies_that_are_followed_end_with_a_layout(void **state)
{
    static const int sizes[] = {0, 2, 3, 5}, experts[] = {0, 6, 8};

    for (int code = 0; code < 3 * 3 * 3 * 4 * 3 * 3 * 2; code++) {
        struct hd_plan_request w = plain;
        int c = code, steps = 0;
        int32_t devices;

        w.experts = experts[c % 3], c /= 3;
        w.sizes.tp = sizes[c % 3], c /= 3;
        w.sizes.cp = sizes[c % 3 + 1], c /= 3;
        w.sizes.dp = sizes[c % 4], c /= 4;
        w.sizes.ep = sizes[c % 3], c /= 3;
        w.sizes.micro_batch = sizes[c % 3], c /= 3;
        w.global_batch = c ? 8 : 24;
        for (devices = 1; devices <= 12; devices += 5) {
            struct hd_plan_request now = w;
            int32_t count = devices;

            for (steps = 0; steps < 8 && hd_plan_check(&now, count, count); steps++)
                if (!follow(hd_err_message(), &now, &count))
                    fail_msg("no remedy: %s", hd_err_message());
            if (steps == 8)
                fail_msg("it goes on: %s", hd_err_message());
        }
    }
}

/* Experts dealt to ep ranks, and the ranks of dp x cp to blocks of ep: none is left over. */
static bool experts_can_be_dealt(int experts, int ranks, int ep)
{
    int dealt = 0, blocks = 0;

    while (ep > 1 && dealt < experts)
        dealt += ep;
    while (blocks < ranks)
        blocks += ep;
    return (ep == 1 || (experts > 0 && dealt == experts)) && blocks == ranks;
}

/* Goal: ep is one more thing to deal out, after all others. Method: every small ep where a layout
 * without experts fits. */
static void experts_are_shared_by_blocks_of_ranks(void **state)
{
    static const int experts[] = {0, 1, 6, 8};
    int fits = 0;

    for (size_t e = 0; e < sizeof experts / sizeof experts[0]; e++)
        for (int devices = 1; devices <= 24; devices++)
            for (int ep = 1; ep <= 9; ep++) {
                struct hd_plan_request w = plain;
                struct hd_layout_sizes s;
                bool legal;

                w.sizes.tp = devices % 2 ? 1 : 2;
                w.sizes.cp = devices % 4 ? 1 : 2;
                legal = hd_plan_size(&w, devices, &s) == HD_PLAN_FITS &&
                        experts_can_be_dealt(experts[e], devices / (int)w.sizes.tp, ep);
                w.experts = experts[e];
                w.sizes.ep = ep;
                assert_int_equal(hd_plan_size(&w, devices, &s) == HD_PLAN_FITS, legal);
                if (legal)
                    check_sizes(&w, devices, &s);
                fits += legal && ep > 1;
            }
    assert_true(fits > 10);
}

static void a_refusal_of_ep_says_what_to_write_instead(void **state)
{
    static const struct {
        int experts, ep, tp, devices;
        const char *says;
    } rows[] = {
        {0, 2, 1, 2,
         "parallel.ep: 2 ranks would share the experts of a block, and the model has none; write "
         "auto or 1"},
        {8, 3, 1, 6, "parallel.ep: 3 does not divide model.experts = 8; use 1 or 2"}, /* of 6 */
        {8, 4, 2, 12,
         "parallel.ep: 4 does not divide the 6 ranks of dp x cp (resources.devices / parallel.tp / "
         "parallel.pp); "
         "use 1 or 2"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_plan_request w = plain;

        w.experts = rows[i].experts;
        w.sizes.ep = rows[i].ep;
        w.sizes.tp = rows[i].tp;
        assert_int_equal(hd_plan_check(&w, rows[i].devices, rows[i].devices), HD_INVALID);
        assert_string_equal(hd_err_message(), rows[i].says);
    }
}

static void more_ranks_than_an_engine_connects_are_another_status(void **state)
{
    for (int cuda = 0; cuda < 2; cuda++) {
        struct hd_plan_request w = plain;

        if (cuda)
            w.sizes.device = HD_JOB_DEVICE_CUDA;
        assert_int_equal(hd_plan_check(&w, 4104, 4128), HD_UNSUPPORTED);
        assert_tells(hd_err_message(), "resources.devices: 4104", "1 to 4096",
                     cuda ? "nccl" : "gloo");
        w.searched = true; /* tp 2 has a layout on 4,096 devices, and no part in the refusal */
        w.sizes.tp = 2;
        w.global_batch = 4096;
        assert_int_equal(hd_plan_check(&w, 4104, 4104), HD_UNSUPPORTED);
        assert_tells(hd_err_message(), "resources.devices: 4104", "1 to 4096");
    }
}

/* An order from a file is for one number of micro-batches: with replicas and their size it is the
 * batch of 24. */
static void an_order_from_a_file_decides_the_micro_batch(void **state)
{
    static const struct {
        int order, micro_batch, devices, found; /* found: the micro-batch; 0: no layout */
    } rows[] = {{6, 0, 2, 4},                   /* 24 / 6 */
                {6, 0, 4, 2},                   /* two replicas */
                {6, 2, 4, 2}, {6, 4, 4, 0}, {5, 0, 2, 0}, {24, 0, 2, 1}, {24, 0, 4, 0}};
    struct hd_plan_request w = plain;
    struct hd_plan_shape before, after;
    struct hd_layout_sizes sizes;

    w.layers = 4;
    w.sizes.pp = 2;
    before = hd_plan_shape_of(&w);
    memcpy(w.sizes.schedule, "file", 5);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        w.sizes.order_micro_batches = rows[i].order;
        w.sizes.micro_batch = rows[i].micro_batch;
        assert_int_equal(hd_plan_size(&w, rows[i].devices, &sizes) == HD_PLAN_FITS,
                         rows[i].found > 0);
        if (rows[i].found)
            assert_int_equal(sizes.micro_batch, rows[i].found);
    }
    w.sizes.micro_batch = 0;
    after = hd_plan_shape_of(&w);
    assert_int_not_equal(memcmp(&before, &after, sizeof after), 0); /* other numbers of devices */
    w.sizes.order_micro_batches = 0;
    assert_int_equal(hd_plan_check(&w, 2, 2), HD_INVALID);
    assert_string_equal(hd_err_message(),
                        "parallel.schedule: without an order; write {file: PATH}");
}

/* Orders with one chunk per stage are the same on one stage, and mean none there; the others are
 * refused. */
static void on_one_stage_all_orders_of_one_chunk_are_the_same(void **state)
{
    static const struct {
        const char *schedule;
        bool legal;
    } rows[] = {
        {"1f1b", true}, {"gpipe", true}, {"zb-h1", true}, {"interleaved", false}, {"zb-v", false}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_plan_request w = plain;
        struct hd_layout_sizes sizes;

        (void)snprintf(w.sizes.schedule, sizeof w.sizes.schedule, "%s", rows[i].schedule);
        assert_int_equal(hd_plan_size(&w, 2, &sizes) == HD_PLAN_FITS, rows[i].legal);
        if (rows[i].legal)
            assert_string_equal(sizes.schedule, "none");
    }
}

/* Goal: the controller may treat jobs of one shape alike. Method: all pairs of many wishes; those
 * of one shape that have a layout somewhere have one on exactly the same numbers of devices. */
static void wishes_of_one_shape_fit_the_same_numbers(void **state)
{
    enum { WISHES = 3 * 3 * 3 * 3 * 3, NUMBERS = 24 };
    static struct hd_plan_request wishes[WISHES];
    static bool fits[WISHES][NUMBERS + 1];
    int alike = 0;

    for (int i = 0; i < WISHES; i++) {
        struct hd_plan_request *w = &wishes[i];
        struct hd_layout_sizes sizes;

        *w = plain;
        w->sizes.tp = (int64_t[]){0, 1, 2}[i % 3];
        w->sizes.cp = (int64_t[]){0, 2, 3}[i / 3 % 3];
        w->sizes.micro_batch = (int64_t[]){0, 1, 2}[i / 9 % 3];
        w->global_batch = (int64_t[]){24, 24, 36}[i / 27 % 3];
        w->heads = (int64_t[]){12, 8, 5}[i / 81 % 3]; /* tp 2 does not share 5 */
        w->kv_heads = w->heads;
        for (int32_t n = 1; n <= NUMBERS; n++) {
            fits[i][n] = hd_plan_size(w, n, &sizes) == HD_PLAN_FITS;
            fits[i][0] |= fits[i][n];
        }
    }
    for (int i = 0; i < WISHES; i++) {
        for (int k = 0; k < i; k++) {
            const struct hd_plan_shape a = hd_plan_shape_of(&wishes[i]),
                                       b = hd_plan_shape_of(&wishes[k]);

            if (!fits[i][0] || !fits[k][0] || memcmp(&a, &b, sizeof a) != 0)
                continue;
            assert_memory_equal(fits[i], fits[k], sizeof fits[i]);
            alike++;
        }
    }
    assert_true(alike > WISHES); /* tp auto and 1 are one shape, so are models that differ */
}

/* One sequence per step on four devices: no two replicas can share it, but four stages can, or
 * ranks of cp, of which each has at least 256 tokens. The least tp, then pp, then cp: with 1,024
 * tokens cp 4, with 512 two stages of cp 2. Where cp is written down as 1, pp 4. The search looks
 * at no smaller shares, so 16 tokens leave pp 4, too. */
static void what_only_tp_pp_or_cp_can_split_has_a_first_layout(void **state)
{
    struct hd_plan_request wish = plain;
    struct hd_layout_sizes sizes;

    wish.global_batch = 1;
    wish.context = 1024;
    wish.layers = 8;
    assert_int_not_equal(hd_plan_size(&wish, 4, &sizes), HD_PLAN_FITS);
    assert_false(hd_plan_first(&wish, 4, &sizes));
    assert_int_equal(hd_plan_check(&wish, 4, 4), HD_INVALID);
    wish.searched = true;
    assert_true(hd_plan_first(&wish, 4, &sizes));
    assert_int_equal(sizes.cp, 4);
    assert_int_equal(sizes.tp * sizes.pp * sizes.dp, 1);
    wish.context = 512;
    assert_true(hd_plan_first(&wish, 4, &sizes));
    assert_int_equal(sizes.cp, 2);
    assert_int_equal(sizes.pp, 2);
    wish.context = 16;
    assert_true(hd_plan_first(&wish, 4, &sizes));
    assert_int_equal(sizes.pp, 4);
    wish.sizes.cp = 1;
    assert_int_equal(hd_plan_check(&wish, 4, 4), HD_OK);
    assert_int_equal(hd_plan_decide(&wish, 4, &sizes), HD_OK);
    assert_int_equal(sizes.pp, 4);
    wish.sizes.pp = wish.sizes.tp = 1; /* nothing is left to choose */
    assert_int_equal(hd_plan_check(&wish, 4, 4), HD_INVALID);
}

/* Latent attention has matrices of other widths than heads * head_width. 8 heads of 16 + 16 channels,
 * values of 24: out has 8 * 24 = 192 columns, of which two ranks have 96 each, one and a half nf4
 * blocks of 64; with values of 32 they have two blocks. Rows of kv_b have 64 columns, one block, and
 * 128 rows of q_b on a rank, too. Products that make latents are whole on every rank.
 * Without latents out has 8 * 32 columns. */
static void nf4_blocks_of_latents_are_cut_as_their_matrices_are(void **state)
{
    struct hd_plan_request w = plain;
    struct hd_layout_sizes sizes;

    w.layers = 2;
    w.heads = w.kv_heads = 8;
    w.hidden = 256;
    w.head_width = 32;
    w.ffn_hidden = 256;
    w.context = 64;
    w.nf4 = true;
    w.sizes.tp = 2;
    assert_int_equal(hd_plan_size(&w, 2, &sizes), HD_PLAN_FITS);
    w.mla_q_rank = 64;
    w.mla_kv_rank = 64;
    w.mla_nope = 16;
    w.mla_value = 24;
    assert_int_equal(hd_plan_size(&w, 2, &sizes), HD_PLAN_TP_CODES);
    w.mla_value = 32;
    assert_int_equal(hd_plan_size(&w, 2, &sizes), HD_PLAN_FITS);
}

RUN_CASES()
