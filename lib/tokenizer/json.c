/* json: parses tokenizer.json of a BPE. An unknown key is an error that names it, because ignoring
 * a key could change the ids. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "tokenizer/tokenizer_internal.h"

enum {
    VALUES_MAX = 16 << 20, /* the largest vocabularies have about 1.5 million */
    DEPTH_MAX = 32,
};
static const size_t arena_bytes_max = (size_t)4 << 30;

struct tokenizer_reading {
    struct hd_bpe *bpe;
    struct hd_companions *companions; /* or NULL */
    struct hd_arena json;             /* freed after reading */
    int32_t letters[512]; /* the byte that a letter represents, by code point; -1: none */
};

static enum hd_status no_memory(void)
{
    return hd_err(HD_NO_MEMORY, "no memory for a tokenizer");
}

/* ---- keys ---- */

enum hd_status hd_bpe_check_keys(const struct hd_json *object, const char *where, const char *known)
{
    if (object->kind != HD_JSON_OBJECT)
        return hd_err(HD_INVALID, "%s is not an object", where);
    for (const struct hd_json *m = object->first; m; m = m->next) {
        const size_t n = strlen(m->key);
        const char *p = known;

        while (*p && !(strncmp(p, m->key, n) == 0 && (p[n] == '|' || !p[n]))) {
            p += strcspn(p, "|");
            p += *p == '|';
        }
        if (!*p || !n)
            return hd_err(HD_UNSUPPORTED, "%s.%.64s is not known", where, m->key);
    }
    return HD_OK;
}

const struct hd_json *hd_bpe_member(const struct hd_json *object, const char *key)
{
    const struct hd_json *m = hd_json_member(object, key);

    return m && m->kind != HD_JSON_NULL ? m : NULL; /* null means absent */
}

enum hd_status hd_bpe_read_bool(const struct hd_json *object, const char *where, const char *key,
                                bool otherwise, bool *ret_value)
{
    const struct hd_json *m = hd_bpe_member(object, key);

    if (m && m->kind != HD_JSON_TRUE && m->kind != HD_JSON_FALSE)
        return hd_err(HD_INVALID, "%s.%s is neither true nor false", where, key);
    *ret_value = m ? m->kind == HD_JSON_TRUE : otherwise;
    return HD_OK;
}

static enum hd_status must_be_empty(const struct hd_json *object, const char *where,
                                    const char *key)
{
    const struct hd_json *m = hd_bpe_member(object, key);

    if (!m || (m->kind == HD_JSON_STRING && !m->text[0]))
        return HD_OK;
    return hd_err(HD_UNSUPPORTED, "%s.%s is set; only null is supported", where, key);
}

/* ---- tokens ---- */

static void name_letters(struct tokenizer_reading *r)
{
    int next = 256;

    for (int i = 0; i < 512; i++)
        r->letters[i] = -1;
    for (int b = 0; b < 256; b++) {
        const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;

        r->letters[itself ? b : next++] = b;
    }
}

void hd_bpe_add_spaces(const char *text, size_t len_bytes, struct hd_text *ret_text)
{
    static const char space[] = "\xE2\x96\x81"; /* U+2581 */

    for (const char *end = text + len_bytes; text < end;) {
        const char *next = memmem(text, (size_t)(end - text), space, 3);

        hd_text_add_bytes(ret_text, text, (size_t)((next ? next : end) - text));
        if (next)
            hd_text_add_bytes(ret_text, " ", 1);
        text = next ? next + 3 : end;
    }
}

/* The byte of <0x0A>, or -1. */
static int fallback_byte(const char *content)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *high, *low;

    if (strlen(content) != 6 || memcmp(content, "<0x", 3) != 0 || content[5] != '>')
        return -1;
    high = strchr(digits, content[3]);
    low = strchr(digits, content[4]);
    return high && low ? (int)(high - digits) * 16 + (int)(low - digits) : -1;
}

