/* usage: usage per name: leaky buckets for rates, and counts of live jobs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "controller/identity/identity.h"

enum { RATES = 2 }; /* limits that are rates: SUBMISSIONS and QUERIES */

_Static_assert(HD_LIMIT_SUBMISSIONS == 0 && HD_LIMIT_QUERIES == 1, "the rates come first");

struct user {
    char *name;
    struct {
        double used; /* calls counted in the leaky bucket at the time at_ms */
        int64_t at_ms;
    } rates[RATES];
    int64_t queued, live;
};

/* A live job that counts for its owner. */
struct counted {
    uint64_t job; /* number of the job; 0: empty slot */
    uint32_t user;
    bool queued;
};

struct hd_usages {
    struct user *users;
    size_t count, capacity;
    uint32_t *slots; /* hash table of names: index + 1; 0: empty */
    size_t slot_count;
    struct counted *jobs; /* hash table by job number, open addressing, at most half full */
    size_t job_count, job_slots;
};

struct hd_usages *hd_usages_new(void)
{
    return calloc(1, sizeof(struct hd_usages));
}

void hd_usages_free(struct hd_usages *usages)
{
    if (!usages)
        return;
    for (size_t i = 0; i < usages->count; i++)
        free(usages->users[i].name);
    free(usages->users);
    free(usages->slots);
    free(usages->jobs);
    free(usages);
}

/* ---- names ------------------------------------------------------------------------------------*/

static size_t slot_of(const struct hd_usages *usages, const char *name)
{
    size_t at = hd_random_hash(name) & (usages->slot_count - 1);

    while (usages->slots[at] && strcmp(usages->users[usages->slots[at] - 1].name, name) != 0)
        at = (at + 1) & (usages->slot_count - 1);
    return at;
}

static struct user *find_or_add_usage(const struct hd_usages *usages, const char *name)
{
    const size_t at = usages->count ? slot_of(usages, name) : 0;

    return usages->count && usages->slots[at] ? &usages->users[usages->slots[at] - 1] : NULL;
}

static bool grow_usages(struct hd_usages *usages)
{
    const size_t capacity = usages->capacity ? 2 * usages->capacity : 16;
    struct user *users;
    uint32_t *slots;

    if (usages->count < usages->capacity)
        return true;
    users = realloc(usages->users, capacity * sizeof *users);
    if (users)
        usages->users = users;
    slots = users ? calloc(2 * capacity, sizeof *slots) : NULL;
    if (!slots)
        return false;
    free(usages->slots);
    usages->slots = slots;
    usages->slot_count = 2 * capacity;
    usages->capacity = capacity;
    for (size_t i = 0; i < usages->count; i++)
        usages->slots[slot_of(usages, usages->users[i].name)] = (uint32_t)i + 1;
    return true;
}

/* Returns the entry of the name in the hash table, creating it. NULL: no memory. */
static struct user *user_of(struct hd_usages *usages, const char *name)
{
    struct user *found = find_or_add_usage(usages, name);
    char *copy;

    if (found)
        return found;
    if (!grow_usages(usages) || !(copy = strdup(name)))
        return NULL;
    usages->slots[slot_of(usages, name)] = (uint32_t)usages->count + 1;
    usages->users[usages->count] = (struct user){.name = copy};
    return &usages->users[usages->count++];
}

/* ---- rates ------------------------------------------------------------------------------------*/

/* Returns the level of a user's leaky bucket, which holds `most` calls and drains `most` per
 * second. */
static double level(const struct user *user, enum hd_limit limit, int64_t most, int64_t now_ms)
{
    const double drained = (double)(now_ms - user->rates[limit].at_ms) / 1000.0 * (double)most;
    const double left = user->rates[limit].used - drained;

    return left > 0 ? left : 0;
}

enum hd_status hd_limit_check(const char *name, enum hd_limit limit, int64_t used, int64_t most)
{
    if (used < most)
        return HD_OK;
    return hd_err(HD_LIMIT, "%s: %s uses %lld of %lld %s (see heddle limits)", hd_limit_name(limit),
                  name, (long long)used, (long long)most, hd_limit_unit(limit));
}

