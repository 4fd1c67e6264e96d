/* record_delta: the recording functions of gated delta layers, of short convolutions and of the gate
 * of attention's output. */
#include "program/rec.h"

static struct hd_tensor *wrong_shape(struct hd_rec *rec, const char *op, const struct hd_tensor *x)
{
    return hd_rec_fail(rec, hd_err(HD_INTERNAL, "%s: %s [%lld, %lld] does not fit", op, x->name,
                                   (long long)x->dim[0], (long long)x->dim[1]));
}

/* Appends the batch field that tells which rows belong together, if there is one: in decoding the
 * numbers of the cache slots, else the bounds of documents. */
static void add_rows_field(struct hd_rec *rec, struct hd_op *op)
{
    if (rec->shape.mode == HD_RECORD_DECODE)
        op->in[op->in_count++] = hd_rec_batch(rec, HD_BATCH_FILLED);
    else if (rec->shape.bounded)
        op->in[op->in_count++] = hd_rec_batch(rec, HD_BATCH_BOUNDS);
}

/* Returns true if each of a rank's segments has all inputs that the next one needs; else records the
 * failure. */
static bool has_long_segments(struct hd_rec *rec, int64_t width)
{
    const struct hd_rec_shape *shape = &rec->shape;

    if (rec->registry->mesh.sizes.cp == 1 || shape->mode == HD_RECORD_DECODE ||
        shape->S / 2 >= width - 1)
        return true;
    (void)hd_rec_fail(rec, hd_err(HD_UNSUPPORTED,
                                  "conv: segments of %lld rows are shorter than %lld taps before a "
                                  "row; use fewer cp ranks",
                                  (long long)shape->S / 2, (long long)width - 1));
    return false;
}

struct hd_tensor *op_conv(struct hd_rec *rec, struct hd_tensor *x, int weight, int fused_count,
                          int64_t width, bool plain)
{
    struct hd_op op = {.kind = HD_OP_conv,
                       .in = {x},
                       .in_count = 1,
                       .param = {weight},
                       .param_count = 1,
                       .fused_count = fused_count,
                       .set = {.conv_width = width, .plain = plain}};
    int64_t channels = 0;

    if (rec->error.status || !has_long_segments(rec, width))
        return &rec->dummy;
    for (int i = 0; i < fused_count; i++)
        channels += rec->registry->params[weight + i].local[0];
    if (x->dim[1] != channels)
        return wrong_shape(rec, "conv", x);
    add_rows_field(rec, &op);
    return hd_rec_result(rec, op, "convolved", x->dim[0], x->dim[1]);
}

struct hd_tensor *op_gated_delta(struct hd_rec *rec, struct hd_tensor *qkv, struct hd_tensor *ba,
                                 int A_log, const struct hd_delta_settings *s)
{
    struct hd_op op = {.kind = HD_OP_gated_delta,
                       .in = {qkv, ba},
                       .in_count = 2,
                       .param = {A_log},
                       .param_count = 1,
                       .fused_count = 2, /* A_log and dt_bias */
                       .set = {.heads = s->heads,
                               .kv_heads = s->key_heads,
                               .head_width = s->value_width,
                               .key_width = s->key_width,
                               .eps = s->eps}};

    if (rec->error.status)
        return &rec->dummy;
    if (qkv->dim[1] != 2 * s->key_heads * s->key_width + s->heads * s->value_width)
        return wrong_shape(rec, "gated_delta", qkv);
    if (ba->dim[0] != qkv->dim[0] || ba->dim[1] != 2 * s->heads)
        return wrong_shape(rec, "gated_delta", ba);
    add_rows_field(rec, &op);
    return hd_rec_result(rec, op, "recalled", qkv->dim[0], s->heads * s->value_width);
}

struct hd_tensor *op_gated_norm(struct hd_rec *rec, struct hd_tensor *x, struct hd_tensor *gate,
                                int weight, int64_t heads, double eps)
{
    if (!rec->error.status && (x->dim[0] != gate->dim[0] || x->dim[1] != gate->dim[1]))
        return wrong_shape(rec, "gated_norm", gate);
    if (!rec->error.status && x->dim[1] != heads * rec->registry->params[weight].local[0])
        return wrong_shape(rec, "gated_norm", x);
    return hd_rec_result(rec,
                         (struct hd_op){.kind = HD_OP_gated_norm,
                                        .in = {x, gate},
                                        .in_count = 2,
                                        .param = {weight},
                                        .param_count = 1,
                                        .fused_count = 1,
                                        .set = {.heads = heads, .eps = eps}},
                         "normed", x->dim[0], x->dim[1]);
}

static struct hd_tensor *gated(struct hd_rec *rec, struct hd_tensor *y, struct hd_tensor *gate,
                               bool plain)
{
    if (!rec->error.status && (y->dim[0] != gate->dim[0] || y->dim[1] != gate->dim[1]))
        return wrong_shape(rec, "sigmoid_gate", gate);
    return hd_rec_result(
        rec,
        (struct hd_op){
            .kind = HD_OP_sigmoid_gate, .in = {y, gate}, .in_count = 2, .set = {.plain = plain}},
        "gated", y->dim[0], y->dim[1]);
}

struct hd_tensor *op_sigmoid_gate(struct hd_rec *rec, struct hd_tensor *y, struct hd_tensor *gate)
{
    return gated(rec, y, gate, false);
}

struct hd_tensor *op_multiply(struct hd_rec *rec, struct hd_tensor *y, struct hd_tensor *factor)
{
    return gated(rec, y, factor, true);
}
