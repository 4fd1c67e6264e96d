/* bpe: encodes words to ids: repeatedly merges the adjacent pair of the lowest rank, the leftmost
 * of equal ranks, until no pair merges.
 *
 * Short words (at most SCAN_MAX parts) are merged by scanning, O(n^2), long ones with a heap of
 * pairs, O(n log n). Each thread has a direct-mapped cache of words, of fixed size: a new word
 * replaces the old one in its slot. */
#include <stdlib.h>
#include <string.h>

#include "base/pieces.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/word_counts.h"

enum {
    SCAN_MAX = HD_PIECE(64, 6),
    /* bytes of a cache key: the word, padded with zeros, and in the last byte its length */
    CACHE_KEY_BYTES = 32,
    CACHE_IDS = 7,
    CACHE_SLOTS = HD_PIECE(1 << 15, 5), /* slots of the cache, of 64 bytes each, 2 MiB together */
};

struct bpe_slot {
    uint64_t key[CACHE_KEY_BYTES / 8];
    int32_t count;
    int32_t ids[CACHE_IDS];
};

struct bpe_part {               /* one part of a long word, in a doubly linked list in an array */
    int32_t id, previous, next; /* previous, next: indices, -1: none; id -1: merged into another
                                   part */
    int32_t len_bytes;          /* bytes of the word that the part spells */
};

/* candidate merge of two adjacent parts in the heap; at: index of the left part */
struct bpe_pair {
    int32_t rank, at, result;
};

struct hd_words {
    const struct hd_bpe *bpe;
    struct bpe_slot *cache;
    struct bpe_part *parts;
    struct bpe_pair *heap;
    int32_t *lens; /* by id of the word: number of bytes of the word that the id spells */
    size_t part_capacity, heap_count;
    struct hd_id_list *list;
    struct hd_sp_words *sp; /* encodes words of a SentencePiece model; NULL: another tokenizer */
    struct hd_unigram_words
        *unigram; /* encodes words of a Unigram model; NULL: another tokenizer */
};

enum hd_status hd_words_new(const struct hd_bpe *bpe, struct hd_words **ret_words)
{
    struct hd_words *w = calloc(1, sizeof *w);

    if (w)
        w->cache = calloc(CACHE_SLOTS, sizeof *w->cache);
    if (!w || !w->cache) {
        hd_words_free(w);
        return hd_err(HD_NO_MEMORY, "no memory for an encoder");
    }
    w->bpe = bpe;
    if ((bpe->sp && hd_sp_words_new(bpe, &w->sp)) ||
        (bpe->unigram && hd_unigram_words_new(bpe, &w->unigram))) {
        hd_words_free(w);
        return hd_err(HD_NO_MEMORY, "no memory for an encoder");
    }
    *ret_words = w;
    return HD_OK;
}

void hd_words_free(struct hd_words *words)
{
    if (!words)
        return;
    free(words->cache);
    free(words->parts);
    free(words->heap);
    free(words->lens);
    hd_sp_words_free(words->sp);
    hd_unigram_words_free(words->unigram);
    free(words);
}

/* ---- the first ids of a word ---- */

static enum hd_status no_token(const unsigned char *at, size_t n)
{
    if (n == 1)
        return hd_err(HD_INVALID,
                      "the vocabulary has no token for byte 0x%02X; train it with the full byte "
                      "alphabet, or name an unk_token",
                      at[0]);
    return hd_err(HD_INVALID,
                  "the vocabulary has no token for the character %.*s; train it with "
                  "byte_fallback, or name an unk_token",
                  (int)n, (const char *)at);
}

struct beginning {
    const struct hd_bpe *bpe;
    /* ids of the word, and the bytes that each spells; lens NULL: not needed */
    int32_t *ids, *lens;
    size_t count;
    size_t unknown_bytes; /* bytes of an unknown token that is not written to ids yet; 0: none */
};

static void add_id(struct beginning *b, int32_t id, size_t len_bytes)
{
    if (b->lens)
        b->lens[b->count] = (int32_t)len_bytes;
    b->ids[b->count++] = id;
}

static void flush_unknown(struct beginning *b)
{
    if (b->unknown_bytes)
        add_id(b, b->bpe->unknown, b->unknown_bytes);
    b->unknown_bytes = 0;
}

static enum hd_status add_unknown(struct beginning *b, const unsigned char *at, size_t n)
{
    if (b->bpe->unknown < 0)
        return no_token(at, n);
    if (!b->bpe->fuses_unknown)
        flush_unknown(b);
    b->unknown_bytes += n;
    return HD_OK;
}

