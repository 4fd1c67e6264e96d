#include "heard.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/job.h"

bool heard_value(const char *text, const char *name, char *ret_value, size_t size_bytes)
{
    const size_t len_bytes = strlen(name);

    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        size_t count;

        if (strncmp(line, name, len_bytes) != 0 || line[len_bytes] != '=')
            continue;
        count = strcspn(line + len_bytes + 1, "\n");
        (void)snprintf(ret_value, size_bytes, "%.*s", (int)count, line + len_bytes + 1);
        return true;
    }
    return false;
}

static int64_t number_of(const char *text, const char *name)
{
    char value[32];

    return heard_value(text, name, value, sizeof value) ? strtoll(value, NULL, 10) : 0;
}

static int64_t number_at(const char *text, const char *list, int index, const char *member)
{
    char name[96];

    (void)snprintf(name, sizeof name, "%s[%d].%s", list, index, member);
    return number_of(text, name);
}

/* "job.attempt=state " of each attempt of a set, whose job and attempt are never 0. */
static void summarise(const char *text, const char *list, const char *state, char *ret_text,
                      size_t size_bytes)
{
    size_t len_bytes = 0;
    int64_t job;

    ret_text[0] = '\0';
    for (int i = 0; (job = number_at(text, list, i, "job")) && len_bytes < size_bytes; i++)
        len_bytes += (size_t)snprintf(
            ret_text + len_bytes, size_bytes - len_bytes, "%" PRId64 ".%" PRId64 "=%" PRId64 " ",
            job, number_at(text, list, i, "attempt"), number_at(text, list, i, state));
}

static struct heard_rank *rank_of(struct heard *heard, int64_t job, int64_t attempt, int64_t rank)
{
    struct heard_rank *r;

    for (int i = 0; i < heard->rank_count; i++) {
        r = &heard->ranks[i];
        if (r->job == job && r->attempt == attempt && r->rank == rank)
            return r;
    }
    if (heard->rank_count == HEARD_RANKS_MAX)
        abort();
    r = &heard->ranks[heard->rank_count++];
    *r = (struct heard_rank){job, attempt, rank, 0};
    return r;
}

static void take_acks(struct heard *heard, const char *text)
{
    static const char list[] = "report_ack.positions";
    int64_t job;

    for (int i = 0; (job = number_at(text, list, i, "job")); i++) {
        /* rank 0 is not on the wire, and -1 is a number like others */
        struct heard_rank *r = rank_of(heard, job, number_at(text, list, i, "attempt"),
                                       number_at(text, list, i, "rank"));
        const int64_t seq = number_at(text, list, i, "seq");

        r->seq = seq > r->seq ? seq : r->seq;
    }
}

void heard_take(struct heard *heard, const char *text)
{
    if (strncmp(text, "welcome.", 8) == 0) {
        heard->welcome = true;
        (void)heard_value(text, "welcome.jobs_dir_probe_text", heard->probe_text,
                          sizeof heard->probe_text);
        (void)heard_value(text, "welcome.jobs_dir_probe", heard->probe_file,
                          sizeof heard->probe_file);
        (void)heard_value(text, "welcome.jobs_dir", heard->jobs_dir, sizeof heard->jobs_dir);
    } else if (strncmp(text, "desired", 7) == 0) {
        heard->generation = (uint64_t)number_of(text, "desired.generation");
        summarise(text, "desired.attempts", "wanted", heard->desired, sizeof heard->desired);
    } else if (strncmp(text, "report_ack", 10) == 0) {
        take_acks(heard, text);
    } else if (strncmp(text, "heartbeat", 9) == 0) {
        heard->nonce = (uint64_t)number_of(text, "heartbeat.nonce");
    } else if (strncmp(text, "hello.", 6) == 0) {
        heard->hello = true;
        (void)heard_value(text, "hello.node_uuid", heard->node_uuid, sizeof heard->node_uuid);
    } else if (strncmp(text, "observed", 8) == 0) {
        summarise(text, "observed.attempts", "state", heard->observed, sizeof heard->observed);
    } else if (strncmp(text, "request=", 8) == 0) { /* of a LogRequest or a LogChunk */
        heard->log_request = (uint64_t)number_of(text, "request");
    }
}

