#include "daemon/agent/identity.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/folder.h"
#include "base/log.h"
#include "base/random.h"

enum { SMALL_FILE_MAX = 4096 };

/* Makes a random UUID (RFC 4122, version 4). */
static enum hd_status make_uuid(char ret_uuid[AGENT_UUID_MAX])
{
    uint8_t b[16];
    enum hd_status st = hd_random_bytes(b, sizeof b);

    if (st)
        return st;
    b[6] = (uint8_t)((b[6] & 0x0f) | 0x40);
    b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
    (void)snprintf(ret_uuid, AGENT_UUID_MAX,
                   "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                   b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                   b[14], b[15]);
    return HD_OK;
}

/* Reads the first line of a small file in the state directory. HD_NOT_FOUND: there is no file. */
static enum hd_status read_identity_line(const char *dir, const char *name, char *ret_line,
                                         size_t size)
{
    struct hd_text text = {0};
    enum hd_status st = hd_folder_read(dir, name, SMALL_FILE_MAX, &text);

    if (!st) {
        const size_t n = strcspn(text.data, "\n");

        if (n == 0 || n >= size || text.data[n] != '\n')
            st = hd_err(HD_CORRUPT, "%s/%s is not one line of 1 to %zu bytes", dir, name, size - 1);
        else
            (void)snprintf(ret_line, size, "%.*s", (int)n, text.data);
    }
    hd_text_free(&text);
    return st;
}

static enum hd_status write_line(const char *dir, const char *name, const char *line)
{
    struct hd_text path = {0}, text = {0};
    enum hd_status st = hd_folder_path(&path, dir, name);

    hd_text_add(&text, "%s\n", line);
    if (!st && text.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a line");
    if (!st)
        st = hd_file_write_atomic(path.data, text.data, text.len_bytes, 0600);
    hd_text_free(&text);
    hd_text_free(&path);
    return st;
}

static enum hd_status find_uuid(struct agent_identity *id)
{
    enum hd_status st =
        read_identity_line(id->state_dir, "node-uuid", id->node_uuid, sizeof id->node_uuid);

    if (st != HD_NOT_FOUND)
        return st;
    st = make_uuid(id->node_uuid);
    return st ? st : write_line(id->state_dir, "node-uuid", id->node_uuid);
}

static bool is_name(const char *name)
{
    return strlen(name) < AGENT_NAME_MAX && isalnum((unsigned char)name[0]) &&
           !name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-.")];
}

static enum hd_status check_name(const char *name, const char *hint)
{
    return is_name(name) ? HD_OK
                         : hd_err(HD_INVALID,
                                  "\"%s\" cannot be a node's name: use 1 to %d of a-z 0-9 - and ., "
                                  "beginning with a letter or a digit%s",
                                  name, AGENT_NAME_MAX - 1, hint);
}

/* Finds the host's name in lower case; "": it cannot be read. */
static void find_host(char ret_host[256])
{
    ret_host[0] = '\0';
    if (gethostname(ret_host, 255) < 0)
        ret_host[0] = '\0';
    ret_host[255] = '\0';
    for (char *c = ret_host; *c; c++)
        *c = (char)tolower((unsigned char)*c);
}

/* Finds the name under which the cluster knows this node; the state directory must be open. */
static enum hd_status find_name(struct agent_identity *id, const char *given)
{
    char host[256], kept[AGENT_NAME_MAX];
    enum hd_status st;

    find_host(host);
    if (given) {
        (void)snprintf(id->node_name, sizeof id->node_name, "%s", given);
        return check_name(given, "");
    }
    st = read_identity_line(id->state_dir, "node-name", kept, sizeof kept);
    if (!st && is_name(kept)) {
        memcpy(id->node_name, kept, sizeof kept);
        if (is_name(host) && strcmp(kept, host) != 0) {
            (void)snprintf(id->host, sizeof id->host, "%s", host);
            hd_log(HD_LOG_WARN,
                   "this machine is called %s now, but the cluster knows this node as %s, and it "
                   "keeps that name. To rename it: drain it, and start heddled with --node-name %s",
                   host, kept, host);
        }
        return HD_OK;
    }
    if (!host[0])
        return hd_err(HD_IO, "cannot find the host's name: %s; give --node-name", strerror(errno));
    st = check_name(host, "; give --node-name");
    if (!st)
        (void)snprintf(id->node_name, sizeof id->node_name, "%s", host);
    return st;
}

static enum hd_status acquire_state_dir(struct agent_identity *id, const char *state_dir)
{
    char lock[PATH_MAX + 8];
    enum hd_status st = hd_file_make_dirs(state_dir, 0700);

