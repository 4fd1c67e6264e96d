/* credentials: valid credentials, as an array with a hash table of indices into it. The key is
 * SHA-256 of a secret, so its first bits serve as the hash, and comparing it reveals nothing about
 * the secret. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/identity/identity.h"
#include "pki/pki.h"

/* Time for which an expired certificate is remembered, ms: connections that a node opened with it
 * may still exist, and its name is of its kind. */
#define KEPT_EXPIRED_MS (INT64_C(365) * 86400000)

/* A certificate that was ended before it expired, so that it is not adopted again, nor its name
 * given to one of another kind. */
struct ended_certificate {
    char name[HD_CTL_NAME_BYTES_MAX + 1];
    enum hd_credential_kind kind;
    unsigned char hash[HD_CREDENTIAL_HASH_BYTES];
    int64_t ended_ms, expires_ms;
};

struct hd_credentials {
    struct hd_credential_record *items; /* all valid credentials; each owns its texts */
    size_t count, capacity;
    uint32_t *slots; /* hash table: index in `items` + 1; 0: empty. Its size is a power of two, at
                      * most half full */
    size_t slot_count;
    struct ended_certificate *ended;
    size_t ended_count, ended_room;
    bool ended_lost; /* true: an ended certificate was not recorded, for lack of memory */
    uint64_t last;
    int64_t settled_ms; /* credentials that expired before this time may be dropped; 0: none may */
};

struct hd_credentials *hd_credentials_new(void)
{
    return calloc(1, sizeof(struct hd_credentials));
}

static void free_texts(struct hd_credential_record *c)
{
    free((void *)(uintptr_t)c->name);
    free((void *)(uintptr_t)c->role);
    free((void *)(uintptr_t)c->made_by);
    free((void *)(uintptr_t)c->ended_by);
}

void hd_credentials_free(struct hd_credentials *all)
{
    if (!all)
        return;
    for (size_t i = 0; i < all->count; i++)
        free_texts(&all->items[i]);
    free(all->items);
    free(all->slots);
    free(all->ended);
    free(all);
}

static size_t start_of(const struct hd_credentials *all, const unsigned char *hash)
{
    uint64_t bits;

    memcpy(&bits, hash, sizeof bits);
    return bits & (all->slot_count - 1);
}

static void enter(struct hd_credentials *all, size_t position)
{
    size_t at = start_of(all, all->items[position].hash);

    while (all->slots[at])
        at = (at + 1) & (all->slot_count - 1);
    all->slots[at] = (uint32_t)position + 1;
}

/* Rebuilds the hash table after `items` has grown or lost an entry. Removals are rare. */
static void enter_all(struct hd_credentials *all)
{
    memset(all->slots, 0, all->slot_count * sizeof *all->slots);
    for (size_t i = 0; i < all->count; i++)
        enter(all, i);
}

static enum hd_status grow(struct hd_credentials *all)
{
    const size_t capacity = all->capacity ? 2 * all->capacity : 16;
    struct hd_credential_record *items;
    uint32_t *slots;

    if (all->count < all->capacity)
        return HD_OK;
    items = realloc(all->items, capacity * sizeof *items);
    if (items)
        all->items = items;
    slots = items ? calloc(2 * capacity, sizeof *slots) : NULL;
    if (!slots)
        return hd_err(HD_NO_MEMORY, "no memory for credentials");
    free(all->slots);
    all->slots = slots;
    all->slot_count = 2 * capacity;
    all->capacity = capacity;
    enter_all(all);
    return HD_OK;
}

void hd_credentials_settle(struct hd_credentials *all, int64_t settled_ms)
{
    all->settled_ms = settled_ms;
}

static const char *copy(const char *text, bool *failed)
{
    char *made = strdup(text ? text : "");

    *failed |= !made;
    return made;
}

enum hd_status hd_credentials_restore(struct hd_credentials *all,
                                      const struct hd_credential_record *credential)
{
    struct hd_credential_record made = *credential;
    bool failed = false;
    enum hd_status st = grow(all);

    if (st)
        return st;
    made.name = copy(credential->name, &failed);
    made.role = copy(credential->role, &failed);
    made.made_by = copy(credential->made_by, &failed);
    made.ended_by = copy(credential->ended_by, &failed);
    if (failed) {
        free_texts(&made);
        return hd_err(HD_NO_MEMORY, "no memory for a credential");
    }
    all->items[all->count] = made;
    enter(all, all->count++);
    if (made.id > all->last)
        all->last = made.id;
    return HD_OK;
}

void hd_credentials_restored(struct hd_credentials *all, uint64_t last)
{
    if (last > all->last)
        all->last = last;
}

static bool is_certificate(enum hd_credential_kind kind)
{
    return kind == HD_CREDENTIAL_KIND_NODE || kind == HD_CREDENTIAL_KIND_PERSON;
}

/* Drops expired credentials; certificates only a year after they expired. */
static void drop_expired(struct hd_credentials *all, int64_t now_ms)
{
    size_t kept = 0;

    for (size_t i = 0; i < all->count; i++) {
        const int64_t more_ms = is_certificate(all->items[i].kind) ? KEPT_EXPIRED_MS : 0;

        if (all->items[i].expires_ms > now_ms - more_ms)
            all->items[kept++] = all->items[i];
        else
            free_texts(&all->items[i]);
    }
    all->count = kept;
    if (all->slot_count)
        enter_all(all);
}

