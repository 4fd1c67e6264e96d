/* choices: makes all ranks use the same GEMM algorithm for the same product.
 *
 * A backend may choose among the algorithms of a GEMM library by time (options.choices_dir), and
 * ranks measure different times. Ranks that each compute the same product, such as a router on
 * every tp rank, would then differ in the last bits, and so would their tensors. So for each
 * product one rank's choice is adopted by all: the one sent in the earliest round, and in that
 * round by the lowest rank. Stages of a pipeline have different products, so no single rank could
 * decide for all. The product's name includes the kind of GPU, the driver and the library, so ranks
 * that differ in these decide independently of each other.
 *
 * In a round each rank sends as many of its undecided choices as fit a message. All ranks read all
 * messages in the order of ranks: the first choice for a product decides it. A rank sends no choice
 * that has been decided. The rounds end when no rank has anything to send.
 */
#include <stdlib.h>
#include <string.h>

#include "train/trainer.h"

/* one message of hd_trainer_exchange: GEMM choices that a rank proposes in one round */
struct ballot {
    int64_t count;
    struct hd_choice choices[(HD_EXCHANGE_SLOT_BYTES - sizeof(int64_t)) / sizeof(struct hd_choice)];
};
_Static_assert(sizeof(struct ballot) <= HD_EXCHANGE_SLOT_BYTES, "a ballot fits in a message");

enum { BALLOT_MAX = sizeof((struct ballot *)0)->choices / sizeof(struct hd_choice) };

/* This rank's GEMM choices for products that are still undecided; a decided one is removed. */
struct open_choices {
    struct hd_choice *list;
    int count;
};

static void fill_ballot(const struct open_choices *open, struct ballot *ret_ballot)
{
    const int count = open->count < BALLOT_MAX ? open->count : (int)BALLOT_MAX;

    memset(ret_ballot, 0, sizeof *ret_ballot);
    ret_ballot->count = count;
    for (int i = 0; i < count; i++)
        ret_ballot->choices[i] = open->list[i];
}

/* Adopts `choice` for its product if the product is still undecided on this rank. */
static void decide(struct hd_trainer *t, struct open_choices *open, const struct hd_choice *choice)
{
    for (int i = 0; i < open->count; i++) {
        if (open->list[i].product != choice->product)
            continue;
        t->open.table->choose(t->open.backend, choice, 1);
        open->list[i] = open->list[--open->count];
        return;
    }
}

/* Exchanges one message of undecided choices with all ranks. Sets *ret_more to true if at least one
 * rank sent a choice. */
static enum hd_status hold_round(struct hd_trainer *t, struct open_choices *open, bool *ret_more)
{
    struct ballot ballot;
    const char *all;
    enum hd_status st;

    fill_ballot(open, &ballot);
    st = hd_trainer_exchange(t, &ballot, sizeof ballot, &all);
    *ret_more = false;
    for (int r = 0; !st && r < t->rank_program.mesh.world; r++) {
        memcpy(&ballot, all + r * (int64_t)HD_EXCHANGE_SLOT_BYTES, sizeof ballot);
        if (ballot.count < 0 || ballot.count > BALLOT_MAX)
            return hd_err(HD_INTERNAL, "rank %d sent %lld choices in a message of at most %d", r,
                          (long long)ballot.count, (int)BALLOT_MAX);
        *ret_more |= ballot.count > 0;
        for (int64_t i = 0; i < ballot.count; i++)
            decide(t, open, &ballot.choices[i]);
    }
    return st;
}

static enum hd_status hold_rounds(struct hd_trainer *t, const struct hd_choice *own, int count)
{
    struct open_choices open = {.list = malloc((size_t)count * sizeof *own + 1), .count = count};
    bool more = true;
    enum hd_status st = HD_OK;

    if (!open.list)
        return hd_err(HD_NO_MEMORY, "no memory for the choices among algorithms");
    if (count)
        memcpy(open.list, own, (size_t)count * sizeof *own);
    while (!st && more)
        st = hold_round(t, &open, &more);
    free(open.list);
    return st;
}

enum hd_status hd_trainer_settle_choices(struct hd_trainer *t)
{
    int count = 0;
    const struct hd_choice *own =
        t->open.table->choices ? t->open.table->choices(t->open.backend, &count) : NULL;
    enum hd_status st = HD_OK;

    if (!t->open.table->choices || t->rank_program.job.deterministic)
        /* this condition is equal on all ranks of the job, so no rank waits for another */
        return HD_OK;
    /* a rank without choices_dir sends no choice, but receives those of the other ranks */
    if (t->rank_program.mesh.world > 1)
        st = hold_rounds(t, own, own ? count : 0);
    if (!st && own)
        t->open.table->keep_choices(t->open.backend);
    return st;
}
