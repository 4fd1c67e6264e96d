/* unigram: the model of type Unigram of a tokenizer.json, and the words that it encodes (Kudo 2018,
 * "Subword Regularization").
 *
 * The segmentation of a word is the one with the highest sum of scores, by dynamic programming over
 * the ends of tokens (Viterbi). Ids are those of Hugging Face tokenizers, which differ from those of
 * the library sentencepiece (sp_words.c): sums are doubles, every token of the vocabulary can occur
 * in a text, and a run of unknown characters that spells a token is that token. Near ties are
 * decided by the last bit of a score, so decimal numbers are converted as that library does. */
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "tokenizer/sentencepiece.h"

enum { POWER_MAX = 308 }; /* largest power of ten that is a double */

/* an unknown character has this less than the least score of a token */
static const double unigram_unknown_penalty = 10;

struct hd_unigram {
    const double *scores; /* [count] by id */
    int32_t count;        /* tokens of the model; larger ids are added tokens */
    double unknown_score;
    struct hd_added_set pieces; /* texts of all tokens, by id; of equal texts the last */
};

struct unigram_end { /* best segmentation that ends at a byte */
    double score;
    int32_t from; /* byte at which its last token begins; -1: none yet */
    int32_t id;   /* last token */
    int32_t to;   /* if the byte is on the best path: end of the token that begins at it */
};

struct hd_unigram_words {
    const struct hd_bpe *bpe;
    struct unigram_end *ends;
    size_t capacity; /* bytes of the longest word so far */
    /* destination of the ids */
    struct hd_id_list *list;
    int32_t *lens;
    size_t len_count;
};

/* ---- reading ---- */

/* Converts a JSON number as serde_json does: the digits as an integer of 64 bits, the rest of them
 * left out, then one multiplication or division by a power of ten. Both round, so the result may be
 * one step beside the nearest double. HD_INVALID: the number is too large. */
static enum hd_status read_score(const char *text, double *ret_score)
{
    const bool is_negative = *text == '-';
    uint64_t digits = 0;
    bool is_full = false, has_point = false;
    int64_t exponent = 0;
    char spelt[16]; /* a power of ten, which strtod rounds correctly */
    double value, power;

    for (text += is_negative; (*text >= '0' && *text <= '9') || *text == '.'; text++) {
        const unsigned digit = (unsigned)(*text - '0');

        if (*text == '.') {
            has_point = true;
            continue;
        }
        is_full |=
            digits > UINT64_MAX / 10 || (digits == UINT64_MAX / 10 && digit > UINT64_MAX % 10);
        if (!is_full)
            digits = digits * 10 + digit;
        exponent += is_full ? !has_point : -has_point;
    }
    if (*text == 'e' || *text == 'E')
        exponent += strtol(text + 1, NULL, 10);
    value = (double)digits;
    for (; value != 0 && exponent < -POWER_MAX; exponent += POWER_MAX)
        value /= 1e308;
    if (value == 0 || exponent == 0) {
        *ret_score = is_negative ? -value : value;
        return HD_OK;
    }
    (void)snprintf(spelt, sizeof spelt, "1e%d",
                   (int)(exponent < 0            ? -exponent
                         : exponent <= POWER_MAX ? exponent
                                                 : POWER_MAX));
    power = strtod(spelt, NULL);
    value = exponent < 0 ? value / power : value * power;
    if (value > DBL_MAX || exponent > POWER_MAX)
        return hd_err(HD_INVALID, "a score is no finite number");
    *ret_score = is_negative ? -value : value;
    return HD_OK;
}

static enum hd_status read_scored_token(const struct hd_json *m, struct hd_bpe *bpe, int32_t id,
                                        double *ret_score)
{
    struct hd_token_text *text = &bpe->texts[id];
    enum hd_status st;

    if (m->kind != HD_JSON_ARRAY || m->count != 2 || m->first->kind != HD_JSON_STRING ||
        m->first->next->kind != HD_JSON_NUMBER)
        return hd_err(HD_INVALID, "model.vocab[%d] is not [\"TOKEN\", SCORE]", (int)id);
    if (strlen(m->first->text) > HD_BPE_TOKEN_BYTES_MAX)
        return hd_err(HD_LIMIT, "model.vocab[%d]: the token is longer than %d bytes", (int)id,
                      HD_BPE_TOKEN_BYTES_MAX);
    st = read_score(m->first->next->text, ret_score);
    if (st)
        return hd_err_prefix(st, "model.vocab[%d]", (int)id);
    text->content = hd_arena_strdup(&bpe->arena, m->first->text);
    if (!text->content)
        return hd_bpe_no_memory();
    text->shown = text->content;
    text->bytes = (const unsigned char *)text->content;
    text->len_bytes = (uint32_t)strlen(text->content);
    return HD_OK;
}

