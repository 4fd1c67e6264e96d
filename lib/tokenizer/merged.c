/* merged: merges the added tokens of tokenizer.json and of its companion files into one list, with
 * the ids that AutoTokenizer gives them; also reads the ids that a post-processor puts around a
 * text.
 *
 * Sources of the list, in this order:
 *   the general class   the added_tokens of tokenizer.json; then tokens with ids
 *                       (added_tokens_decoder, else those of added_tokens.json and tokenizer.json),
 *                       tokens with names, extra special tokens
 *   a class that        tokens with ids, tokens with names, extra special tokens: tokenizer.json
 *   builds anew         counts only if tokenizer_config.json has no added_tokens_decoder
 *
 * A token that occurs twice gets the flags of the later source. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "tokenizer/tokenizer_internal.h"

enum { OWN_MAX = 1 << 20, NOTES_MAX = 4, AROUND_MAX = 64, AROUND_DEPTH_MAX = 32 };

struct known { /* row of a hash table of tokens by content; content NULL: free row */
    const char *content;
    int32_t id;      /* token id; -1: none yet */
    int32_t index;   /* index in the merged list; -1: not in it yet */
    int32_t waiting; /* index of the token's last entry in the list of tokens to add; -1: none */
};

struct merging {
    struct hd_arena *arena;
    const struct hd_companions *companions;
    struct hd_text *notes; /* notes for the user about differing ids; NULL: not needed */
    struct hd_merged_list *list;
    struct known *known; /* [mask + 1] hash table */
    uint64_t mask;
    int32_t model_count, last_id; /* tokens of the model; largest id of an added token so far, -1:
                                     none */
    int noted;
};

struct unmerged { /* a token to add to the merged list */
    struct hd_companion_token token;
    const char *file;
    bool is_named;
    int order;
};

static struct known *find_known(const struct merging *m, const char *content)
{
    uint64_t i = hd_mix64(hd_hash_bytes(content, strlen(content))) & m->mask;

    while (m->known[i].content && strcmp(m->known[i].content, content) != 0)
        i = (i + 1) & m->mask;
    return &m->known[i];
}

/* Makes the hash table with the model's tokens, and space for `more` tokens. */
static enum hd_status make_table(struct merging *m, const struct hd_bpe *bpe, size_t more)
{
    uint64_t size = 64;

    while (size < 2 * ((uint64_t)bpe->vocab + more))
        size *= 2;
    m->mask = size - 1;
    m->known = hd_arena_array(m->arena, size, sizeof *m->known);
    if (!m->known)
        return hd_err(HD_NO_MEMORY, "no memory for the added tokens");
    for (int32_t id = 0; id < bpe->vocab; id++)
        if (bpe->texts[id].content) {
            *find_known(m, bpe->texts[id].content) =
                (struct known){bpe->texts[id].content, id, -1, -1};
            m->model_count++;
        }
    return HD_OK;
}

/* Returns the hash table's row of a token; adds a row if the token is new. */
static struct known *know(struct merging *m, const char *content)
{
    struct known *k = find_known(m, content);

    if (!k->content)
        *k = (struct known){content, -1, -1, -1};
    return k;
}

/* Adds a note if a token's id differs from the one that its file gives. */
static void note_id(struct merging *m, const struct unmerged *w, int32_t id)
{
    if (w->token.id < 0 || w->token.id == id || !m->notes || m->noted++ >= NOTES_MAX)
        return;
    hd_text_add(m->notes,
                "%s: '%.64s' has the id %lld there, and is token %d: added tokens are counted from "
                "the end of the vocabulary, as in transformers\n",
                w->file, w->token.content, (long long)w->token.id, (int)id);
}

static enum hd_status add(struct merging *m, const struct unmerged *w)
{
    struct hd_merged_list *list = m->list;
    struct known *known = know(m, w->token.content);
    struct hd_merged_token *tokens;

    if (known->id < 0) {
        known->id = m->last_id >= m->model_count ? m->last_id + 1 : m->model_count;
        if (known->id >= HD_BPE_IDS_MAX)
            return hd_err(HD_LIMIT, "more than %d tokens", HD_BPE_IDS_MAX);
    }
    if (known->id > m->last_id)
        m->last_id = known->id;
    note_id(m, w, known->id);
    if (known->index < 0) {
        tokens =
            hd_arena_grow(m->arena, list->tokens, list->count, &list->capacity, sizeof *tokens);
        if (!tokens)
            return hd_err(HD_NO_MEMORY, "no memory for the added tokens");
        list->tokens = tokens;
        known->index = list->count++;
        list->tokens[known->index] =
            (struct hd_merged_token){.content = w->token.content, .id = known->id};
    }
    list->tokens[known->index].flags = w->token.flags;
    return HD_OK;
}

