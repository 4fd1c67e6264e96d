/* emit_grad: emits the sums of gradients of activations, and finds the memory of gradients of
 * parameters. */
#include "program/emit.h"

struct hd_operand hd_emit_grad(const struct hd_emit *e, const struct hd_tensor *t)
{
    return t && t->id >= 0 ? e->grads[t->id].sum : hd_emit_none();
}

void hd_emit_add_grad(struct hd_emit *e, const struct hd_tensor *t, struct hd_operand grad,
                      bool own)
{
    struct hd_grad_slot *slot = &e->grads[t->id];
    const enum hd_call call = e->call;
    struct hd_operand sum;

    if (!t->needs_grad)
        return;
    if (!slot->sum.store) {
        *slot = (struct hd_grad_slot){grad, own, e->call};
        return;
    }
    sum = hd_emit_temp(e, "grad", t->dtype, t->dim[0], t->dim[1]);
    if (slot->call == HD_CALL_B) /* a sum of one contribution from F and one from B is added in B */
        e->call = HD_CALL_B;
    (void)hd_emit_add(e, HD_ARGS(add, .N = t->dim[0] * t->dim[1], .dtype = t->dtype),
                      HD_OPERANDS(add, .out = sum, .a = slot->sum, .b = grad));
    *slot = (struct hd_grad_slot){sum, true, e->call};
    e->call = call;
}

struct hd_operand hd_emit_grad_sum(struct hd_emit *e, const struct hd_tensor *t,
                                   bool *ret_accumulate)
{
    const struct hd_grad_slot *slot = &e->grads[t->id];

    *ret_accumulate = slot->sum.store && slot->own;
    return *ret_accumulate ? slot->sum : hd_emit_temp(e, "grad", t->dtype, t->dim[0], t->dim[1]);
}

struct hd_operand hd_emit_param_grad(struct hd_emit *e, int param, int fused_count, bool *ret_first)
{
    const struct hd_param *p = &e->registry->params[param];
    const bool to_grad_bucket = e->registry->buckets[p->bucket].zero >= 2;
    bool *has_grad =
        &e->param_has_grad[param + (to_grad_bucket ? (int)e->call : 0) * e->registry->param_count];

    *ret_first = !*has_grad;
    for (int i = 0; i < fused_count; i++)
        has_grad[i] = true;
    return to_grad_bucket ? hd_emit_grad_bucket(e, p->bucket, p->offset)
                          : hd_emit_bucket(e, p->bucket, HD_STATE_GRAD, p->offset);
}

static bool writes_grad_bucket(const struct hd_node *node)
{
    for (int k = 0; k < hd_node_operand_count(node); k++)
        if (node->operands[k].store && node->operands[k].store->kind == HD_STORE_GRAD_BUCKET)
            return true;
    return false;
}

void hd_emit_contributes(struct hd_node *node, bool first)
{
    node->contribution = true;
    node->first_contribution = first;
    if (!node->args) /* a dummy, after a failure */
        return;
    node->overwrites = first && writes_grad_bucket(node);
    *hd_node_accumulate(node) = true; /* hd_bind clears the flag for a first contribution in the
                                         step's first micro-batch */
}
