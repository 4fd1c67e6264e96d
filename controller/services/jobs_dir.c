/* jobs_dir: the file .heddle-probe in the jobs directory, by which a daemon knows that it sees the
 * same directory, and every controller whose the directory is:
 *
 *     heddle-0f3a..                 random, of this start
 *     cluster 8c1d..                id of the database: the same after a restored backup, or a move
 *     state /var/lib/heddle on n1   for people
 *
 * Two clusters in one directory would take each other's files for their own, because the numbers of
 * jobs are the same. A database that was made anew in the same state directory is no other cluster
 * here. Versions before wrote the first line alone; such a directory is anybody's.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/random.h"
#include "controller/services/internal.h"

enum {
    MARK_BYTES_MAX = 4096, /* as daemons read */
    STATE_SHOWN_MAX = 400, /* of the state directory's path */
    STATE_LINE_MAX = STATE_SHOWN_MAX + 80,
    RETRY_MS = 10000, /* between two tries to write, while the disk takes no writes */
};

static const char cluster_word[] = "\ncluster ", state_word[] = "\nstate ";

/* What follows the word on its line; "": the file has no such line. */
static void find_line(const char *text, const char *word, char *ret_line, size_t size)
{
    const char *at = strstr(text, word);

    at = at ? at + strlen(word) : "";
    (void)snprintf(ret_line, size, "%.*s", (int)strcspn(at, "\n"), at);
}

/* The state directory on this machine; "": it does not fit a line. */
static void name_state(const struct controller *c, char ret_line[STATE_LINE_MAX])
{
    char host[256] = "?";

    (void)gethostname(host, sizeof host - 1);
    ret_line[0] = '\0';
    if (strlen(c->state_dir) <= STATE_SHOWN_MAX && !strchr(c->state_dir, '\n'))
        (void)snprintf(ret_line, STATE_LINE_MAX, "%.400s on %.64s", c->state_dir, host);
}

/* HD_CONFLICT: the file names another cluster. (One whose database was made anew in the same state
 * directory runs no more: that directory is locked.) Else *ret_probe is its first line, "" if it
 * has none of a controller's. */
static enum hd_status read_mark(const struct controller *c, const char *path,
                                char ret_probe[sizeof c->probe])
{
    char cluster[64], state[STATE_LINE_MAX], mine[STATE_LINE_MAX];
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    ret_probe[0] = '\0';
    if (hd_file_read(path, MARK_BYTES_MAX, &text) == HD_OK &&
        hd_text_starts(text.data, "heddle-") && hd_text_is_utf8(text.data, text.len_bytes)) {
        find_line(text.data, cluster_word, cluster, sizeof cluster);
        find_line(text.data, state_word, state, sizeof state);
        name_state(c, mine);
        if (*cluster && strcmp(cluster, hd_store_cluster_id(c->store)) != 0 &&
            (!*mine || strcmp(state, mine) != 0))
            st = hd_err(HD_CONFLICT,
                        "the jobs directory %.600s belongs to another cluster, whose controller "
                        "has the state directory %s: give this one another --jobs-dir. If that "
                        "cluster was given up, remove %.600s and start again",
                        c->jobs_dir, *state ? state : "(not known)", path);
        else
            (void)snprintf(ret_probe, sizeof c->probe, "%.*s", (int)strcspn(text.data, "\n"),
                           text.data);
    }
    hd_text_free(&text);
    return st;
}

static enum hd_status write_mark(const struct controller *c, const char *path)
{
    char state[STATE_LINE_MAX];
    struct hd_text text = {0};
    enum hd_status st;

    name_state(c, state);
    hd_text_add(&text, "%s%s%s", c->probe, cluster_word, hd_store_cluster_id(c->store));
    if (*state)
        hd_text_add(&text, "%s%s", state_word, state);
    hd_text_add(&text, "\n");
    st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for %s", path)
                     : hd_file_write_atomic(path, text.data, text.len_bytes, 0644);
    hd_text_free(&text);
    return st;
}

/* A jobs directory that takes no writes now does not keep the controller from serving: then the
 * probe of an earlier start is used, or it is tried again. */
static enum hd_status claim(struct controller *c)
{
    char before[sizeof c->probe];
    struct hd_text path = {0};
    enum hd_status st;

    hd_file_join(&path, c->jobs_dir, JOBS_DIR_MARK);
    st = path.failed ? hd_err(HD_NO_MEMORY, "no memory for a path")
                     : read_mark(c, path.data, before);
    if (!st)
        st = write_mark(c, path.data);
    if (st == HD_STORAGE) {
        if (!c->probe_due_ms)
            hd_log(HD_LOG_WARN, "%s", hd_err_message());
        c->probe_due_ms = before[0] ? 0 : hd_clock_now_ms() + RETRY_MS;
        if (before[0])
            memcpy(c->probe, before, sizeof before);
        st = HD_OK;
    } else {
        c->probe_due_ms = 0;
    }
    hd_text_free(&path);
    return st;
}

enum hd_status jobs_dir_claim(struct controller *c)
{
    unsigned char bytes[16];
    size_t used = 0;
    enum hd_status st = hd_random_bytes(bytes, sizeof bytes);

    if (st)
        return st;
    used += (size_t)snprintf(c->probe, sizeof c->probe, "heddle-");
    for (size_t i = 0; i < sizeof bytes; i++)
        used += (size_t)snprintf(c->probe + used, sizeof c->probe - used, "%02x", bytes[i]);
    return claim(c);
}

void jobs_dir_tick(struct controller *c)
{
    if (c->probe_due_ms && hd_clock_now_ms() >= c->probe_due_ms && claim(c))
        hd_log(HD_LOG_ERROR, "%s", hd_err_message());
}
