#include "tests/imitation_s3/s3.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "pki/pki.h"

enum { HEAD_MAX = 32768, PIECE = 64 << 10, QUERY_MAX = 8, HEADERS_MAX = 32 };

struct store_connection {
    struct imitation_s3 *s3;
    int fd;
};

struct query_item {
    char name[64], value[2048]; /* decoded */
    char raw[4096];             /* as sent: NAME=VALUE */
};

struct store_request {
    char head[HEAD_MAX];
    char method[16], target[8192], path[4096]; /* path: as sent */
    char bucket[64], key[1025];                /* decoded */
    struct query_item query[QUERY_MAX];
    size_t query_count;
    char *body;
    size_t body_bytes;
};

static void die(const char *what)
{
    perror(what);
    abort();
}

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

static void fail(int fd, int status, const char *code, const char *more)
{
    struct hd_text body = {0};

    hd_text_add(
        &body, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>imitated</Message>%s</Error>",
        code, more);
    answer(fd, status, "", body.data);
    hd_text_free(&body);
}

static void hash_text(enum hd_pki_digest_kind kind, const void *bytes, size_t count,
                      char ret_text[HD_PKI_HASH_TEXT_MAX])
{
    struct hd_pki_digest *digest;

    if (hd_pki_digest_new(kind, &digest))
        die("digest");
    hd_pki_digest_add(digest, bytes, count);
    if (hd_pki_digest_end(digest, ret_text))
        die("digest");
    hd_pki_digest_free(digest);
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

/* ---- a request ---- */

static void split_query(struct store_request *r, char *query)
{
    for (char *rest, *at = strtok_r(query, "&", &rest); at && r->query_count < QUERY_MAX;
         at = strtok_r(NULL, "&", &rest)) {
        struct query_item *q = &r->query[r->query_count++];
        char *equals = strchr(at, '=');

        (void)snprintf(q->raw, sizeof q->raw, "%.3000s%s", at, equals ? "" : "=");
        if (equals)
            *equals = '\0';
        (void)snprintf(q->name, sizeof q->name, "%s", at);
        (void)snprintf(q->value, sizeof q->value, "%s", equals ? equals + 1 : "");
        decode(q->name);
        decode(q->value);
    }
}

static const char *query(const struct store_request *r, const char *name)
{
    for (size_t i = 0; i < r->query_count; i++)
        if (strcmp(r->query[i].name, name) == 0)
            return r->query[i].value;
    return NULL;
}

/* Receives the body, of which the head's buffer has `have` bytes. */
static bool read_body(struct imitation_s3 *s3, int fd, struct store_request *r, const char *first,
                      size_t have)
{
    char value[64];
    const bool is_cut = have + 1 && header(r->head, "Content-Length", value, sizeof value) &&
                        strtoul(value, NULL, 10) > 0 && take(&s3->cut_uploads);
    size_t count;

    if (!header(r->head, "Content-Length", value, sizeof value))
        return true;
    r->body_bytes = strtoul(value, NULL, 10);
    r->body = malloc(r->body_bytes + 1);
    if (!r->body)
        die("malloc");
    memcpy(r->body, first, have < r->body_bytes ? have : r->body_bytes);
    for (count = have; count < r->body_bytes;) {
        const size_t most = r->body_bytes - count < PIECE ? r->body_bytes - count : PIECE;
        ssize_t n;

        if (s3->pace_ms)
            (void)nanosleep(&(struct timespec){.tv_nsec = s3->pace_ms * 1000000L}, NULL);
        n = recv(fd, r->body + count, most, 0);
        if (n <= 0 || (is_cut && count > r->body_bytes / 2))
            return false;
        count += (size_t)n;
        (void)__atomic_add_fetch(&s3->received_bytes, n, __ATOMIC_RELAXED);
    }
    r->body[r->body_bytes] = '\0';
    return !is_cut;
}

static bool read_request(struct imitation_s3 *s3, int fd, struct store_request *r)
{
    char *end = NULL, *mark, *slash;
    size_t count = 0;
    ssize_t n;

    do {
        n = recv(fd, r->head + count, sizeof r->head - 1 - count, 0);
        count += n > 0 ? (size_t)n : 0;
        r->head[count] = '\0';
        end = strstr(r->head, "\r\n\r\n");
    } while (n > 0 && !end);
    if (!end || sscanf(r->head, "%15s %8191s HTTP/1.1", r->method, r->target) != 2)
        return false;
    end[2] = '\0';
    if (!read_body(s3, fd, r, end + 4, count - (size_t)(end + 4 - r->head)))
        return false;
    mark = strchr(r->target, '?');
    (void)snprintf(r->path, sizeof r->path, "%.*s", (int)(mark ? mark - r->target : 4095),
                   r->target);
    if (mark)
        split_query(r, mark + 1);
    slash = strchr(r->path + 1, '/');
    (void)snprintf(r->bucket, sizeof r->bucket, "%.*s", (int)strcspn(r->path + 1, "/"),
                   r->path + 1);
    (void)snprintf(r->key, sizeof r->key, "%.1024s", slash ? slash + 1 : "");
    decode(r->key);
    return true;
}

/* ---- signatures ---- */

static int by_raw(const void *a, const void *b)
{
    return strcmp(((const struct query_item *)a)->raw, ((const struct query_item *)b)->raw);
}

/* Writes the canonical request of a request whose signed headers are `names`. */
static void add_canonical(const struct store_request *r, const char *names, const char *payload,
                          struct hd_text *out)
{
    struct query_item *sorted = malloc(sizeof r->query);
    char list[512], value[9000];

    if (!sorted)
        die("malloc");
    memcpy(sorted, r->query, sizeof r->query);
    qsort(sorted, r->query_count, sizeof *sorted, by_raw);
    hd_text_add(out, "%s\n%s\n", r->method, r->path);
    for (size_t i = 0; i < r->query_count; i++)
        hd_text_add(out, "%s%s", i ? "&" : "", sorted[i].raw);
    hd_text_add(out, "\n");
    (void)snprintf(list, sizeof list, "%s", names);
    for (char *rest, *name = strtok_r(list, ";", &rest); name; name = strtok_r(NULL, ";", &rest)) {
        if (!header(r->head, name, value, sizeof value))
            value[0] = '\0';
        hd_text_add(out, "%s:%s\n", name, value);
    }
    hd_text_add(out, "\n%s\n%s", names, payload);
    free(sorted);
}

static void sign(const char *secret, const char *day, const char *region, const char *text,
                 char ret_text[HD_PKI_HASH_TEXT_MAX])
{
    unsigned char a[32], b[32];
    char start[300];

    (void)snprintf(start, sizeof start, "AWS4%s", secret);
    hd_pki_hmac(start, strlen(start), day, 8, a);
    hd_pki_hmac(a, 32, region, strlen(region), b);
    hd_pki_hmac(b, 32, "s3", 2, a);
    hd_pki_hmac(a, 32, "aws4_request", 12, b);
    hd_pki_hmac(b, 32, text, strlen(text), a);
    hd_pki_format_hash(a, ret_text);
}

/* Answers, and returns false, unless the request is signed as it must be. */
static bool is_allowed(struct imitation_s3 *s3, int fd, const struct store_request *r)
{
    const char *region = s3->region ? s3->region : "us-east-1";
    char line[2048], id[256], day[16], named[64], names[512], given[128], date[64], payload[128];
    char is[HD_PKI_HASH_TEXT_MAX], token[9000];
    struct hd_text canonical = {0}, text = {0};
    bool same;

    if (!s3->id)
        return true;
    if (!header(r->head, "Authorization", line, sizeof line)) {
        (void)__atomic_add_fetch(&s3->unsigned_requests, 1, __ATOMIC_RELAXED);
        fail(fd, 403, "AccessDenied", "");
        return false;
    }
    if (sscanf(line,
               "AWS4-HMAC-SHA256 Credential=%255[^/]/%15[^/]/%63[^/]/s3/aws4_request, "
               "SignedHeaders=%511[^,], Signature=%127s",
               id, day, named, names, given) != 5 ||
        !header(r->head, "x-amz-date", date, sizeof date) ||
        !header(r->head, "x-amz-content-sha256", payload, sizeof payload)) {
        fail(fd, 400, "AuthorizationHeaderMalformed", "");
        return false;
    }
    if (strcmp(id, s3->id) != 0) {
        fail(fd, 403, "InvalidAccessKeyId", "");
        return false;
    }
    if (strcmp(named, region) != 0) {
        char more[100];

        (void)snprintf(more, sizeof more, "<Region>%s</Region>", region);
        if (strcmp(r->method, "HEAD") == 0) {
            (void)snprintf(more, sizeof more, "x-amz-bucket-region: %s\r\n", region);
            answer(fd, 400, more, "");
        } else {
            fail(fd, 400, "AuthorizationHeaderMalformed", more);
        }
        return false;
    }
    if (s3->session &&
        (!header(r->head, "x-amz-security-token", token, sizeof token) ||
         strcmp(token, s3->session) != 0 || !strstr(names, "x-amz-security-token"))) {
        fail(fd, 403, "InvalidToken", "");
        return false;
    }
    add_canonical(r, names, payload, &canonical);
    hash_text(HD_PKI_SHA256, canonical.data, canonical.len_bytes, is);
    hd_text_add(&text, "AWS4-HMAC-SHA256\n%s\n%s/%s/s3/aws4_request\n%s", date, day, region, is);
    sign(s3->secret, day, region, text.data, is);
    same = strcmp(is, given) == 0 && strncmp(date, day, 8) == 0 && strstr(names, "host");
    hd_text_free(&canonical);
    hd_text_free(&text);
    if (!same) {
        (void)__atomic_add_fetch(&s3->refused_signatures, 1, __ATOMIC_RELAXED);
        fail(fd, 403, "SignatureDoesNotMatch", "");
        return false;
    }
    hash_text(HD_PKI_SHA256, r->body ? r->body : "", r->body_bytes, is);
    if (strcmp(is, payload) != 0) {
        fail(fd, 400, "XAmzContentSHA256Mismatch", "");
        return false;
    }
    return true;
}

/* ---- objects ---- */

static struct s3_stored *find(struct imitation_s3 *s3, const char *bucket, const char *key)
{
    for (size_t i = 0; i < s3->object_count; i++)
        if (strcmp(s3->objects[i].bucket, bucket) == 0 && strcmp(s3->objects[i].key, key) == 0)
            return &s3->objects[i];
    return NULL;
}

const struct s3_stored *imitation_s3_find(const struct imitation_s3 *s3, const char *bucket,
                                          const char *key)
{
    return find((struct imitation_s3 *)(uintptr_t)s3, bucket, key);
}

static void write_to_root(const struct imitation_s3 *s3, const struct s3_stored *o)
{
    char path[4096];

    if (!s3->root)
        return;
    (void)snprintf(path, sizeof path, "%s/%s/%s", s3->root, o->bucket, o->key);
    *strrchr(path, '/') = '\0';
    (void)hd_file_make_dirs(path, 0755);
    (void)snprintf(path, sizeof path, "%s/%s/%s", s3->root, o->bucket, o->key);
    (void)hd_file_write_atomic(path, o->bytes, o->size_bytes, 0644);
}

/* Stores bytes, which it owns from now on. */
static struct s3_stored *store(struct imitation_s3 *s3, const char *bucket, const char *key,
                               char *bytes, size_t count)
{
    struct s3_stored *o = find(s3, bucket, key);

    if (!o && s3->object_count == S3_OBJECTS_MAX)
        die("too many objects");
    if (!o)
        o = &s3->objects[s3->object_count++];
    free(o->bytes);
    *o = (struct s3_stored){.bytes = bytes, .size_bytes = count};
    (void)snprintf(o->bucket, sizeof o->bucket, "%s", bucket);
    (void)snprintf(o->key, sizeof o->key, "%s", key);
    hash_text(HD_PKI_MD5, bytes, count, o->etag);
    write_to_root(s3, o);
    return o;
}

void imitation_s3_put(struct imitation_s3 *s3, const char *bucket, const char *key,
                      const void *bytes, size_t count)
{
    char *copy = malloc(count + 1);

    if (!copy)
        die("malloc");
    memcpy(copy, bytes, count);
    (void)store(s3, bucket, key, copy, count);
}

static void send_object(struct imitation_s3 *s3, int fd, const struct store_request *r,
                        const struct s3_stored *o)
{
    char value[128], match[160];
    size_t from = 0, to = o->size_bytes;
    const bool is_wrong = to && strcmp(r->method, "GET") == 0 && take(&s3->wrong_bytes);
    bool has_range = header(r->head, "Range", value, sizeof value);
    struct hd_text head = {0};

    if (header(r->head, "If-Match", match, sizeof match) && !strstr(match, o->etag)) {
        fail(fd, 412, "PreconditionFailed", "");
        return;
    }
    if (has_range && !take(&s3->ignored_ranges))
        (void)sscanf(value, "bytes=%zu-", &from);
    else
        has_range = false;
    if (has_range && from >= o->size_bytes) {
        fail(fd, 416, "InvalidRange", "");
        return;
    }
    hd_text_add(&head,
                "HTTP/1.1 %d Imitated\r\nConnection: close\r\nContent-Length: %zu\r\n"
                "ETag: \"%s%s\"\r\n",
                has_range ? 206 : 200, to - from, o->etag,
                strcmp(r->method, "GET") == 0 && take(&s3->wrong_etags) ? "-changed" : "");
    if (has_range)
        hd_text_add(&head, "Content-Range: bytes %zu-%zu/%zu\r\n", from, to - 1, to);
    if (*o->origin)
        hd_text_add(&head, "x-amz-meta-heddle-manifest: %s\r\n", o->origin);
    hd_text_add(&head, "\r\n");
    if (strcmp(r->method, "GET") == 0 && take(&s3->cuts))
        to = from + (to - from) / 2;
    if (!send_all(fd, head.data, head.len_bytes) || strcmp(r->method, "HEAD") == 0)
        to = from;
    hd_text_free(&head);
    for (size_t at = from; at < to; at += PIECE) {
        const size_t n = to - at < PIECE ? to - at : PIECE;
        char piece[PIECE];

        memcpy(piece, o->bytes + at, n);
        piece[0] ^= (char)(is_wrong && at == from);
        if (s3->pace_ms)
            (void)nanosleep(&(struct timespec){.tv_nsec = s3->pace_ms * 1000000L}, NULL);
        (void)__atomic_add_fetch(&s3->sent_bytes, (int64_t)n, __ATOMIC_RELAXED);
        if (!send_all(fd, piece, n))
            return;
    }
}

/* ---- lists ---- */

static int by_key(const void *a, const void *b)
{
    return strcmp((*(struct s3_stored *const *)a)->key, (*(struct s3_stored *const *)b)->key);
}

/* Appends a key as encoding-type=url has it. */
static void add_url(struct hd_text *out, const char *key)
{
    for (; *key; key++)
        if (isalnum((unsigned char)*key) || strchr("-_.~/", *key))
            hd_text_add(out, "%c", *key);
        else if (*key == ' ')
            hd_text_add(out, "+");
        else
            hd_text_add(out, "%%%02X", (unsigned)(unsigned char)*key);
}

static void list_objects(struct imitation_s3 *s3, int fd, const struct store_request *r)
{
    const char *prefix = query(r, "prefix"), *token = query(r, "continuation-token");
    const size_t page = s3->page_keys ? s3->page_keys : 1000;
    struct s3_stored *found[S3_OBJECTS_MAX];
    size_t count = 0, first = token ? strtoul(token, NULL, 10) : 0, last;
    struct hd_text body = {0};

    for (size_t i = 0; i < s3->object_count; i++)
        if (strcmp(s3->objects[i].bucket, r->bucket) == 0 &&
            hd_text_starts(s3->objects[i].key, prefix ? prefix : ""))
            found[count++] = &s3->objects[i];
    qsort(found, count, sizeof found[0], by_key);
    last = first + page < count ? first + page : count;
    hd_text_add(&body,
                "<?xml version=\"1.0\"?><ListBucketResult><EncodingType>url</EncodingType>"
                "<IsTruncated>%s</IsTruncated>",
                last < count ? "true" : "false");
    if (last < count) /* characters that a query must encode */
        hd_text_add(&body, "<NextContinuationToken>%zu/+&amp;=</NextContinuationToken>", last);
    for (size_t i = first; i < last; i++) {
        hd_text_add(&body, "<Contents><Key>");
        add_url(&body, found[i]->key);
        hd_text_add(&body, "</Key><ETag>&quot;%s&quot;</ETag><Size>%zu</Size></Contents>",
                    found[i]->etag, found[i]->size_bytes);
    }
    hd_text_add(&body, "</ListBucketResult>");
    answer(fd, 200, "", body.data);
    hd_text_free(&body);
}

/* ---- uploads in parts ---- */

static void end_upload(struct s3_upload *u)
{
    for (size_t i = 0; i < S3_PARTS_MAX; i++)
        free(u->parts[i].bytes);
    *u = (struct s3_upload){.id = 0};
}

int imitation_s3_uploads(struct imitation_s3 *s3)
{
    int count = 0;

    (void)pthread_mutex_lock(&s3->mutex);
    for (size_t i = 0; i < S3_UPLOADS_MAX; i++)
        count += s3->uploads[i].id != 0;
    (void)pthread_mutex_unlock(&s3->mutex);
    return count;
}

int imitation_s3_parts(struct imitation_s3 *s3)
{
    int count = 0;

    (void)pthread_mutex_lock(&s3->mutex);
    for (size_t i = 0; i < S3_UPLOADS_MAX; i++)
        for (size_t k = 0; s3->uploads[i].id && k < S3_PARTS_MAX; k++)
            count += s3->uploads[i].parts[k].bytes != NULL;
    (void)pthread_mutex_unlock(&s3->mutex);
    return count;
}

static struct s3_upload *find_upload(struct imitation_s3 *s3, int id)
{
    for (size_t i = 0; i < S3_UPLOADS_MAX; i++)
        if (s3->uploads[i].id == id)
            return &s3->uploads[i];
    return NULL;
}

static void begin_upload(struct imitation_s3 *s3, int fd, const struct store_request *r)
{
    struct s3_upload *u = find_upload(s3, 0);
    struct hd_text body = {0};

    if (!u)
        die("too many uploads");
    u->id = ++s3->last_upload;
    (void)snprintf(u->bucket, sizeof u->bucket, "%s", r->bucket);
    (void)snprintf(u->key, sizeof u->key, "%s", r->key);
    if (!header(r->head, "x-amz-meta-heddle-manifest", u->origin, sizeof u->origin))
        u->origin[0] = '\0';
    hd_text_add(&body,
                "<InitiateMultipartUploadResult><UploadId>%d</UploadId>"
                "</InitiateMultipartUploadResult>",
                u->id);
    answer(fd, 200, "", body.data);
    hd_text_free(&body);
}

static void put_part(struct imitation_s3 *s3, int fd, struct store_request *r, struct s3_upload *u)
{
    const size_t number = strtoul(query(r, "partNumber"), NULL, 10);
    struct s3_part *part = &u->parts[number % S3_PARTS_MAX];
    char headers[128], etag[72];

    hash_text(HD_PKI_MD5, r->body ? r->body : "", r->body_bytes, etag);
    if (!take(&s3->lost_parts)) {
        free(part->bytes);
        *part = (struct s3_part){.bytes = r->body, .size_bytes = r->body_bytes};
        memcpy(part->etag, etag, sizeof etag);
        r->body = NULL;
    }
    (void)snprintf(headers, sizeof headers, "ETag: \"%s\"\r\n", etag);
    answer(fd, 200, headers, "");
}

static void list_parts(int fd, const struct s3_upload *u)
{
    struct hd_text body = {0};

    hd_text_add(&body, "<ListPartsResult><IsTruncated>false</IsTruncated>");
    for (size_t i = 1; i < S3_PARTS_MAX; i++)
        if (u->parts[i].bytes)
            hd_text_add(&body,
                        "<Part><PartNumber>%zu</PartNumber><ETag>\"%s\"</ETag><Size>%zu</Size>"
                        "</Part>",
                        i, u->parts[i].etag, u->parts[i].size_bytes);
    hd_text_add(&body, "</ListPartsResult>");
    answer(fd, 200, "", body.data);
    hd_text_free(&body);
}

/* Joins the parts that the body names; false: it names one that is not there, or is too small. */
static bool join_parts(const struct imitation_s3 *s3, const struct s3_upload *u, const char *body,
                       char **ret_bytes, size_t *ret_count, size_t *ret_parts)
{
    const char *at = body;

    *ret_bytes = NULL;
    *ret_count = *ret_parts = 0;
    while ((at = strstr(at, "<PartNumber>"))) {
        const size_t number = strtoul(at + 12, NULL, 10);
        const struct s3_part *p = &u->parts[number % S3_PARTS_MAX];
        const char *end = strstr(at, "</Part>"), *etag = strstr(at, p->etag);

        if (!p->bytes || !end || !etag || etag > end ||
            (p->size_bytes < s3->part_bytes_min && strstr(end, "<PartNumber>"))) {
            free(*ret_bytes);
            return false;
        }
        *ret_bytes = realloc(*ret_bytes, *ret_count + p->size_bytes + 1);
        if (!*ret_bytes)
            die("realloc");
        memcpy(*ret_bytes + *ret_count, p->bytes, p->size_bytes);
        *ret_count += p->size_bytes;
        ++*ret_parts;
        at = end;
    }
    return *ret_bytes;
}

static void complete_upload(struct imitation_s3 *s3, int fd, const struct store_request *r,
                            struct s3_upload *u)
{
    struct s3_stored *o;
    char *bytes, body[512];
    size_t count, parts;

    if (take(&s3->complete_errors)) {
        answer(fd, 200, "",
               "<?xml version=\"1.0\"?>\n  \n<Error><Code>InternalError</Code>"
               "<Message>imitated</Message></Error>");
        return;
    }
    if (!join_parts(s3, u, r->body ? r->body : "", &bytes, &count, &parts)) {
        fail(fd, 400, "InvalidPart", "");
        return;
    }
    o = store(s3, u->bucket, u->key, bytes, count);
    (void)snprintf(o->origin, sizeof o->origin, "%s", u->origin);
    (void)snprintf(o->etag + strlen(o->etag), sizeof o->etag - strlen(o->etag), "-%zu", parts);
    (void)snprintf(body, sizeof body,
                   "<CompleteMultipartUploadResult><ETag>\"%s\"</ETag>"
                   "</CompleteMultipartUploadResult>",
                   o->etag);
    end_upload(u);
    answer(fd, 200, "", body);
}

static void list_uploads(struct imitation_s3 *s3, int fd, const struct store_request *r)
{
    const char *prefix = query(r, "prefix");
    struct hd_text body = {0};

    hd_text_add(&body, "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>");
    for (size_t i = 0; i < S3_UPLOADS_MAX; i++)
        if (s3->uploads[i].id && strcmp(s3->uploads[i].bucket, r->bucket) == 0 &&
            hd_text_starts(s3->uploads[i].key, prefix ? prefix : ""))
            hd_text_add(&body, "<Upload><Key>%s</Key><UploadId>%d</UploadId></Upload>",
                        s3->uploads[i].key, s3->uploads[i].id);
    hd_text_add(&body, "</ListMultipartUploadsResult>");
    answer(fd, 200, "", body.data);
    hd_text_free(&body);
}

/* ---- requests ---- */

static void answer_upload(struct imitation_s3 *s3, int fd, struct store_request *r)
{
    struct s3_upload *u = find_upload(s3, atoi(query(r, "uploadId")));

    if (!u || strcmp(u->bucket, r->bucket) != 0 || strcmp(u->key, r->key) != 0) {
        fail(fd, 404, "NoSuchUpload", "");
    } else if (strcmp(r->method, "PUT") == 0) {
        put_part(s3, fd, r, u);
    } else if (strcmp(r->method, "POST") == 0) {
        complete_upload(s3, fd, r, u);
    } else if (strcmp(r->method, "DELETE") == 0) {
        end_upload(u);
        answer(fd, 204, "", "");
    } else {
        list_parts(fd, u);
    }
}

static void put_object(struct imitation_s3 *s3, int fd, struct store_request *r)
{
    struct s3_stored *o;
    char headers[128], condition[8];

    if (header(r->head, "If-None-Match", condition, sizeof condition) &&
        find(s3, r->bucket, r->key)) {
        fail(fd, 412, "PreconditionFailed", "");
        return;
    }
    o = store(s3, r->bucket, r->key, r->body ? r->body : strdup(""), r->body_bytes);
    r->body = NULL;
    if (!header(r->head, "x-amz-meta-heddle-manifest", o->origin, sizeof o->origin))
        o->origin[0] = '\0';
    (void)snprintf(headers, sizeof headers, "ETag: \"%s\"\r\n", o->etag);
    answer(fd, 200, headers, "");
}

static void delete_object(struct imitation_s3 *s3, int fd, const struct store_request *r)
{
    struct s3_stored *o = find(s3, r->bucket, r->key);
    char path[4096];

    if (o) {
        (void)snprintf(path, sizeof path, "%s/%s/%s", s3->root ? s3->root : "/nowhere", o->bucket,
                       o->key);
        (void)unlink(path);
        free(o->bytes);
        *o = s3->objects[--s3->object_count];
        s3->objects[s3->object_count].bytes = NULL;
    }
    answer(fd, 204, "", "");
}

static bool has_bucket(const struct imitation_s3 *s3, const char *bucket)
{
    for (size_t i = 0; i < s3->object_count; i++)
        if (strcmp(s3->objects[i].bucket, bucket) == 0)
            return true;
    return strcmp(bucket, "bucket") == 0;
}

static void answer_one(struct imitation_s3 *s3, int fd, struct store_request *r)
{
    struct s3_stored *o;

    if (take(&s3->slow)) {
        fail(fd, 503, "SlowDown", "");
    } else if (take(&s3->broken) || (s3->answers && s3->requests > s3->answers)) {
        fail(fd, 500, "InternalError", "");
    } else if (take(&s3->skewed)) {
        fail(fd, 403, "RequestTimeTooSkewed", "<ServerTime>2001-02-03T04:05:06Z</ServerTime>");
    } else if (take(&s3->expired)) {
        fail(fd, 403, "ExpiredToken", "");
    } else if (!is_allowed(s3, fd, r)) {
        return;
    } else if (!has_bucket(s3, r->bucket)) {
        fail(fd, 404, "NoSuchBucket", "");
    } else if (query(r, "uploadId")) {
        answer_upload(s3, fd, r);
    } else if (query(r, "uploads") && strcmp(r->method, "POST") == 0) {
        begin_upload(s3, fd, r);
    } else if (query(r, "uploads")) {
        list_uploads(s3, fd, r);
    } else if (query(r, "list-type")) {
        list_objects(s3, fd, r);
    } else if (strcmp(r->method, "PUT") == 0) {
        put_object(s3, fd, r);
    } else if (strcmp(r->method, "DELETE") == 0) {
        delete_object(s3, fd, r);
    } else if (!(o = find(s3, r->bucket, r->key)) || take(&s3->hidden)) {
        if (strcmp(r->method, "HEAD") == 0)
            answer(fd, 404, "", "");
        else
            fail(fd, 404, "NoSuchKey", "");
    } else {
        send_object(s3, fd, r, o);
    }
}

static void *run_connection(void *user)
{
    struct store_connection *c = user;
    struct store_request *r = calloc(1, sizeof *r);

    if (r && read_request(c->s3, c->fd, r)) {
        (void)__atomic_add_fetch(&c->s3->requests, 1, __ATOMIC_RELAXED);
        /* one request at a time, but for slow bytes of objects, which do not change meanwhile */
        if (c->s3->pace_ms == 0)
            (void)pthread_mutex_lock(&c->s3->mutex);
        answer_one(c->s3, c->fd, r);
        if (c->s3->pace_ms == 0)
            (void)pthread_mutex_unlock(&c->s3->mutex);
    }
    if (r)
        free(r->body);
    free(r);
    (void)close(c->fd);
    (void)__atomic_sub_fetch(&c->s3->connections, 1, __ATOMIC_RELEASE);
    free(c);
    return NULL;
}

static void *run_listener(void *user)
{
    struct imitation_s3 *s3 = user;

    for (;;) {
        struct store_connection *c = malloc(sizeof *c);
        pthread_t thread;

        if (!c)
            die("malloc");
        *c = (struct store_connection){s3, accept(s3->listener, NULL, NULL)};
        if (c->fd < 0) {
            free(c);
            return NULL; /* the socket was shut down */
        }
        (void)__atomic_add_fetch(&s3->connections, 1, __ATOMIC_RELAXED);
        if (pthread_create(&thread, NULL, run_connection, c) != 0)
            die("thread");
        (void)pthread_detach(thread);
    }
}

bool imitation_s3_is_busy(const struct imitation_s3 *s3)
{
    return __atomic_load_n(&s3->connections, __ATOMIC_ACQUIRE) > 0;
}

void imitation_s3_start(struct imitation_s3 *s3)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;

    (void)pthread_mutex_init(&s3->mutex, NULL);
    s3->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s3->listener < 0 || bind(s3->listener, (struct sockaddr *)&address, sizeof address) < 0 ||
        listen(s3->listener, 64) < 0 ||
        getsockname(s3->listener, (struct sockaddr *)&address, &size) < 0)
        die("socket");
    s3->port = ntohs(address.sin_port);
    if (pthread_create(&s3->thread, NULL, run_listener, s3) != 0)
        die("thread");
}

void imitation_s3_stop(struct imitation_s3 *s3)
{
    (void)shutdown(s3->listener, SHUT_RDWR);
    (void)pthread_join(s3->thread, NULL);
    while (imitation_s3_is_busy(s3))
        (void)usleep(1000);
    (void)close(s3->listener);
    for (size_t i = 0; i < s3->object_count; i++)
        free(s3->objects[i].bytes);
    for (size_t i = 0; i < S3_UPLOADS_MAX; i++)
        end_upload(&s3->uploads[i]);
    (void)pthread_mutex_destroy(&s3->mutex);
}