/* The same of a BPE with byte fallback. */
static enum hd_status spell_with_spaces(struct hd_bpe *bpe, const char *content,
                                        struct hd_token_text *text)
{
    const int byte = fallback_byte(content);
    struct hd_text spaced = {0};
    unsigned char *bytes;

    if (byte >= 0) {
        hd_text_add_bytes(&spaced, &(char){(char)byte}, 1);
        text->is_byte = true;
    } else {
        hd_bpe_add_spaces(content, strlen(content), &spaced);
    }
    bytes = hd_arena_alloc(&bpe->arena, spaced.len_bytes + 1);
    if (bytes && !spaced.failed && spaced.len_bytes)
        memcpy(bytes, spaced.data, spaced.len_bytes);
    text->bytes = bytes;
    text->len_bytes = (uint32_t)spaced.len_bytes;
    hd_text_free(&spaced);
    return bytes && !spaced.failed ? HD_OK : no_memory();
}

/* The bytes of a token of the model. None if it has a letter that represents no byte; such a token
 * never occurs in a text. */
static enum hd_status spell(struct tokenizer_reading *r, const char *content,
                            struct hd_token_text *text)
{
    const unsigned char *p = (const unsigned char *)content;
    unsigned char *out;
    uint32_t n = 0;

    if (r->bpe->falls_back)
        return spell_with_spaces(r->bpe, content, text);
    out = hd_arena_alloc(&r->bpe->arena, strlen(content) + 1);
    if (!out)
        return no_memory();
    text->bytes = out;
    for (; *p; p++) {
        int code = *p;

        if (code >= 0xC0 && code < 0xC8) /* 0x80 .. 0x1FF: two bytes in UTF-8 */
            code = (code & 0x1F) << 6 | (*++p & 0x3F);
        else if (code >= 0x80)
            return HD_OK;
        if (r->letters[code] < 0)
            return HD_OK;
        out[n++] = (unsigned char)r->letters[code];
    }
    text->len_bytes = n;
    return HD_OK;
}

/* Allocates entries for the ids up to `id`. */
static enum hd_status reach(struct hd_bpe *bpe, int32_t id)
{
    static const struct hd_token_text none = {0};
    int room = 64;

    while (room < bpe->vocab)
        room *= 2;
    while (bpe->vocab <= id) {
        if (!bpe->texts || bpe->vocab == room || bpe->vocab == 0) {
            int have = bpe->texts ? room : 0;
            struct hd_token_text *texts =
                hd_arena_grow(&bpe->arena, bpe->texts, bpe->vocab, &have, sizeof *texts);

            if (!texts)
                return no_memory();
            bpe->texts = texts;
            room = have;
        }
        bpe->texts[bpe->vocab++] = none;
    }
    return HD_OK;
}

static enum hd_status read_vocab(struct tokenizer_reading *r, const struct hd_json *vocab)
{
    struct hd_bpe *bpe = r->bpe;

    for (const struct hd_json *m = vocab->first; m; m = m->next) {
        int64_t id = 0;
        enum hd_status st = hd_json_to_int64(m, 0, HD_BPE_IDS_MAX - 1, &id);

        if (st)
            return hd_err_prefix(st, "model.vocab: the id of '%.64s'", m->key);
        st = reach(bpe, (int32_t)id);
        if (st)
            return st;
        if (bpe->texts[id].content)
            return hd_err(HD_INVALID, "model.vocab: '%.64s' and '%.64s' have the same id %lld",
                          bpe->texts[id].content, m->key, (long long)id);
        if (strlen(m->key) > HD_BPE_TOKEN_BYTES_MAX)
            return hd_err(HD_LIMIT, "model.vocab: a token is longer than %d bytes",
                          HD_BPE_TOKEN_BYTES_MAX);
        bpe->texts[id].content = hd_arena_strdup(&bpe->arena, m->key);
        if (!bpe->texts[id].content)
            return no_memory();
        st = spell(r, bpe->texts[id].content, &bpe->texts[id]);
        if (st)
            return st;
    }
    return HD_OK;
}

static uint64_t table_mask(size_t count) /* at most half full */
{
    uint64_t size = 64;

    while (size < 2 * (uint64_t)count)
        size *= 2;
    return size - 1;
}

