#include "tests/imitation_hub/imitation.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/text.h"
#include "pki/pki.h"

enum { HEAD_MAX = 16384, PIECE = 64 << 10 };

struct connection {
    struct imitation *hub;
    int fd;
};

struct asked {
    char head[HEAD_MAX];
    char target[4096]; /* of the request line */
    char token[512];   /* of Authorization: Bearer; "": none */
    bool has_token, at_hub, is_head;
    int64_t from; /* of Range; 0: none */
};

static void die(const char *what)
{
    perror(what);
    abort();
}

static void hash(enum hd_pki_digest_kind kind, const char *head, size_t head_bytes,
                 const void *bytes, size_t count, char ret_text[65])
{
    struct hd_pki_digest *digest;

    if (hd_pki_digest_new(kind, &digest))
        die("digest");
    hd_pki_digest_add(digest, head, head_bytes);
    hd_pki_digest_add(digest, bytes, count);
    if (hd_pki_digest_end(digest, ret_text))
        die("digest");
    hd_pki_digest_free(digest);
}

void imitation_add(struct imitation_repo *repo, const char *path, const void *bytes, size_t count,
                   bool is_large)
{
    struct imitation_file *f = &repo->files[repo->file_count++];
    char head[64];

    *f = (struct imitation_file){
        .path = path, .bytes = bytes, .size_bytes = count, .is_large = is_large};
    (void)snprintf(head, sizeof head, "blob %zu", count);
    hash(HD_PKI_SHA1, head, strlen(head) + 1, bytes, count, f->blob_id);
    if (is_large)
        hash(HD_PKI_SHA256, "", 0, bytes, count, f->sha256);
}

