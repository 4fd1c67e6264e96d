/* s3_put: copies a checkpoint to an object store.
 *
 *     list uploads of an earlier copy --> each file: there already? --no--> PUT, or in parts --> HEAD
 *                                     --> manifest.json --> end uploads that are left
 *
 * An upload in parts that was interrupted goes on: a part that the store lists with the size and the
 * MD5 of the file's is not sent again. (Where ETags of parts are no MD5, all parts are.) The mark of
 * the checkpoint is that of the beginning of an upload and cannot be asked for; an object that turns
 * out to have another one is sent once more from its start.
 *
 * Files are read twice, for the hash and to be sent, so memory does not grow with them. The hash of
 * what is sent is signed, so a store that receives other bytes refuses them. (No x-amz-checksum-*
 * headers: several stores refuse these.)
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "s3_internal.h"

enum {
    READ_BYTES = 1 << 20,
    PART_THREADS = 4,
    PARTS_MAX = 9000, /* below the 10,000 of the protocol */
    FOLDER_DEPTH_MAX = 4,
    COMPLETE_TRIES = 4
};

#define MANIFEST   "manifest.json"
#define PART_BYTES (INT64_C(64) << 20)

struct s3_left {          /* an upload in parts that an earlier copy left */
    const char *key, *id; /* id NULL: it was taken or ended */
};

struct s3_upload {
    const struct hd_s3_copy *copy;
    struct hd_s3 *s3;
    struct hub_client *client;
    struct hd_arena arena;
    const char **files; /* paths in the folder */
    int file_count, file_room;
    struct s3_left *left;
    int left_count, left_room;

    /* the file under way */
    int fd;
    int64_t size_bytes, part_bytes;
    char *key, *id; /* key of the object; id of the upload in parts */
    char (*etags)[160];
    char (
        *listed)[HD_PKI_HASH_TEXT_MAX]; /* [part_count] MD5 of parts that the store has; "": none */
    int part_count;

    /* shared by the threads that send parts */
    int next; /* atomic */
    volatile sig_atomic_t end;
    pthread_mutex_t mutex; /* guards `error` */
    struct hd_error error; /* first failure */
};

/* ---- files ---- */

/* Adds the files of a folder, which it closes. */
static enum hd_status add_files(struct s3_upload *u, int dir_fd, const char *below, int depth)
{
    DIR *dir = dir_fd >= 0 ? fdopendir(dir_fd) : NULL;
    const struct dirent *entry;
    enum hd_status st = HD_OK;

