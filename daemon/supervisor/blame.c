/* blame: collects the state of each rank of this node, asks the judge which rank a hang is blamed
 * on, and writes the text about it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/supervisor/supervisor.h"

enum {
    /* ms; a waiting rank refreshes the record of its wait ten times a second, so a record that is
     * older than this, and than the silence / STALE_DIVISOR, is stale */
    STALE_MS = 1000,
    STALE_DIVISOR = 4,
    WAITERS_NAMED = 4,
    RANKS_TEXT_MAX = 128,
    SILENCE_TEXT_MAX = 160,
};

/* ---- the state of each rank ---- */

/* Returns a rank of this node that has not reached the rendezvous in which `rank` waits; NULL: all
 * have. */
static const struct sup_rank *missing_at_rendezvous(const struct sup *sup,
                                                    const struct sup_rank *rank)
{
    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].put_round < rank->put_round)
            return &sup->ranks[i];
    return NULL;
}

static bool is_fresh(const struct hd_flight_wait *wait, const struct sup_rank *rank, int64_t now_ms)
{
    const int64_t silent_ms = now_ms - rank->received_ms;
    const int64_t stale_ms =
        silent_ms / STALE_DIVISOR > STALE_MS ? silent_ms / STALE_DIVISOR : STALE_MS;

    return wait->waits && now_ms - wait->seen_ms <= stale_ms;
}

static struct sup_rank_state gather_state(const struct sup *sup, const struct sup_rank *rank,
                                          int64_t now_ms, struct hd_flight_wait *ret_wait)
{
    struct sup_rank_state states = {.rank = rank->rank,
                                    .silent_ms = sup_silence_ms(rank, now_ms),
                                    .doing = SUP_COMPUTES,
                                    .waits_for = -1};
    const struct sup_rank *missing;

    hd_shm_control_wait(sup->shm, (int)(rank - sup->ranks), ret_wait);
    ret_wait->waits = is_fresh(ret_wait, rank, now_ms);
    if (!rank->pid) {
        states.doing = SUP_EXITED;
    } else if (sup_is_stopped(rank)) {
        states.doing = SUP_STOPPED;
    } else if (ret_wait->waits) {
        states.doing = SUP_WAITS;
        states.waits_for = ret_wait->rank;
    } else if (!ret_wait->is_reported && (missing = missing_at_rendezvous(sup, rank))) {
        states.doing = SUP_WAITS;
        states.waits_for = missing->rank;
    } else if (!ret_wait->is_reported && rank->phase == HD_LINK_PHASE_SETUP &&
               rank->put_round >= 0 && sup_spans(sup) && !sup->options.gpu_count) {
        states.doing = SUP_CONNECTS;
    } else if (!ret_wait->is_reported && (rank->phase != HD_LINK_PHASE_SETUP ||
                                          (rank->put_round >= 0 && sup->options.gpu_count))) {
        states.doing = SUP_UNSEEN; /* the rank waits for others on its device */
    }
    return states;
}

/* ---- if waits are not visible ---- */

/* Returns a number that grows with a rank's progress: its first incomplete collective, and that
 * collective's state. */
static uint64_t progress_of(const struct sup *sup, const struct sup_rank *rank)
{
    struct hd_flight_record record;

    if (!sup_find_flight(sup, rank, &record))
        return 0;
    return record.launch * (HD_FLIGHT_COMPLETE + 1) + (uint64_t)record.state;
}

/* Returns true if a rank has been silent for at least half as long as `silent`. When one rank
 * stops, its peers wait for it and become silent, too. */
static bool is_silent_too(const struct sup_rank *rank, const struct sup_rank *silent,
                          int64_t now_ms)
{
    return rank->pid && sup_silence_ms(rank, now_ms) >= sup_silence_ms(silent, now_ms) / 2;
}

/* Returns the rank to blame: the one whose collectives are behind, because the others wait for it;
 * `silent` if none is further behind. */
