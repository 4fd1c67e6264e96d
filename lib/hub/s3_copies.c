/* s3_copies: the copies of a job's checkpoints in an object store: whose they are, which are whole,
 * and their removal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "s3_internal.h"

#define OWNER_OBJECT "heddle-copies"

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

enum hd_status hd_s3_claim(const struct hd_s3_settings *settings, const struct hd_s3_name *name,
                           const char *owner, const volatile sig_atomic_t *stop)
{
    struct s3_link l = {NULL, NULL};
    unsigned char bytes[HD_PKI_HASH_BYTES];
    char key[HD_S3_KEY_MAX + 32], hash[HD_PKI_HASH_TEXT_MAX];
    struct hd_text is = {0};
    struct hub_answer answer;
    struct s3_call call = {.bucket = name->bucket, .key = key, .reply = &is, .may_lack = true};
    enum hd_status st = link_open(&l, settings, stop);

    (void)snprintf(key, sizeof key, "%s%s" OWNER_OBJECT, name->key, *name->key ? "/" : "");
    if (!st)
        st = s3_send(l.s3, l.client, &call, &answer);
    if (st == HD_NOT_FOUND && !(answer.status == 404 && strstr(hd_err_message(), "no bucket"))) {
        hd_pki_hash(owner, strlen(owner), bytes);
        hd_pki_format_hash(bytes, hash);
        call = (struct s3_call){.method = "PUT",
                                .bucket = name->bucket,
                                .key = key,
                                .has_body = true,
                                .body = owner,
                                .body_bytes = (int64_t)strlen(owner),
                                .payload_hash = hash};
        st = s3_send(l.s3, l.client, &call, &answer);
    } else if (!st &&
               (is.len_bytes != strlen(owner) || memcmp(is.data, owner, is.len_bytes) != 0)) {
        char clean[160];

        hub_copy_clean(is.data ? is.data : "", clean, sizeof clean);
        st = hd_err(
            HD_CONFLICT,
            "s3://%s/%s has copies of another job (%s, not %s); give each job a prefix of its "
            "own in checkpoint.copy_to",
            name->bucket, name->key, clean, owner);
    }
    link_close(&l);
    hd_text_free(&is);
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