    if (st)
        return st;
    if (!realpath(state_dir, id->state_dir))
        return hd_err(HD_IO, "cannot find %s: %s", state_dir, strerror(errno));
    (void)snprintf(lock, sizeof lock, "%s/lock", id->state_dir);
    st = hd_file_lock(lock, &id->lock_fd);
    if (st == HD_CONFLICT)
        return hd_err(HD_CONFLICT,
                      "another heddled uses the state directory %s; give each its own --state-dir",
                      id->state_dir);
    return st;
}

enum hd_status agent_identity_open(const char *state_dir, const char *node_name,
                                   struct agent_identity *ret_identity)
{
    struct agent_identity id = {.lock_fd = -1};
    enum hd_status st = node_name ? check_name(node_name, "") : HD_OK;

    if (!st)
        st = acquire_state_dir(&id, state_dir);
    if (!st)
        st = find_name(&id, node_name);
    if (!st)
        st = find_uuid(&id);
    if (!st)
        st = make_uuid(id.instance_id);
    if (!st)
        st = hd_attempt_boot_id(id.boot_id);
    if (!st)
        agent_epoch_read(id.state_dir, &id.epoch);
    if (st)
        agent_identity_close(&id);
    else
        *ret_identity = id;
    return st;
}

void agent_identity_close(struct agent_identity *identity)
{
    if (identity->lock_fd >= 0)
        (void)close(identity->lock_fd);
    identity->lock_fd = -1;
}

enum hd_status agent_identity_take(struct agent_identity *identity)
{
    char lock[PATH_MAX + 8], uuid[AGENT_UUID_MAX];
    enum hd_status st = read_identity_line(identity->state_dir, "node-uuid", uuid, sizeof uuid);
    int fd;

    if (!st && strcmp(uuid, identity->node_uuid) != 0)
        return hd_err(HD_CONFLICT, "it is that of another node, %s", uuid);
    if (st && st != HD_NOT_FOUND)
        return st;
    (void)snprintf(lock, sizeof lock, "%s/lock", identity->state_dir);
    st = hd_file_lock(lock, &fd);
    if (st)
        return st == HD_CONFLICT ? hd_err(st, "another heddled uses it") : st;
    st = write_line(identity->state_dir, "node-uuid", identity->node_uuid);
    if (!st && identity->cluster[0])
        st = write_line(identity->state_dir, "cluster", identity->cluster);
    if (st) { /* the caller retries the whole function */
        (void)close(fd);
        return st;
    }
    (void)close(identity->lock_fd);
    identity->lock_fd = fd;
    return HD_OK;
}

void agent_identity_keep_name(const struct agent_identity *identity)
{
    char kept[AGENT_NAME_MAX];

    if (read_identity_line(identity->state_dir, "node-name", kept, sizeof kept) == HD_OK &&
        strcmp(kept, identity->node_name) == 0)
        return;
    if (write_line(identity->state_dir, "node-name", identity->node_name))
        hd_log(HD_LOG_WARN, "cannot keep this node's name: %s", hd_err_message());
}

enum hd_status agent_identity_read_cluster(struct agent_identity *identity,
                                           char ret_cluster[AGENT_NAME_MAX])
{
    enum hd_status st =
        read_identity_line(identity->state_dir, "cluster", ret_cluster, AGENT_NAME_MAX);

    if (st == HD_NOT_FOUND) { /* no cluster yet, or the file was lost: it is written again */
        memcpy(ret_cluster, identity->cluster, sizeof identity->cluster);
        st = HD_OK;
    }
    if (!st)
        memcpy(identity->cluster, ret_cluster, sizeof identity->cluster);
    return st;
}

enum hd_status agent_identity_write_cluster(struct agent_identity *identity, const char *cluster)
{
    enum hd_status st = write_line(identity->state_dir, "cluster", cluster);

    if (!st)
        (void)snprintf(identity->cluster, sizeof identity->cluster, "%s", cluster);
    return st;
}