/* Whether a space is behind another character. */
static bool has_space_behind(const struct hd_token_text *t)
{
    for (uint32_t i = 1; i < t->len_bytes; i++)
        if (t->bytes[i] == ' ' && t->bytes[i - 1] != ' ')
            return true;
    return false;
}

/* The tokens <0x..> of a BPE with byte fallback, all of which must be there. */
static enum hd_status index_bytes(struct hd_bpe *bpe)
{
    bpe->parts_at_spaces = true;
    for (int32_t id = 0; id < bpe->vocab; id++) {
        if (bpe->texts[id].is_byte)
            bpe->byte_ids[bpe->texts[id].bytes[0]] = id;
        bpe->parts_at_spaces &= !has_space_behind(&bpe->texts[id]);
    }
    for (int b = 0; b < 256; b++)
        if (bpe->byte_ids[b] < 0)
            return hd_err(HD_INVALID,
                          "model.byte_fallback is true, but model.vocab has no token <0x%02X>", b);
    return HD_OK;
}

static enum hd_status index_words(struct hd_bpe *bpe, size_t count)
{
    bpe->word_mask = table_mask(count);
    bpe->words = hd_arena_array(&bpe->arena, bpe->word_mask + 1, sizeof *bpe->words);
    if (!bpe->words)
        return no_memory();
    memset(bpe->words, 0xFF, (bpe->word_mask + 1) * sizeof *bpe->words);
    for (int32_t id = 0; id < bpe->vocab; id++) {
        const struct hd_token_text *t = &bpe->texts[id];
        uint64_t i;

        if (!t->len_bytes || t->is_byte)
            continue;
        if (bpe->falls_back && hd_bpe_word(bpe, t->bytes, t->len_bytes) >= 0)
            return hd_err(HD_UNSUPPORTED,
                          "model.vocab: '%.64s' and another token differ only in a "
                          "space and U+2581",
                          t->content);
        i = hd_mix64(hd_hash_bytes(t->bytes, t->len_bytes)) & bpe->word_mask;
        while (bpe->words[i] >= 0)
            i = (i + 1) & bpe->word_mask;
        bpe->words[i] = id;
    }
    for (int b = 0; b < 256; b++) {
        const unsigned char byte = (unsigned char)b;

        bpe->byte_ids[b] = bpe->falls_back ? -1 : hd_bpe_word(bpe, &byte, 1);
    }
    return bpe->falls_back ? index_bytes(bpe) : HD_OK;
}

/* ---- merges ---- */

/* Parses "a b" or ["a", "b"]; the results are in the arena of the JSON. */
static enum hd_status read_pair(struct tokenizer_reading *r, const struct hd_json *merge,
                                const char **ret_a, const char **ret_b)
{
    if (merge->kind == HD_JSON_STRING) {
        char *a = hd_arena_strdup(&r->json, merge->text);
        char *space = a ? strchr(a, ' ') : NULL;

        if (!a)
            return no_memory();
        if (!space || strchr(space + 1, ' '))
            return hd_err(HD_INVALID, "'%.64s' is not two tokens with a space between", a);
        *space = '\0';
        *ret_a = a;
        *ret_b = space + 1;
        return HD_OK;
    }
    if (merge->kind != HD_JSON_ARRAY || merge->count != 2 || merge->first->kind != HD_JSON_STRING ||
        merge->first->next->kind != HD_JSON_STRING)
        return hd_err(HD_INVALID, "a merge is neither \"a b\" nor [\"a\", \"b\"]");
    *ret_a = merge->first->text;
    *ret_b = merge->first->next->text;
    return HD_OK;
}

static enum hd_status find_token(struct tokenizer_reading *r, const char *content,
                                 struct hd_token_text *spelt, int32_t *ret_id)
{
    enum hd_status st;

