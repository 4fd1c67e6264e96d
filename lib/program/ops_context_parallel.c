/* Attention over the keys of all context-parallel ranks, a composite op. For backward it keeps q,
 * k, v, the result and its log-sum-exp for this rank's rows only, not the blocks of other ranks.
 *
 * A rank has the rows of two chunks of each sequence (mesh/zigzag.h). Their keys and values are its
 * *block*. It attends to the blocks of all P ranks, its own first, and merges the results by
 * log-sum-exp in fp32. Backward runs block by block with the merged result.
 *
 *   ring    (Li et al. 2021, "Sequence Parallelism"; Liu et al. 2023, "Ring Attention") Each step
 *           sends the current block to the next rank and receives another from the previous rank,
 *           overlapped with attention to the current block. Backward passes the blocks round the
 *           ring again, each followed by the fp32 sum of its gradients, to which every rank adds
 *           its term. After P shifts the sum is on the rank that owns the block.
 *   gather  One all-gather of all blocks; in backward another one, and one reduce-scatter of the
 *           gradients of all blocks. One collective instead of P - 1 shifts, but memory for P
 *           blocks.
 *
 * A block without visible keys (causal mask or window) is passed on without attention. Where chunks
 * begin depends on the documents, so here a chunk counts as a window of its length. A rank's own
 * block always has visible pairs: each row attends to itself.
 */
#include "program/emit_attention.h"

struct ring {
    struct hd_emit *e;
    const struct hd_emit_attention *a;
    int32_t P, rank;
    int64_t width;          /* elements of a row of a block: keys, then values */
    struct hd_operand own;  /* this rank's block [R, width] */
    struct hd_operand all;  /* with gather_keys: the blocks of all ranks [P, R, width] */
    struct hd_operand next; /* ring: the block that arrives for the next step */
};

static int64_t block_elements(const struct ring *r)
{
    return r->a->R * r->width;
}

static struct hd_operand new_block(struct ring *r, const char *name, enum hd_dtype dtype,
                                   int64_t blocks)
{
    return hd_emit_temp(r->e, name, dtype, blocks * r->a->R, r->width);
}

/* Emits a shift round the ring: `sent` goes to the next rank; returns the new memory in which the
 * block of the previous rank arrives. */
static struct hd_operand shift(struct ring *r, const char *name, struct hd_operand sent,
                               enum hd_dtype dtype)
{
    struct hd_operand received = new_block(r, name, dtype, 1);

    (void)hd_emit_comm(r->e,
                       HD_ARGS(comm, .kind = HD_COMM_SHIFT, .group = HD_GROUP_CP,
                               .count = block_elements(r), .dtype = dtype),
                       HD_OPERANDS(comm, .received = received, .sent = sent));
    return received;
}

static void copy_columns(struct ring *r, struct hd_operand out, int64_t ldo,
                         enum hd_dtype out_dtype, struct hd_operand inp, int64_t ldi,
                         enum hd_dtype inp_dtype, int64_t N)
{
    (void)hd_emit_copy_columns(r->e,
                               HD_ARGS(copy_columns, .R = r->a->R, .N = N, .ldo = ldo, .ldi = ldi,
                                       .factor = 1, .out_dtype = out_dtype, .inp_dtype = inp_dtype),
                               HD_OPERANDS(copy_columns, .out = out, .inp = inp));
}

/* Emits the copy of this rank's block of keys and values into contiguous memory and, with
 * hd_rec_shape.gather_keys, the gather of the blocks of all ranks. */
static struct ring begin(struct hd_emit *e, const struct hd_emit_attention *a)
{
    struct ring r = {.e = e,
                     .a = a,
                     .P = e->registry->mesh.sizes.cp,
                     .rank = e->registry->coord.cp,
                     .width = 2 * a->G * a->D};