/* ---- tokenizer.json ---- */

static enum hd_status read_own_token(const struct hd_json *a, struct hd_companion_token *ret_token)
{
    static const char where[] = "added_tokens";
    struct hd_token_flags f = {.special = false};
    int64_t id = 0;
    enum hd_status st =
        hd_bpe_check_keys(a, where, "id|content|single_word|lstrip|rstrip|normalized|special");

    if (!st)
        st = hd_json_need_int64(a, "id", 0, HD_BPE_IDS_MAX - 1, &id);
    if (!st)
        st = hd_json_need_string(a, "content", &ret_token->content);
    if (!st)
        st = hd_bpe_read_bool(a, where, "special", false, &f.special);
    if (!st)
        st = hd_bpe_read_bool(a, where, "single_word", false, &f.single_word);
    if (!st)
        st = hd_bpe_read_bool(a, where, "lstrip", false, &f.lstrip);
    if (!st)
        st = hd_bpe_read_bool(a, where, "rstrip", false, &f.rstrip);
    if (!st)
        st = hd_bpe_read_bool(a, where, "normalized", !f.special, &f.normalized);
    if (!st && strlen(ret_token->content) > HD_BPE_TOKEN_BYTES_MAX)
        st = hd_err(HD_LIMIT, "a token is longer than %d bytes", HD_BPE_TOKEN_BYTES_MAX);
    ret_token->flags = f;
    ret_token->id = id;
    ret_token->is_text = false;
    ret_token->says_normalized = hd_bpe_member(a, "normalized") != NULL;
    return st;
}

/* Reads added_tokens. *ret_own: [*ret_count]; empty tokens, which never occur in a text, are left
 * out. */
static enum hd_status read_own(struct hd_arena *arena, const struct hd_json *json,
                               struct hd_companion_token **ret_own, int *ret_count)
{
    int index = 0, count = 0;

    if (json && (json->kind != HD_JSON_ARRAY || json->count > OWN_MAX))
        return hd_err(HD_INVALID, "added_tokens is not a list of at most %d tokens", OWN_MAX);
    *ret_own = hd_arena_array(arena, (json ? json->count : 0) + 1, sizeof **ret_own);
    if (!*ret_own)
        return hd_err(HD_NO_MEMORY, "no memory for the added tokens");
    for (const struct hd_json *a = json ? json->first : NULL; a; a = a->next, index++) {
        const enum hd_status st = read_own_token(a, &(*ret_own)[count]);

        if (st)
            return hd_err_prefix(st, "added_tokens[%d]", index);
        count += (*ret_own)[count].content[0] != '\0';
    }
    *ret_count = count;
    return HD_OK;
}

/* ---- the companions ---- */

static bool is_named(const struct hd_companions *c, const char *content)
{
    for (int i = 0; i < c->name_count; i++)
        if (strcmp(c->names[i].token.content, content) == 0)
            return true;
    return false;
}

/* Compares two tokens by id, then by their order in the files. */
static int compare_unmerged(const void *left, const void *right)
{
    const struct unmerged *a = left, *b = right;

    if (a->token.id != b->token.id)
        return a->token.id < b->token.id ? -1 : 1;
    return a->order - b->order;
}

/* Writes the list of tokens with ids: those of added_tokens_decoder, else added_tokens.json and
 * then tokenizer.json. If several tokens have one id, only the last one remains. */
static int list_by_id(const struct hd_companions *c, const struct hd_companion_token *own,
                      int own_count, struct unmerged *ret_list)
{
    const char *file = hd_companion_files[c->has_decoder ? HD_COMPANION_TOKENIZER_CONFIG
                                                         : HD_COMPANION_ADDED_TOKENS];
    int n = 0, kept = 0;

    for (int i = 0; i < c->listed_count; i++, n++)
        ret_list[n] = (struct unmerged){c->listed[i], file, is_named(c, c->listed[i].content), n};
    for (int i = 0; !c->has_decoder && i < own_count; i++, n++)
        ret_list[n] = (struct unmerged){own[i], "tokenizer.json", is_named(c, own[i].content), n};
    qsort(ret_list, (size_t)n, sizeof *ret_list, compare_unmerged);
    for (int i = 0; i < n; i++)
        if (i + 1 == n || ret_list[i].token.id != ret_list[i + 1].token.id)
            ret_list[kept++] = ret_list[i];
    return kept;
}