static struct sup_rank *find_behind(const struct sup *sup, struct sup_rank *silent, int64_t now_ms)
{
    struct sup_rank *blamed = silent;

    for (int i = 0; i < sup->options.rank_count; i++)
        if (is_silent_too(&sup->ranks[i], silent, now_ms) &&
            progress_of(sup, &sup->ranks[i]) < progress_of(sup, blamed))
            blamed = &sup->ranks[i];
    return blamed;
}

/* Returns a silent rank that is busy; NULL: all sleep. Used where collectives cannot be compared:
 * between pipeline stages, and if only some of the attempt's ranks are here. A rank that waits for
 * peers sleeps, so the one to blame does not. Ends at the first busy rank, because sup_is_busy
 * blocks. */
static struct sup_rank *find_busy(const struct sup *sup, struct sup_rank *silent, int64_t now_ms)
{
    if (sup_is_busy(silent))
        return silent;
    for (int i = 0; i < sup->options.rank_count; i++)
        if (&sup->ranks[i] != silent && is_silent_too(&sup->ranks[i], silent, now_ms) &&
            sup_is_busy(&sup->ranks[i]))
            return &sup->ranks[i];
    return NULL;
}

/* Guesses the rank to blame. NULL: it may be on another node. */
static struct sup_rank *guess(const struct sup *sup, struct sup_rank *silent, int64_t now_ms)
{
    /* true: pipeline stages launch different numbers of collectives, so these cannot be compared */
    const bool are_stages = sup->job.pp > 1;
    struct sup_rank *busy;

    if (!sup_spans(sup) && !are_stages)
        return find_behind(sup, silent, now_ms);
    busy = find_busy(sup, silent, now_ms);
    return busy || sup_spans(sup) ? busy : find_behind(sup, silent, now_ms);
}

/* ---- the text ---- */

struct findings {
    const struct sup *sup;
    int64_t now_ms;
    struct sup_rank_state states[HD_ATTEMPT_RANKS_MAX];
    struct hd_flight_wait waits[HD_ATTEMPT_RANKS_MAX];
};

/* Writes a wait, such as "rank 0 in all_reduce #41 of group dp (1.2 MiB), entered, for 61 s". */
static void describe_wait(const struct findings *f, int index, char *ret_text, size_t size_bytes)
{
    const struct hd_flight_wait *wait = &f->waits[index];
    const struct sup_rank *rank = &f->sup->ranks[index];
    const bool connects = !wait->has_record && rank->phase == HD_LINK_PHASE_SETUP;
    char what[128];

    (void)snprintf(what, sizeof what, "%s",
                   connects ? "connecting to the other ranks" : "an operation");
    if (!wait->waits) {
        (void)snprintf(ret_text, size_bytes, "rank %" PRId64 " in the rendezvous for %" PRId64 " s",
                       rank->rank, (f->now_ms - rank->put_ms) / 1000);
        return;
    }
    if (wait->has_record)
        hd_flight_describe(&wait->record, what, sizeof what);
    (void)snprintf(ret_text, size_bytes, "rank %" PRId64 " in %s, for %" PRId64 " s", rank->rank,
                   what, (f->now_ms - wait->since_ms) / 1000);
}

/* Writes which ranks of this node wait for the blamed one, such as "; ranks 0, 2 wait for it: rank
 * 0 in .., for 61 s"; "": none. The operation is that of a rank that waits directly for the blamed
 * one, if this node has such a rank. */