    r.own = new_block(&r, "block", a->dtype, 1);
    copy_columns(&r, r.own, r.width, a->dtype, hd_emit_own_keys(a, a->q).k, a->ld, a->dtype,
                 r.width);
    r.next = r.own;
    if (e->rec->shape.gather_keys) {
        r.all = new_block(&r, "blocks", a->dtype, r.P);
        (void)hd_emit_comm(e,
                           HD_ARGS(comm, .kind = HD_COMM_ALL_GATHER, .group = HD_GROUP_CP,
                                   .count = block_elements(&r), .dtype = a->dtype),
                           HD_OPERANDS(comm, .received = r.all, .sent = r.own));
    }
    return r;
}

/* Returns the number of pairs of this rank's queries and the keys of rank `source` that may be
 * visible in a sequence. */
static int64_t count_pairs(const struct ring *r, int32_t source)
{
    const struct hd_emit_attention *a = r->a;
    const int64_t S = a->S * r->P;
    const struct hd_zigzag mine = {S, r->P, r->rank}, theirs = {S, r->P, source};
    const bool by_chunk = a->chunk > 0 && (a->window == 0 || a->chunk < a->window);

    return hd_zigzag_pairs(&mine, &theirs, a->causal, by_chunk ? a->chunk : a->window);
}

static int32_t source_of(const struct ring *r, int32_t step)
{
    return (r->rank - step + r->P) % r->P;
}

/* Returns the block of keys and values of step `step`. In a ring it also emits the shift that
 * brings the block of the next step. */
static struct hd_emit_keys take_block(struct ring *r, int32_t step)
{
    const struct hd_emit_attention *a = r->a;
    const int64_t S = a->S * r->P;
    const struct hd_zigzag theirs = {S, r->P, source_of(r, step)};
    struct hd_operand block = r->next;

    if (r->e->rec->shape.gather_keys && step > 0)
        block = hd_emit_at(r->all, theirs.rank * block_elements(r), a->dtype);
    else if (!r->e->rec->shape.gather_keys && step + 1 < r->P)
        r->next = shift(r, "block", block, a->dtype);
    return (struct hd_emit_keys){.k = block,
                                 .v = hd_emit_at(block, a->G * a->D, a->dtype),
                                 .index = hd_emit_positions(r->e, a->B, &theirs),
                                 .rows = a->S,
                                 .ld = r->width,
                                 .pairs = count_pairs(r, theirs.rank)};
}

/* ---- forward ---- */

static int32_t last_visible_step(const struct ring *r)
{
    int32_t last = 0;

    for (int32_t step = 1; step < r->P; step++)
        if (count_pairs(r, source_of(r, step)) > 0)
            last = step;
    return last;
}

void hd_emit_context_forward(struct hd_emit *e, const struct hd_emit_attention *a,
                             struct hd_operand lse)
{
    struct ring r = begin(e, a);
    const bool prefix = hd_emit_has_prefix(a->op);
    const int32_t last = prefix ? -1 : last_visible_step(&r); /* step whose merge writes the op's
                                                                 result; -1: none, the merge with
                                                                 the prefix writes it */
    const int64_t columns = a->H * a->D;
    const struct hd_operand sum = hd_emit_temp(e, "merged", HD_F32, a->R, columns);

    for (int32_t step = 0; step < r.P; step++) {
        const struct hd_emit_keys keys = take_block(&r, step);
        struct hd_operand out, out_lse;

        if (!keys.pairs)
            continue;
        out = hd_emit_temp(e, "attended", a->dtype, a->R, columns);
        out_lse = hd_emit_temp(e, "lse", HD_F32, a->H, a->R);
        hd_emit_attend(e, a, &keys, out, out_lse);
        (void)hd_emit_attention_merge(
            e,
            HD_ARGS(attention_merge, .R = a->R, .H = a->H, .D = a->D, .first = step == 0,
                    .dtype = a->dtype),
            HD_OPERANDS(attention_merge,
                        .out = step == last ? hd_emit_result(e, a->op) : hd_emit_none(), .acc = sum,
                        .lse = lse, .block_out = out, .block_lse = out_lse));
    }
    if (prefix)
        hd_emit_prefix_forward(e, a, sum, lse);
}

/* ---- backward ---- */

