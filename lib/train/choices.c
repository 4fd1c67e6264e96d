/* choices: all ranks use the same algorithm for the same product.
 *
 * A backend may choose among the algorithms of a GEMM library by time (options.choices_dir), and
 * ranks measure different times. Ranks that compute the same product for themselves, such as a
 * router on every rank of tp, would then differ in the last bits, and so would their tensors. So
 * of the ranks that have a product the first that sends it decides, by rounds and then by rank.
 * Stages of a pipeline have different products, so no single rank could decide for all. Ranks on
 * other kinds of GPU, drivers or libraries have other products (the backend names them so), and
 * decide among themselves.
 *
 * In a round each rank sends as many of its undecided choices as fit a message. All ranks read all
 * messages in the order of ranks: the first choice for a product decides it. A rank leaves out what
 * has been decided. The rounds end when no rank has anything to send.
 */
#include <stdlib.h>
#include <string.h>

#include "train/trainer.h"

struct ballot { /* a message of hd_trainer_exchange */
    int64_t count;
    struct hd_choice choices[(HD_EXCHANGE_SLOT_BYTES - sizeof(int64_t)) / sizeof(struct hd_choice)];
};
_Static_assert(sizeof(struct ballot) <= HD_EXCHANGE_SLOT_BYTES, "a ballot fits in a message");

enum { BALLOT_MAX = sizeof((struct ballot *)0)->choices / sizeof(struct hd_choice) };

/* The rank's own choices; those that have been decided come last. */
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

/* Takes this choice if its product is open here. */
static void decide(struct hd_trainer *t, struct open_choices *open, const struct hd_choice *choice)
{
    for (int i = 0; i < open->count; i++) {
        if (open->list[i].product != choice->product)
            continue;
        t->table->choose(t->backend, choice, 1);
        open->list[i] = open->list[--open->count];
        return;
    }
}

/* *ret_more: a rank had something to send. */
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
    const struct hd_choice *own = t->table->choices ? t->table->choices(t->backend, &count) : NULL;
    enum hd_status st = HD_OK;

    if (!t->table->choices || t->rank_program.job.deterministic)
        return HD_OK;                   /* on no rank of the job */
    if (t->rank_program.mesh.world > 1) /* a rank without a folder has none, and hears the others */
        st = hold_rounds(t, own, own ? count : 0);
    if (!st && own)
        t->table->keep_choices(t->backend);
    return st;
}