static void describe_waiters(const struct findings *f, int64_t blamed, char *ret_text,
                             size_t size_bytes)
{
    const int ranks = f->sup->options.rank_count;
    char names[RANKS_TEXT_MAX] = "", first[192];
    int count = 0, direct = -1, last = -1;
    size_t n = 0;

    for (int i = 0; i < ranks; i++) {
        if (!sup_judge_leads_to(f->states, ranks, i, blamed))
            continue;
        if (direct < 0 && f->states[i].waits_for == blamed)
            direct = i;
        last = i;
        if (count++ < WAITERS_NAMED && n < sizeof names)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%" PRId64, count > 1 ? ", " : "",
                                  f->states[i].rank);
    }
    ret_text[0] = '\0';
    if (!count)
        return;
    describe_wait(f, direct >= 0 ? direct : last, first, sizeof first);
    (void)snprintf(ret_text, size_bytes, "; rank%s %s%s %s for it: %s", count > 1 ? "s" : "", names,
                   count > WAITERS_NAMED ? " .." : "", count > 1 ? "wait" : "waits", first);
}

static const char *describe_doing(enum sup_doing doing)
{
    switch (doing) {
    case SUP_COMPUTES:
        return ": it waits for no rank, but computes, or waits for its device or a disk";
    case SUP_STOPPED:
        return ": its process is stopped by a signal";
    case SUP_EXITED:
        return ": its process has ended";
    default:
        return "";
    }
}

/* Writes a silence, such as "gave no sign of life for 62 s while training". */
static void describe_silence(const struct sup_rank *rank, int64_t now_ms,
                             char ret_text[SILENCE_TEXT_MAX])
{
    const int64_t starved_s = hd_starve_ms(&rank->starve, rank->received_ms) / 1000;
    int n = snprintf(ret_text, SILENCE_TEXT_MAX, "gave no sign of life for %" PRId64 " s while %s",
                     (now_ms - rank->received_ms) / 1000, sup_phase_text(rank));

    if (starved_s)
        (void)snprintf(ret_text + n, SILENCE_TEXT_MAX - (size_t)n,
                       " (it waited for a processor in %" PRId64 " s of them)", starved_s);
}

static void report_found(struct findings *f, struct sup_rank *blamed, struct sup_blame *b)
{
    char silence[SILENCE_TEXT_MAX], flight[SUP_FLIGHT_MAX], waiters[512];
    const int index = (int)(blamed - f->sup->ranks);

    describe_silence(blamed, f->now_ms, silence);
    sup_describe_flight(f->sup, blamed, flight);
    describe_waiters(f, blamed->rank, waiters, sizeof waiters);
    b->here = blamed;
    (void)snprintf(b->text, sizeof b->text, "rank %" PRId64 " %s%s%s%s", blamed->rank, silence,
                   describe_doing(f->states[index].doing), flight, waiters);
}

static void report_elsewhere(struct findings *f, const struct sup_rank *silent, struct sup_blame *b)
{
    char who[64] = "", waiters[512] = "";

    if (b->rank >= 0) {
        (void)snprintf(who, sizeof who,
                       "rank %" PRId64 ", on another node, is waited for: ", b->rank);
        describe_waiters(f, b->rank, waiters, sizeof waiters);
    }
    (void)snprintf(b->text, sizeof b->text,
                   "%sno rank here gave a sign of life for %" PRId64 " s while %s%s", who,
                   (f->now_ms - silent->received_ms) / 1000, sup_phase_text(silent), waiters);
}

static void report_circle(struct findings *f, struct sup_rank *in_it, struct sup_blame *b)
{
    const int ranks = f->sup->options.rank_count;
    char silence[SILENCE_TEXT_MAX];
    int index = (int)(in_it - f->sup->ranks);
    size_t n;

    describe_silence(in_it, f->now_ms, silence);
    b->here = in_it;
    n = (size_t)snprintf(b->text, sizeof b->text,
                         "rank %" PRId64 " %s: ranks wait for each other, in a circle", in_it->rank,
                         silence);
    for (int i = 0; i < WAITERS_NAMED && n < sizeof b->text; i++) {
        char wait[192];

        describe_wait(f, index, wait, sizeof wait);
        n += (size_t)snprintf(b->text + n, sizeof b->text - n, "%s %s waits for rank %" PRId64,
                              i ? ";" : ":", wait, f->states[index].waits_for);
        for (int k = 0; k < ranks; k++)
            if (f->states[k].rank == f->states[index].waits_for) {
                index = k;
                break;
            }
        if (index == (int)(in_it - f->sup->ranks))
            break;
    }
}