static void zero(struct ring *r, struct hd_operand out)
{
    (void)hd_emit_zero(r->e,
                       HD_ARGS(zero, .size_bytes = block_elements(r) * (int64_t)sizeof(float)),
                       HD_OPERANDS(zero, .out = out));
}

/* Emits backward over one block: adds to dq, and writes dk and dv to `dkv`, [R, width] fp32. The
 * kernel accumulates into all three or none, so after the first block dkv is set to zero before. */
static void differentiate(struct ring *r, const struct hd_emit_keys *keys, struct hd_operand dq,
                          struct hd_operand dkv, bool first)
{
    const int64_t columns = r->a->G * r->a->D;

    if (!first)
        zero(r, dkv);
    if (keys->pairs)
        hd_emit_attend_backward(
            r->e, r->a, keys,
            &(struct hd_emit_attention_grads){.dq = dq,
                                              .dk = dkv,
                                              .dv = hd_emit_at(dkv, columns, HD_F32),
                                              .ldq = r->a->H * r->a->D,
                                              .ldk = r->width,
                                              .dtype = HD_F32,
                                              .accumulate = !first});
}

/* Emits sum += arrived: this rank's gradient of the block plus the sum of the previous ranks in the
 * ring. */
static void add(struct ring *r, struct hd_operand sum, struct hd_operand arrived)
{
    (void)hd_emit_add(r->e, HD_ARGS(add, .N = block_elements(r), .dtype = HD_F32),
                      HD_OPERANDS(add, .out = sum, .a = sum, .b = arrived));
}

/* Emits backward over all blocks, which adds to dq; returns the gradient of this rank's own
 * block. */
static struct hd_operand ring_backward(struct ring *r, struct hd_operand dq)
{
    struct hd_operand arrived = hd_emit_none();

    for (int32_t step = 0; step < r->P; step++) {
        const struct hd_emit_keys keys = take_block(r, step);
        struct hd_operand sum = arrived; /* the sum that is passed on: `arrived` itself if this rank
                                            sees no pair of the block */

        if (keys.pairs) {
            sum = new_block(r, "block_grad", HD_F32, 1);
            differentiate(r, &keys, dq, sum, step == 0);
            if (step > 0)
                add(r, sum, arrived);
        }
        arrived = shift(r, "block_grad", sum, HD_F32);
    }
    return arrived;
}

static struct hd_operand gathered_backward(struct ring *r, struct hd_operand dq)
{
    const struct hd_operand all = new_block(r, "block_grads", HD_F32, r->P);
    const struct hd_operand own = new_block(r, "block_grad", HD_F32, 1);

    for (int32_t step = 0; step < r->P; step++) {
        const struct hd_emit_keys keys = take_block(r, step);

        differentiate(r, &keys, dq, hd_emit_at(all, source_of(r, step) * block_elements(r), HD_F32),
                      step == 0);
    }
    (void)hd_emit_comm(r->e,
                       HD_ARGS(comm, .kind = HD_COMM_REDUCE_SCATTER, .group = HD_GROUP_CP,
                               .count = block_elements(r), .dtype = HD_F32),
                       HD_OPERANDS(comm, .received = own, .sent = all));
    return own;
}

void hd_emit_context_backward(struct hd_emit *e, const struct hd_emit_attention *a,
                              struct hd_operand grad)
{
    struct ring r = begin(e, a);
    const int64_t columns = a->H * a->D;
    const struct hd_operand dq = hd_emit_temp(e, "query_grad", HD_F32, a->R, columns);
    const struct hd_operand dkv =
        e->rec->shape.gather_keys ? gathered_backward(&r, dq) : ring_backward(&r, dq);

    if (hd_emit_has_prefix(a->op))
        hd_emit_prefix_backward(e, a, dq, false);
    copy_columns(&r, grad, a->ld, a->dtype, dq, columns, HD_F32, columns);
    copy_columns(&r, hd_emit_at(grad, columns, a->dtype), a->ld, a->dtype, dkv, r.width, HD_F32,
                 r.width);
}