    *spelt = (struct hd_token_text){0};
    st = spell(r, content, spelt);
    if (st)
        return st;
    *ret_id = spelt->len_bytes ? hd_bpe_word(r->bpe, spelt->bytes, spelt->len_bytes) : -1;
    return *ret_id >= 0
               ? HD_OK
               : hd_err(HD_INVALID, "'%.64s' is not in model.vocab, or spells no bytes", content);
}

static void put_merge(struct hd_bpe *bpe, struct hd_merge merge)
{
    uint64_t i = hd_mix64(merge.key) & bpe->merge_mask;

    while (bpe->merges[i].key && bpe->merges[i].key != merge.key)
        i = (i + 1) & bpe->merge_mask;
    bpe->merges[i] = merge; /* of duplicates the last one counts */
}

static enum hd_status read_merge(struct tokenizer_reading *r, const struct hd_json *m, int32_t rank)
{
    struct hd_token_text left, right;
    const char *a = NULL, *b = NULL;
    unsigned char *both;
    int32_t left_id = 0, right_id = 0, result;
    enum hd_status st = read_pair(r, m, &a, &b);

    if (!st)
        st = find_token(r, a, &left, &left_id);
    if (!st)
        st = find_token(r, b, &right, &right_id);
    if (st)
        return st;
    both = malloc((size_t)left.len_bytes + right.len_bytes);
    if (!both)
        return no_memory();
    memcpy(both, left.bytes, left.len_bytes);
    memcpy(both + left.len_bytes, right.bytes, right.len_bytes);
    result = hd_bpe_word(r->bpe, both, (size_t)left.len_bytes + right.len_bytes);
    free(both);
    if (result < 0)
        return hd_err(HD_INVALID, "'%.64s' and '%.64s' give a token that is not in model.vocab", a,
                      b);
    put_merge(r->bpe,
              (struct hd_merge){((uint64_t)left_id + 1) << 32 | (uint32_t)right_id, rank, result});
    return HD_OK;
}

static enum hd_status read_merges(struct tokenizer_reading *r, const struct hd_json *merges)
{
    struct hd_bpe *bpe = r->bpe;
    int32_t rank = 0;

    bpe->merge_mask = table_mask(merges->count);
    bpe->merges = hd_arena_array(&bpe->arena, bpe->merge_mask + 1, sizeof *bpe->merges);
    if (!bpe->merges)
        return no_memory();
    for (const struct hd_json *m = merges->first; m; m = m->next) {
        enum hd_status st = read_merge(r, m, rank);

        if (st)
            return hd_err_prefix(st, "model.merges[%d]", (int)rank);
        rank++;
    }
    return HD_OK;
}

/* The steps must be those of the model's kind. */
static enum hd_status check_kind(const struct hd_bpe *bpe, const struct hd_bpe_steps *steps)
{
    if (bpe->falls_back && (steps->has_byte_level || !steps->has_spaces))
        return hd_err(HD_UNSUPPORTED, "model.byte_fallback is true, but neither normalizer nor "
                                      "pre_tokenizer writes spaces as U+2581");
    if (!bpe->falls_back && !steps->has_byte_level)
        return hd_err(HD_UNSUPPORTED, "pre_tokenizer has no ByteLevel, and model.byte_fallback is "
                                      "not true; only these two kinds are supported");
    if (!bpe->falls_back && steps->has_spaces)
        return hd_err(HD_UNSUPPORTED, "spaces become U+2581, and model.byte_fallback is not true");
    if (bpe->falls_back && bpe->is_nfc)
        return hd_err(HD_UNSUPPORTED, "normalizer: NFC with model.byte_fallback");
    return HD_OK;
}

