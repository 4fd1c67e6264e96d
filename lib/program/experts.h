/* experts: the state of an experts op, and its parts. Only for ops_experts.c, which moves rows,
 * experts_route.c, which chooses experts, and experts_compute.c, which multiplies. */
#ifndef HD_PROGRAM_EXPERTS_H
#define HD_PROGRAM_EXPERTS_H

#include "program/emit.h"

/* State of the op: sizes, and operands that backward needs from forward, kept per micro-batch. */
struct experts {
    struct hd_emit *e;
    const struct hd_op *op;
    const struct hd_router *router;
    enum hd_dtype dtype;
    int64_t R, C, F, E, K;      /* R: rows of this rank; E: experts of all ranks; K: experts per
                                   row */
    int64_t El, P, B, S;        /* El: experts of this rank; P: ranks that split the experts; S:
                                   rows of a whole sequence */
    struct hd_row_runs at;      /* positions of this rank's R rows in whole sequences (ops_moe.h) */
    double capacity;            /* expert capacity of the router; 0: no limit */
    int64_t T_sent, T_received; /* capacities in rows of the buffers that this rank sends and
                                   receives */
    /* operands of fp32 or int32 */
    struct hd_operand noise_logits, noise, probs, lse, chosen, gate;
    struct hd_operand all_chosen; /* [cp, R, K]: choices of all ranks that have rows of these
                                     sequences */
    struct hd_operand slot, sent, all_counts, received, expert_counts;
    /* operands of rows of C or F channels */
    struct hd_operand entered, hidden, activated, returned;
    /* [T_received], with dropout before adapters: sample and index of the rows of this rank's
     * experts */
    struct hd_operand sample, index;
    /* [T_received, r] of each product that has an adapter: s A x, and s B^T dy */
    struct hd_operand inner[HD_EXPERT_PRODUCTS], dinner[HD_EXPERT_PRODUCTS];
    /* operands computed in B, which W reads for the gradients of weights */
    struct hd_operand dhidden, dresult, dlogits, dnoise_logits;
};

/* Parameters of the op by index; A of product p is PARAM_A + 2 p, B the next one; -1: it has none.
 * A of up alone -1: it is that of gate. */
enum {
    PARAM_ROUTER,
    PARAM_NOISE,
    PARAM_GATE,
    PARAM_UP,
    PARAM_DOWN,
    PARAM_A,
    PARAM_ROUTER_BIAS = PARAM_A + 2 * HD_EXPERT_PRODUCTS,
    PARAM_SELECT_BIAS,
    PARAM_BIAS /* bias of product p: PARAM_BIAS + p */
};

static inline struct hd_operand numbers(struct experts *x, const char *name, enum hd_dtype dtype,
                                        int64_t rows, int64_t columns)
{
    return hd_emit_temp(x->e, name, dtype, rows, columns);
}

static inline struct hd_operand rows(struct experts *x, const char *name, int64_t count,
                                     int64_t width)
{
    return hd_emit_temp(x->e, name, x->dtype, count, width);
}

/* Sets, for cost estimates, the rows of a kernel over this rank's experts. With balanced routers a
 * rank receives as many rows as it sends. */
static inline struct hd_node *set_even_rows(const struct experts *x, struct hd_node *node)
{
    node->rows.even = x->T_sent;
    return node;
}

/* ---- routing (experts_route.c) ---- */

/* Emits the choice of experts and its record, and the slot of each choice. */
void hd_experts_route(struct experts *x);
/* Emits the gradients of the router's logits and of their noise, from that of the gates. */
void hd_experts_route_backward(struct experts *x, struct hd_operand dgate);
/* Emits dx (+)= dlogits W in fp32, with the weight W of the router or of its noise. */
void hd_experts_router_gradient(struct experts *x, struct hd_operand dx, struct hd_operand dlogits,
                                int param, bool accumulate);
/* Emits the gradients of the router's parameters. */
void hd_experts_router_weights(struct experts *x);

/* ---- computing (experts_compute.c) ---- */

/* Returns whether the adapters have dropout. */
bool hd_experts_drops(const struct experts *x);
/* Emits the experts' results of the rows in `entered`, and returns them. */
struct hd_operand hd_experts_compute(struct experts *x);
/* Emits the gradients of hidden rows and adapters from those of the results. */
void hd_experts_compute_backward(struct experts *x);
/* Emits the gradient of the rows in `entered`, and returns it. */
struct hd_operand hd_experts_entered_gradient(struct experts *x);
/* Emits the gradients of the experts' weights, biases and adapters. */
void hd_experts_compute_weights(struct experts *x);

#endif