/* Returns the id of the character in bytes [at, at + n) of a word, with the model's prefix or
 * suffix; -1: it has no token. */
static int32_t find_character(const struct hd_bpe *bpe, const unsigned char *word, size_t at,
                              size_t n, size_t len_bytes)
{
    unsigned char spelt[2 * HD_BPE_AFFIX_BYTES_MAX + 4];
    const size_t before = at ? strlen(bpe->prefix) : 0;
    const size_t behind = at + n == len_bytes ? strlen(bpe->suffix) : 0;

    if (!before && !behind)
        return hd_bpe_word(bpe, word + at, n);
    memcpy(spelt, bpe->prefix, before);
    memcpy(spelt + before, word + at, n);
    memcpy(spelt + before + n, bpe->suffix, behind);
    return hd_bpe_word(bpe, spelt, before + n + behind);
}

/* Adds the token <0x..> of each byte of a character; returns false if the model lacks one of them.
 * Like the reference, writes an unknown token that is still pending only after these tokens. */
static bool add_bytes(struct beginning *b, const unsigned char *at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (b->bpe->byte_ids[at[i]] < 0)
            return false;
    for (size_t i = 0; i < n; i++)
        add_id(b, b->bpe->byte_ids[at[i]], 1);
    return true;
}

/* Writes the ids of a word from which merging starts: one per character, or one per byte if the
 * words are bytes. `ids` must have space for n. */
static enum hd_status begin_word(const struct hd_bpe *bpe, const unsigned char *word, size_t n,
                                 int32_t *ids, int32_t *lens, size_t *ret_count)
{
    struct beginning b = {.bpe = bpe, .ids = ids, .lens = lens};
    enum hd_status st = HD_OK;
    size_t bytes = 1;

    for (size_t at = 0; !st && at < n; at += bytes) {
        int32_t id;

        if (bpe->is_byte_level) {
            id = bpe->byte_ids[word[at]];
        } else {
            bytes = hd_character_bytes(word[at]);
            id = find_character(bpe, word, at, bytes, n);
        }
        if (id >= 0) {
            flush_unknown(&b);
            add_id(&b, id, bytes);
        } else if (!bpe->falls_back || !add_bytes(&b, word + at, bytes)) {
            st = add_unknown(&b, word + at, bytes);
        }
    }
    flush_unknown(&b);
    *ret_count = b.count;
    return st;
}

/* ---- short words ---- */

/* Merges the ids of a word in place; returns how many remain. */
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

/* Pushes the pair that begins at part `at`, if it can merge. The heap has space for 3 n pairs,
 * which suffices: each merge removes one pair and pushes at most two. */
static void push_pair(struct hd_words *e, int32_t at)
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

static enum hd_status reserve_parts(struct hd_words *e, size_t n)
{
    if (n > e->part_capacity) {
        free(e->parts);
        free(e->heap);
        free(e->lens);
        e->part_capacity = 0;
        e->parts = calloc(n, sizeof *e->parts);
        e->heap = calloc(n, 3 * sizeof *e->heap);
        e->lens = calloc(n, sizeof *e->lens);
        if (!e->parts || !e->heap || !e->lens)
            return hd_err(HD_NO_MEMORY, "no memory for a word of %zu bytes", n);
        e->part_capacity = n;
    }
    return HD_OK;
}

static void merge_by_heap(struct hd_words *e)
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
        if (!m || m->result != top.result) /* stale: a part has been merged with another since */
            continue;
        left->id = top.result;
        left->len_bytes += right->len_bytes;
        right->id = -1;
        left->next = right->next;
        if (left->next >= 0)
            e->parts[left->next].previous = top.at;
        if (left->previous >= 0)
            push_pair(e, left->previous);
        push_pair(e, top.at);
    }
}

/* Adds the ids of a long word, and sets e->lens to the bytes that each spells. */
static enum hd_status add_long_word(struct hd_words *e, const unsigned char *word, size_t n)
{
    const int32_t *ids;
    size_t count = 0;
    enum hd_status st = reserve_parts(e, n);

