/* sp_words: encodes words with a SentencePiece model.
 *
 * BPE: the adjacent symbols whose text together is the piece of the highest score are joined, the
 * leftmost of equal scores, until none are a piece. Symbols start as characters and user-defined
 * pieces; the latter are not joined. A piece of the type `unused` is divided again at the end, as it
 * was last made.
 *
 * Unigram: the segmentation with the highest sum of scores, by dynamic programming over the ends of
 * pieces (Viterbi). Sums are floats, rounded as in the library, whose ids depend on that. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/sentencepiece.h"

/* an unknown character has this less than the least score of a piece */
static const float unknown_penalty = 10;
/* Sums that become larger are counted from the current byte on, so that rounding does not grow with
 * the text. */
static const float sum_max = 100000;

struct sp_symbol {
    uint32_t at, len_bytes; /* part of the word; len_bytes 0: joined into another symbol */
    int32_t previous, next; /* -1: none */
    bool is_frozen;
};

struct sp_pair { /* candidate to be joined */
    float score;
    int32_t left, right; /* indices of symbols */
    /* bytes of both symbols together when the pair was queued; if they have others now, the pair is
     * passed over */
    uint32_t len_bytes;
    int32_t id;
};

struct sp_end { /* best segmentation that ends at a byte */
    float score;
    int32_t from; /* byte at which its last piece begins; -1: none yet */
    int32_t id;   /* last piece */
    int32_t to;   /* if the byte is on the best path: end of the piece that begins at it */
};

struct hd_sp_words {
    const struct hd_bpe *bpe;
    const struct hd_sp *sp;
    struct sp_symbol *symbols;
    struct sp_pair *heap;
    struct sp_end *ends;
    size_t capacity, heap_count; /* bytes of the longest word so far; pairs in the heap */
    uint32_t *divided;           /* by id of an unused piece: bytes of its left part */
    /* destination of the ids */
    struct hd_id_list *list;
    int32_t *lens;
    size_t len_count;
    size_t frontier;    /* unigram: largest byte with a segmentation that ends there */
    bool after_unknown; /* the last id is that of an unknown piece */
};

enum hd_status hd_sp_words_new(const struct hd_bpe *bpe, struct hd_sp_words **ret_words)
{
    struct hd_sp_words *w = calloc(1, sizeof *w);

    if (w) {
        w->bpe = bpe;
        w->sp = bpe->sp;
        w->divided = calloc((size_t)bpe->sp->count + 1, sizeof *w->divided);
    }
    if (!w || !w->divided) {
        hd_sp_words_free(w);
        return hd_err(HD_NO_MEMORY, "no memory for an encoder");
    }
    *ret_words = w;
    return HD_OK;
}

void hd_sp_words_free(struct hd_sp_words *words)
{
    if (!words)
        return;
    free(words->symbols);
    free(words->heap);
    free(words->ends);
    free(words->divided);
    free(words);
}

/* Allocates working memory for words of n bytes. A heap of 3 n pairs suffices: each join removes
 * one pair and adds at most two. */
static enum hd_status reserve_symbols(struct hd_sp_words *w, size_t n)
{
    const bool is_bpe = w->sp->kind == HD_SP_BPE;

    if (n <= w->capacity)
        return HD_OK;
    if (n > HD_SP_WORD_BYTES_MAX)
        return hd_err(
            HD_LIMIT,
            "a text of %zu bytes: a SentencePiece model encodes a text as a whole, and at "
            "most %d bytes; split it into several documents",
            n, HD_SP_WORD_BYTES_MAX);
    free(w->symbols);
    free(w->heap);
    free(w->ends);
    w->symbols = is_bpe ? calloc(n, sizeof *w->symbols) : NULL;
    w->heap = is_bpe ? calloc(n, 3 * sizeof *w->heap) : NULL;
    w->ends = is_bpe ? NULL : calloc(n + 1, sizeof *w->ends);
    w->capacity = 0;
    if (is_bpe ? !w->symbols || !w->heap : !w->ends)
        return hd_err(HD_NO_MEMORY, "no memory for a word of %zu bytes", n);
    w->capacity = n;
    return HD_OK;
}

/* ---- writing ids ---- */

static void put_sp_id(struct hd_sp_words *w, int32_t id, size_t len_bytes)
{
    if (w->lens)
        w->lens[w->len_count++] = (int32_t)len_bytes;
    w->list->ids[w->list->count++] = id;
}

