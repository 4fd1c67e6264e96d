/* s3_copies: the copies of a job's checkpoints in an object store: whose they are, which are whole,
 * and their removal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "s3_internal.h"

#define OWNER_OBJECT "heddle-copies"
enum { CLAIMS_MAX = 3 };

/* A store and a connection to it. */
struct s3_link {
    struct hd_s3 *s3;
    struct hub_client *client;
};

static enum hd_status link_open(struct s3_link *l, const struct hd_s3_settings *settings,
                                const volatile sig_atomic_t *stop)
{
    enum hd_status st = hd_s3_new(settings, stop, &l->s3);

    return st ? st : hub_client_new(&l->s3->http, stop, &l->client);
}

static void link_close(struct s3_link *l)
{
    hub_client_free(l->client);
    hd_s3_free(l->s3);
}

/* Writes the owner's object if there is none; a store without such conditions (501) writes it in
 * any case. *ret_written: false: another has written one meanwhile. */
static enum hd_status write_owner(struct s3_link *l, const char *bucket, const char *key,
                                  const char *owner, bool *ret_written)
{
    unsigned char bytes[HD_PKI_HASH_BYTES];
    char hash[HD_PKI_HASH_TEXT_MAX];
    struct hub_answer answer = {.status = 0};
    struct s3_call call = {.method = "PUT",
                           .bucket = bucket,
                           .key = key,
                           .is_first = true,
                           .has_body = true,
                           .body = owner,
                           .body_bytes = (int64_t)strlen(owner),
                           .payload_hash = hash};
    enum hd_status st;

    hd_pki_hash(owner, strlen(owner), bytes);
    hd_pki_format_hash(bytes, hash);
    st = s3_send(l->s3, l->client, &call, &answer);
    *ret_written = !st;
    if (st && answer.status == 501) {
        call.is_first = false;
        st = s3_send(l->s3, l->client, &call, &answer);
        *ret_written = !st;
    } else if (st && (answer.status == 412 || answer.status == 409)) {
        st = HD_OK;
    }
    return st;
}

/* Compares the owner's object of a folder of copies with `owner`. HD_CONFLICT: it is of another one. */
static enum hd_status compare_owner(const struct hd_s3_name *name, const struct hd_text *is,
                                    const char *owner)
{
    char clean[160];

    if (is->len_bytes == strlen(owner) && memcmp(is->data, owner, is->len_bytes) == 0)
        return HD_OK;
    hub_copy_clean(is->data ? is->data : "", clean, sizeof clean);
    return hd_err(
        HD_CONFLICT,
        "s3://%s/%s has copies of another job (%s, not %s); give each job a prefix of its "
        "own in checkpoint.copy_to",
        name->bucket, name->key, clean, owner);
}

enum hd_status hd_s3_claim(const struct hd_s3_settings *settings, const struct hd_s3_name *name,
                           const char *owner, const volatile sig_atomic_t *stop)
{
    struct s3_link l = {NULL, NULL};
    char key[HD_S3_KEY_MAX + 32];
    bool is_known = false;
    enum hd_status st = link_open(&l, settings, stop);

    (void)snprintf(key, sizeof key, "%s%s" OWNER_OBJECT, name->key, *name->key ? "/" : "");
    for (int i = 0; !st && !is_known && i < CLAIMS_MAX; i++) {
        struct hd_text is = {0};
        struct hub_answer answer = {.status = 0};
        const struct s3_call read = {
            .bucket = name->bucket, .key = key, .reply = &is, .may_lack = true};

        st = s3_send(l.s3, l.client, &read, &answer);
        if (st == HD_NOT_FOUND &&
            !(answer.status == 404 && strstr(hd_err_message(), "no bucket"))) {
            st = write_owner(&l, name->bucket, key, owner, &is_known);
        } else if (!st) {
            st = compare_owner(name, &is, owner);
            is_known = true;
        }
        hd_text_free(&is);
    }
    if (!st && !is_known)
        st = hd_err(HD_UNAVAILABLE,
                    "s3://%s/%s: the store says of the object " OWNER_OBJECT
                    " both that it exists and "
                    "that it does not; try again",
                    name->bucket, name->key);
    link_close(&l);
    return st;
}

static int newest_first(const void *a, const void *b)
{
    const struct hd_s3_checkpoint *x = a, *y = b;

    if (x->step != y->step)
        return x->step < y->step ? 1 : -1;
    return x->attempt < y->attempt ? 1 : x->attempt > y->attempt ? -1 : 0;
}

enum hd_status hd_s3_list_copies(const struct hd_s3_settings *settings,
                                 const struct hd_s3_name *name, const volatile sig_atomic_t *stop,
                                 struct hd_arena *arena, struct hd_s3_checkpoint **ret_items,
                                 size_t *ret_count)
{
    struct s3_link l = {NULL, NULL};
    struct s3_list list = {.count = 0};
    char prefix[HD_S3_KEY_MAX + 32];
    const int n = snprintf(prefix, sizeof prefix, "%s%sattempt-", name->key, *name->key ? "/" : "");
    enum hd_status st = link_open(&l, settings, stop);

    if (!st)
        st = s3_list_objects(l.s3, l.client, name->bucket, prefix, arena, &list);
    *ret_items = hd_arena_array(arena, (size_t)list.count + 1, sizeof **ret_items);
    *ret_count = 0;
    if (!st && !*ret_items)
        st = hd_err(HD_NO_MEMORY, "no memory for a list of copies");
    for (int i = 0; i < list.count && !st; i++) {
        long long attempt, step;
        int end = 0;

        if (sscanf(list.items[i].key + n, "%lld/step-%lld/manifest.json%n", &attempt, &step,
                   &end) == 2 &&
            end && !list.items[i].key[n + end]) {
            struct hd_s3_checkpoint *c = &(*ret_items)[(*ret_count)++];

            *c = (struct hd_s3_checkpoint){.attempt = attempt, .step = step};
            (void)snprintf(c->name, sizeof c->name, "attempt-%.*s",
                           end - (int)strlen("/manifest.json"), list.items[i].key + n);
        }
    }
    if (!st && *ret_count)
        qsort(*ret_items, *ret_count, sizeof **ret_items, newest_first);
    link_close(&l);
    return st;
}

static enum hd_status remove_one(struct s3_link *l, const char *bucket, const char *key)
{
    const struct s3_call call = {
        .method = "DELETE", .bucket = bucket, .key = key, .may_lack = true};
    struct hub_answer answer;
    const enum hd_status st = s3_send(l->s3, l->client, &call, &answer);

    return st == HD_NOT_FOUND ? HD_OK : st;
}

enum hd_status hd_s3_remove_copy(const struct hd_s3_settings *settings,
                                 const struct hd_s3_name *name, const volatile sig_atomic_t *stop)
{
    struct s3_link l = {NULL, NULL};
    struct s3_list list = {.count = 0};
    char prefix[HD_S3_KEY_MAX + 32];
    struct hd_arena arena;
    enum hd_status st = link_open(&l, settings, stop);

    hd_arena_init(&arena, 0);
    (void)snprintf(prefix, sizeof prefix, "%s/manifest.json", name->key);
    if (!st)
        st = remove_one(&l, name->bucket, prefix);
    (void)snprintf(prefix, sizeof prefix, "%s/", name->key);
    if (!st)
        st = s3_list_objects(l.s3, l.client, name->bucket, prefix, &arena, &list);
    for (int i = 0; i < list.count && !st; i++)
        st = remove_one(&l, name->bucket, list.items[i].key);
    hd_arena_done(&arena);
    link_close(&l);
    return st;
}
