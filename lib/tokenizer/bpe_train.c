/* bpe_train: the merges of a BPE.
 *
 * A heap has entries of a pair, its count when it was queued, and the words that have it. Counts
 * only become stale by falling: the entry on top with a stale count goes back with the right one,
 * else its pair is merged in its words, and the pairs that this creates are queued. A new token may
 * exist already, made of other parts; then one pair can have several entries, with different words,
 * and one merge can occur twice, of which the later one counts (Hugging Face tokenizers does the
 * same, so merges are equal). The count of a merged pair is kept for that reason. */
#include "tokenizer/bpe_train.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "tokenizer/tokenizer_internal.h"

enum { LETTERS = 256, REPORTS = 100 };

struct pair_words { /* indices of words, ascending */
    int32_t *items;
    uint32_t count, capacity;
};

struct trained_pair {
    uint64_t key;            /* left id << 32 | right id; with count and list: a row of the table */
    int64_t count;           /* occurrences in the text */
    struct pair_words fresh; /* words in which the current merge created the pair */
    bool is_used;
};

struct queued_pair {
    int64_t count;
    uint64_t key;
    struct pair_words words;
};

struct trained_word {
    uint64_t at; /* index in `ids` of the word's first token */
    uint32_t length;
    int64_t count;
};

struct bpe_trainer {
    const struct hd_bpe_training *how;
    struct hd_arena arena; /* bytes of tokens */
    struct hd_bpe_token *tokens;
    int32_t token_count;
    int32_t *by_bytes; /* [token_mask + 1] hash table of tokens by their bytes; -1: free */
    uint64_t token_mask;
    struct trained_word *words;
    int64_t word_count;
    int32_t *ids;               /* tokens of all words */
    struct trained_pair *pairs; /* [pair_mask + 1] hash table */
    uint64_t pair_mask, pair_count;
    uint64_t *touched; /* keys of the pairs that the current merge created */
    size_t touched_count, touched_capacity;
    struct queued_pair *heap;
    size_t heap_count, heap_capacity;
    struct hd_bpe_rule *merges;
    int32_t merge_count, merge_capacity;
};

/* Doubles an array when it is full. */
static bool grow_array(void **array, size_t count, size_t *capacity, size_t item_bytes)
{
    const size_t next = *capacity ? 2 * *capacity : 64;
    void *more;

    if (count < *capacity)
        return true;
    more = realloc(*array, next * item_bytes);
    if (!more)
        return false;
    *array = more;
    *capacity = next;
    return true;
}

/* ---- tokens ---- */

/* Returns the row of the token with these bytes, or the free row for it. */
static int32_t *find_token_row(const struct bpe_trainer *t, const unsigned char *bytes,
                               uint32_t len_bytes)
{
    uint64_t i = hd_mix64(hd_hash_bytes(bytes, len_bytes)) & t->token_mask;

    while (t->by_bytes[i] >= 0) {
        const struct hd_bpe_token *token = &t->tokens[t->by_bytes[i]];

        if (token->len_bytes == len_bytes && memcmp(token->bytes, bytes, len_bytes) == 0)
            break;
        i = (i + 1) & t->token_mask;
    }
    return &t->by_bytes[i];
}

/* Decodes a special token, written in the letters of the byte-level alphabet, into bytes, and sets
 * *ret_len to their number; 0: it has a character that the alphabet lacks, so no word can be that
 * token. */
static void spell_special(const char *content, unsigned char *ret_bytes, uint32_t *ret_len)
{
    const unsigned char *p = (const unsigned char *)content;
    size_t n = 0;

    for (*ret_len = 0; *p; p += n) {
        const int byte = hd_byte_of_letter(hd_character_code(p, &n));

        if (byte < 0) {
            *ret_len = 0;
            return;
        }
        ret_bytes[(*ret_len)++] = (unsigned char)byte;
    }
}