    if (!dir)
        return hd_err(errno == ENOENT ? HD_NOT_FOUND : HD_IO, "cannot read the checkpoint: %s",
                      strerror(errno));
    while (!st && (entry = readdir(dir))) {
        char *path;
        struct stat info;

        if (entry->d_name[0] == '.' ||
            fstatat(dirfd(dir), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        path = hd_arena_printf(&u->arena, "%s%s%s", below, *below ? "/" : "", entry->d_name);
        if (!path) {
            st = hd_err(HD_NO_MEMORY, "no memory for a copy");
        } else if (S_ISDIR(info.st_mode) && depth < FOLDER_DEPTH_MAX) {
            st = add_files(
                u,
                openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
                path, depth + 1);
        } else if (S_ISREG(info.st_mode) && strcmp(path, MANIFEST) != 0) {
            const char **files =
                hd_arena_grow(&u->arena, u->files, u->file_count, &u->file_room, sizeof *files);

            if (!files)
                st = hd_err(HD_NO_MEMORY, "no memory for a copy");
            else
                (u->files = files)[u->file_count++] = path;
        }
    }
    (void)closedir(dir);
    return st;
}

/* Opens a file below the checkpoint's folder. The folder is the job's, which may put a link or a FIFO
 * in the place of any part at any time: no link is followed, and no FIFO is waited for. */
static int open_below(int dir_fd, const char *path)
{
    int fd = dup(dir_fd);

    while (fd >= 0) {
        char part[NAME_MAX + 1];
        const size_t len = strcspn(path, "/");
        int next;

        (void)snprintf(part, sizeof part, "%.*s", (int)len, path);
        next = openat(fd, part,
                      O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC |
                          (path[len] ? O_DIRECTORY : 0));
        (void)close(fd);
        fd = next;
        if (!path[len])
            break;
        path += len + 1;
    }
    return fd;
}

static enum hd_status open_file(struct s3_upload *u, const char *path)
{
    struct stat info;

    u->fd = open_below(u->copy->dir_fd, path);
    if (u->fd < 0 || fstat(u->fd, &info) < 0)
        return hd_err(errno == ENOENT ? HD_NOT_FOUND : HD_IO,
                      "cannot open %s of the checkpoint: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return hd_err(HD_INVALID, "%s of the checkpoint is no regular file", path);
    u->size_bytes = info.st_size;
    return HD_OK;
}

/* Hashes a part of the file. */
static enum hd_status hash_range(const struct s3_upload *u, enum hd_pki_digest_kind kind,
                                 int64_t from, int64_t bytes, char ret_hash[HD_PKI_HASH_TEXT_MAX])
{
    struct hd_pki_digest *digest = NULL;
    char *chunk = malloc(READ_BYTES);
    enum hd_status st =
        chunk ? hd_pki_digest_new(kind, &digest) : hd_err(HD_NO_MEMORY, "no memory for a copy");

    while (!st && bytes > 0) {
        const ssize_t n =
            pread(u->fd, chunk, bytes < READ_BYTES ? (size_t)bytes : READ_BYTES, from);

        if (n <= 0)
            st = hd_err(HD_IO, "cannot read a file of the checkpoint: %s",
                        n ? strerror(errno) : "it became shorter");
        else
            hd_pki_digest_add(digest, chunk, (size_t)n);
        from += n;
        bytes -= n;
        if (!st && (hub_is_stopped(&u->end) || hub_is_stopped(u->copy->stop)))
            st = hd_err(HD_ABORTED, "interrupted");
    }
    if (!st)
        st = hd_pki_digest_end(digest, ret_hash);
    hd_pki_digest_free(digest);
    free(chunk);
    return st;
}

static void count_sent(const struct s3_upload *u, int64_t bytes)
{
    if (u->copy->sent_bytes)
        (void)__atomic_add_fetch(u->copy->sent_bytes, bytes, __ATOMIC_RELAXED);
}

/* ---- a file in one piece ---- */

/* Asks whether the store has the file, whole and of this checkpoint. was_sent: it was sent just now;
 * then a store that keeps no marks, and so no origin, needs the size alone. (ETags are no help:
 * stores give an upload in parts one, and HEAD another.) HD_NOT_FOUND, without a message: it does not
 * have it. */
static enum hd_status check_there(struct s3_upload *u, bool was_sent)
{
    const struct s3_call call = {
        .method = "HEAD", .bucket = u->copy->name->bucket, .key = u->key, .may_lack = true};
    struct hub_answer answer;
    enum hd_status st = s3_send(u->s3, u->client, &call, &answer);

    if (st)
        return st;
    if (answer.length != u->size_bytes)
        return HD_NOT_FOUND;
    if (was_sent && !*answer.origin)
        return HD_OK;
    return strcmp(answer.origin, u->copy->origin) == 0 ? HD_OK : HD_NOT_FOUND;
}

static enum hd_status put_whole(struct s3_upload *u)
{
    char hash[HD_PKI_HASH_TEXT_MAX];
    const struct s3_call call = {.method = "PUT",
                                 .bucket = u->copy->name->bucket,
                                 .key = u->key,
                                 .origin = u->copy->origin,
                                 .has_body = true,
                                 .body_fd = u->fd,
                                 .body_bytes = u->size_bytes,
                                 .payload_hash = hash};
    struct hub_answer answer;
    enum hd_status st = hash_range(u, HD_PKI_SHA256, 0, u->size_bytes, hash);

    if (!st)
        st = s3_send(u->s3, u->client, &call, &answer);
    if (!st)
        count_sent(u, u->size_bytes);
    return st;
}

/* ---- a file in parts ---- */

static enum hd_status begin_parts(struct s3_upload *u)
{
    struct hd_text reply = {0}, id = {0};
    const struct s3_call call = {.method = "POST",
                                 .bucket = u->copy->name->bucket,
                                 .key = u->key,
                                 .query = {{"uploads", ""}},
                                 .query_count = 1,
                                 .origin = u->copy->origin,
                                 .has_body = true,
                                 .body = "",
                                 .reply = &reply};
    struct hub_answer answer;
    enum hd_status st = s3_send(u->s3, u->client, &call, &answer);

    u->id = NULL;
    if (!st && reply.data &&
        s3_find_text(reply.data, reply.data + reply.len_bytes, "UploadId", &id) && id.len_bytes)
        u->id = hd_arena_strdup(&u->arena, id.data);
    if (!st && !u->id)
        st = hd_err(HD_CORRUPT, "%s does not begin an upload in parts", answer.host);
    hd_text_free(&reply);
    hd_text_free(&id);
    return st;
}

static enum hd_status put_part(struct s3_upload *u, struct hub_client *client, int number)
{
    const int64_t from = (int64_t)(number - 1) * u->part_bytes, left = u->size_bytes - from;
    char hash[HD_PKI_HASH_TEXT_MAX], text[16];
    const struct s3_call call = {.method = "PUT",
                                 .bucket = u->copy->name->bucket,
                                 .key = u->key,
                                 .query = {{"partNumber", text}, {"uploadId", u->id}},
                                 .query_count = 2,
                                 .has_body = true,
                                 .body_fd = u->fd,
                                 .body_from = from,
                                 .body_bytes = left < u->part_bytes ? left : u->part_bytes,
                                 .payload_hash = hash};
    struct hub_answer answer;
    enum hd_status st = hash_range(u, HD_PKI_SHA256, from, call.body_bytes, hash);

    (void)snprintf(text, sizeof text, "%d", number);
    if (!st)
        st = s3_send(u->s3, client, &call, &answer);
    if (!st && !*answer.etag)
        st = hd_err(HD_CORRUPT, "%s acknowledges a part without its ETag", answer.host);
    if (!st) {
        memcpy(u->etags[number - 1], answer.etag, sizeof answer.etag);
        count_sent(u, call.body_bytes);
    }
    return st;
}

/* Takes a part that the store has, if it is that of the file: the ETag listed for it is its MD5. */
static bool take_part(struct s3_upload *u, int number)
{
    const int64_t from = (int64_t)(number - 1) * u->part_bytes, left = u->size_bytes - from;
    char md5[HD_PKI_HASH_TEXT_MAX];

    if (!*u->listed[number - 1] ||
        hash_range(u, HD_PKI_MD5, from, left < u->part_bytes ? left : u->part_bytes, md5) ||
        strcmp(md5, u->listed[number - 1]) != 0)
        return false;
    memcpy(u->etags[number - 1], md5, sizeof md5);
    return true;
}

static void *send_parts(void *user)
{
    struct s3_upload *u = user;
    struct hub_client *client = NULL;
    enum hd_status st = hub_client_new(&u->s3->http, u->copy->stop, &client);

    while (!st && !hub_is_stopped(&u->end)) {
        const int number = __atomic_add_fetch(&u->next, 1, __ATOMIC_RELAXED);

        if (number > u->part_count)
            break;
        if (hub_is_stopped(u->copy->stop))
            st = hd_err(HD_ABORTED, "interrupted");
        if (!st && !take_part(u, number))
            st = put_part(u, client, number);
    }
    hub_client_free(client);
    (void)pthread_mutex_lock(&u->mutex);
    if (st && !u->error.status) {
        hd_err_save(st, &u->error);
        __atomic_store_n(&u->end, 1, __ATOMIC_RELAXED);
    }
    (void)pthread_mutex_unlock(&u->mutex);
    return NULL;
}

/* Sends all parts by threads; also this one is such a thread. */
static enum hd_status send_all_parts(struct s3_upload *u)
{
    pthread_t threads[PART_THREADS - 1];
    int started = 0;

    u->next = 0;
    u->end = 0;
    u->error.status = HD_OK;
    while (started < PART_THREADS - 1 && started + 1 < u->part_count &&
           pthread_create(&threads[started], NULL, send_parts, u) == 0)
        started++;
    (void)send_parts(u);
    for (int i = 0; i < started; i++)
        (void)pthread_join(threads[i], NULL);
    return u->error.status ? hd_err_restore(&u->error) : HD_OK;
}

/* Ends an upload: the store keeps, and bills, its parts until then. */
static enum hd_status abort_upload(struct s3_upload *u, const char *key, const char *id)
{
    const struct s3_call call = {.method = "DELETE",
                                 .bucket = u->copy->name->bucket,
                                 .key = key,
                                 .query = {{"uploadId", id}},
                                 .query_count = 1,
                                 .may_lack = true};
    struct hub_answer answer;
    const enum hd_status st = s3_send(u->s3, u->client, &call, &answer);

    return st == HD_NOT_FOUND ? HD_OK : st;
}

/* Joins the parts. A store may answer with status 200 and an error. */
static enum hd_status join_parts(struct s3_upload *u)
{
    struct hd_text body = {0}, reply = {0};
    char hash[HD_PKI_HASH_TEXT_MAX];
    unsigned char bytes[HD_PKI_HASH_BYTES];
    struct s3_call call = {.method = "POST",
                           .bucket = u->copy->name->bucket,
                           .key = u->key,
                           .query = {{"uploadId", u->id}},
                           .query_count = 1,
                           .has_body = true,
                           .payload_hash = hash,
                           .reply = &reply};
    struct hub_answer answer;
    enum hd_status st = HD_OK;

    hd_text_add(&body, "<CompleteMultipartUpload>");
    for (int i = 0; i < u->part_count; i++)
        hd_text_add(&body, "<Part><PartNumber>%d</PartNumber><ETag>\"%s\"</ETag></Part>", i + 1,
                    u->etags[i]);
    hd_text_add(&body, "</CompleteMultipartUpload>");
    if (body.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a copy");
    else
        hd_pki_hash(body.data, body.len_bytes, bytes);
    hd_pki_format_hash(bytes, hash);
    call.body = body.data;
    call.body_bytes = (int64_t)body.len_bytes;
    for (int try = 1; !st; try++) {
        hd_text_clear(&reply);
        st = s3_send(u->s3, u->client, &call, &answer);
        hd_text_add(&reply, "%s", "");
        if (st || reply.failed || !strstr(reply.data, "<Error"))
            break;
        answer.status = 500;
        st = s3_explain(u->s3, &call, &answer, reply.data);
        if (try < COMPLETE_TRIES)
            st = s3_pause(u->s3, try, &answer, u->copy->stop);
    }
    hd_text_free(&body);
    hd_text_free(&reply);
    return st;
}

/* Notes a part of the list, if it has the size of the file's part. */
static void note_part(struct s3_upload *u, const char *begin, const char *end)
{
    struct hd_text number = {0}, etag = {0}, size = {0};
    int64_t n = 0, bytes = 0, from;
    size_t at = 0, len;

    if (!s3_find_text(begin, end, "PartNumber", &number) ||
        !s3_find_text(begin, end, "ETag", &etag) || !s3_find_text(begin, end, "Size", &size) ||
        number.failed || etag.failed || size.failed ||
        hd_text_to_int64(number.data, 1, u->part_count, &n) ||
        hd_text_to_int64(size.data, 0, INT64_MAX, &bytes))
        n = 0;
    from = (n - 1) * u->part_bytes;
    if (n &&
        bytes == (u->size_bytes - from < u->part_bytes ? u->size_bytes - from : u->part_bytes)) {
        at = etag.data[0] == '"';
        len = strcspn(etag.data + at, "\"");
        if (len == 32) /* digits of an MD5 */
            (void)snprintf(u->listed[n - 1], sizeof u->listed[0], "%.*s", (int)len, etag.data + at);
    }
    hd_text_free(&number);
    hd_text_free(&etag);
    hd_text_free(&size);
}

/* Lists the parts of the upload u->id. HD_NOT_FOUND: there is no such upload any more. */
static enum hd_status list_parts(struct s3_upload *u)
{
    struct hd_text reply = {0}, more = {0}, marker = {0};
    enum hd_status st = HD_OK;
    int64_t listed = 0; /* parts up to this number; a store that repeats itself has no more */
    bool goes_on = true;

    hd_text_add(&marker, "0");
    while (!st && goes_on) {
        const struct s3_call call = {
            .bucket = u->copy->name->bucket,
            .key = u->key,
            .query = {{"part-number-marker", marker.data}, {"uploadId", u->id}},
            .query_count = 2,
            .reply = &reply,
            .may_lack = true};
        struct hub_answer answer;
        const char *at, *end, *begin, *last;

        hd_text_clear(&reply);
        st = s3_send(u->s3, u->client, &call, &answer);
        hd_text_add(&reply, "%s", "");
        if (st || reply.failed)
            break;
        at = reply.data;
        end = at + reply.len_bytes;
        goes_on = s3_find_text(at, end, "IsTruncated", &more) && strcmp(more.data, "true") == 0 &&
                  s3_find_text(at, end, "NextPartNumberMarker", &marker) && !marker.failed &&
                  !hd_text_to_int64(marker.data, listed + 1, 10000, &listed);
        for (; s3_find_element(at, end, "Part", &begin, &last); at = last)
            note_part(u, begin, last);
    }
    hd_text_free(&reply);
    hd_text_free(&more);
    hd_text_free(&marker);
    return st;
}

/* Goes on with the upload of the file that an earlier copy left, or begins one. *ret_goes_on: it does
 * the former. */
static enum hd_status open_upload(struct s3_upload *u, bool *ret_goes_on)
{
    enum hd_status st;

    *ret_goes_on = false;
    for (int i = 0; i < u->left_count && !*ret_goes_on; i++) {
        if (!u->left[i].id || strcmp(u->left[i].key, u->key) != 0)
            continue;
        u->id = hd_arena_strdup(&u->arena, u->left[i].id);
        u->left[i].id = NULL;
        if (!u->id)
            return hd_err(HD_NO_MEMORY, "no memory for a copy");
        st = list_parts(u);
        *ret_goes_on = !st;
        if (st == HD_ABORTED || st == HD_NO_MEMORY)
            return st;
        if (st && st != HD_NOT_FOUND) /* the keys may not list parts, or the store cannot */
            (void)abort_upload(u, u->key, u->id);
    }
    return *ret_goes_on ? HD_OK : begin_parts(u);
}

/* Returns whether parts that were sent are of use to a later copy: the failure is not one of what was
 * sent. */
static bool may_go_on(enum hd_status st)
{
    return st == HD_ABORTED || st == HD_UNAVAILABLE || st == HD_TIMEOUT || st == HD_IO;
}

static enum hd_status put_parts(struct s3_upload *u, bool *ret_goes_on)
{
    struct hd_error error;
    enum hd_status st;

    *ret_goes_on = false;
    u->part_count = (int)((u->size_bytes + u->part_bytes - 1) / u->part_bytes);
    u->etags = calloc((size_t)u->part_count, sizeof *u->etags);
    u->listed = calloc((size_t)u->part_count, sizeof *u->listed);
    st = u->etags && u->listed ? open_upload(u, ret_goes_on)
                               : hd_err(HD_NO_MEMORY, "no memory for a copy");
    if (!st) {
        bool keeps;

        st = send_all_parts(u);
        keeps = st && may_go_on(st);
        if (!st)
            st = join_parts(u);
        if (st && !keeps) {
            hd_err_save(st, &error);
            (void)abort_upload(u, u->key, u->id); /* if this fails, the next copy does it */
            st = hd_err_restore(&error);
        }
    }
    free(u->etags);
    free(u->listed);
    u->etags = NULL;
    u->listed = NULL;
    return st;
}

/* ---- a folder ---- */

/* Returns the bytes of a part: whole mebibytes, so many that the parts are not too many. */
static int64_t choose_part_bytes(const struct hd_s3_settings *s, int64_t size_bytes)
{
    const int64_t least = s->part_bytes ? s->part_bytes : PART_BYTES;
    const int64_t share = (size_bytes / PARTS_MAX + (1 << 20)) & ~(int64_t)((1 << 20) - 1);

    return size_bytes / least < PARTS_MAX ? least : share;
}

static enum hd_status put_file(struct s3_upload *u, const char *path)
{
    bool goes_on;
    enum hd_status st = open_file(u, path);

    u->key = hd_arena_printf(&u->arena, "%s/%s", u->copy->name->key, path);
    if (!st && !u->key)
        st = hd_err(HD_NO_MEMORY, "no memory for a copy");
    if (!st)
        st = check_there(u, false);
    if (st == HD_NOT_FOUND && u->fd >= 0) {
        u->part_bytes = choose_part_bytes(u->copy->settings, u->size_bytes);
        do { /* an upload that goes on may have the mark of another checkpoint */
            goes_on = false;
            st = u->size_bytes <= u->part_bytes ? put_whole(u) : put_parts(u, &goes_on);
            st = st ? st : check_there(u, true);
        } while (st == HD_NOT_FOUND && goes_on);
        if (st == HD_NOT_FOUND)
            st = hd_err(HD_CORRUPT,
                        "s3://%s/%s is not what was sent: it is missing, or has another size or "
                        "x-amz-meta-heddle-manifest; another program writes there, or the store "
                        "lost it",
                        u->copy->name->bucket, u->key);
    }
    if (u->fd >= 0)
        (void)close(u->fd);
    u->fd = -1;
    return st;
}

static enum hd_status add_left(struct s3_upload *u, const char *key, const char *id)
{
    struct s3_left *left =
        hd_arena_grow(&u->arena, u->left, u->left_count, &u->left_room, sizeof *left);

    if (!left)
        return hd_err(HD_NO_MEMORY, "no memory for a copy");
    u->left = left;
    left[u->left_count] =
        (struct s3_left){hd_arena_strdup(&u->arena, key), hd_arena_strdup(&u->arena, id)};
    return left[u->left_count].key && left[u->left_count++].id
               ? HD_OK
               : hd_err(HD_NO_MEMORY, "no memory for a copy");
}

/* Lists the uploads in parts that an earlier copy of this folder left. */
static enum hd_status list_left(struct s3_upload *u)
{
    const char *prefix = hd_arena_printf(&u->arena, "%s/", u->copy->name->key);
    struct hd_text reply = {0}, key = {0}, id = {0};
    const struct s3_call call = {.bucket = u->copy->name->bucket,
                                 .key = "",
                                 .query = {{"prefix", prefix}, {"uploads", ""}},
                                 .query_count = 2,
                                 .reply = &reply};
    struct hub_answer answer;
    const char *at, *end, *begin, *last;
    enum hd_status st = prefix ? s3_send(u->s3, u->client, &call, &answer)
                               : hd_err(HD_NO_MEMORY, "no memory for a copy");

    /* the keys may not list uploads, or the store cannot */
    if (st == HD_DENIED || st == HD_INVALID || st == HD_NOT_FOUND)
        st = HD_OK;
    hd_text_add(&reply, "%s", "");
    at = reply.data;
    end = at ? at + reply.len_bytes : NULL;
    for (; !st && at && s3_find_element(at, end, "Upload", &begin, &last); at = last)
        if (s3_find_text(begin, last, "Key", &key) && s3_find_text(begin, last, "UploadId", &id) &&
            !key.failed && !id.failed && hd_text_starts(key.data, prefix))
            st = add_left(u, key.data, id.data);
    hd_text_free(&reply);
    hd_text_free(&key);
    hd_text_free(&id);
    return st;
}

/* Ends the uploads that were left and are of no use. */
static enum hd_status abort_left(struct s3_upload *u)
{
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < u->left_count; i++)
        if (u->left[i].id)
            st = abort_upload(u, u->left[i].key, u->left[i].id);
    return st;
}

enum hd_status hd_s3_copy_folder(const struct hd_s3_copy *copy)
{
    struct s3_upload *u = calloc(1, sizeof *u);
    enum hd_status st;

    if (!u)
        return hd_err(HD_NO_MEMORY, "no memory for a copy");
    u->copy = copy;
    u->fd = -1;
    (void)pthread_mutex_init(&u->mutex, NULL);
    hd_arena_init(&u->arena, 0);
    st = hd_s3_new(copy->settings, copy->stop, &u->s3);
    if (!st)
        st = hub_client_new(&u->s3->http, copy->stop, &u->client);
    if (!st && faccessat(copy->dir_fd, MANIFEST, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        st = hd_err(HD_NOT_FOUND, "the checkpoint has no manifest");
    if (!st)
        st = add_files(u, openat(copy->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), "", 0);
    if (!st)
        st = list_left(u);
    for (int i = 0; i < u->file_count && !st; i++)
        st = hub_is_stopped(copy->stop) ? hd_err(HD_ABORTED, "interrupted")
                                        : put_file(u, u->files[i]);
    if (!st)
        st = put_file(u, MANIFEST);
    if (!st)
        st = abort_left(u);
    hub_client_free(u->client);
    hd_s3_free(u->s3);
    hd_arena_done(&u->arena);
    (void)pthread_mutex_destroy(&u->mutex);
    free(u);
    return st;
}