/* Takes one of a number of misbehaviours. */
static bool take(int *count)
{
    int now = __atomic_load_n(count, __ATOMIC_RELAXED);

    while (now > 0)
        if (__atomic_compare_exchange_n(count, &now, now - 1, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
            return true;
    return false;
}

static bool send_all(int fd, const char *bytes, size_t count)
{
    for (ssize_t n; count; bytes += n, count -= (size_t)n) {
        n = send(fd, bytes, count, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
    }
    return true;
}

static void answer(int fd, int status, const char *headers, const char *body)
{
    struct hd_text out = {0};

    hd_text_add(&out,
                "HTTP/1.1 %d Imitated\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n%s",
                status, strlen(body), headers, body);
    (void)send_all(fd, out.data, out.len_bytes);
    hd_text_free(&out);
}

/* Copies the value of a header; false: the request has none of this name. */
static bool header(const char *head, const char *name, char *ret_value, size_t size)
{
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, name, strlen(name)) == 0 && line[2 + strlen(name)] == ':') {
            const char *value = line + 3 + strlen(name);

            value += strspn(value, " ");
            (void)snprintf(ret_value, size, "%.*s", (int)strcspn(value, "\r"), value);
            return true;
        }
    return false;
}

static bool read_request(int fd, struct asked *a)
{
    char value[1024];
    size_t count = 0;
    ssize_t n;

    do {
        n = recv(fd, a->head + count, sizeof a->head - 1 - count, 0);
        count += n > 0 ? (size_t)n : 0;
        a->head[count] = '\0';
    } while (n > 0 && !strstr(a->head, "\r\n\r\n"));
    a->is_head = hd_text_starts(a->head, "HEAD ");
    if (n <= 0 || sscanf(a->head, "%*s %4095s HTTP/1.1", a->target) != 1)
        return false;
    a->at_hub = header(a->head, "Host", value, sizeof value) && hd_text_starts(value, "127.0.0.1");
    if (header(a->head, "Authorization", value, sizeof value)) {
        a->has_token = true;
        (void)sscanf(value, "Bearer %511s", a->token);
    }
    if (header(a->head, "Range", value, sizeof value))
        (void)sscanf(value, "bytes=%ld-", &a->from);
    return true;
}

/* ---- the API ---- */

static const struct imitation_repo *find_repo(const struct imitation *hub, const char *id,
                                              size_t bytes, bool is_dataset)
{
    for (size_t i = 0; i < hub->repo_count; i++) {
        const struct imitation_repo *r = &hub->repos[i];

        if (r->is_dataset == is_dataset && strlen(r->id) == bytes && memcmp(r->id, id, bytes) == 0)
            return r;
    }
    return NULL;
}

static const struct imitation_repo *find_renamed(const struct imitation *hub, const char *id,
                                                 size_t bytes)
{
    for (size_t i = 0; i < hub->repo_count; i++)
        if (hub->repos[i].old_id && strlen(hub->repos[i].old_id) == bytes &&
            memcmp(hub->repos[i].old_id, id, bytes) == 0)
            return &hub->repos[i];
    return NULL;
}

static void add_file(const struct imitation_file *f, struct hd_text *out)
{
    const long long size = f->claimed_bytes ? f->claimed_bytes : (int64_t)f->size_bytes;

    hd_text_add(out, "{\"type\":\"file\",\"oid\":\"%s\",\"size\":%lld,\"path\":\"%s\"", f->blob_id,
                f->is_large ? 134 : size, f->path);
    if (f->is_large)
        hd_text_add(out, ",\"lfs\":{\"oid\":\"%s\",\"size\":%lld,\"pointerSize\":134}", f->sha256,
                    size);
    hd_text_add(out, "}");
}

static void list_files(struct imitation *hub, int fd, const struct imitation_repo *r,
                       const char *target)
{
    const char *cursor = strstr(target, "cursor=");
    const size_t first = cursor ? strtoul(cursor + 7, NULL, 10) : 0;
    const size_t last = hub->page_files && first + hub->page_files < r->file_count
                            ? first + hub->page_files
                            : r->file_count;
    struct hd_text body = {0};
    char link[512] = "";

    hd_text_add(&body, "[{\"type\":\"directory\",\"oid\":\"%s\",\"size\":0,\"path\":\"d\"}",
                r->commit);
    for (size_t i = first; i < last; i++) {
        hd_text_add(&body, ",");
        add_file(&r->files[i], &body);
    }
    hd_text_add(&body, "]");
    if (last < r->file_count)
        (void)snprintf(link, sizeof link,
                       "Link: </first>; rel=\"first\", "
                       "<http://127.0.0.1:%d/api/%s/%s/tree/%s?recursive=true&cursor=%zu>; "
                       "rel=\"next\"\r\n",
                       hub->port, r->is_dataset ? "datasets" : "models", r->id, r->commit, last);
    answer(fd, 200, link, body.data);
    hd_text_free(&body);
}

/* Answers unless the caller may read the repository. */
static bool refuses(int fd, const struct imitation_repo *r, const struct asked *a)
{
    if (!r) {
        answer(fd, 401, "X-Error-Code: RepoNotFound\r\nX-Error-Message: Repository not found\r\n",
               "");
        return true;
    }
    if (strcmp(a->token, "wrong") == 0) {
        answer(fd, 401, "X-Error-Message: Invalid credentials in Authorization header\r\n", "");
        return true;
    }
    if (r->token && strcmp(a->token, r->token) != 0) {
        if (r->is_gated)
            answer(fd, 403,
                   "X-Error-Code: GatedRepo\r\nX-Error-Message: Access to it is restricted\r\n",
                   "");
        else
            answer(fd, a->has_token ? 403 : 401, "", "");
        return true;
    }
    return false;
}

static void answer_api(struct imitation *hub, int fd, const struct asked *a, const char *id,
                       bool is_dataset)
{
    const char *verb = strstr(id, "/revision/"), *tree = strstr(id, "/tree/");
    const char *end = verb ? verb : tree;
    const struct imitation_repo *renamed = end ? find_renamed(hub, id, (size_t)(end - id)) : NULL;
    const struct imitation_repo *r =
        end ? find_repo(hub, id, (size_t)(end - id), is_dataset) : NULL;
    char text[1024];

    if (renamed) {
        (void)snprintf(text, sizeof text, "Location: /api/%s/%s%s\r\n",
                       is_dataset ? "datasets" : "models", renamed->id, end);
        answer(fd, 307, text, "");
    } else if (refuses(fd, r, a)) {
        return;
    } else if (tree) {
        list_files(hub, fd, r, a->target);
    } else if (strcmp(verb, "/revision/main") != 0 &&
               strcmp(verb, "/revision/refs%2Fpr%2F1") != 0) {
        answer(fd, 404, "X-Error-Code: RevisionNotFound\r\n", "");
    } else {
        (void)snprintf(text, sizeof text, "{\"id\":\"%s\",\"sha\":\"%s\",\"gated\":false}", r->id,
                       r->commit);
        answer(fd, 200, "", text);
    }
}

/* ---- files ---- */

/* Sends bytes from `from` to `to`, slowly if the hub has a pace. */
static void send_bytes(struct imitation *hub, int fd, const struct imitation_file *f, size_t from,
                       size_t to)
{
    const bool is_wrong = to > from && take(&hub->wrong_bytes);

    for (size_t at = from; at < to; at += PIECE) {
        const size_t n = to - at < PIECE ? to - at : PIECE;
        char piece[PIECE];

        memcpy(piece, f->bytes + at, n);
        if (is_wrong && at == from)
            piece[0] ^= 1;
        if (hub->pace_ms)
            (void)nanosleep(&(struct timespec){.tv_nsec = hub->pace_ms * 1000000L}, NULL);
        /* before the reader has them all, and looks at the number */
        (void)__atomic_add_fetch(&hub->sent_bytes, (int64_t)n, __ATOMIC_RELAXED);
        if (!send_all(fd, piece, n))
            return;
    }
}

static void send_file(struct imitation *hub, int fd, const struct asked *a,
                      const struct imitation_file *f)
{
    const bool ignores = a->from && take(&hub->ignored_ranges);
    const bool other = a->from && !ignores && take(&hub->other_ranges);
    const size_t from = ignores || other ? 0 : (size_t)a->from;
    size_t to = f->size_bytes, announced;
    struct hd_text head = {0};

    if (a->from && (size_t)a->from >= f->size_bytes) {
        answer(fd, 416, "", "");
        return;
    }
    if (take(&hub->short_bytes))
        to = from + (to - from) / 2;
    announced = to - from;
    if (take(&hub->cuts))
        to = from + (to - from) / 2;
    if (take(&hub->long_bytes))
        announced++;
    hd_text_add(&head, "HTTP/1.1 %d Imitated\r\nConnection: close\r\nContent-Length: %zu\r\n",
                a->from && !ignores ? 206 : 200, announced);
    if (a->from && !ignores)
        hd_text_add(&head, "Content-Range: bytes %zu-%zu/%zu\r\n", from, f->size_bytes - 1,
                    f->size_bytes);
    hd_text_add(&head, "\r\n");
    if (send_all(fd, head.data, head.len_bytes)) {
        send_bytes(hub, fd, f, from, to);
        if (announced > f->size_bytes - from)
            (void)send_all(fd, "!", 1);
    }
    hd_text_free(&head);
}

/* Decodes percent codes in place. */
static void decode(char *text)
{
    char *to = text;

    for (; *text; text++) {
        unsigned byte;

        if (*text == '%' && sscanf(text + 1, "%2x", &byte) == 1) {
            *to++ = (char)byte;
            text += 2;
        } else {
            *to++ = *text;
        }
    }
    *to = '\0';
}

static const struct imitation_file *find_file(const struct imitation_repo *r, const char *path)
{
    for (size_t i = 0; r && i < r->file_count; i++)
        if (strcmp(r->files[i].path, path) == 0)
            return &r->files[i];
    return NULL;
}

static void answer_resolve(struct imitation *hub, int fd, const struct asked *a, char *id,
                           bool is_dataset)
{
    char *verb = strstr(id, "/resolve/"), *path = verb ? strchr(verb + 9, '/') : NULL;
    const struct imitation_repo *r =
        verb ? find_repo(hub, id, (size_t)(verb - id), is_dataset) : NULL;
    const struct imitation_file *f;
    char text[2048];

    if (!path) {
        answer(fd, 404, "", "");
        return;
    }
    if (refuses(fd, r, a))
        return;
    decode(++path);
    f = find_file(r, path);
    if (!f) {
        answer(fd, 404, "X-Error-Code: EntryNotFound\r\n", "");
        return;
    }
    if (!f->is_large && a->is_head) { /* as huggingface_hub asks first */
        (void)snprintf(text, sizeof text,
                       "HTTP/1.1 200 Imitated\r\nConnection: close\r\nContent-Length: %zu\r\n"
                       "ETag: \"%s\"\r\nX-Repo-Commit: %s\r\n\r\n",
                       f->size_bytes, f->blob_id, r->commit);
        (void)send_all(fd, text, strlen(text));
        return;
    }
    if (!f->is_large) {
        send_file(hub, fd, a, f);
        return;
    }
    if (hub->redirect)
        (void)snprintf(text, sizeof text, "Location: %s\r\n", hub->redirect);
    else
        (void)snprintf(text, sizeof text,
                       "Location: http://localhost:%d/cdn/%s?signature=x\r\nX-Repo-Commit: %s\r\n"
                       "X-Linked-Etag: \"%s\"\r\nX-Linked-Size: %zu\r\nETag: \"%s\"\r\n",
                       hub->port, f->sha256, r->commit, f->sha256, f->size_bytes, f->sha256);
    answer(fd, 302, text, "");
}

static void answer_cdn(struct imitation *hub, int fd, const struct asked *a, const char *sha256)
{
    if (a->has_token) {
        answer(fd, 400, "", "Only one auth mechanism allowed");
        return;
    }
    if (take(&hub->expired)) {
        answer(fd, 403, "", "the signature has expired");
        return;
    }
    for (size_t i = 0; i < hub->repo_count; i++)
        for (size_t k = 0; k < hub->repos[i].file_count; k++)
            if (hub->repos[i].files[k].is_large &&
                hd_text_starts(sha256, hub->repos[i].files[k].sha256)) {
                send_file(hub, fd, a, &hub->repos[i].files[k]);
                return;
            }
    answer(fd, 404, "", "");
}

static void answer_one(struct imitation *hub, int fd, struct asked *a)
{
    char retry[64] = "";

    (void)__atomic_add_fetch(&hub->requests, 1, __ATOMIC_RELAXED);
    if (a->has_token)
        (void)__atomic_add_fetch(a->at_hub ? &hub->tokens_at_hub : &hub->tokens_elsewhere, 1,
                                 __ATOMIC_RELAXED);
    if (hub->retry_after)
        (void)snprintf(retry, sizeof retry, "Retry-After: %s\r\n", hub->retry_after);
    if (take(&hub->busy))
        answer(fd, 429, retry, "");
    else if (take(&hub->broken))
        answer(fd, 500, "", "");
    else if (!a->at_hub)
        answer_cdn(hub, fd, a, a->target + strlen("/cdn/"));
    else if (hd_text_starts(a->target, "/api/models/"))
        answer_api(hub, fd, a, a->target + strlen("/api/models/"), false);
    else if (hd_text_starts(a->target, "/api/datasets/"))
        answer_api(hub, fd, a, a->target + strlen("/api/datasets/"), true);
    else if (hd_text_starts(a->target, "/datasets/"))
        answer_resolve(hub, fd, a, a->target + strlen("/datasets/"), true);
    else
        answer_resolve(hub, fd, a, a->target + 1, false);
}

static void *run_connection(void *user)
{
    struct connection *c = user;
    struct asked *a = calloc(1, sizeof *a);

    if (a && read_request(c->fd, a))
        answer_one(c->hub, c->fd, a);
    free(a);
    (void)close(c->fd);
    (void)__atomic_sub_fetch(&c->hub->connections, 1, __ATOMIC_RELEASE);
    free(c);
    return NULL;
}

static void *run_listener(void *user)
{
    struct imitation *hub = user;

    for (;;) {
        struct connection *c = malloc(sizeof *c);
        pthread_t thread;

        if (!c)
            die("malloc");
        *c = (struct connection){hub, accept(hub->listener, NULL, NULL)};
        if (c->fd < 0) {
            free(c);
            return NULL; /* the socket was shut down */
        }
        (void)__atomic_add_fetch(&hub->connections, 1, __ATOMIC_RELAXED);
        if (pthread_create(&thread, NULL, run_connection, c) != 0)
            die("thread");
        (void)pthread_detach(thread);
    }
}

void imitation_start(struct imitation *hub)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;

    hub->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (hub->listener < 0 || bind(hub->listener, (struct sockaddr *)&address, sizeof address) < 0 ||
        listen(hub->listener, 64) < 0 ||
        getsockname(hub->listener, (struct sockaddr *)&address, &size) < 0)
        die("socket");
    hub->port = ntohs(address.sin_port);
    if (pthread_create(&hub->thread, NULL, run_listener, hub) != 0)
        die("thread");
}

void imitation_stop(struct imitation *hub)
{
    (void)shutdown(hub->listener, SHUT_RDWR);
    (void)pthread_join(hub->thread, NULL);
    while (__atomic_load_n(&hub->connections, __ATOMIC_ACQUIRE))
        (void)usleep(1000);
    (void)close(hub->listener);
}
