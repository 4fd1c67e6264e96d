/* signature: the arguments that the members of a collective exchange, and the checks that they
 * agree. Each engine exchanges signatures in its own way; the checks are shared. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "comm/comm_internal.h"

static const struct hd_comm_signature *signature_of(const struct hd_comm_op *op, int member)
{
    return op->group->comm->engine->signature(op, member);
}

static const int32_t *counts_of(const struct hd_comm_op *op, int member)
{
    return op->group->comm->engine->send_counts(op, member);
}

enum hd_status hd_comm_make_signature(const struct hd_comm_op *op,
                                      struct hd_comm_signature *ret_signature, int32_t *ret_counts)
{
    const struct hd_comm_group *group = op->group;

    ret_signature->count = op->count;
    ret_signature->send_rows_max = op->send_rows_max;
    ret_signature->recv_rows_max = op->recv_rows_max;
    ret_signature->kind = op->kind;
    ret_signature->dtype = (int32_t)op->dtype;
    ret_signature->reduce = (int32_t)op->reduce;
    ret_signature->keep_fp32 = op->keep_fp32;
    ret_signature->root = op->peer;
    if (group->comm->device_streams)
        return HD_OK; /* the counts are in device memory, which the host does not read */
    for (int m = 0; m < group->size && op->kind == HD_COMM_ALL_TO_ALL_V; m++) {
        ret_counts[m] = op->send_counts[m];
        if (ret_counts[m] < 0)
            return hd_comm_fail(group->comm, HD_INVALID,
                                "all_to_all_v #%" PRIu64 " of group %s: rank %d would send %d rows "
                                "to rank %d",
                                op->seq, group->name, group->comm->rank, (int)ret_counts[m],
                                (int)group->members[m]);
    }
    return HD_OK;
}

/* ---- comparing signatures ---- */

static void describe(const struct hd_comm_signature *signature, char *ret_text, size_t size_bytes)
{
    static const char *const names[] = {" (sum)", " (max)"};
    char root[32] = "";

    if (signature->kind == HD_COMM_BROADCAST)
        (void)snprintf(root, sizeof root, " from member %d", (int)signature->root);
    (void)snprintf(ret_text, size_bytes, "%s of %" PRId64 " x %s%s%s%s",
                   hd_comm_kind_name((enum hd_comm_kind)signature->kind), signature->count,
                   hd_dtype_name((enum hd_dtype)signature->dtype),
                   hd_comm_reduces(signature->kind) ? names[signature->reduce & 1] : "",
                   signature->keep_fp32 ? " in fp32" : "", root);
}

static bool agree(const struct hd_comm_signature *a, const struct hd_comm_signature *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && a->reduce == b->reduce &&
           a->count == b->count && a->keep_fp32 == b->keep_fp32 && a->root == b->root;
}

/* Compares the signatures of all members. Every member makes this comparison, so every member
 * detects a difference. */
static enum hd_status compare(const struct hd_comm_op *op)
{
    const struct hd_comm_group *group = op->group;
    const struct hd_comm_signature *own = signature_of(op, group->index);

    for (int m = 0; m < group->size; m++) {
        const struct hd_comm_signature *other = signature_of(op, m);
        char mine[96], theirs[96];

        if (agree(own, other))
            continue;
        describe(own, mine, sizeof mine);
        describe(other, theirs, sizeof theirs);
        return hd_comm_fail(
            group->comm, HD_INVALID,
            "operation #%" PRIu64 " of group %s differs: rank %d has %s, rank %d has %s", op->seq,
            group->name, group->comm->rank, mine, (int)group->members[m], theirs);
    }
    return HD_OK;
}

/* ---- all_to_all_v: bounds ---- */

int64_t hd_comm_rows_sent(const struct hd_comm_op *op, int from, int before)
{
    const int32_t *counts = counts_of(op, from);
    int64_t rows = 0;

    for (int m = 0; m < before; m++)
        rows += counts[m];
    return rows;
}

int64_t hd_comm_rows_received(const struct hd_comm_op *op, int to, int before)
{
    int64_t rows = 0;

    for (int m = 0; m < before; m++)
        rows += counts_of(op, m)[to];
    return rows;
}

/* Checks that no member of an all_to_all_v sends or receives more rows than its maximum. Every
 * member makes this check, so all reach one result without another exchange. */
static enum hd_status check_bounds(struct hd_comm_op *op, bool *ret_exceeded)
{
    const struct hd_comm_group *group = op->group;
    const int size = group->size;
    bool exceeded = false;

    for (int m = 0; m < size; m++) {
        const struct hd_comm_signature *signature = signature_of(op, m);
        const int64_t sent = hd_comm_rows_sent(op, m, size);
        const int64_t received = hd_comm_rows_received(op, m, size);

        if (sent <= signature->send_rows_max && received <= signature->recv_rows_max)
            continue;
        exceeded = true;
        if (!op->overflow)
            return hd_comm_fail(group->comm, HD_LIMIT,
                                "all_to_all_v #%" PRIu64 " of group %s: rank %d would send %" PRId64
                                " rows (bound send_rows_max = %" PRId64 ") and receive %" PRId64
                                " (bound recv_rows_max = %" PRId64 ")",
                                op->seq, group->name, (int)group->members[m], sent,
                                signature->send_rows_max, received, signature->recv_rows_max);
    }
    if (exceeded)
        *op->overflow = 1;
    for (int m = 0; m < size && op->recv_counts; m++)
        op->recv_counts[m] = exceeded ? 0 : counts_of(op, m)[group->index];
    *ret_exceeded = exceeded;
    return HD_OK;
}

enum hd_status hd_comm_check_signatures(struct hd_comm_op *op, bool *ret_exceeded)
{
    const enum hd_status st = compare(op);

    *ret_exceeded = false;
    return st || op->kind != HD_COMM_ALL_TO_ALL_V || op->group->comm->device_streams
               ? st
               : check_bounds(op, ret_exceeded); /* on a device, kernels check the counts */
}