/* Builds the trie of tokens. The last of several tokens with the same text is the one that texts
 * have. */
static enum hd_status index_pieces(struct hd_bpe *bpe, struct hd_unigram *u)
{
    enum hd_status st = HD_OK;

    for (int32_t id = u->count - 1; !st && id >= 0; id--) {
        struct hd_token_text *text = &bpe->texts[id];
        int32_t last = -1;

        if (!text->len_bytes)
            continue;
        if (hd_sp_longest(&u->pieces, text->bytes, text->len_bytes, &last) == text->len_bytes)
            text->len_bytes = 0;
        else
            st = hd_added_insert(&bpe->arena, &u->pieces, id, text->content, text->len_bytes);
    }
    return st;
}

static enum hd_status read_scored_tokens(const struct hd_json *vocab, struct hd_bpe *bpe,
                                         struct hd_unigram *u)
{
    double *scores, least = DBL_MAX;
    int32_t id = 0;
    enum hd_status st;

    if (!vocab->count || vocab->count > HD_BPE_IDS_MAX)
        return hd_err(vocab->count ? HD_LIMIT : HD_INVALID, "model.vocab has %zu tokens",
                      vocab->count);
    u->count = (int32_t)vocab->count;
    scores = hd_arena_array(&bpe->arena, vocab->count, sizeof *scores);
    st = scores ? hd_bpe_reach(bpe, u->count - 1) : hd_bpe_no_memory();
    for (const struct hd_json *m = vocab->first; !st && m; m = m->next, id++) {
        st = read_scored_token(m, bpe, id, &scores[id]);
        least = !st && scores[id] < least ? scores[id] : least;
    }
    u->scores = scores;
    u->unknown_score = least - unigram_unknown_penalty;
    return st ? st : index_pieces(bpe, u);
}

enum hd_status hd_unigram_read(const struct hd_json *model, struct hd_bpe *bpe)
{
    struct hd_unigram *u = hd_arena_alloc(&bpe->arena, sizeof *u);
    const struct hd_json *vocab = NULL, *unknown = hd_bpe_member(model, "unk_id");
    int64_t id = -1;
    enum hd_status st = hd_bpe_check_keys(model, "model", "type|unk_id|vocab|byte_fallback");

    if (!u)
        return hd_bpe_no_memory();
    *u = (struct hd_unigram){0};
    bpe->prefix = bpe->suffix = "";
    bpe->fuses_unknown = true;
    if (!st)
        st = hd_bpe_read_bool(model, "model", "byte_fallback", false, &bpe->falls_back);
    if (!st)
        st = hd_json_need(model, "vocab", HD_JSON_ARRAY, &vocab);
    if (!st && unknown) {
        st = hd_json_to_int64(unknown, 0, (int64_t)vocab->count - 1, &id);
        st = st ? hd_err_prefix(st, "model.unk_id") : HD_OK;
    }
    bpe->unknown = (int32_t)id;
    if (!st)
        st = read_scored_tokens(vocab, bpe, u);
    if (!st)
        st = hd_bpe_index_words(bpe, vocab->count);
    bpe->parts_at_spaces = false; /* the best segmentation of a part may not be that of the whole */
    bpe->unigram = u;
    return st;
}

/* ---- working memory ---- */

enum hd_status hd_unigram_words_new(const struct hd_bpe *bpe, struct hd_unigram_words **ret_words)
{
    struct hd_unigram_words *w = calloc(1, sizeof *w);

    if (!w)
        return hd_err(HD_NO_MEMORY, "no memory for an encoder");
    w->bpe = bpe;
    *ret_words = w;
    return HD_OK;
}

void hd_unigram_words_free(struct hd_unigram_words *words)
{
    if (words)
        free(words->ends);
    free(words);
}

static enum hd_status reserve_ends(struct hd_unigram_words *w, size_t n)
{
    if (n <= w->capacity)
        return HD_OK;
    if (n > HD_SP_WORD_BYTES_MAX)
        return hd_err(HD_LIMIT,
                      "a word of %zu bytes: a Unigram model encodes a word as a whole, and at most "
                      "%d bytes; split the text into several documents",
                      n, HD_SP_WORD_BYTES_MAX);
    free(w->ends);
    w->capacity = 0;
    w->ends = calloc(n + 1, sizeof *w->ends);
    if (!w->ends)
        return hd_err(HD_NO_MEMORY, "no memory for a word of %zu bytes", n);
    w->capacity = n;
    return HD_OK;
}