enum hd_status hd_credentials_add(struct hd_credentials *all,
                                  struct hd_credential_record *credential)
{
    enum hd_status st;

    if (all->count == all->capacity || all->count >= HD_CREDENTIALS_MAX)
        drop_expired(all,
                     all->settled_ms < credential->made_ms ? all->settled_ms : credential->made_ms);
    if (all->count >= HD_CREDENTIALS_MAX)
        return hd_err(HD_LIMIT, "there are %d credentials, which is the limit; revoke some",
                      HD_CREDENTIALS_MAX);
    credential->id = all->last + 1;
    st = hd_credentials_restore(all, credential);
    return st;
}

static struct hd_credential_record *find_or_add(const struct hd_credentials *all,
                                                const unsigned char *hash)
{
    if (!all->count)
        return NULL;
    for (size_t at = start_of(all, hash); all->slots[at]; at = (at + 1) & (all->slot_count - 1)) {
        struct hd_credential_record *c = &all->items[all->slots[at] - 1];

        if (memcmp(c->hash, hash, sizeof c->hash) == 0)
            return c;
    }
    return NULL;
}

const struct hd_credential_record *hd_credentials_find(const struct hd_credentials *all,
                                                       const unsigned char *hash, int64_t now_ms)
{
    const struct hd_credential_record *c = find_or_add(all, hash);

    return c && c->expires_ms > now_ms ? c : NULL;
}

const struct hd_credential_record *hd_credentials_find_id(const struct hd_credentials *all,
                                                          uint64_t id, int64_t now_ms)
{
    for (size_t i = 0; i < all->count; i++)
        if (all->items[i].id == id)
            return all->items[i].expires_ms > now_ms ? &all->items[i] : NULL;
    return NULL;
}

void hd_credentials_end(struct hd_credentials *all, uint64_t id)
{
    for (size_t i = 0; i < all->count; i++) {
        if (all->items[i].id != id)
            continue;
        free_texts(&all->items[i]);
        all->items[i] = all->items[--all->count];
        enter_all(all);
        return;
    }
}

void hd_credentials_keep_ended(struct hd_credentials *all,
                               const struct hd_credential_record *credential)
{
    struct ended_certificate *grown, *kept;

    if (!is_certificate(credential->kind))
        return;
    if (all->ended_count == all->ended_room) {
        size_t count = 0;

        for (size_t i = 0; i < all->ended_count; i++)
            if (all->ended[i].expires_ms > all->settled_ms - KEPT_EXPIRED_MS)
                all->ended[count++] = all->ended[i];
        all->ended_count = count;
    }
    if (all->ended_count == all->ended_room) {
        grown = realloc(all->ended, 2 * (all->ended_room + 8) * sizeof *grown);
        all->ended_lost |= !grown;
        if (!grown)
            return;
        all->ended = grown;
        all->ended_room = 2 * (all->ended_room + 8);
    }
    kept = &all->ended[all->ended_count++];
    *kept = (struct ended_certificate){.kind = credential->kind,
                                       .ended_ms = credential->ended_ms,
                                       .expires_ms = credential->expires_ms};
    (void)snprintf(kept->name, sizeof kept->name, "%s", credential->name);
    memcpy(kept->hash, credential->hash, sizeof kept->hash);
}

bool hd_credentials_was_ended(const struct hd_credentials *all, const unsigned char *hash,
                              const char *node, int64_t since_ms)
{
    for (size_t i = 0; i < all->ended_count; i++)
        if (memcmp(all->ended[i].hash, hash, sizeof all->ended[i].hash) == 0 ||
            (all->ended[i].kind == HD_CREDENTIAL_KIND_NODE &&
             strcmp(all->ended[i].name, node) == 0 && all->ended[i].ended_ms >= since_ms))
            return true;
    return all->ended_lost;
}

bool hd_credentials_knows(const struct hd_credentials *all, enum hd_credential_kind kind,
                          const char *name)
{
    for (size_t i = 0; i < all->count; i++)
        if (all->items[i].kind == kind && strcmp(all->items[i].name, name) == 0)
            return true;
    for (size_t i = 0; i < all->ended_count; i++)
        if (all->ended[i].kind == kind && strcmp(all->ended[i].name, name) == 0)
            return true;
    return false;
}

size_t hd_credentials_count(const struct hd_credentials *all)
{
    return all->count;
}

const struct hd_credential_record *hd_credentials_at(const struct hd_credentials *all, size_t index)
{
    return &all->items[index];
}

enum hd_status hd_identity_of_token(const struct hd_credentials *all, const char *token,
                                    int64_t now_ms, struct hd_identity *ret_identity)
{
    unsigned char hash[HD_PKI_HASH_BYTES];
    const struct hd_credential_record *c;
    enum hd_role role = HD_ROLE_NONE;

    hd_pki_hash(token, strlen(token), hash);
    c = hd_credentials_find(all, hash, now_ms);
    if (!c || c->kind != HD_CREDENTIAL_KIND_TOKEN || !hd_role_of(c->role, &role))
        return hd_err(HD_DENIED, "the token is wrong, has expired or was revoked");
    *ret_identity = (struct hd_identity){.role = role, .credential = c->id};
    (void)snprintf(ret_identity->name, sizeof ret_identity->name, "%s", c->name);
    return HD_OK;
}