static enum hd_status read_model(struct tokenizer_reading *r, const struct hd_json *model,
                                 const struct hd_bpe_steps *steps)
{
    const struct hd_json *type = hd_bpe_member(model, "type"), *vocab = NULL, *merges = NULL,
                         *dropout = hd_bpe_member(model, "dropout");
    bool ignored;
    enum hd_status st = hd_bpe_check_keys(
        model, "model",
        "type|dropout|unk_token|continuing_subword_prefix|end_of_word_suffix|fuse_unk|"
        "byte_fallback|ignore_merges|vocab|merges");

    if (!st && type && (type->kind != HD_JSON_STRING || strcmp(type->text, "BPE") != 0))
        st = hd_err(HD_UNSUPPORTED, "model.type is %.64s; only BPE is supported",
                    type->text ? type->text : "not a string");
    if (!st && dropout &&
        (dropout->kind != HD_JSON_NUMBER || strspn(dropout->text, "0.") != strlen(dropout->text)))
        st = hd_err(HD_UNSUPPORTED, "model.dropout is set; only null is supported");
    if (!st)
        st = must_be_empty(model, "model", "continuing_subword_prefix");
    if (!st)
        st = must_be_empty(model, "model", "end_of_word_suffix");
    if (!st)
        st = hd_bpe_read_bool(model, "model", "byte_fallback", false, &r->bpe->falls_back);
    if (!st)
        st = check_kind(r->bpe, steps);
    if (!st) /* irrelevant: unknown letters are an error here */
        st = hd_bpe_read_bool(model, "model", "fuse_unk", false, &ignored);
    if (!st)
        st = hd_bpe_read_bool(model, "model", "ignore_merges", false, &r->bpe->ignores_merges);
    if (!st)
        st = hd_json_need(model, "vocab", HD_JSON_OBJECT, &vocab);
    if (!st)
        st = hd_json_need(model, "merges", HD_JSON_ARRAY, &merges);
    if (!st)
        st = read_vocab(r, vocab);
    if (!st)
        st = index_words(r->bpe, vocab->count);
    return st ? st : read_merges(r, merges);
}

/* ---- added tokens ---- */

/* Registers the text of an added token under `id`. */
static enum hd_status take_added(struct tokenizer_reading *r, const char *content, int64_t id)
{
    struct hd_bpe *bpe = r->bpe;
    struct hd_token_text *text;
    enum hd_status st = reach(bpe, (int32_t)id);

    if (st)
        return st;
    text = &bpe->texts[id];
    if (text->content && strcmp(text->content, content) != 0)
        return hd_err(HD_INVALID, "'%.64s' has the id %lld of '%.64s'", content, (long long)id,
                      text->content);
    text->content = hd_arena_strdup(&bpe->arena, content);
    text->bytes = (const unsigned char *)text->content;
    text->len_bytes = (uint32_t)strlen(content);
    text->is_added = true;
    text->is_byte = false;
    if (!text->content)
        return no_memory();
    return bpe->falls_back ? spell_with_spaces(bpe, content, text) : HD_OK;
}

/* The content to search for, as the normalizer makes it of a normalized token. */
static enum hd_status set_content(struct tokenizer_reading *r, struct hd_added_token *token,
                                  const char *content)
{
    struct hd_text normal = {0};
    enum hd_status st = HD_OK;

    if (token->normalized && r->bpe->is_nfc)
        st = hd_nfc((const unsigned char *)content, strlen(content), &normal);
    if (token->normalized && r->bpe->falls_back && r->bpe->normal_spaces) {
        if (r->bpe->prefix == HD_PREFIX_NORMAL)
            hd_text_add_bytes(&normal, " ", 1);
        hd_bpe_add_spaces(content, strlen(content), &normal);
    }
    if (!st) {
        token->content = hd_arena_strdup(&r->bpe->arena, normal.data ? normal.data : content);
        if (!token->content)
            st = no_memory();
        else
            token->len_bytes = (uint32_t)strlen(token->content);
    }
    hd_text_free(&normal);
    return st;
}

/* Registers one token of the merged list. */
static enum hd_status take_token(struct tokenizer_reading *r, const struct hd_merged_token *from)
{
    struct hd_bpe *bpe = r->bpe;
    struct hd_added_token *token = &bpe->tokens[bpe->token_count];
    const char *content = from->content;
    enum hd_status st = take_added(r, content, from->id);

