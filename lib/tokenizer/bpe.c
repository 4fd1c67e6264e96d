/* bpe: words into ids: repeatedly merges the adjacent pair of the lowest rank, the leftmost of
 * equal ranks, until no pair merges.
 *
 * Short words (at most SCAN_MAX parts) by scanning, O(n^2); long ones with a heap of pairs, O(n log
 * n). Each thread has a direct-mapped cache of words, of fixed size: a new word replaces the old
 * one in its slot. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "tokenizer/tokenizer_internal.h"

enum {
    SCAN_MAX = 64,
    CACHE_KEY_BYTES = 32, /* the word, zeros; the last byte is its length */
    CACHE_IDS = 7,
    CACHE_SLOTS = 1 << 15, /* x 64 bytes = 2 MiB */
};

struct bpe_slot {
    uint64_t key[CACHE_KEY_BYTES / 8];
    int32_t count;
    int32_t ids[CACHE_IDS];
};

struct bpe_part {               /* of a long word: a doubly linked list in an array */
    int32_t id, previous, next; /* -1: none; id -1: merged into another part */
};

struct bpe_pair { /* in the heap */
    int32_t rank, at, result;
};

struct hd_bpe_encoder {
    const struct hd_bpe *bpe;
    struct hd_regex_scratch *scratch;
    struct bpe_slot *cache;
    struct hd_text normal;                   /* a piece in normal form C */
    struct hd_text spaced[HD_BPE_STEPS_MAX]; /* per step: a piece with an added space */
    struct bpe_part *parts;
    struct bpe_pair *heap;
    size_t part_room, heap_room, heap_count;
    struct hd_text prefixed; /* a piece with the space in front of it */
    size_t *guards;          /* of a piece, in its normal form */
    size_t guard_room, guards_passed;
    struct hd_id_list *list;
    struct hd_encoder_mark *mark, *last_mark; /* those that have no token yet; `token` of those in
                                                 the present piece is a place in its normal form */
    const struct hd_encoder_mark *piece_end;  /* the first one behind the piece */
};

enum hd_status hd_bpe_encoder_new(const struct hd_bpe *bpe, struct hd_bpe_encoder **ret_encoder)
{
    struct hd_bpe_encoder *e = calloc(1, sizeof *e);
    enum hd_status st;

    if (!e)
        return hd_err(HD_NO_MEMORY, "no memory for an encoder");
    e->bpe = bpe;
    e->cache = calloc(CACHE_SLOTS, sizeof *e->cache);
    st = e->cache ? hd_regex_scratch_new(&e->scratch)
                  : hd_err(HD_NO_MEMORY, "no memory for an encoder");
    if (st) {
        hd_bpe_encoder_free(e);
        return st;
    }
    *ret_encoder = e;
    return HD_OK;
}

void hd_bpe_encoder_free(struct hd_bpe_encoder *encoder)
{
    if (!encoder)
        return;
    hd_regex_scratch_free(encoder->scratch);
    free(encoder->cache);
    free(encoder->parts);
    free(encoder->heap);
    hd_text_free(&encoder->normal);
    hd_text_free(&encoder->prefixed);
    free(encoder->guards);
    for (int i = 0; i < HD_BPE_STEPS_MAX; i++)
        hd_text_free(&encoder->spaced[i]);
    free(encoder);
}

int32_t hd_bpe_word(const struct hd_bpe *bpe, const unsigned char *bytes, size_t len_bytes)
{
    for (uint64_t i = hd_mix64(hd_hash_bytes(bytes, len_bytes)) & bpe->word_mask;;
         i = (i + 1) & bpe->word_mask) {
        const int32_t id = bpe->words[i];

        if (id < 0)
            return -1;
        if (bpe->texts[id].len_bytes == len_bytes &&
            memcmp(bpe->texts[id].bytes, bytes, len_bytes) == 0)
            return id;
    }
}

static enum hd_status no_token(unsigned char byte)
{
    return hd_err(HD_INVALID,
                  "the vocabulary has no token for byte 0x%02X; train it with the full byte "
                  "alphabet",
                  byte);
}