bool heard_reaches(const struct heard *recorded, const struct heard *other)
{
    for (int i = 0; i < recorded->rank_count; i++) {
        const struct heard_rank *r = &recorded->ranks[i];
        bool found = false;

        for (int k = 0; k < other->rank_count; k++) {
            const struct heard_rank *o = &other->ranks[k];

            found |= o->job == r->job && o->attempt == r->attempt && o->rank == r->rank &&
                     o->seq >= r->seq;
        }
        if (!found)
            return false;
    }
    return other->welcome >= recorded->welcome && other->hello >= recorded->hello &&
           other->log_request >= recorded->log_request &&
           strcmp(other->desired, recorded->desired) == 0 &&
           strcmp(other->observed, recorded->observed) == 0;
}

/* The predicted memory follows from a node's traits, which only its own build reads (fleet.proto).
 */
static bool is_volatile(const char *line)
{
    static const char *const names[] = {"build",
                                        "cluster_id",
                                        "sequence",
                                        "jobs_dir_probe",
                                        "jobs_dir_probe_text",
                                        "request",
                                        "predicted_memory_bytes",
                                        "request_id",
                                        "generation",
                                        "wait_ms"};
    const char *end = line + strcspn(line, "=\n"), *leaf = end;

    while (leaf > line && leaf[-1] != '.')
        leaf--;
    if (end - leaf > 3 && strncmp(end - 3, "_ms", 3) == 0)
        return true;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if ((size_t)(end - leaf) == strlen(names[i]) &&
            strncmp(leaf, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

/* Returns the bytes of the lines "spec.keys[n].path=P" and "..value=V" if a sparse JobSpec leaves out
 * that pair, since its absence says the same to builds of before and of now; 0: it does not, or the
 * text begins otherwise. */
static size_t absent_pair_bytes(const char *text)
{
    const char *spec = strstr(text, "spec.keys["), *end = text + strcspn(text, "\n");
    const char *path = strstr(text, "].path="), *second = end + (*end == '\n');
    const struct hd_key *key;
    char name[256], value[256] = "";
    struct hd_job now, old;

    if (!spec || spec > end || !path || path > end)
        return 0;
    (void)snprintf(name, sizeof name, "%.*s", (int)(end - path - 7), path + 7);
    if (strncmp(second, text, (size_t)(path + 2 - text)) == 0 &&
        strncmp(second + (path + 2 - text), "value=", 6) == 0) {
        const char *at = second + (path + 8 - text);

        end = at + strcspn(at, "\n");
        (void)snprintf(value, sizeof value, "%.*s", (int)(end - at), at);
    }
    key = hd_job_find_stored_key(name);
    hd_job_init(&now, NULL);
    hd_job_init(&old, NULL);
    if (!key || hd_job_parse(key, value, &now) || !hd_job_is_default(key, &now))
        return 0;
    hd_job_set_old_default(key, &old);
    return hd_job_members_equal(key, &now, &old) ? (size_t)(end + (*end == '\n') - text) : 0;
}

void heard_mask(const char *text, struct hd_text *ret_text)
{
    for (const char *line = text; line && *line;) {
        const size_t count = strcspn(line, "\n"), pair = absent_pair_bytes(line);

        if (!pair && !is_volatile(line))
            hd_text_add(ret_text, "%.*s\n", (int)count, line);
        line += pair ? pair : count + (line[count] == '\n');
    }
}

/* The next line without what is in brackets, cut to its room; false: there is none. */
static bool next_line(const char **text, char ret_line[512])
{
    size_t n = 0;
    bool place = false;

    if (!**text)
        return false;
    for (; **text && **text != '\n'; (*text)++) {
        place |= **text == '[';
        if (!place && n < 511)
            ret_line[n++] = **text;
        place &= **text != ']';
    }
    ret_line[n] = '\0';
    *text += **text == '\n';
    return true;
}

bool heard_contains(const char *new, const char *old)
{
    char line[2][512];

    while (next_line(&old, line[0]))
        do
            if (!next_line(&new, line[1]))
                return false;
        while (strcmp(line[0], line[1]) != 0);
    return true;
}