/* Adds the special tokens. A word that spells one, such as a letter, is that token. */
static enum hd_status add_specials(struct bpe_trainer *t)
{
    for (int i = 0; i < t->how->special_count; i++) {
        const char *content = t->how->specials[i];
        unsigned char *spelt = hd_arena_alloc(&t->arena, strlen(content) + 1);
        uint32_t len;

        if (!spelt)
            return hd_err(HD_NO_MEMORY, "no memory to train a tokenizer");
        spell_special(content, spelt, &len);
        t->tokens[t->token_count] =
            (struct hd_bpe_token){.bytes = spelt, .len_bytes = len, .is_special = true};
        if (len && *find_token_row(t, spelt, len) < 0)
            *find_token_row(t, spelt, len) = t->token_count;
        t->token_count++;
    }
    return HD_OK;
}

static int32_t put_token(struct bpe_trainer *t, const unsigned char *bytes, uint32_t len_bytes)
{
    int32_t *row = find_token_row(t, bytes, len_bytes);

    if (*row < 0) {
        t->tokens[t->token_count] = (struct hd_bpe_token){.bytes = bytes, .len_bytes = len_bytes};
        *row = t->token_count++;
    }
    return *row;
}

/* Adds the 256 letters in the order of their code points. */
static enum hd_status add_alphabet(struct bpe_trainer *t, int32_t ret_ids[LETTERS])
{
    unsigned char *bytes = hd_arena_alloc(&t->arena, LETTERS);

    if (!bytes)
        return hd_err(HD_NO_MEMORY, "no memory to train a tokenizer");
    for (uint32_t code = 0, found = 0; found < LETTERS; code++) {
        const int byte = hd_byte_of_letter(code);

        if (byte < 0)
            continue;
        bytes[found] = (unsigned char)byte;
        ret_ids[byte] = put_token(t, bytes + found, 1);
        found++;
    }
    return HD_OK;
}

static enum hd_status make_tokens(struct bpe_trainer *t)
{
    const size_t capacity = (size_t)t->how->vocab + LETTERS + (size_t)t->how->special_count;

    t->tokens = calloc(capacity, sizeof *t->tokens);
    t->token_mask = 1;
    while (t->token_mask < 2 * capacity)
        t->token_mask *= 2;
    t->by_bytes = malloc(t->token_mask * sizeof *t->by_bytes);
    if (!t->tokens || !t->by_bytes)
        return hd_err(HD_NO_MEMORY, "no memory to train a tokenizer");
    memset(t->by_bytes, 0xFF, t->token_mask * sizeof *t->by_bytes);
    t->token_mask--;
    return add_specials(t);
}

/* ---- words ---- */

static enum hd_status load_words(struct bpe_trainer *t, const struct hd_word_counts *words,
                                 const int32_t letters[LETTERS])
{
    uint64_t at = 0;

    if (words->used > INT32_MAX)
        return hd_err(HD_LIMIT, "more than %d different words", INT32_MAX);
    t->words = calloc((size_t)words->used + 1, sizeof *t->words);
    t->ids = calloc((size_t)words->len_bytes + 1, sizeof *t->ids);
    if (!t->words || !t->ids)
        return hd_err(HD_NO_MEMORY, "no memory to train a tokenizer");
    for (uint64_t i = 0; words->rows && i <= words->mask; i++) {
        const struct hd_word_count *row = &words->rows[i];

        if (!row->count)
            continue;
        t->words[t->word_count++] =
            (struct trained_word){.at = at, .length = row->len_bytes, .count = row->count};
        for (uint32_t k = 0; k < row->len_bytes; k++)
            t->ids[at++] = letters[words->bytes[row->at + k]];
    }
    return HD_OK;
}

/* ---- pairs ---- */

static struct trained_pair *find_pair_row(const struct bpe_trainer *t, uint64_t key)
{
    uint64_t i = hd_mix64(key) & t->pair_mask;

    while (t->pairs[i].is_used && t->pairs[i].key != key)
        i = (i + 1) & t->pair_mask;
    return &t->pairs[i];
}