    if (!st)
        st = hd_id_list_reserve(e->list, n);
    ids = st ? NULL : e->list->ids + e->list->count;
    if (!st)
        st = begin_word(e->bpe, word, n, e->list->ids + e->list->count, e->lens, &n);
    if (st)
        return st;
    for (size_t i = 0; i < n; i++)
        e->parts[i] =
            (struct bpe_part){ids[i], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1, e->lens[i]};
    e->heap_count = 0;
    for (size_t i = 0; i + 1 < n; i++)
        push_pair(e, (int32_t)i);
    merge_by_heap(e);
    for (int32_t i = n ? 0 : -1; i >= 0; i = e->parts[i].next) {
        e->lens[count++] = e->parts[i].len_bytes;
        e->list->ids[e->list->count++] = e->parts[i].id;
    }
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

static struct bpe_slot *slot_of(struct hd_words *e, const uint64_t *key)
{
    const uint64_t h = hd_mix64(key[0] ^ hd_mix64(key[1] ^ hd_mix64(key[2] ^ hd_mix64(key[3]))));

    return &e->cache[h % CACHE_SLOTS];
}

static enum hd_status add_short_word(struct hd_words *e, const unsigned char *word, size_t n)
{
    int32_t *ids;
    enum hd_status st = hd_id_list_reserve(e->list, n);

    if (st)
        return st;
    ids = e->list->ids + e->list->count;
    st = begin_word(e->bpe, word, n, ids, NULL, &n);
    if (!st)
        e->list->count += merge_by_scanning(e->bpe, ids, n);
    return st;
}

static enum hd_status add_whole(struct hd_words *e, int32_t id)
{
    enum hd_status st = hd_id_list_reserve(e->list, 1);

    if (!st)
        e->list->ids[e->list->count++] = id;
    return st;
}

static enum hd_status spell_word(const unsigned char *word, size_t n, struct hd_id_list *list)
{
    const enum hd_status st = hd_id_list_reserve(list, n + 1);

    for (size_t i = 0; !st && i < n; i++)
        list->ids[list->count++] = word[i];
    if (!st)
        list->ids[list->count++] = HD_WORD_END;
    return st;
}

enum hd_status hd_words_add(struct hd_words *words, const unsigned char *word, size_t len_bytes,
                            struct hd_id_list *list)
{
    const size_t before = list->count;
    struct bpe_slot *slot = NULL;
    uint64_t key[CACHE_KEY_BYTES / 8];
    int32_t whole;
    enum hd_status st;

    if (words->bpe->spells_words)
        return spell_word(word, len_bytes, list);
    words->list = list;
    if (len_bytes < CACHE_KEY_BYTES) {
        load_key(word, len_bytes, key);
        slot = slot_of(words, key);
        if (memcmp(slot->key, key, sizeof key) == 0) {
            st = hd_id_list_reserve(list, CACHE_IDS);
            if (st)
                return st;
            memcpy(list->ids + before, slot->ids, sizeof slot->ids);
            list->count += (size_t)slot->count;
            return HD_OK;
        }
    }
    whole = words->bpe->ignores_merges ? hd_bpe_word(words->bpe, word, len_bytes) : -1;
    if (whole >= 0)
        st = add_whole(words, whole);
    else if (words->sp)
        st = hd_sp_words_add(words->sp, word, len_bytes, list, NULL);
    else if (words->unigram)
        st = hd_unigram_words_add(words->unigram, word, len_bytes, list, NULL);
    else
        st = len_bytes <= SCAN_MAX ? add_short_word(words, word, len_bytes)
                                   : add_long_word(words, word, len_bytes);
    if (!st && slot && list->count - before <= CACHE_IDS) {
        memcpy(slot->key, key, sizeof key);
        slot->count = (int32_t)(list->count - before);
        memcpy(slot->ids, list->ids + before, (size_t)slot->count * sizeof slot->ids[0]);
    }
    return st;
}

enum hd_status hd_words_add_lens(struct hd_words *words, const unsigned char *word,
                                 size_t len_bytes, struct hd_id_list *list,
                                 const int32_t **ret_lens)
{
    const int32_t whole =
        words->bpe->ignores_merges ? hd_bpe_word(words->bpe, word, len_bytes) : -1;
    enum hd_status st = reserve_parts(words, len_bytes);

    words->list = list;
    if (!st && words->sp) {
        st = hd_sp_words_add(words->sp, word, len_bytes, list, words->lens);
    } else if (!st && words->unigram) {
        st = hd_unigram_words_add(words->unigram, word, len_bytes, list, words->lens);
    } else if (!st && whole >= 0) {
        words->lens[0] = (int32_t)len_bytes;
        st = add_whole(words, whole);
    } else if (!st) {
        st = add_long_word(words, word, len_bytes);
    }
    *ret_lens = words->lens;
    return st;
}