/* ---- words ---- */

static bool improves(const struct unigram_end *end, double score)
{
    return end->from < 0 || score > end->score;
}

/* Extends the best segmentation that ends at `from` by each token that begins there; and by one
 * unknown character, if that is no token. */
static enum hd_status extend_by_tokens(struct hd_unigram_words *w, const unsigned char *word,
                                       size_t n, size_t from)
{
    const struct hd_unigram *u = w->bpe->unigram;
    const double so_far = w->ends[from].score, unknown = u->unknown_score + so_far;
    const size_t one = hd_character_bytes(word[from]);
    bool has_character = false;
    int32_t node = 0;

    for (size_t at = from; at < n && (node = hd_added_next_node(&u->pieces, node, word[at]));
         at++) {
        const int32_t id = u->pieces.nodes[node].token;
        double score;

        if (id < 0)
            continue;
        score = u->scores[id] + so_far;
        if (improves(&w->ends[at + 1], score))
            w->ends[at + 1] = (struct unigram_end){.score = score, .from = (int32_t)from, .id = id};
        has_character |= at + 1 - from == one;
    }
    if (has_character || !improves(&w->ends[from + one], unknown))
        return HD_OK;
    if (w->bpe->unknown < 0)
        return hd_err(HD_INVALID,
                      "the vocabulary has no token for the character %.*s, and the model no unk_id",
                      (int)one, (const char *)word + from);
    w->ends[from + one] =
        (struct unigram_end){.score = unknown, .from = (int32_t)from, .id = w->bpe->unknown};
    return HD_OK;
}

static void put_unigram_id(struct hd_unigram_words *w, int32_t id, size_t len_bytes)
{
    if (w->lens)
        w->lens[w->len_count++] = (int32_t)len_bytes;
    w->list->ids[w->list->count++] = id;
}

/* Writes adjacent unknown characters: the token that they spell, else their bytes if each is a
 * token, else one unknown token. */
static void put_unknown_run(struct hd_unigram_words *w, const unsigned char *text, size_t len_bytes)
{
    const int32_t *bytes = w->bpe->byte_ids;
    const int32_t whole = hd_bpe_word(w->bpe, text, len_bytes);
    bool has_bytes = whole < 0 && w->bpe->falls_back;

    for (size_t i = 0; has_bytes && i < len_bytes; i++)
        has_bytes = bytes[text[i]] >= 0;
    for (size_t i = 0; has_bytes && i < len_bytes; i++)
        put_unigram_id(w, bytes[text[i]], 1);
    if (!has_bytes)
        put_unigram_id(w, whole >= 0 ? whole : w->bpe->unknown, len_bytes);
}

static void put_best(struct hd_unigram_words *w, const unsigned char *word, size_t n)
{
    struct unigram_end *ends = w->ends;
    size_t unknown_bytes = 0, from = 0;

    for (int32_t end = (int32_t)n; end; end = ends[end].from)
        ends[ends[end].from].to = end;
    while (from < n) {
        const size_t to = (size_t)ends[from].to;
        const int32_t id = ends[to].id;

        if (id == w->bpe->unknown) {
            unknown_bytes += to - from;
        } else {
            if (unknown_bytes)
                put_unknown_run(w, word + from - unknown_bytes, unknown_bytes);
            unknown_bytes = 0;
            put_unigram_id(w, id, to - from);
        }
        from = to;
    }
    if (unknown_bytes)
        put_unknown_run(w, word + n - unknown_bytes, unknown_bytes);
}

enum hd_status hd_unigram_words_add(struct hd_unigram_words *words, const unsigned char *word,
                                    size_t len_bytes, struct hd_id_list *list, int32_t *lens)
{
    enum hd_status st = reserve_ends(words, len_bytes);

    if (!st) /* an id spells at least one byte */
        st = hd_id_list_reserve(list, len_bytes);
    if (st || !len_bytes)
        return st;
    for (size_t i = 0; i <= len_bytes; i++)
        words->ends[i] = (struct unigram_end){.from = -1};
    for (size_t at = 0; !st && at < len_bytes; at += hd_character_bytes(word[at]))
        st = extend_by_tokens(words, word, len_bytes, at);
    if (st)
        return st;
    words->list = list;
    words->lens = lens;
    words->len_count = 0;
    put_best(words, word, len_bytes);
    return HD_OK;
}