static bool has_flags(const struct hd_token_flags *a, const struct hd_token_flags *b)
{
    return a->lstrip == b->lstrip && a->rstrip == b->rstrip && a->single_word == b->single_word &&
           a->normalized == b->normalized && a->special == b->special;
}

/* Appends a named or extra token to the list of tokens to add, unless it is in the merged list, has
 * an id, or is in the list with equal flags. Returns the list's new length. */
static int append(struct merging *m, struct unmerged *list, int listed, int count,
                  struct unmerged w)
{
    struct known *known = know(m, w.token.content);
    const struct hd_companion_token *t = known->waiting >= 0 ? &list[known->waiting].token : NULL;

    if (known->index >= 0)
        return count;
    if (t && (known->waiting < listed ||
              (t->is_text == w.token.is_text && has_flags(&t->flags, &w.token.flags))))
        return count;
    known->waiting = count;
    list[count] = w;
    return count + 1;
}

static void make_special(struct hd_companion_token *token)
{
    token->flags.special = true;
    if (!token->says_normalized)
        token->flags.normalized = false;
}

/* Adds the companions' tokens after those that are in the merged list. */
static enum hd_status add_companions(struct merging *m, const struct hd_companion_token *own,
                                     int own_count)
{
    const struct hd_companions *c = m->companions;
    const size_t capacity = (size_t)c->listed_count + (size_t)own_count + (size_t)c->name_count +
                            (size_t)c->extra_count;
    struct unmerged *list = hd_arena_array(m->arena, capacity + 1, sizeof *list);
    int count, listed;
    enum hd_status st = HD_OK;

    if (!list)
        return hd_err(HD_NO_MEMORY, "no memory for the added tokens");
    count = listed = list_by_id(c, own, own_count, list);
    for (int i = 0; i < listed; i++)
        know(m, list[i].token.content)->waiting = i;
    for (int i = 0; i < c->name_count; i++)
        count = append(m, list, listed, count,
                       (struct unmerged){c->names[i].token, c->names[i].file, true, 0});
    for (int i = 0; i < c->extra_count; i++)
        count = append(m, list, listed, count,
                       (struct unmerged){c->extras[i], "", is_named(c, c->extras[i].content), 0});
    for (int i = 0; !st && i < count; i++) {
        if (list[i].is_named)
            make_special(&list[i].token);
        st = add(m, &list[i]);
    }
    return st;
}

/* Sets the flags of all special tokens in the merged list to those of a plain special token. */
static void reset_flags(struct merging *m)
{
    const struct hd_companions *c = m->companions;
    const struct hd_token_flags plain = {.special = true};

    for (int i = 0; i < c->name_count + c->extra_count; i++) {
        const struct hd_companion_token *t =
            i < c->name_count ? &c->names[i].token : &c->extras[i - c->name_count];
        const struct known *known = find_known(m, t->content);

        if (known->content && known->index >= 0)
            m->list->tokens[known->index].flags = plain;
    }
}

enum hd_status hd_merged_list_make(struct hd_arena *arena, const struct hd_json *own,
                                   struct hd_companions *companions, const struct hd_bpe *bpe,
                                   struct hd_merged_list *ret_list)
{
    struct merging m = {.arena = arena,
                        .companions = companions,
                        .notes = companions ? &companions->notes : NULL,
                        .list = ret_list,
                        .last_id = -1};
    const struct hd_companions *c = companions;
    struct hd_companion_token *tokens = NULL;
    int count = 0;
    enum hd_status st = read_own(arena, own, &tokens, &count);

    if (!st)
        st = make_table(
            &m, bpe,
            (size_t)count +
                (c ? (size_t)c->listed_count + (size_t)c->name_count + (size_t)c->extra_count : 0));
    for (int i = 0; !st && (!c || !c->rebuilds) && i < count; i++)
        st = add(&m, &(struct unmerged){tokens[i], "tokenizer.json", false, 0});
    if (!st && c)
        st = add_companions(&m, tokens, count);
    if (!st && c && c->resets)
        reset_flags(&m);
    if (m.noted > NOTES_MAX && m.notes)
        hd_text_add(m.notes, "%d further added tokens have other ids than their files say\n",
                    m.noted - NOTES_MAX);
    return st;
}

/* ---- around a text ---- */