static enum hd_status grow_pairs(struct bpe_trainer *t)
{
    struct trained_pair *old = t->pairs;
    const uint64_t old_count = old ? t->pair_mask + 1 : 0, next = old ? 2 * old_count : 1 << 16;

    if (2 * (t->pair_count + 1) <= old_count)
        return HD_OK;
    t->pairs = calloc(next, sizeof *t->pairs);
    if (!t->pairs) {
        t->pairs = old;
        return hd_err(HD_NO_MEMORY, "no memory to train a tokenizer");
    }
    t->pair_mask = next - 1;
    for (uint64_t i = 0; i < old_count; i++)
        if (old[i].is_used)
            *find_pair_row(t, old[i].key) = old[i];
    free(old);
    return HD_OK;
}

static enum hd_status add_to_list(struct pair_words *list, int32_t word)
{
    const uint32_t capacity = list->capacity ? list->capacity + list->capacity / 2 + 1 : 2;
    int32_t *items;

    if (list->count && list->items[list->count - 1] == word)
        return HD_OK;
    if (list->count == list->capacity) {
        items = realloc(list->items, capacity * sizeof *items);
        if (!items)
            return hd_err(HD_NO_MEMORY, "no memory to train a tokenizer");
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = word;
    return HD_OK;
}

/* Adds `change` occurrences of a pair per occurrence of a word. An increase makes the pair one that
 * is queued after the current merge. */
static enum hd_status change_pair(struct bpe_trainer *t, int32_t left, int32_t right, int32_t word,
                                  int64_t change)
{
    const uint64_t key = (uint64_t)left << 32 | (uint32_t)right;
    struct trained_pair *pair;
    enum hd_status st = grow_pairs(t);

    if (st)
        return st;
    pair = find_pair_row(t, key);
    if (!pair->is_used) {
        *pair = (struct trained_pair){.key = key, .is_used = true};
        t->pair_count++;
    }
    pair->count += change * t->words[word].count;
    if (change < 0)
        return HD_OK;
    if (!pair->fresh.count) {
        if (!grow_array((void **)&t->touched, t->touched_count, &t->touched_capacity,
                        sizeof *t->touched))
            return hd_err(HD_NO_MEMORY, "no memory to train a tokenizer");
        t->touched[t->touched_count++] = key;
    }
    return add_to_list(&pair->fresh, word);
}

/* ---- the queue ---- */

static bool comes_first(const struct queued_pair *a, const struct queued_pair *b)
{
    return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static enum hd_status push_queued(struct bpe_trainer *t, struct queued_pair item)
{
    size_t i = t->heap_count;

    if (!grow_array((void **)&t->heap, t->heap_count, &t->heap_capacity, sizeof *t->heap))
        return hd_err(HD_NO_MEMORY, "no memory to train a tokenizer");
    t->heap_count++;
    for (; i && comes_first(&item, &t->heap[(i - 1) / 2]); i = (i - 1) / 2)
        t->heap[i] = t->heap[(i - 1) / 2];
    t->heap[i] = item;
    return HD_OK;
}

/* Moves the entry at the top of the heap down to its place. */
static void sift_top(struct bpe_trainer *t)
{
    const struct queued_pair item = t->heap[0];
    size_t i = 0;

    for (size_t child = 1; child < t->heap_count; child = 2 * i + 1) {
        if (child + 1 < t->heap_count && comes_first(&t->heap[child + 1], &t->heap[child]))
            child++;
        if (!comes_first(&t->heap[child], &item))
            break;
        t->heap[i] = t->heap[child];
        i = child;
    }
    t->heap[i] = item;
}

static struct queued_pair pop_queued(struct bpe_trainer *t)
{
    const struct queued_pair top = t->heap[0];

    t->heap[0] = t->heap[--t->heap_count];
    if (t->heap_count)
        sift_top(t);
    return top;
}

/* Queues the pairs that were created, with the words that have them. */
static enum hd_status queue_fresh(struct bpe_trainer *t)
{
    enum hd_status st = HD_OK;

    for (size_t i = 0; i < t->touched_count; i++) {
        struct trained_pair *pair = find_pair_row(t, t->touched[i]);

        if (!st && pair->count > 0)
            st = push_queued(t, (struct queued_pair){pair->count, pair->key, pair->fresh});
        else
            free(pair->fresh.items);
        pair->fresh = (struct pair_words){.items = NULL};
    }
    t->touched_count = 0;
    return st;
}

static enum hd_status count_pairs(struct bpe_trainer *t)
{
    enum hd_status st = HD_OK;

    for (int32_t w = 0; !st && w < t->word_count; w++) {
        const int32_t *ids = t->ids + t->words[w].at;

        for (uint32_t i = 1; !st && i < t->words[w].length; i++)
            st = change_pair(t, ids[i - 1], ids[i], w, 1);
    }
    return st ? st : queue_fresh(t);
}

/* ---- merges ---- */

/* Sets *ret_id to the token of a pair's bytes, which may exist already. */
static enum hd_status make_token(struct bpe_trainer *t, int32_t left, int32_t right,
                                 int32_t *ret_id)
{
    const struct hd_bpe_token a = t->tokens[left], b = t->tokens[right];
    unsigned char *both = hd_arena_alloc(&t->arena, (size_t)a.len_bytes + b.len_bytes + 1);

    if (!both)
        return hd_err(HD_NO_MEMORY, "no memory to train a tokenizer");
    memcpy(both, a.bytes, a.len_bytes);
    memcpy(both + a.len_bytes, b.bytes, b.len_bytes);
    *ret_id = put_token(t, both, a.len_bytes + b.len_bytes);
    return HD_OK;
}

/* Replaces each occurrence of the pair in a word by `merged`, from left to right. */
static enum hd_status merge_in_word(struct bpe_trainer *t, int32_t word, struct hd_bpe_rule pair,
                                    int32_t merged)
{
    struct trained_word *w = &t->words[word];
    int32_t *ids = t->ids + w->at;
    uint32_t out = 0;
    enum hd_status st = HD_OK;

    for (uint32_t i = 0; i < w->length; out++) {
        if (i + 1 == w->length || ids[i] != pair.left || ids[i + 1] != pair.right) {
            ids[out] = ids[i++];
            continue;
        }
        ids[out] = merged;
        i += 2;
        if (!st && out) {
            st = change_pair(t, ids[out - 1], pair.left, word, -1);
            st = st ? st : change_pair(t, ids[out - 1], merged, word, 1);
        }
        if (!st && i < w->length) {
            st = change_pair(t, pair.right, ids[i], word, -1);
            st = st ? st : change_pair(t, merged, ids[i], word, 1);
        }
    }
    w->length = out;
    return st;
}

static enum hd_status put_rule(struct bpe_trainer *t, struct hd_bpe_rule rule)
{
    size_t capacity = (size_t)t->merge_capacity;

    if (!grow_array((void **)&t->merges, (size_t)t->merge_count, &capacity, sizeof *t->merges))
        return hd_err(HD_NO_MEMORY, "no memory to train a tokenizer");
    t->merge_capacity = (int32_t)capacity;
    t->merges[t->merge_count++] = rule;
    return HD_OK;
}

static enum hd_status merge_pair(struct bpe_trainer *t, const struct queued_pair *top)
{
    const struct hd_bpe_rule rule = {(int32_t)(top->key >> 32), (int32_t)(top->key & UINT32_MAX)};
    int32_t merged = 0;
    enum hd_status st = make_token(t, rule.left, rule.right, &merged);

    if (!st)
        st = put_rule(t, rule);
    for (uint32_t i = 0; !st && i < top->words.count; i++)
        st = merge_in_word(t, top->words.items[i], rule, merged);
    return st ? st : queue_fresh(t);
}

static bool report(const struct bpe_trainer *t, int32_t *reported)
{
    const int32_t step = t->how->vocab / REPORTS + 1;

    if (!t->how->progress || t->token_count < *reported + step)
        return true;
    *reported = t->token_count;
    return t->how->progress(t->how->context, t->token_count, t->how->vocab);
}

static enum hd_status merge_all(struct bpe_trainer *t)
{
    const int64_t least = t->how->min_count > 1 ? t->how->min_count : 1;
    int32_t reported = 0;
    enum hd_status st = HD_OK;

    while (!st && t->heap_count && t->token_count < t->how->vocab) {
        const int64_t now = find_pair_row(t, t->heap[0].key)->count;
        struct queued_pair top;

        if (t->heap[0].count != now) {
            t->heap[0].count = now;
            sift_top(t);
            continue;
        }
        if (now < least)
            break;
        if (!report(t, &reported))
            return hd_err(HD_ABORTED, "interrupted; no tokenizer was written");
        top = pop_queued(t);
        st = merge_pair(t, &top);
        free(top.words.items);
    }
    return st;
}

/* Removes from the rules each one that occurs again later. */
static void drop_repeated(struct bpe_trainer *t)
{
    int32_t kept = t->merge_count;
    struct trained_pair *pair;

    /* the counts of pairs are not needed any more: INT64_MIN marks a pair that was kept */
    for (int32_t i = t->merge_count - 1; i >= 0; i--) {
        pair = find_pair_row(t, (uint64_t)t->merges[i].left << 32 | (uint32_t)t->merges[i].right);
        if (pair->count == INT64_MIN)
            continue;
        pair->count = INT64_MIN;
        t->merges[--kept] = t->merges[i];
    }
    t->merge_count -= kept;
    if (kept)
        memmove(t->merges, t->merges + kept, (size_t)t->merge_count * sizeof *t->merges);
}

static void done_training(struct bpe_trainer *t)
{
    for (uint64_t i = 0; t->pairs && i <= t->pair_mask; i++)
        free(t->pairs[i].fresh.items);
    for (size_t i = 0; i < t->heap_count; i++)
        free(t->heap[i].words.items);
    free(t->tokens);
    free(t->by_bytes);
    free(t->words);
    free(t->ids);
    free(t->pairs);
    free(t->touched);
    free(t->heap);
    free(t->merges);
    hd_arena_done(&t->arena);
}

/* Makes the special tokens be written as they are, not as the bytes that their letters mean. */
static void show_specials(struct bpe_trainer *t)
{
    for (int i = 0; i < t->how->special_count; i++)
        t->tokens[i].bytes = (const unsigned char *)t->how->specials[i];
}

enum hd_status hd_bpe_train(const struct hd_bpe_training *how, const struct hd_word_counts *words,
                            struct hd_text *ret_json, struct hd_bpe_trained *ret_trained)
{
    struct bpe_trainer t = {.how = how};
    int32_t letters[LETTERS];
    enum hd_status st;

    hd_arena_init(&t.arena, 0);
    st = make_tokens(&t);
    if (!st)
        st = add_alphabet(&t, letters);
    if (!st && t.token_count > how->vocab)
        st = hd_err(HD_INVALID,
                    "a vocabulary of %d has no space for 256 bytes and %d special tokens; ask for "
                    "at least %d",
                    (int)how->vocab, how->special_count, (int)t.token_count);
    if (!st)
        st = load_words(&t, words, letters);
    if (!st)
        st = count_pairs(&t);
    if (!st)
        st = merge_all(&t);
    if (!st) {
        drop_repeated(&t);
        show_specials(&t);
        hd_bpe_write(how->pattern, t.tokens, t.token_count, t.merges, t.merge_count, ret_json);
        *ret_trained = (struct hd_bpe_trained){
            .ids = t.token_count, .merges = t.merge_count, .words = t.word_count};
        st = ret_json->failed ? hd_err(HD_NO_MEMORY, "no memory to train a tokenizer") : HD_OK;
    }
    done_training(&t);
    return st;
}
