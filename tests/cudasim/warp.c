/* warp: operations of several lanes: __syncwarp, votes, shuffles; how lanes wait for each other. */
#include <string.h>

#include "tests/cudasim/internal.h"

const char *hd_sim_op_name(enum hd_sim_op op)
{
    switch (op) {
    case HD_SIM_SYNCWARP:
        return "__syncwarp";
    case HD_SIM_BALLOT:
        return "a vote";
    case HD_SIM_SHUFFLE:
        return "a shuffle";
    case HD_SIM_LDMATRIX:
        return "ldmatrix";
    case HD_SIM_MMA:
        return "mma";
    case HD_SIM_SETMAXNREG:
        return "setmaxnreg";
    case HD_SIM_WGMMA:
        return "wgmma";
    case HD_SIM_WGMMA_FENCE:
        return "wgmma_fence";
    case HD_SIM_WGMMA_COMMIT:
        return "wgmma_commit";
    case HD_SIM_WGMMA_WAIT:
        return "wgmma_wait";
    }
    return "?";
}

static struct hd_sim_thread *warp_of(struct hd_sim_engine *e, unsigned warp)
{
    return &e->threads[warp * HD_CUDASIM_WARP];
}

/* True if all live lanes of the mask have arrived at the operation in which `first` waits. Fails if
 * one with the same mask waits in another operation. */
static bool is_complete(struct hd_sim_engine *e, const struct hd_sim_thread *first)
{
    const struct hd_sim_warp *w = &e->warps[first->warp];
    const unsigned wanted = first->mask & w->live;

    if (wanted & ~w->waiting)
        return false;
    for (unsigned lane = 0; lane < HD_CUDASIM_WARP; lane++) {
        const struct hd_sim_thread *t = warp_of(e, first->warp) + lane;

        if (!(wanted >> lane & 1u))
            continue;
        if (t->mask != first->mask)
            return false; /* it waits with other lanes, and may arrive later */
        if (t->op != first->op || t->site.line != first->site.line ||
            (t->site.file != first->site.file && strcmp(t->site.file, first->site.file)))
            hd_cudasim_fail(first->site,
                            "lane %u is in %s here, lane %u in %s at %s:%d, both with mask 0x%08x; "
                            "lanes of a mask must meet at the same operation",
                            first->lane, hd_sim_op_name(first->op), t->lane, hd_sim_op_name(t->op),
                            t->site.file, t->site.line, first->mask);
    }
    return true;
}

static void release(struct hd_sim_engine *e, const struct hd_sim_thread *first,
                    hd_sim_perform *perform)
{
    struct hd_sim_warp *w = &e->warps[first->warp];
    const unsigned lanes = first->mask & w->live;
    struct hd_sim_thread *all[HD_CUDASIM_WARP] = {0};

    for (unsigned lane = 0; lane < HD_CUDASIM_WARP; lane++)
        if (lanes >> lane & 1u)
            all[lane] = warp_of(e, first->warp) + lane;
    perform(all, lanes);
    for (unsigned lane = 0; lane < HD_CUDASIM_WARP; lane++)
        if (all[lane])
            all[lane]->state = HD_SIM_READY;
    w->waiting &= ~lanes;
}

void hd_sim_collect(enum hd_sim_op op, unsigned mask, void *part, hd_sim_perform *perform,
                    struct hd_cudasim_site site)
{
    struct hd_sim_engine *e = hd_sim_engine();
    struct hd_sim_thread *t = e->running;

    if (!(mask >> t->lane & 1u))
        hd_cudasim_fail(site, "%s with mask 0x%08x by lane %u, which is not in it",
                        hd_sim_op_name(op), mask, t->lane);
    t->op = op;
    t->mask = mask;
    t->site = site;
    t->part = part;
    t->perform = perform;
    t->state = HD_SIM_AT_WARP;
    e->warps[t->warp].waiting |= 1u << t->lane;
    if (is_complete(e, t))
        release(e, t, perform);
    else
        hd_sim_wait(e, t);
}

