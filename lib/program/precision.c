/* precision: gives every float tensor its dtype by a table (op class -> encoding). If an op reads a
 * tensor in another encoding than it computes in, a cast is inserted, which other readers in that
 * encoding use, too. The model itself names no dtype. */
#include <string.h>

#include "program/rec.h"

struct hd_precision hd_precision_uniform(enum hd_dtype dtype)
{
    struct hd_precision p;

    for (int i = 0; i < HD_OP_CLASS_COUNT; i++)
        p.of_class[i] = dtype;
    return p;
}

struct pass {
    struct hd_rec *rec;
    const struct hd_precision *precision;
    struct hd_tensor **cast_of; /* by tensor id: the tensor cast to another encoding; NULL: no cast
                                   was inserted */
};

static struct hd_tensor *cast_to(struct pass *p, struct hd_tensor *t, enum hd_dtype dtype)
{
    struct hd_tensor *out = p->cast_of[t->id];

    if (out && out->dtype == dtype)
        return out;
    out = hd_rec_tensor(p->rec, "cast", t->dim[0], t->dim[1]);
    out->dtype = dtype;
    (void)hd_rec_op(p->rec,
                    &(struct hd_op){.kind = HD_OP_cast, .in = {t}, .in_count = 1, .out = out});
    p->cast_of[t->id] = out;
    return out;
}

static bool is_float(const struct hd_tensor *t)
{
    return t->kind != HD_TENSOR_BATCH && t->dtype != HD_I32 && t->dtype != HD_I64;
}

enum hd_status hd_pass_precision(struct hd_rec *rec, const struct hd_precision *precision)
{
    const int count = rec->op_count, tensors = rec->tensor_count;
    struct hd_op *old = hd_arena_array(rec->arena, (size_t)count + 1, sizeof *old);
    struct pass p = {rec, precision, NULL};

    p.cast_of = hd_arena_array(rec->arena, (size_t)tensors + 1, sizeof *p.cast_of);
    if (!old || !p.cast_of)
        return hd_err(HD_NO_MEMORY, "no memory for the precision pass");
    memcpy(old, rec->ops, (size_t)count * sizeof *old);
    for (int i = 0; i < tensors; i++)
        if (rec->tensors[i]->kind == HD_TENSOR_INPUT)
            rec->tensors[i]->dtype = precision->of_class[HD_CLASS_RESIDUAL];

    rec->op_count = 0; /* empties the list: all ops are recorded a second time, with casts between
                          them */
    for (int i = 0; i < count; i++) {
        struct hd_op op = old[i];
        enum hd_dtype dtype = precision->of_class[hd_op_class_of(op.kind)];

        rec->unit = op.unit;
        if (hd_op_class_of(op.kind) == HD_CLASS_COMM) /* collectives keep the encoding of their
                                                         input */
            dtype = op.in[0]->dtype;
        for (int k = 0; k < op.in_count; k++)
            if (is_float(op.in[k]) && op.in[k]->dtype != dtype)
                op.in[k] = cast_to(&p, op.in[k], dtype);
        if (op.out)
            op.out->dtype = dtype;
        if (op.out && op.out->same_store >= 0)
            op.out->same_store = op.in[0]->id;
        (void)hd_rec_op(rec, &op);
    }
    /* the next chunk expects its input in the encoding of residuals */
    if (rec->output && rec->output->dtype != precision->of_class[HD_CLASS_RESIDUAL])
        rec->output = cast_to(&p, rec->output, precision->of_class[HD_CLASS_RESIDUAL]);
    return hd_rec_status(rec);
}