static size_t character_bytes(unsigned char lead)
{
    return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/* The ids that a word begins with: of its bytes, or with byte fallback of its characters. Room for
 * n ids. */
static enum hd_status begin_word(const struct hd_bpe *bpe, const unsigned char *word, size_t n,
                                 int32_t *ids, size_t *ret_count)
{
    size_t count = 0;

    for (size_t at = 0; at < n;) {
        const size_t bytes = bpe->falls_back ? character_bytes(word[at]) : 1;
        const int32_t whole = bpe->falls_back ? hd_bpe_word(bpe, word + at, bytes) : -1;

        if (whole >= 0) {
            ids[count++] = whole;
            at += bytes;
            continue;
        }
        for (const size_t end = at + bytes; at < end; at++) {
            ids[count] = bpe->byte_ids[word[at]];
            if (ids[count++] < 0)
                return no_token(word[at]);
        }
    }
    *ret_count = count;
    return HD_OK;
}

/* ---- short words ---- */

/* Merges ids[0, n) in place; returns how many ids are left. */
static size_t merge_by_scanning(const struct hd_bpe *bpe, int32_t *ids, size_t n)
{
    const struct hd_merge *merges[SCAN_MAX];

    for (size_t i = 0; i + 1 < n; i++)
        merges[i] = hd_bpe_merge(bpe, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = n;

        for (size_t i = 0; i + 1 < n; i++)
            if (merges[i] && (best == n || merges[i]->rank < merges[best]->rank))
                best = i;
        if (best == n)
            break;
        ids[best] = merges[best]->result;
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        if (best + 2 < n)
            memmove(merges + best, merges + best + 1, (n - best - 2) * sizeof(merges[0]));
        n--;
        if (best > 0)
            merges[best - 1] = hd_bpe_merge(bpe, ids[best - 1], ids[best]);
        if (best + 1 < n)
            merges[best] = hd_bpe_merge(bpe, ids[best], ids[best + 1]);
    }
    return n;
}

/* ---- long words ---- */

static bool is_before(struct bpe_pair a, struct bpe_pair b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void sift_down(struct bpe_pair *heap, size_t count, size_t i)
{
    const struct bpe_pair item = heap[i];

    for (size_t child = 2 * i + 1; child < count; child = 2 * i + 1) {
        if (child + 1 < count && is_before(heap[child + 1], heap[child]))
            child++;
        if (!is_before(heap[child], item))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = item;
}

/* 3 n pairs are enough: each merge removes one pair and pushes at most two. */
static void push_pair(struct hd_bpe_encoder *e, int32_t at)
{
    const struct bpe_part *left = &e->parts[at];
    const struct hd_merge *m =
        left->next < 0 ? NULL : hd_bpe_merge(e->bpe, left->id, e->parts[left->next].id);
    size_t i = e->heap_count;
    struct bpe_pair item;

    if (!m)
        return;
    item = (struct bpe_pair){m->rank, at, m->result};
    e->heap_count++;
    for (; i && is_before(item, e->heap[(i - 1) / 2]); i = (i - 1) / 2)
        e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = item;
}

static enum hd_status reserve_parts(struct hd_bpe_encoder *e, size_t n)
{
    if (n > e->part_room) {
        free(e->parts);
        free(e->heap);
        e->part_room = 0;
        e->parts = calloc(n, sizeof *e->parts);
        e->heap = calloc(n, 3 * sizeof *e->heap);
        if (!e->parts || !e->heap)
            return hd_err(HD_NO_MEMORY, "no memory for a word of %zu bytes", n);
        e->part_room = n;
    }
    return HD_OK;
}

static void merge_by_heap(struct hd_bpe_encoder *e)
{
    while (e->heap_count) {
        const struct bpe_pair top = e->heap[0];
        struct bpe_part *left = &e->parts[top.at], *right;
        const struct hd_merge *m;

        e->heap[0] = e->heap[--e->heap_count];
        if (e->heap_count)
            sift_down(e->heap, e->heap_count, 0);
        if (left->id < 0 || left->next < 0)
            continue;
        right = &e->parts[left->next];
        m = hd_bpe_merge(e->bpe, left->id, right->id);
        if (!m || m->rank != top.rank) /* stale: a part was merged with another since */
            continue;
        left->id = top.result;
        right->id = -1;
        left->next = right->next;
        if (left->next >= 0)
            e->parts[left->next].previous = top.at;
        if (left->previous >= 0)
            push_pair(e, left->previous);
        push_pair(e, top.at);
    }
}

static enum hd_status add_long_word(struct hd_bpe_encoder *e, const unsigned char *word, size_t n)
{
    const int32_t *ids;
    enum hd_status st = reserve_parts(e, n);

    if (!st)
        st = hd_id_list_reserve(e->list, n);
    ids = st ? NULL : e->list->ids + e->list->count;
    if (!st)
        st = begin_word(e->bpe, word, n, e->list->ids + e->list->count, &n);
    if (st)
        return st;
    for (size_t i = 0; i < n; i++)
        e->parts[i] = (struct bpe_part){ids[i], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1};
    e->heap_count = 0;
    for (size_t i = 0; i + 1 < n; i++)
        push_pair(e, (int32_t)i);
    merge_by_heap(e);
    for (int32_t i = 0; i >= 0; i = e->parts[i].next)
        e->list->ids[e->list->count++] = e->parts[i].id;
    return HD_OK;
}

/* ---- words ---- */

static void load_key(const unsigned char *word, size_t n, uint64_t key[CACHE_KEY_BYTES / 8])
{
    unsigned char bytes[CACHE_KEY_BYTES] = {0};

    memcpy(bytes, word, n);
    bytes[CACHE_KEY_BYTES - 1] = (unsigned char)n;
    memcpy(key, bytes, sizeof bytes);
}

static struct bpe_slot *slot_of(struct hd_bpe_encoder *e, const uint64_t *key)
{
    const uint64_t h = hd_mix64(key[0] ^ hd_mix64(key[1] ^ hd_mix64(key[2] ^ hd_mix64(key[3]))));

    return &e->cache[h % CACHE_SLOTS];
}

static enum hd_status add_short_word(struct hd_bpe_encoder *e, const unsigned char *word, size_t n)
{
    int32_t *ids;
    enum hd_status st = hd_id_list_reserve(e->list, n);

    if (st)
        return st;
    ids = e->list->ids + e->list->count;
    st = begin_word(e->bpe, word, n, ids, &n);
    if (!st)
        e->list->count += merge_by_scanning(e->bpe, ids, n);
    return st;
}

static enum hd_status add_whole(struct hd_bpe_encoder *e, int32_t id)
{
    enum hd_status st = hd_id_list_reserve(e->list, 1);

    if (!st)
        e->list->ids[e->list->count++] = id;
    return st;
}

/* Gives tokens to the marks in front of `end`, a place in the piece; the ids from list->ids[first]
 * on are those of the text from `at` on. */
static void place_marks(struct hd_bpe_encoder *e, int64_t at, size_t first)
{
    for (size_t i = first; e->mark < e->piece_end && i < e->list->count; i++) {
        at += e->bpe->texts[e->list->ids[i]].len_bytes;
        while (e->mark < e->piece_end && (int64_t)e->mark->token < at)
            e->mark++->token = i;
    }
}

static enum hd_status add_word(struct hd_bpe_encoder *e, const unsigned char *word, size_t n)
{
    const size_t before = e->list->count;
    struct bpe_slot *slot = NULL;
    uint64_t key[CACHE_KEY_BYTES / 8];
    int32_t whole;
    enum hd_status st;

    if (n < CACHE_KEY_BYTES) {
        load_key(word, n, key);
        slot = slot_of(e, key);
        if (memcmp(slot->key, key, sizeof key) == 0) {
            st = hd_id_list_reserve(e->list, CACHE_IDS);
            if (st)
                return st;
            memcpy(e->list->ids + before, slot->ids, sizeof slot->ids);
            e->list->count += (size_t)slot->count;
            return HD_OK;
        }
    }
    whole = e->bpe->ignores_merges ? hd_bpe_word(e->bpe, word, n) : -1;
    if (whole >= 0)
        st = add_whole(e, whole);
    else
        st = n <= SCAN_MAX ? add_short_word(e, word, n) : add_long_word(e, word, n);
    if (!st && slot && e->list->count - before <= CACHE_IDS) {
        memcpy(slot->key, key, sizeof key);
        slot->count = (int32_t)(e->list->count - before);
        memcpy(slot->ids, e->list->ids + before, (size_t)slot->count * sizeof slot->ids[0]);
    }
    return st;
}

/* ---- pre-tokenizers ---- */

/* `place`: where the text begins in its piece; -1 where it begins with a space that was put in
 * front of the piece. */
static enum hd_status split(struct hd_bpe_encoder *e, int step, const unsigned char *text,
                            size_t len_bytes, int64_t place);

struct bpe_piece {
    size_t from, to;
    bool is_match;
};

/* Passes the pieces of a split to the next step; `held` may be joined with the next piece. */
struct splitter {
    struct hd_bpe_encoder *encoder;
    int step;
    const unsigned char *text;
    int64_t place; /* of the text */
    struct bpe_piece held;
    bool has_held;
};

static enum hd_status split_on(const struct splitter *s, struct bpe_piece piece)
{
    return split(s->encoder, s->step + 1, s->text + piece.from, piece.to - piece.from,
                 s->place + (int64_t)piece.from);
}

static enum hd_status flush(struct splitter *s)
{
    if (!s->has_held)
        return HD_OK;
    s->has_held = false;
    return split_on(s, s->held);
}

static bool joins(enum hd_split_behavior behavior, bool before, bool now)
{
    switch (behavior) {
    case HD_SPLIT_MERGED_WITH_PREVIOUS:
        return now && !before;
    case HD_SPLIT_MERGED_WITH_NEXT:
        return before && !now;
    case HD_SPLIT_CONTIGUOUS:
        return now == before;
    default:
        return false;
    }
}

static enum hd_status pass_on(struct splitter *s, struct bpe_piece piece)
{
    const struct hd_split_step *step = &s->encoder->bpe->steps[s->step];
    enum hd_status st;

    if (piece.from == piece.to)
        return HD_OK;
    piece.is_match ^= step->invert;
    if (step->behavior == HD_SPLIT_ISOLATED)
        return split_on(s, piece);
    if (step->behavior == HD_SPLIT_REMOVED)
        return piece.is_match ? HD_OK : split_on(s, piece);
    if (s->has_held && joins(step->behavior, s->held.is_match, piece.is_match)) {
        s->held.to = piece.to;
        s->held.is_match = piece.is_match;
        return HD_OK;
    }
    st = flush(s);
    s->held = piece;
    s->has_held = true;
    return st;
}

/* The words of a piece. Of a BPE with byte fallback they end in front of a space, where the
 * vocabulary allows it (struct hd_bpe). */
static enum hd_status add_words(struct hd_bpe_encoder *e, const unsigned char *text,
                                size_t len_bytes, int64_t place)
{
    enum hd_status st = HD_OK;

    for (size_t at = 0; !st && at < len_bytes;) {
        const size_t first = e->list->count;
        size_t end = len_bytes;

        if (e->bpe->parts_at_spaces)
            for (end = at + 1; end < len_bytes && (text[end] != ' ' || text[end - 1] == ' ');)
                end++;
        st = add_word(e, text + at, end - at);
        if (!st)
            place_marks(e, place + (int64_t)at, first);
        at = end;
    }
    return st;
}

/* Splits `text` by the steps from `step` on, then adds the words. */
static enum hd_status split(struct hd_bpe_encoder *e, int step, const unsigned char *text,
                            size_t len_bytes, int64_t place)
{
    struct splitter s = {.encoder = e, .step = step};
    const struct hd_split_step *how = &e->bpe->steps[step];
    enum hd_status st = HD_OK;
    size_t at = 0;

    if (!len_bytes)
        return HD_OK;
    if (step == e->bpe->step_count)
        return add_words(e, text, len_bytes, place);
    if (how->adds_space && text[0] != ' ') {
        hd_text_clear(&e->spaced[step]);
        hd_text_add_bytes(&e->spaced[step], " ", 1);
        hd_text_add_bytes(&e->spaced[step], text, len_bytes);
        if (e->spaced[step].failed)
            return hd_err(HD_NO_MEMORY, "no memory for a piece of %zu bytes", len_bytes);
        text = (const unsigned char *)e->spaced[step].data;
        len_bytes++;
        place--;
    }
    if (!how->regex)
        return split(e, step + 1, text, len_bytes, place);
    s.place = place;
    s.text = text;
    while (!st && at < len_bytes) {
        size_t from = len_bytes, to = len_bytes;
        bool found = false;

        st = hd_regex_find(how->regex, e->scratch, text, len_bytes, at, &found, &from, &to);
        if (!st)
            st = pass_on(&s, (struct bpe_piece){at, found ? from : len_bytes, false});
        if (!st && found)
            st = pass_on(&s, (struct bpe_piece){from, to, true});
        at = to;
        if (!found)
            break;
    }
    return st ? st : flush(&s);
}

/* ---- texts ---- */

static bool is_ascii(const unsigned char *text, size_t n)
{
    unsigned char all = 0;

    for (size_t i = 0; i < n; i++)
        all |= text[i];
    return all < 0x80;
}

/* An added token, up to `end` of its text or piece. */
static enum hd_status add_token(struct hd_bpe_encoder *e, int32_t id, size_t end)
{
    while (e->mark < e->piece_end && e->mark->token < end)
        e->mark++->token = e->list->count;
    return add_whole(e, id);
}

/* Adds the normal form of text[0, n) to e->normal; *ret_differs false: it is the text itself, and
 * nothing is added. */
static enum hd_status add_normal(struct hd_bpe_encoder *e, const unsigned char *text, size_t n,
                                 bool *ret_differs)
{
    *ret_differs = e->bpe->falls_back || (e->bpe->is_nfc && !is_ascii(text, n));
    if (!*ret_differs)
        return HD_OK;
    if (!e->bpe->falls_back)
        return hd_nfc(text, n, &e->normal);
    hd_bpe_add_spaces((const char *)text, n, &e->normal);
    return e->normal.failed ? hd_err(HD_NO_MEMORY, "no memory for a text") : HD_OK;
}

/* Bytes that stand in front of each piece's normal form: the space, or none. */
static size_t space_bytes(const struct hd_bpe_encoder *e)
{
    return e->bpe->falls_back && e->bpe->prefix == HD_PREFIX_NORMAL;
}

/* Makes the normal form of a piece in e->normal; *ret_differs false: it is the text itself. */
static enum hd_status normalise(struct hd_bpe_encoder *e, const unsigned char *text, size_t n,
                                bool *ret_differs)
{
    hd_text_clear(&e->normal);
    hd_text_add_bytes(&e->normal, " ", space_bytes(e));
    return add_normal(e, text, n, ret_differs);
}

/* Places of a piece in ascending order. What was passed is not normalised again: nothing in front
 * of an ASCII character joins it, so what stands up to there has a normal form of its own. */
struct place_walk {
    size_t at, place; /* an ASCII character, or the beginning: in the text, in its normal form */
};

static enum hd_status normal_bytes(struct hd_bpe_encoder *e, const unsigned char *text, size_t n,
                                   size_t *ret_bytes)
{
    bool differs = false;
    enum hd_status st;

    hd_text_clear(&e->normal);
    st = add_normal(e, text, n, &differs);
    *ret_bytes = differs ? e->normal.len_bytes : n;
    return st;
}

/* A place of a piece, not before the last one, in the normal form of that piece. */
static enum hd_status normal_place(struct hd_bpe_encoder *e, const unsigned char *text, size_t at,
                                   struct place_walk *walk, size_t *ret_place)
{
    enum hd_status st = HD_OK;
    size_t ascii = at, bytes = 0;

    while (ascii > walk->at && (ascii == at || text[ascii] >= 0x80))
        ascii--;
    if (ascii > walk->at) {
        st = normal_bytes(e, text + walk->at, ascii - walk->at, &bytes);
        *walk = (struct place_walk){ascii, walk->place + bytes};
    }
    if (!st)
        st = normal_bytes(e, text + walk->at, at - walk->at, &bytes);
    *ret_place = walk->place + bytes;
    return st;
}

/* The guards of the piece text[0, n), which begins at `from`, in its normal form. */
static enum hd_status place_guards(struct hd_bpe_encoder *e, const unsigned char *text, size_t n,
                                   size_t from, const struct hd_encoder_places *places,
                                   struct hd_added_walk *walk)
{
    struct place_walk at = {.place = space_bytes(e)};
    const size_t *guards = places->guards;
    size_t first = e->guards_passed, end;
    enum hd_status st = HD_OK;

    while (first < places->guard_count && guards[first] < from)
        first++;
    for (end = first; end < places->guard_count && guards[end] < from + n;)
        end++;
    e->guards_passed = end;
    if (end - first > e->guard_room) {
        free(e->guards);
        e->guards = calloc(end - first, sizeof *e->guards);
        e->guard_room = e->guards ? end - first : 0;
        if (!e->guards)
            return hd_err(HD_NO_MEMORY, "no memory for the places of a text");
    }
    for (size_t i = first; !st && i < end; i++)
        st = normal_place(e, text, guards[i] - from, &at, &e->guards[i - first]);
    walk->guards = e->guards;
    walk->guard_count = end - first;
    return st;
}

/* Turns the marks and guards of the piece text[0, n), which begins at `from`, into places in its
 * normal form. */
static enum hd_status place_piece(struct hd_bpe_encoder *e, const unsigned char *text, size_t n,
                                  size_t from, const struct hd_encoder_places *places,
                                  struct hd_added_walk *walk)
{
    struct place_walk at = {.place = space_bytes(e)};
    struct hd_encoder_mark *m = e->mark;
    enum hd_status st = HD_OK;

    for (; !st && m < e->last_mark && m->at < from + n; m++) {
        /* An end is at the last byte of a character: the normal form is of whole characters. */
        st = normal_place(e, text, m->at - from + m->is_end, &at, &m->token);
        m->token -= m->is_end;
        if (m->at == from && !m->is_end)
            m->token = 0; /* with the space in front */
    }
    e->piece_end = m;
    return st ? st : place_guards(e, text, n, from, places, walk);
}

/* A text without added tokens: text[0, n) at `place` of its piece. */
static enum hd_status add_plain(struct hd_bpe_encoder *e, const unsigned char *text, size_t n,
                                size_t place, bool is_first)
{
    const enum hd_bpe_prefix prefix = e->bpe->prefix;

    if (text[0] == ' ' || !(prefix == HD_PREFIX_PIECE || (prefix == HD_PREFIX_FIRST && is_first)))
        return split(e, 0, text, n, (int64_t)place);
    if (e->mark < e->piece_end && e->mark->token == place && !e->mark->is_end)
        e->mark->token--; /* the space; of place 0 it is -1 (place_marks) */
    hd_text_clear(&e->prefixed);
    hd_text_add_bytes(&e->prefixed, " ", 1);
    hd_text_add_bytes(&e->prefixed, text, n);
    if (e->prefixed.failed)
        return hd_err(HD_NO_MEMORY, "no memory for a piece of %zu bytes", n);
    return split(e, 0, (const unsigned char *)e->prefixed.data, n + 1, (int64_t)place - 1);
}

/* Encodes a piece between added tokens that are not `normalized`, which begins at `from`. */
static enum hd_status add_piece(struct hd_bpe_encoder *e, const unsigned char *text, size_t n,
                                size_t from, const struct hd_encoder_places *places)
{
    struct hd_added_walk walk = {.bpe = e->bpe, .set = &e->bpe->normalized};
    struct hd_added_piece piece;
    bool differs = false;
    enum hd_status st = places ? place_piece(e, text, n, from, places, &walk) : HD_OK;

    if (!st)
        st = normalise(e, text, n, &differs);
    walk.text = differs ? (const unsigned char *)e->normal.data : text;
    walk.len_bytes = differs ? e->normal.len_bytes : n;
    while (!st && hd_added_next(&walk, &piece))
        st = piece.id >= 0 ? add_token(e, piece.id, piece.to)
                           : add_plain(e, walk.text + piece.from, piece.to - piece.from, piece.from,
                                       from + piece.from == 0);
    e->piece_end = e->mark;
    return st;
}

enum hd_status hd_bpe_encode(struct hd_bpe_encoder *encoder, const unsigned char *text,
                             size_t len_bytes, struct hd_encoder_places *places,
                             struct hd_id_list *list)
{
    struct hd_added_walk walk = {
        .bpe = encoder->bpe, .set = &encoder->bpe->plain, .text = text, .len_bytes = len_bytes};
    struct hd_added_piece piece;
    enum hd_status st = HD_OK;

    if (len_bytes > HD_BPE_TEXT_BYTES_MAX)
        return hd_err(HD_LIMIT, "a text of %zu bytes; at most %d are encoded as one", len_bytes,
                      HD_BPE_TEXT_BYTES_MAX);
    encoder->list = list;
    encoder->mark = places ? places->marks : NULL;
    encoder->last_mark = places ? places->marks + places->mark_count : NULL;
    encoder->piece_end = encoder->mark;
    encoder->guards_passed = 0;
    walk.guards = places ? places->guards : NULL;
    walk.guard_count = places ? places->guard_count : 0;
    while (!st && hd_added_next(&walk, &piece)) {
        if (piece.id < 0) {
            st = add_piece(encoder, text + piece.from, piece.to - piece.from, piece.from, places);
            continue;
        }
        while (encoder->mark < encoder->last_mark && encoder->mark->at < piece.to)
            encoder->mark++->token = list->count;
        st = add_whole(encoder, piece.id);
    }
    while (encoder->mark < encoder->last_mark)
        encoder->mark++->token = list->count;
    return st;
}