/* Writes a piece that is unknown: its bytes, or one id for adjacent ones. */
static void put_unknown(struct hd_sp_words *w, const unsigned char *text, size_t len_bytes)
{
    if (w->bpe->falls_back) {
        for (size_t i = 0; i < len_bytes; i++)
            put_sp_id(w, w->bpe->byte_ids[text[i]], 1);
    } else if (!w->after_unknown) {
        put_sp_id(w, w->bpe->unknown, len_bytes);
    } else if (w->lens) {
        w->lens[w->len_count - 1] += (int32_t)len_bytes;
    }
    w->after_unknown = true;
}

static void put_piece_id(struct hd_sp_words *w, int32_t id, const unsigned char *text,
                         size_t len_bytes)
{
    if (id == w->bpe->unknown) {
        put_unknown(w, text, len_bytes);
        return;
    }
    put_sp_id(w, id, len_bytes);
    w->after_unknown = false;
}

/* ---- BPE ---- */

static bool is_better(const struct sp_pair *a, const struct sp_pair *b)
{
    return a->score != b->score ? a->score > b->score : a->left < b->left;
}

/* Queues two adjacent symbols, if they are a piece together. */
static void push_symbols(struct hd_sp_words *w, const unsigned char *word, int32_t left,
                         int32_t right)
{
    struct sp_pair item = {.left = left, .right = right};
    size_t i = w->heap_count;

    if (left < 0 || right < 0 || w->symbols[left].is_frozen || w->symbols[right].is_frozen)
        return;
    item.len_bytes = w->symbols[left].len_bytes + w->symbols[right].len_bytes;
    if (item.len_bytes > HD_SP_PIECE_BYTES_MAX)
        return;
    item.id = hd_bpe_word(w->bpe, word + w->symbols[left].at, item.len_bytes);
    if (item.id < 0)
        return;
    item.score = w->sp->scores[item.id];
    if (w->sp->types[item.id] == HD_SP_UNUSED)
        w->divided[item.id] = w->symbols[left].len_bytes;
    w->heap_count++;
    for (; i && is_better(&item, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = item;
}

static struct sp_pair pop_symbols(struct hd_sp_words *w)
{
    const struct sp_pair top = w->heap[0], item = w->heap[--w->heap_count];
    size_t i = 0;

    for (size_t child = 1; child < w->heap_count; child = 2 * i + 1) {
        if (child + 1 < w->heap_count && is_better(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (!is_better(&w->heap[child], &item))
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = item;
    return top;
}

/* Writes a symbol; one of the type `unused` as the parts that it was made of. */
static void put_symbol(struct hd_sp_words *w, const unsigned char *text, size_t len_bytes)
{
    const int32_t id = hd_bpe_word(w->bpe, text, len_bytes);

    /* a part is shorter than its whole, so this ends */
    while (id >= 0 && w->sp->types[id] == HD_SP_UNUSED && w->divided[id]) {
        const size_t left = w->divided[id];

        put_symbol(w, text, left);
        put_symbol(w, text + left, len_bytes - left);
        return;
    }
    put_piece_id(w, id < 0 ? w->bpe->unknown : id, text, len_bytes);
}

/* Makes a symbol of each character and user-defined piece; returns their number. */
static size_t make_symbols(struct hd_sp_words *w, const unsigned char *word, size_t n)
{
    size_t count = 0, len;

    for (size_t at = 0; at < n; at += len, count++) {
        int32_t token;

        len = hd_sp_longest(&w->sp->symbols, word + at, n - at, &token);
        w->symbols[count] = (struct sp_symbol){.at = (uint32_t)at,
                                               .previous = (int32_t)count - 1,
                                               .next = (int32_t)count + 1,
                                               .is_frozen = len > 0};
        len = len ? len : hd_character_bytes(word[at]);
        w->symbols[count].len_bytes = (uint32_t)len;
    }
    w->symbols[count - 1].next = -1;
    return count;
}

static void join_symbols(struct hd_sp_words *w, const unsigned char *word, size_t count)
{
    struct sp_symbol *symbols = w->symbols;

    w->heap_count = 0;
    for (size_t i = 1; i < count; i++)
        push_symbols(w, word, (int32_t)i - 1, (int32_t)i);
    while (w->heap_count) {
        const struct sp_pair top = pop_symbols(w);
        struct sp_symbol *left = &symbols[top.left], *right = &symbols[top.right];

        if (!left->len_bytes || !right->len_bytes ||
            left->len_bytes + right->len_bytes != top.len_bytes)
            continue; /* stale: one of both has been joined since */
        left->len_bytes = top.len_bytes;
        left->next = right->next;
        if (left->next >= 0)
            symbols[left->next].previous = top.left;
        right->len_bytes = 0;
        push_symbols(w, word, left->previous, top.left);
        push_symbols(w, word, top.left, left->next);
    }
}

static void add_by_scores(struct hd_sp_words *w, const unsigned char *word, size_t n)
{
    const size_t count = make_symbols(w, word, n);

    if (w->sp->has_unused)
        memset(w->divided, 0, (size_t)w->sp->count * sizeof *w->divided);
    join_symbols(w, word, count);
    for (int32_t i = 0; i >= 0; i = w->symbols[i].next)
        put_symbol(w, word + w->symbols[i].at, w->symbols[i].len_bytes);
}

/* ---- unigram ---- */

size_t hd_sp_longest(const struct hd_added_set *set, const unsigned char *text, size_t len_bytes,
                     int32_t *ret_token)
{
    size_t longest = 0;
    int32_t node = 0;

    if (!set->node_count)
        return 0;
    for (size_t i = 0; i < len_bytes && (node = hd_added_next_node(set, node, text[i])); i++)
        if (set->nodes[node].token >= 0) {
            longest = i + 1;
            *ret_token = set->nodes[node].token;
        }
    return longest;
}

static void improve(struct hd_sp_words *w, size_t at, float score, size_t from, int32_t id)
{
    struct sp_end *end = &w->ends[at];

    w->frontier = at > w->frontier ? at : w->frontier;
    if (end->from < 0 || score > end->score)
        *end = (struct sp_end){.score = score, .from = (int32_t)from, .id = id};
}

/* Extends the best segmentation that ends at `from` by each piece that begins there; and by one
 * unknown character, if that is no piece. */
static void extend(struct hd_sp_words *w, const unsigned char *word, size_t n, size_t from)
{
    const struct hd_added_set *set = &w->sp->pieces;
    const float so_far = w->ends[from].score;
    const size_t one = hd_character_bytes(word[from]);
    bool has_character = false;
    int32_t node = 0;

    for (size_t at = from; at < n && (node = hd_added_next_node(set, node, word[at])); at++) {
        const int32_t id = set->nodes[node].token;
        const size_t len = at + 1 - from;
        float score;

        if (id < 0)
            continue;
        /* a user-defined piece always wins */
        score = w->sp->types[id] == HD_SP_USER_DEFINED ? (float)(0.1 * ((double)len - 1))
                                                       : w->sp->scores[id];
        improve(w, at + 1, score + so_far, from, id);
        has_character |= len == one;
    }
    if (!has_character)
        improve(w, from + one, w->sp->least - unknown_penalty + so_far, from, w->bpe->unknown);
}

/* Subtracts the sum at a byte from those of this and all later bytes, if it is large. */
static void rebase(struct hd_sp_words *w, size_t from)
{
    const float sum = w->ends[from].score;

    if (!(sum < -sum_max || sum > sum_max))
        return;
    for (size_t i = from; i <= w->frontier; i++)
        if (i == from || w->ends[i].from >= 0)
            w->ends[i].score -= sum;
}

static void add_by_sums(struct hd_sp_words *w, const unsigned char *word, size_t n)
{
    struct sp_end *ends = w->ends;

    w->frontier = 0;
    for (size_t i = 0; i <= n; i++)
        ends[i] = (struct sp_end){.from = -1};
    for (size_t at = 0; at < n; at += hd_character_bytes(word[at])) {
        rebase(w, at);
        extend(w, word, n, at);
    }
    for (int32_t end = (int32_t)n; end; end = ends[end].from)
        ends[ends[end].from].to = end;
    for (int32_t from = 0; from < (int32_t)n; from = ends[from].to)
        put_piece_id(w, ends[ends[from].to].id, word + from, (size_t)(ends[from].to - from));
}

enum hd_status hd_sp_words_add(struct hd_sp_words *words, const unsigned char *word,
                               size_t len_bytes, struct hd_id_list *list, int32_t *lens)
{
    enum hd_status st = reserve_symbols(words, len_bytes);

    if (!st) /* an id spells at least one byte */
        st = hd_id_list_reserve(list, len_bytes);
    if (st || !len_bytes)
        return st;
    words->list = list;
    words->lens = lens;
    words->len_count = 0;
    words->after_unknown = false;
    if (words->sp->kind == HD_SP_BPE)
        add_by_scores(words, word, len_bytes);
    else
        add_by_sums(words, word, len_bytes);
    return HD_OK;
}