void hd_sim_lane_ended(struct hd_sim_engine *e, struct hd_sim_thread *t)
{
    struct hd_sim_warp *w = &e->warps[t->warp];
    const unsigned bit = 1u << t->lane;

    w->live &= ~bit;
    for (unsigned lane = 0; lane < HD_CUDASIM_WARP; lane++) {
        const struct hd_sim_thread *other = warp_of(e, t->warp) + lane;

        if (w->waiting >> lane & 1u && other->mask & bit && is_complete(e, other))
            release(e, other, other->perform);
    }
}

unsigned hd_cudasim_lane(void)
{
    return hd_sim_engine()->running->lane;
}

/* ---- __syncwarp ---- */

static void perform_nothing(struct hd_sim_thread **lanes, unsigned mask)
{
}

void hd_cudasim_syncwarp(unsigned mask, struct hd_cudasim_site site)
{
    hd_sim_collect(HD_SIM_SYNCWARP, mask, NULL, perform_nothing, site);
}

/* ---- Votes ---- */

struct ballot {
    int predicate;
    unsigned result;
};

static void perform_ballot(struct hd_sim_thread **lanes, unsigned mask)
{
    unsigned result = 0;

    for (unsigned lane = 0; lane < HD_CUDASIM_WARP; lane++)
        if (mask >> lane & 1u && ((struct ballot *)lanes[lane]->part)->predicate)
            result |= 1u << lane;
    for (unsigned lane = 0; lane < HD_CUDASIM_WARP; lane++)
        if (mask >> lane & 1u)
            ((struct ballot *)lanes[lane]->part)->result = result;
}

unsigned hd_cudasim_ballot(unsigned mask, int predicate, struct hd_cudasim_site site)
{
    struct ballot part = {.predicate = predicate};

    hd_sim_collect(HD_SIM_BALLOT, mask, &part, perform_ballot, site);
    return part.result;
}

/* ---- Shuffles ---- */

struct shuffle {
    uint64_t value, result;
    enum hd_cudasim_shuffle kind;
    unsigned operand, width;
};

/* The lane that `lane` reads; itself if the source is outside its segment of `width` lanes. */
static unsigned source_of(const struct shuffle *s, unsigned lane)
{
    const unsigned begin = lane & ~(s->width - 1), end = begin + s->width;

    switch (s->kind) {
    case HD_CUDASIM_SHUFFLE_LANE:
        return begin + (s->operand & (s->width - 1));
    case HD_CUDASIM_SHUFFLE_UP:
        return lane - begin >= s->operand ? lane - s->operand : lane;
    case HD_CUDASIM_SHUFFLE_DOWN:
        return s->operand < end - lane ? lane + s->operand : lane;
    case HD_CUDASIM_SHUFFLE_XOR: /* may read a lower segment, not a higher one */
        return (lane ^ s->operand) < end ? lane ^ s->operand : lane;
    }
    return lane;
}

static void perform_shuffle(struct hd_sim_thread **lanes, unsigned mask)
{
    for (unsigned lane = 0; lane < HD_CUDASIM_WARP; lane++) {
        struct shuffle *s;
        unsigned from;

        if (!(mask >> lane & 1u))
            continue;
        s = lanes[lane]->part;
        from = source_of(s, lane) % HD_CUDASIM_WARP;
        if (mask >> from & 1u)
            s->result = ((const struct shuffle *)lanes[from]->part)->value;
        else
            memset(&s->result, HD_SIM_POISON, sizeof s->result); /* undefined on the device */
    }
}

uint64_t hd_cudasim_shuffle(enum hd_cudasim_shuffle kind, unsigned mask, uint64_t value,
                            unsigned operand, unsigned width, struct hd_cudasim_site site)
{
    struct shuffle part = {.value = value, .kind = kind, .operand = operand, .width = width};

    if (width < 1 || width > HD_CUDASIM_WARP || (width & (width - 1)))
        hd_cudasim_fail(site, "a shuffle's width is %u, not 1, 2, 4, 8, 16 or 32", width);
    hd_sim_collect(HD_SIM_SHUFFLE, mask, &part, perform_shuffle, site);
    return part.result;
}