    *token = (struct hd_added_token){.id = from->id,
                                     .lstrip = from->flags.lstrip,
                                     .rstrip = from->flags.rstrip,
                                     .single_word = from->flags.single_word,
                                     .normalized = from->flags.normalized,
                                     .special = from->flags.special};
    if (!st)
        st = set_content(r, token, content);
    if (!st && token->single_word && !bpe->word_char) /* Rust's \w */
        st = hd_regex_new("[\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200C}\\x{200D}\\x{24B6}-\\x{24E9}"
                          "\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}]",
                          &bpe->word_char);
    if (!st)
        st = hd_added_insert(&bpe->arena, token->normalized ? &bpe->normalized : &bpe->plain,
                             bpe->token_count, token->content, token->len_bytes);
    if (!st && token->special)
        st = hd_added_insert(&bpe->arena, &bpe->specials, bpe->token_count, content,
                             strlen(content));
    bpe->token_count++;
    return st;
}

/* The added tokens of the file and of its companions. */
static enum hd_status read_added_tokens(struct tokenizer_reading *r, const struct hd_json *list)
{
    struct hd_merged_list merged = {0};
    enum hd_status st = hd_merged_list_make(&r->json, list, r->companions, r->bpe, &merged);

    r->bpe->tokens =
        st ? NULL
           : hd_arena_array(&r->bpe->arena, (size_t)merged.count + 1, sizeof *r->bpe->tokens);
    if (!st && !r->bpe->tokens)
        st = no_memory();
    for (int i = 0; !st && i < merged.count; i++) {
        st = take_token(r, &merged.tokens[i]);
        st = st ? hd_err_prefix(st, "the added token '%.64s'", merged.tokens[i].content) : HD_OK;
    }
    return st;
}

/* ---- the file ---- */

static enum hd_status read_root(struct tokenizer_reading *r, const struct hd_json *root)
{
    const struct hd_json *model = NULL, *m;
    struct hd_bpe_steps steps = {0};
    enum hd_status st = hd_bpe_check_keys(root, "the file",
                                          "version|truncation|padding|added_tokens|normalizer|"
                                          "pre_tokenizer|post_processor|decoder|model");

    if (!st)
        st = must_be_empty(root, "the file", "truncation");
    if (!st)
        st = must_be_empty(root, "the file", "padding");
    if (!st)
        st = hd_bpe_read_steps(root, r->bpe, &steps);
    if (!st)
        st = hd_json_need(root, "model", HD_JSON_OBJECT, &model);
    if (!st)
        st = read_model(r, model, &steps);
    if (!st)
        st = read_added_tokens(r, hd_bpe_member(root, "added_tokens"));
    if (!st && (m = hd_bpe_member(root, "post_processor")))
        st = hd_around_read(m, &r->bpe->arena, &r->bpe->around);
    if (!st && !r->bpe->vocab)
        st = hd_err(HD_INVALID, "model.vocab is empty");
    return st;
}

enum hd_status hd_bpe_read(const char *text, size_t text_bytes, struct hd_companions *companions,
                           struct hd_bpe *bpe)
{
    static const struct hd_json_limits limits = {VALUES_MAX, DEPTH_MAX};
    struct tokenizer_reading r = {.bpe = bpe, .companions = companions};
    const struct hd_json *root = NULL;
    enum hd_status st;

    hd_arena_init(&bpe->arena, arena_bytes_max);
    if (!hd_regex_is_present())
        return hd_err(HD_UNSUPPORTED, "tokenizer.json needs PCRE2, which this build does not have; "
                                      "install libpcre2-dev and libutf8proc-dev and build again");
    hd_arena_init(&r.json, arena_bytes_max);
    name_letters(&r);
    st = hd_json_parse(&r.json, text, text_bytes, &limits, &root);
    if (!st)
        st = read_root(&r, root);
    if (!st)
        bpe->cut = hd_bpe_find_cut(bpe);
    hd_arena_done(&r.json);
    return st;
}

void hd_bpe_done(struct hd_bpe *bpe)
{
    for (int i = 0; i < bpe->step_count; i++)
        hd_regex_free(bpe->steps[i].regex);
    hd_regex_free(bpe->word_char);
    hd_arena_done(&bpe->arena);
}
