#include "daemon/supervisor/judge.h"

/* Returns the index of a rank in `states`; -1: the rank is on another node. */
static int index_of(const struct sup_rank_state *states, int count, int64_t rank)
{
    for (int i = 0; i < count; i++)
        if (states[i].rank == rank)
            return i;
    return -1;
}

/* Follows the chain of waits from states[start] to its end. */
static enum sup_finding follow(const struct sup_rank_state *states, int count, int start,
                               int64_t *ret_rank)
{
    int at = start;

    for (int hops = 0; hops <= count; hops++) {
        const struct sup_rank_state *t = &states[at];

        *ret_rank = t->rank;
        if (t->doing == SUP_UNSEEN || (t->doing == SUP_CONNECTS && at == start) ||
            (t->doing == SUP_WAITS && t->waits_for < 0))
            return SUP_FOUND_NOTHING;
        if (t->doing != SUP_WAITS)
            return t->doing == SUP_EXITED || t->silent_ms >= states[start].silent_ms / 2
                       ? SUP_FOUND
                       : SUP_FOUND_ALIVE;
        at = index_of(states, count, t->waits_for);
        if (at < 0) {
            *ret_rank = t->waits_for;
            return SUP_FOUND_ELSEWHERE;
        }
    }
    return SUP_FOUND_CIRCLE; /* the chain has more waits than there are ranks: a rank came twice */
}

/* Returns the index of the rank whose silence is the next shorter one after that of states[before];
 * before -1: of the longest silent rank. -1: there is no other rank. */
static int next_silent(const struct sup_rank_state *states, int count, int before)
{
    int next = -1;

    for (int i = 0; i < count; i++) {
        const bool comes_later = before < 0 || states[i].silent_ms < states[before].silent_ms ||
                                 (states[i].silent_ms == states[before].silent_ms && i > before);

        if (states[i].doing != SUP_EXITED && comes_later &&
            (next < 0 || states[i].silent_ms > states[next].silent_ms))
            next = i;
    }
    return next;
}

/* Blames a rank here that waits for none, even if the chain of a longer silent rank leads to
 * another node: from that node it leads back here. */
enum sup_finding sup_judge(const struct sup_rank_state *states, int count, int64_t *ret_rank)
{
    const int first = next_silent(states, count, -1);
    enum sup_finding finding = SUP_FOUND_NOTHING;

    *ret_rank = states[0].rank;
    if (first < 0)
        return finding;
    finding = follow(states, count, first, ret_rank);
    for (int i = first; i >= 0 && states[i].silent_ms >= states[first].silent_ms / 2;
         i = next_silent(states, count, i)) {
        int64_t rank;

        if (follow(states, count, i, &rank) != SUP_FOUND)
            continue;
        *ret_rank = rank;
        return SUP_FOUND;
    }
    return finding;
}

bool sup_judge_leads_to(const struct sup_rank_state *states, int count, int index, int64_t rank)
{
    int at = index;

    for (int hops = 0; hops <= count && at >= 0; hops++) {
        if (states[at].doing != SUP_WAITS)
            return false;
        if (states[at].waits_for == rank)
            return true;
        at = index_of(states, count, states[at].waits_for);
    }
    return false;
}
