#include "controller/services/refusals.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

/* Refusals of one kind (refusals.h). Longer texts are cut, and compared as cut. */
struct kind {
    bool used;
    char who[HD_CTL_NAME_BYTES_MAX + 1], role[16], method[64], host[96], result[32];
    /* hashes of the objects that have an audit row of their own in this window */
    uint64_t objects[REFUSAL_OBJECTS];
    size_t object_count;
    /* object of the counted refusals; "several" if they differ */
    char object[HD_CTL_NAME_BYTES_MAX + 32];
    int64_t counted;
    int64_t window_ms, end_ms;
};

/* Counts of all kinds. A linear search costs some microseconds per refused call, and the rate of a
 * caller's refused calls is limited. */
struct refusals {
    struct kind kinds[REFUSALS_MAX];
    struct kind others; /* count of refusals whose kind is not in `kinds` because that is full */
    char result[REFUSAL_RESULT_MAX];
};

struct refusals *refusals_new(void)
{
    return calloc(1, sizeof(struct refusals));
}

void refusals_free(struct refusals *all)
{
    free(all);
}

/* Returns the length of the host part of a source such as "10.0.0.7:40112"; the whole length if the
 * source has no port. */
static int host_bytes(const char *source)
{
    const char *colon = strrchr(source, ':');

    if (!colon || !colon[1] || strspn(colon + 1, "0123456789") != strlen(colon + 1))
        return (int)strlen(source);
    return (int)(colon - source);
}

static void fill(struct kind *kind, const struct hd_audit_record *r)
{
    *kind = (struct kind){.used = true, .window_ms = REFUSAL_WINDOW_MS};
    (void)snprintf(kind->who, sizeof kind->who, "%s", r->who);
    (void)snprintf(kind->role, sizeof kind->role, "%s", r->role);
    (void)snprintf(kind->method, sizeof kind->method, "%s", r->method);
    (void)snprintf(kind->host, sizeof kind->host, "%.*s", host_bytes(r->source), r->source);
    (void)snprintf(kind->result, sizeof kind->result, "%s", r->result);
}

static bool is_alike(const struct kind *a, const struct kind *b)
{
    return strcmp(a->method, b->method) == 0 && strcmp(a->who, b->who) == 0 &&
           strcmp(a->host, b->host) == 0 && strcmp(a->result, b->result) == 0 &&
           strcmp(a->role, b->role) == 0;
}

/* Returns the kind of this record, added if necessary; NULL: `kinds` is full. */
static struct kind *find_kind(struct refusals *all, const struct hd_audit_record *record,
                              int64_t now_ms)
{
    struct kind wanted, *unused = NULL;

    fill(&wanted, record);
    for (size_t i = 0; i < REFUSALS_MAX; i++) {
        struct kind *kind = &all->kinds[i];

        if (kind->used && is_alike(kind, &wanted))
            return kind;
        if (!kind->used && !unused)
            unused = kind;
    }
    if (unused) {
        *unused = wanted;
        unused->end_ms = now_ms + unused->window_ms;
    }
    return unused;
}

static void count(struct kind *kind, const char *object)
{
    if (!kind->counted)
        (void)snprintf(kind->object, sizeof kind->object, "%s", object);
    else if (strcmp(kind->object, object) != 0)
        (void)snprintf(kind->object, sizeof kind->object, "several");
    kind->counted++;
}

bool refusals_take(struct refusals *all, const struct hd_audit_record *record, bool can_write,
                   int64_t now_ms)
{
    struct kind *kind = find_kind(all, record, now_ms);
    const uint64_t object = hd_random_hash(record->object);

    if (!kind) {
        kind = &all->others;
        if (!kind->used) {
            const struct hd_audit_record others = {.who = "(several callers)",
                                                   .role = "",
                                                   .method = "(several)",
                                                   .source = "",
                                                   .result = "refused"};

            fill(kind, &others);
            kind->end_ms = now_ms + kind->window_ms;
        }
        count(kind, "");
        return false;
    }
    for (size_t i = 0; i < kind->object_count; i++) {
        if (kind->objects[i] == object) {
            count(kind, record->object);
            return false;
        }
    }
    if (!can_write || kind->object_count == REFUSAL_OBJECTS) {
        count(kind, record->object);
        return false;
    }
    kind->objects[kind->object_count++] = object;
    return true;
}

/* Ends the window of a kind. If refusals were counted in it, makes their summary row, makes the
 * next window longer and returns true; otherwise removes the kind and returns false. */
static bool end_window(struct refusals *all, struct kind *kind, int64_t now_ms,
                       struct hd_audit_record *ret_record)
{
    if (!kind->counted) {
        kind->used = false;
        return false;
    }
    (void)snprintf(all->result, sizeof all->result, "%s, %lld times", kind->result,
                   (long long)kind->counted);
    *ret_record = (struct hd_audit_record){.who = kind->who,
                                           .role = kind->role,
                                           .method = kind->method,
                                           .object = kind->object,
                                           .source = kind->host,
                                           .result = all->result};
    kind->counted = 0;
    if (2 * kind->window_ms <= REFUSAL_WINDOW_MAX_MS)
        kind->window_ms *= 2;
    else
        kind->window_ms = REFUSAL_WINDOW_MAX_MS;
    kind->end_ms = now_ms + kind->window_ms;
    return true;
}

bool refusals_next(struct refusals *all, int64_t now_ms, bool all_of_them,
                   struct hd_audit_record *ret_record)
{
    for (size_t i = 0; i <= REFUSALS_MAX; i++) {
        struct kind *kind = i < REFUSALS_MAX ? &all->kinds[i] : &all->others;
        const bool over = kind->used && (now_ms >= kind->end_ms || (all_of_them && kind->counted));

        if (over && end_window(all, kind, now_ms, ret_record))
            return true;
    }
    return false;
}