enum hd_status hd_usages_take(struct hd_usages *usages, const char *name, enum hd_limit limit,
                              int64_t most, int64_t now_ms)
{
    struct user *user;
    double used;

    if (most == INT64_MAX)
        return HD_OK;
    user = user_of(usages, name);
    if (!user)
        return hd_err(HD_NO_MEMORY, "no memory for a caller");
    used = level(user, limit, most, now_ms);
    if (used + 1 > (double)most)
        return hd_limit_check(name, limit, most, most);
    user->rates[limit].used = used + 1;
    user->rates[limit].at_ms = now_ms;
    return HD_OK;
}

int64_t hd_usages_rate(const struct hd_usages *usages, const char *name, enum hd_limit limit,
                       int64_t most, int64_t now_ms)
{
    const struct user *user = find_or_add_usage(usages, name);

    return user && most != INT64_MAX ? (int64_t)ceil(level(user, limit, most, now_ms)) : 0;
}

/* ---- live jobs --------------------------------------------------------------------------------*/

static size_t job_slot(const struct counted *jobs, size_t slots, uint64_t job)
{
    size_t at = hd_random_key(job, 0) & (slots - 1);

    while (jobs[at].job && jobs[at].job != job)
        at = (at + 1) & (slots - 1);
    return at;
}

static bool grow_jobs(struct hd_usages *usages)
{
    const size_t slots = usages->job_slots ? 2 * usages->job_slots : 64;
    struct counted *jobs;

    if (2 * (usages->job_count + 1) <= usages->job_slots)
        return true;
    jobs = calloc(slots, sizeof *jobs);
    if (!jobs)
        return false;
    for (size_t i = 0; i < usages->job_slots; i++)
        if (usages->jobs[i].job)
            jobs[job_slot(jobs, slots, usages->jobs[i].job)] = usages->jobs[i];
    free(usages->jobs);
    usages->jobs = jobs;
    usages->job_slots = slots;
    return true;
}

/* Removes an entry from the hash table of jobs and reinserts the entries behind it that a lookup
 * would no longer reach. */
static void forget(struct hd_usages *usages, size_t hole)
{
    const size_t mask = usages->job_slots - 1;

    usages->job_count--;
    usages->jobs[hole].job = 0;
    for (size_t at = (hole + 1) & mask; usages->jobs[at].job; at = (at + 1) & mask) {
        const struct counted moved = usages->jobs[at];

        usages->jobs[at].job = 0;
        usages->jobs[job_slot(usages->jobs, usages->job_slots, moved.job)] = moved;
    }
}

static void count(struct hd_usages *usages, const struct counted *c, int64_t by)
{
    usages->users[c->user].live += by;
    usages->users[c->user].queued += c->queued ? by : 0;
}

void hd_usages_see_job(struct hd_usages *usages, const struct hd_job_record *job)
{
    const bool live = job->state <= HD_JOB_STATE_STOPPING && !job->removal;
    size_t at;
    const struct user *user;

    if (!live && !usages->job_slots)
        return;
    if (!grow_jobs(usages))
        return; /* out of memory: the count becomes too low, but the job itself cannot be stored
                 * either */
    at = job_slot(usages->jobs, usages->job_slots, job->job);
    if (usages->jobs[at].job)
        count(usages, &usages->jobs[at], -1);
    if (!live) {
        if (usages->jobs[at].job)
            forget(usages, at);
        return;
    }
    user = user_of(usages, job->owner);
    if (!user)
        return;
    usages->job_count += !usages->jobs[at].job;
    usages->jobs[at] = (struct counted){.job = job->job,
                                        .user = (uint32_t)(user - usages->users),
                                        .queued = job->state == HD_JOB_STATE_QUEUED};
    count(usages, &usages->jobs[at], 1);
}

int64_t hd_usages_jobs(const struct hd_usages *usages, const char *name, bool queued_alone)
{
    const struct user *user = find_or_add_usage(usages, name);

    return !user ? 0 : queued_alone ? user->queued : user->live;
}