static enum hd_status put_around(struct hd_arena *arena, int32_t **ids, int *count, int64_t id)
{
    if (!*ids)
        *ids = hd_arena_array(arena, AROUND_MAX, sizeof **ids);
    if (!*ids)
        return hd_err(HD_NO_MEMORY, "no memory for the added tokens");
    if (*count == AROUND_MAX)
        return hd_err(HD_LIMIT, "post_processor puts more than %d tokens around a text",
                      AROUND_MAX);
    (*ids)[(*count)++] = (int32_t)id;
    return HD_OK;
}

/* Appends the ids that special_tokens of a TemplateProcessing has for a token's name. */
static enum hd_status add_template_token(const struct hd_json *tokens, const char *name,
                                         struct hd_arena *arena, int32_t **ids, int *count)
{
    const struct hd_json *row = hd_json_member(tokens, name), *list = NULL;
    enum hd_status st = row ? hd_json_need(row, "ids", HD_JSON_ARRAY, &list)
                            : hd_err(HD_INVALID, "'%.64s' is not there", name);

    for (const struct hd_json *v = st ? NULL : list->first; !st && v; v = v->next) {
        int64_t id = 0;

        st = hd_json_to_int64(v, 0, HD_BPE_IDS_MAX - 1, &id);
        if (!st)
            st = put_around(arena, ids, count, id);
    }
    return st ? hd_err_prefix(st, "post_processor.special_tokens") : HD_OK;
}

/* Reads the template of a TemplateProcessing: a list of special tokens with $A for the text. */
static enum hd_status read_template(const struct hd_json *p, struct hd_arena *arena,
                                    struct hd_around *around)
{
    const struct hd_json *single = NULL, *tokens = NULL;
    bool behind = false;
    enum hd_status st = hd_json_need(p, "single", HD_JSON_ARRAY, &single);

    if (!st)
        st = hd_json_need(p, "special_tokens", HD_JSON_OBJECT, &tokens);
    if (st)
        return hd_err_prefix(st, "post_processor");
    for (const struct hd_json *v = single->first; !st && v; v = v->next) {
        const struct hd_json *token = hd_json_member(v, "SpecialToken");
        const char *name = NULL;

        if (hd_json_member(v, "Sequence")) {
            behind = true;
            continue;
        }
        st = token ? hd_json_need_string(token, "id", &name)
                   : hd_err(HD_INVALID, "has a piece that is neither SpecialToken nor Sequence");
        st = st ? hd_err_prefix(st, "post_processor.single") : HD_OK;
        if (!st)
            st = behind ? add_template_token(tokens, name, arena, &around->behind,
                                             &around->behind_count)
                        : add_template_token(tokens, name, arena, &around->before,
                                             &around->before_count);
    }
    return st;
}

/* Reads BertProcessing or RobertaProcessing: "cls": [token, id] goes before a text, "sep" after
 * it. */
static enum hd_status read_token_and_id(const struct hd_json *p, const char *key,
                                        struct hd_arena *arena, int32_t **ids, int *count)
{
    const struct hd_json *pair = NULL;
    int64_t id = 0;
    enum hd_status st = hd_json_need(p, key, HD_JSON_ARRAY, &pair);

    if (!st && pair->count != 2)
        st = hd_err(HD_INVALID, "%s is not a token and its id", key);
    if (!st)
        st = hd_json_to_int64(pair->first->next, 0, HD_BPE_IDS_MAX - 1, &id);
    st = st ? hd_err_prefix(st, "post_processor") : HD_OK;
    return st ? st : put_around(arena, ids, count, id);
}

static enum hd_status read_around(const struct hd_json *p, struct hd_arena *arena, int depth,
                                  struct hd_around *around)
{
    const struct hd_json *list = hd_json_member(p, "processors");
    const char *type = NULL;
    enum hd_status st = hd_json_need_string(p, "type", &type);

    if (st || depth > AROUND_DEPTH_MAX)
        return st;
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(p, arena, around);
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
        st = read_token_and_id(p, "cls", arena, &around->before, &around->before_count);
        return st ? st : read_token_and_id(p, "sep", arena, &around->behind, &around->behind_count);
    }
    for (const struct hd_json *v = list && list->kind == HD_JSON_ARRAY ? list->first : NULL;
         !st && v; v = v->next)
        st = read_around(v, arena, depth + 1, around);
    return st;
}

enum hd_status hd_around_read(const struct hd_json *post_processor, struct hd_arena *arena,
                              struct hd_around *ret_around)
{
    *ret_around = (struct hd_around){.before = NULL};
    return read_around(post_processor, arena, 0, ret_around);
}