/* ---- the finding ---- */

static bool some_rank_starves(const struct sup *sup, int64_t now_ms)
{
    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup_is_starved(sup, &sup->ranks[i], now_ms))
            return true;
    return false;
}

void sup_find_blame(struct sup *sup, struct sup_rank *silent, int64_t now_ms,
                    struct sup_blame *ret_blame)
{
    struct findings f = {.sup = sup, .now_ms = now_ms};
    struct sup_blame b = {.rank = -1};
    struct sup_rank *found;
    int64_t rank;

    for (int i = 0; i < sup->options.rank_count; i++)
        f.states[i] = gather_state(sup, &sup->ranks[i], now_ms, &f.waits[i]);
    b.finding = sup_judge(f.states, sup->options.rank_count, &rank);
    found = sup_find_rank(sup, rank);
    if ((b.finding == SUP_FOUND_NOTHING || b.finding == SUP_FOUND_ELSEWHERE) &&
        some_rank_starves(sup, now_ms)) {
        /* the finding is that nothing hangs: other ranks may wait for the rank that gets no CPU */
        b.finding = SUP_FOUND_ALIVE;
    } else if (b.finding == SUP_FOUND_NOTHING) {
        found = guess(sup, silent, now_ms);
        b.finding = found ? SUP_FOUND : SUP_FOUND_ELSEWHERE;
    } else if (b.finding == SUP_FOUND_ELSEWHERE) {
        b.rank = rank;
    }
    if (b.finding == SUP_FOUND)
        report_found(&f, found, &b);
    else if (b.finding == SUP_FOUND_CIRCLE)
        report_circle(&f, found, &b);
    else if (b.finding == SUP_FOUND_ELSEWHERE)
        report_elsewhere(&f, silent, &b);
    *ret_blame = b;
}

struct sup_rank *sup_find_silent(struct sup *sup, int64_t now_ms)
{
    struct sup_rank *silent = NULL;

    for (int i = 0; i < sup->options.rank_count; i++) {
        struct sup_rank *rank = &sup->ranks[i];

        if (rank->pid &&
            sup_silence_ms(rank, now_ms) >= sup_limits_of(&sup->limits, rank->phase).reported_ms &&
            (!silent || sup_silence_ms(rank, now_ms) > sup_silence_ms(silent, now_ms)))
            silent = rank;
    }
    return silent;
}

void sup_blame_for_overdue(struct sup *sup)
{
    const int64_t now_ms = hd_clock_now_ms();
    struct sup_rank *silent = sup_find_silent(sup, now_ms);
    struct sup_blame blame;

    if (sup->ending || sup->stop_asked || sup->limits.reports_only || !sup_spans(sup) || !silent ||
        /* this process was stopped: messages of the ranks may be unread */
        now_ms - sup->pass_ms > SUP_FROZEN_MS ||
        sup_silence_ms(silent, now_ms) < sup_limits_of(&sup->limits, silent->phase).ends_ms)
        return;
    sup_find_blame(sup, silent, now_ms, &blame);
    if (blame.here)
        sup_begin_end(sup, HD_LINK_CAUSE_HANG, blame.here->rank, true, "%s", blame.text);
}

void sup_blame_for_timeout(struct sup *sup, struct sup_rank *rank)
{
    struct sup_blame blame;

    if (sup->ending || rank->failure.status != HD_TIMEOUT)
        return;
    sup_find_blame(sup, rank, hd_clock_now_ms(), &blame);
    if (blame.finding == SUP_FOUND && blame.here != rank)
        sup_begin_end(sup, HD_LINK_CAUSE_HANG, blame.here->rank, false, "%s", blame.text);
    else if (blame.finding == SUP_FOUND_ELSEWHERE)
        sup->elsewhere = blame.rank;
}
