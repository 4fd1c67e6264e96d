#include "daemon/supervisor/judge.h"

/* -1: it is on another node. */
static int index_of(const struct sup_told *told, int count, int64_t rank)
{
    for (int i = 0; i < count; i++)
        if (told[i].rank == rank)
            return i;
    return -1;
}

/* The end of the chain of waits from told[start]. */
static enum sup_finding follow(const struct sup_told *told, int count, int start, int64_t *ret_rank)
{
    int at = start;

    for (int hops = 0; hops <= count; hops++) {
        const struct sup_told *t = &told[at];

        *ret_rank = t->rank;
        if (t->doing == SUP_UNSEEN || (t->doing == SUP_CONNECTS && at == start) ||
            (t->doing == SUP_WAITS && t->waits_for < 0))
            return SUP_FOUND_NOTHING;
        if (t->doing != SUP_WAITS)
            return t->doing == SUP_EXITED || t->silent_ms >= told[start].silent_ms / 2
                       ? SUP_FOUND
                       : SUP_FOUND_ALIVE;
        at = index_of(told, count, t->waits_for);
        if (at < 0) {
            *ret_rank = t->waits_for;
            return SUP_FOUND_ELSEWHERE;
        }
    }
    return SUP_FOUND_CIRCLE; /* more waits than ranks: one of them came twice */
}

/* In the order of their silence, the longest first: the rank after `before`, or the first; -1:
 * none.
 */
static int next_silent(const struct sup_told *told, int count, int before)
{
    int next = -1;

    for (int i = 0; i < count; i++) {
        const bool comes_later = before < 0 || told[i].silent_ms < told[before].silent_ms ||
                                 (told[i].silent_ms == told[before].silent_ms && i > before);

        if (told[i].doing != SUP_EXITED && comes_later &&
            (next < 0 || told[i].silent_ms > told[next].silent_ms))
            next = i;
    }
    return next;
}

/* A rank here that waits for none is to blame, also if the chain of one that is silent longer leads
 * to another node: it leads back from there. */
enum sup_finding sup_judge(const struct sup_told *told, int count, int64_t *ret_rank)
{
    const int first = next_silent(told, count, -1);
    enum sup_finding finding = SUP_FOUND_NOTHING;

    *ret_rank = told[0].rank;
    if (first < 0)
        return finding;
    finding = follow(told, count, first, ret_rank);
    for (int i = first; i >= 0 && told[i].silent_ms >= told[first].silent_ms / 2;
         i = next_silent(told, count, i)) {
        int64_t rank;

        if (follow(told, count, i, &rank) != SUP_FOUND)
            continue;
        *ret_rank = rank;
        return SUP_FOUND;
    }
    return finding;
}

bool sup_judge_leads_to(const struct sup_told *told, int count, int index, int64_t rank)
{
    int at = index;

    for (int hops = 0; hops <= count && at >= 0; hops++) {
        if (told[at].doing != SUP_WAITS)
            return false;
        if (told[at].waits_for == rank)
            return true;
        at = index_of(told, count, told[at].waits_for);
    }
    return false;
}
