#include "tokenizer/companions.h"

#include <stdlib.h>
#include <string.h>

#include "base/folder.h"
#include "base/hash.h"
#include "base/json.h"
#include "tokenizer/tokenizer_internal.h"

enum {
    VALUES_MAX = 4 << 20,
    DEPTH_MAX = 64,
    TOKENS_MAX = 1 << 17,
    EXTRAS_MAX = 1 << 13,
    NAMES_MAX = 256
};
static const size_t arena_bytes_max = (size_t)1 << 30;

const char *const hd_companion_files[HD_COMPANION_FILES] = {
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json"};

/* Names that every tokenizer has, in the order in which their tokens are added. */
static const char *const standard[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};
enum { STANDARD_COUNT = sizeof standard / sizeof standard[0] };

/* Tokenizer classes that build a BPE themselves, and their default special tokens for names that no
 * file gives (transformers 5.24, models/NAME/tokenization_NAME.py). */
static const struct tokenizer_class {
    const char *name;
    const char *names[STANDARD_COUNT]; /* default tokens in the order of `standard`; NULL: none */
    bool resets;                       /* value for hd_companions.resets of this class */
    bool ignores_prefix_space;         /* the class has no setting add_prefix_space */
} classes[] = {
    {.name = "GPT2Tokenizer", .names = {"<|endoftext|>", "<|endoftext|>", "<|endoftext|>"}},
    {.name = "GPTNeoXTokenizer",
     .names = {"<|endoftext|>", "<|endoftext|>", "<|endoftext|>", NULL, "<|padding|>"}},
    {.name = "Qwen2Tokenizer",
     .names = {NULL, "<|endoftext|>", "<|endoftext|>", NULL, "<|endoftext|>"},
     .resets = true},
    {.name = "LlamaTokenizer", .names = {"<s>", "</s>", "<unk>"}},
    {.name = "CodeLlamaTokenizer", .names = {"<s>", "</s>", "<unk>"}},
    {.name = "GemmaTokenizer",
     .names = {"<bos>", "<eos>", "<unk>", NULL, "<pad>", NULL, "<mask>"},
     .ignores_prefix_space = true},
    {.name = "CohereTokenizer",
     .names = {"<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>", "<SEP>", "<PAD>", "<CLS>",
               "<MASK_TOKEN>"}},
};

/* Tokenizer classes of model types for which transformers registers another class than the general
 * one. is_mistral: the registered class belongs to another library, and the general class is used
 * where that is not installed. ignores_files: the class that the files name is known to be wrong
 * for this model type. */
static const struct type_class {
    const char *model_type, *class_name;
    bool is_mistral, ignores_files;
} types[] = {{"gpt2", "GPT2Tokenizer", false, false},
             {"qwen2", "Qwen2Tokenizer", false, true},
             {"qwen3", "Qwen2Tokenizer", false, false},
             {"gemma", "GemmaTokenizer", false, false},
             {"gemma2", "GemmaTokenizer", false, false},
             {"jais2", "GPT2Tokenizer", false, false},
             {"opt", "GPT2Tokenizer", false, false},
             {"phi", "GPT2Tokenizer", false, false},
             {"mpt", "GPTNeoXTokenizer", false, false},
             {"olmo", "GPTNeoXTokenizer", false, false},
             {"cohere", "CohereTokenizer", false, false},
             {"mistral", NULL, true, false},
             {"mixtral", NULL, true, false}};

struct companions_reading {
    struct hd_companions *to;
    struct hd_arena json; /* memory of the parsed files; freed after reading */
    const struct hd_json *roots[HD_COMPANION_FILES];
    int name_capacity, listed_capacity, extra_capacity;
};

/* Returns the value of a key in a file; NULL: absent. */
static const struct hd_json *member(const struct companions_reading *r, enum hd_companion_file file,
                                    const char *key)
{
    return r->roots[file] ? hd_json_member(r->roots[file], key) : NULL;
}

/* Returns the string value of a key; "" if it is absent or no string. */
static const char *word(const struct companions_reading *r, enum hd_companion_file file,
                        const char *key)
{
    const struct hd_json *m = member(r, file, key);

    return m && m->kind == HD_JSON_STRING ? m->text : "";
}

/* ---- one token ---- */

static enum hd_status read_flag(const struct hd_json *object, const char *key, bool *value)
{
    const struct hd_json *m = hd_json_member(object, key);

    if (!m || m->kind == HD_JSON_NULL)
        return HD_OK;
    if (m->kind != HD_JSON_TRUE && m->kind != HD_JSON_FALSE)
        return hd_err(HD_INVALID, "%s is neither true nor false", key);
    *value = m->kind == HD_JSON_TRUE;
    return HD_OK;
}

static bool has_value(const struct hd_json *object, const char *key)
{
    const struct hd_json *m = hd_json_member(object, key);

    return m && m->kind != HD_JSON_NULL;
}

/* Copies the content of a token into the arena of the result. */
static enum hd_status set_token(struct companions_reading *r, const char *content,
                                struct hd_companion_token *token)
{
    if (strlen(content) > HD_BPE_TOKEN_BYTES_MAX)
        return hd_err(HD_LIMIT, "a token is longer than %d bytes", HD_BPE_TOKEN_BYTES_MAX);
    token->content = hd_arena_strdup(&r->to->arena, content);
    return token->content ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for special tokens");
}

/* Sets *ret_token from a JSON string or an object with "content". `special`: the flag for an object
 * without a key "special". */
static enum hd_status read_token(struct companions_reading *r, const struct hd_json *value,
                                 bool special, struct hd_companion_token *ret_token)
{
    struct hd_token_flags f = {.special = special};
    const char *content = NULL;
    enum hd_status st;

    *ret_token = (struct hd_companion_token){.flags = {.special = true}, .is_text = true, .id = -1};
    if (value->kind == HD_JSON_STRING)
        return set_token(r, value->text, ret_token);
    if (value->kind != HD_JSON_OBJECT)
        return hd_err(HD_INVALID,
                      "is neither a text nor an object with \"content\"; write the token");
    st = hd_json_need_string(value, "content", &content);
    if (!st)
        st = read_flag(value, "special", &f.special);
    f.normalized = !f.special;
    if (!st)
        st = read_flag(value, "normalized", &f.normalized);
    if (!st)
        st = read_flag(value, "lstrip", &f.lstrip);
    if (!st)
        st = read_flag(value, "rstrip", &f.rstrip);
    if (!st)
        st = read_flag(value, "single_word", &f.single_word);
    if (st)
        return st;
    ret_token->flags = f;
    ret_token->is_text = false;
    ret_token->says_normalized = has_value(value, "normalized");
    return set_token(r, content, ret_token);
}

static enum hd_status at_key(enum hd_status st, enum hd_companion_file file, const char *key)
{
    return st ? hd_err_prefix(st, "%s: %.64s", hd_companion_files[file], key) : HD_OK;
}

/* ---- names ---- */

static struct hd_companion_name *find_name(const struct hd_companions *c, const char *name)
{
    for (int i = 0; i < c->name_count; i++)
        if (strcmp(c->names[i].name, name) == 0)
            return &c->names[i];
    return NULL;
}

static void remove_name(struct hd_companions *c, struct hd_companion_name *row)
{
    const size_t behind = (size_t)(c->names + c->name_count - (row + 1));

    memmove(row, row + 1, behind * sizeof *row);
    c->name_count--;
}

/* Sets the token of a name such as "eos_token", replacing an earlier one. An empty token removes
 * the name. */
static enum hd_status put_name(struct companions_reading *r, const char *name, const char *file,
                               struct hd_companion_token token)
{
    struct hd_companions *c = r->to;
    struct hd_companion_name *row = find_name(c, name), *names;

    if (row && file == hd_companion_files[HD_COMPANION_SPECIAL_TOKENS_MAP] &&
        strcmp(row->token.content, token.content) != 0) {
        hd_text_add(&c->notes, "%s is '%.64s' in %s and ", name, row->token.content, row->file);
        if (*token.content)
            hd_text_add(&c->notes, "'%.64s'", token.content);
        else
            hd_text_add(&c->notes, "none");
        hd_text_add(&c->notes, " in %s; as in transformers the latter holds\n", file);
    }
    if (!*token.content) {
        if (row)
            remove_name(c, row);
        return HD_OK;
    }
    if (!row) {
        if (c->name_count == NAMES_MAX)
            return hd_err(HD_LIMIT, "more than %d names of tokens", NAMES_MAX);
        names = hd_arena_grow(&c->arena, c->names, c->name_count, &r->name_capacity, sizeof *names);
        if (!names)
            return hd_err(HD_NO_MEMORY, "no memory for special tokens");
        c->names = names;
        row = &c->names[c->name_count++];
    }
    *row = (struct hd_companion_name){hd_arena_strdup(&c->arena, name), token, file};
    return row->name ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for special tokens");
}

static bool is_standard(const char *name)
{
    for (int i = 0; i < STANDARD_COUNT; i++)
        if (strcmp(name, standard[i]) == 0)
            return true;
    return false;
}

/* Returns whether a key such as image_token names a token of the model: excludes flags such as
 * add_bos_token, and objects that are no AddedToken. */
static bool names_token(const struct hd_json *m, enum hd_companion_file file)
{
    const struct hd_json *type = hd_json_member(m, "__type");

    if (!hd_text_ends(m->key, "_token") || is_standard(m->key))
        return false;
    return m->kind == HD_JSON_STRING ||
           (m->kind == HD_JSON_OBJECT &&
            (file == HD_COMPANION_SPECIAL_TOKENS_MAP ||
             (type && type->kind == HD_JSON_STRING && strcmp(type->text, "AddedToken") == 0)));
}

static enum hd_status read_named_token(struct companions_reading *r, enum hd_companion_file file,
                                       const struct hd_json *m)
{
    struct hd_companion_token token = {.content = ""};
    enum hd_status st = HD_OK;

    if (m->kind != HD_JSON_NULL)
        st = read_token(r, m, file == HD_COMPANION_SPECIAL_TOKENS_MAP, &token);
    if (!st)
        st = put_name(r, m->key, hd_companion_files[file], token);
    return at_key(st, file, m->key);
}

/* Reads the named special tokens of one file; those of the standard names first, which is the order
 * in which tokens are added. */
static enum hd_status read_names(struct companions_reading *r, enum hd_companion_file file)
{
    const struct hd_json *root = r->roots[file];
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < STANDARD_COUNT; i++) {
        const struct hd_json *m = member(r, file, standard[i]);

        if (m)
            st = read_named_token(r, file, m);
    }
    for (const struct hd_json *m = root ? root->first : NULL; !st && m; m = m->next)
        if (names_token(m, file))
            st = read_named_token(r, file, m);
    return st;
}

static int rank_of(const char *name)
{
    int i = 0;

    while (i < STANDARD_COUNT && strcmp(name, standard[i]) != 0)
        i++;
    return i;
}

/* Moves tokens of standard names to the front of c->names; the others keep their order. */
static void sort_names(struct hd_companions *c)
{
    for (int i = 1; i < c->name_count; i++) {
        const struct hd_companion_name row = c->names[i];
        int at = i;

        for (; at > 0 && rank_of(c->names[at - 1].name) > rank_of(row.name); at--)
            c->names[at] = c->names[at - 1];
        c->names[at] = row;
    }
}

/* ---- lists ---- */

static enum hd_status add_extra(struct companions_reading *r, struct hd_companion_token token)
{
    struct hd_companions *c = r->to;
    struct hd_companion_token *extras = c->extra_count < EXTRAS_MAX
                                            ? hd_arena_grow(&c->arena, c->extras, c->extra_count,
                                                            &r->extra_capacity, sizeof *extras)
                                            : NULL;

    if (c->extra_count == EXTRAS_MAX)
        return hd_err(HD_LIMIT, "more than %d tokens", EXTRAS_MAX);
    if (!extras)
        return hd_err(HD_NO_MEMORY, "no memory for special tokens");
    c->extras = extras;
    c->extras[c->extra_count++] = token;
    return HD_OK;
}

/* Reads special tokens beside the standard names: a list of tokens, or an object of names and
 * tokens. */
static enum hd_status read_extras(struct companions_reading *r, enum hd_companion_file file,
                                  const struct hd_json *m)
{
    enum hd_status st = HD_OK;

    if (m->kind != HD_JSON_ARRAY && m->kind != HD_JSON_OBJECT)
        return m->kind == HD_JSON_NULL
                   ? HD_OK
                   : at_key(hd_err(HD_INVALID, "is neither a list of tokens nor an object of them"),
                            file, m->key);
    for (const struct hd_json *v = m->first; !st && v; v = v->next) {
        struct hd_companion_token token;

        st = read_token(r, v, file == HD_COMPANION_SPECIAL_TOKENS_MAP, &token);
        if (!st && m->kind == HD_JSON_OBJECT) {
            st = put_name(r, v->key, hd_companion_files[file], token);
        } else if (!st && *token.content) {
            st = add_extra(r, token);
        }
    }
    return at_key(st, file, m->key);
}

static bool is_given(const struct hd_json *m)
{
    return m && (m->kind == HD_JSON_ARRAY || m->kind == HD_JSON_OBJECT) && m->count > 0;
}

/* Reads extra_special_tokens, or else the older additional_special_tokens. Those of
 * special_tokens_map.json are added to a list; its older key counts only if there is no list
 * yet. */
static enum hd_status read_all_extras(struct companions_reading *r, bool with_map)
{
    static const char new_key[] = "extra_special_tokens", old_key[] = "additional_special_tokens";
    const enum hd_companion_file config = HD_COMPANION_TOKENIZER_CONFIG,
                                 map = HD_COMPANION_SPECIAL_TOKENS_MAP;
    const struct hd_json *first = member(r, config, new_key), *old = member(r, config, old_key),
                         *more = with_map ? member(r, map, new_key) : NULL;
    bool has_list = (first && first->kind != HD_JSON_OBJECT) || old || more;
    enum hd_status st = HD_OK;

    if (old && !is_given(first))
        first = old;
    if (first && !(more && more->kind != HD_JSON_ARRAY && first->kind == HD_JSON_ARRAY))
        /* in tokenizer_config.json, null or an object replaces the list */
        st = read_extras(r, config, first);
    if (!st && more)
        st = read_extras(r, map, more);
    if (!st && with_map && !has_list && (old = member(r, map, old_key)))
        st = read_extras(r, map, old);
    return st;
}

static enum hd_status add_listed(struct companions_reading *r, struct hd_companion_token token)
{
    struct hd_companions *c = r->to;
    struct hd_companion_token *listed =
        hd_arena_grow(&c->arena, c->listed, c->listed_count, &r->listed_capacity, sizeof *listed);

    if (!listed)
        return hd_err(HD_NO_MEMORY, "no memory for special tokens");
    c->listed = listed;
    if (*token.content)
        c->listed[c->listed_count++] = token;
    return HD_OK;
}

static int compare_token_ids(const void *left, const void *right)
{
    const struct hd_companion_token *a = left, *b = right;

    return a->id < b->id ? -1 : a->id > b->id;
}

/* Reads added_tokens_decoder: {"151643": {"content": ...}, ...}. */
static enum hd_status read_added_tokens_decoder(struct companions_reading *r,
                                                const struct hd_json *m)
{
    enum hd_status st = HD_OK;

    if (m->kind != HD_JSON_OBJECT || m->count > TOKENS_MAX)
        st = hd_err(HD_INVALID, "is not an object of at most %d tokens", TOKENS_MAX);
    for (const struct hd_json *v = st ? NULL : m->first; !st && v; v = v->next) {
        struct hd_companion_token token = {.content = ""};
        int64_t id = 0;

        if (hd_text_to_int64(v->key, 0, HD_BPE_IDS_MAX - 1, &id))
            st = hd_err(HD_INVALID, "'%.64s' is no token id", v->key);
        else if (v->kind != HD_JSON_OBJECT)
            st = hd_err(HD_INVALID, "the token of id %lld is no object", (long long)id);
        else
            st = read_token(r, v, false, &token);
        token.id = id;
        if (!st)
            st = add_listed(r, token);
    }
    return at_key(st, HD_COMPANION_TOKENIZER_CONFIG, "added_tokens_decoder");
}

static bool is_special_content(const struct hd_companions *c, const char *content)
{
    for (int i = 0; i < c->name_count; i++)
        if (is_standard(c->names[i].name) && strcmp(c->names[i].token.content, content) == 0)
            return true;
    for (int i = 0; i < c->extra_count; i++)
        if (strcmp(c->extras[i].content, content) == 0)
            return true;
    return false;
}

/* Reads added_tokens.json: {"<tool>": 259, ...}. A token is special if another file names it as
 * special. */
static enum hd_status read_added_tokens(struct companions_reading *r)
{
    const enum hd_companion_file file = HD_COMPANION_ADDED_TOKENS;
    const struct hd_json *root = r->roots[file];
    enum hd_status st = HD_OK;

    if (root && root->count > TOKENS_MAX)
        return hd_err(HD_LIMIT, "%s: more than %d tokens", hd_companion_files[file], TOKENS_MAX);
    for (const struct hd_json *v = root ? root->first : NULL; !st && v; v = v->next) {
        struct hd_companion_token token = {.is_text = false};

        token.flags.special = is_special_content(r->to, v->key);
        token.flags.normalized = !token.flags.special;
        st = hd_json_to_int64(v, 0, HD_BPE_IDS_MAX - 1, &token.id);
        if (!st)
            st = set_token(r, v->key, &token);
        if (!st)
            st = add_listed(r, token);
        st = at_key(st, file, v->key);
    }
    return st;
}

/* ---- the class ---- */

static const struct tokenizer_class *find_class(const char *name)
{
    size_t len = strlen(name);

    if (hd_text_ends(name, "Fast"))
        len -= strlen("Fast");
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
        if (strlen(classes[i].name) == len && strncmp(classes[i].name, name, len) == 0)
            return &classes[i];
    return NULL;
}

/* Returns the class that AutoTokenizer would choose; NULL: the general class (TokenizersBackend),
 * which takes tokenizer.json as it is. */
static const struct tokenizer_class *choose_class(const struct companions_reading *r,
                                                  bool is_byte_level)
{
    const char *config_class = word(r, HD_COMPANION_CONFIG, "tokenizer_class"),
               *own = word(r, HD_COMPANION_TOKENIZER_CONFIG, "tokenizer_class"),
               *named = *own ? own : config_class,
               *model_type = word(r, HD_COMPANION_CONFIG, "model_type");
    const struct tokenizer_class *by_name = find_class(named), *by_type = NULL;
    const struct type_class *type = NULL;

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].model_type, model_type) == 0)
            type = &types[i];
    if (type && type->class_name)
        by_type = find_class(type->class_name);
    if (!*named)
        return by_type;
    if (type && type->ignores_files)
        return by_type;
    if (by_name && strcmp(by_name->name, "LlamaTokenizer") == 0 && is_byte_level)
        /* the class would treat spaces differently from tokenizer.json, so it is not chosen */
        return NULL;
    return type && type->is_mistral ? NULL : by_name;
}

static enum hd_status add_class_names(struct companions_reading *r, const struct tokenizer_class *k)
{
    enum hd_status st = HD_OK;

    for (int i = 0; !st && k && i < STANDARD_COUNT; i++) {
        struct hd_companion_token token = {
            .content = k->names[i], .flags = {.special = true}, .is_text = true, .id = -1};

        if (k->names[i])
            st = put_name(r, standard[i], k->name, token);
    }
    return st;
}

/* ---- the files ---- */

static enum hd_status parse_file(struct companions_reading *r, const struct hd_text *text,
                                 enum hd_companion_file file)
{
    static const struct hd_json_limits limits = {VALUES_MAX, DEPTH_MAX};
    const struct hd_json *root = NULL;
    enum hd_status st;

    if (!text->data)
        return HD_OK;
    st = hd_json_parse_repeated(&r->json, text->data, text->len_bytes, &limits, &root);
    if (!st && root->kind != HD_JSON_OBJECT)
        st = hd_err(HD_INVALID, "is not an object");
    r->roots[file] = st ? NULL : root;
    return st ? hd_err_prefix(st, "%s", hd_companion_files[file]) : HD_OK;
}

/* Reads the keys of tokenizer_config.json that decide how texts become ids. */
static enum hd_status read_switches(struct companions_reading *r,
                                    const struct tokenizer_class *chosen)
{
    const enum hd_companion_file file = HD_COMPANION_TOKENIZER_CONFIG;
    const struct hd_json *root = r->roots[file];
    enum hd_status st = HD_OK;

    if (!root)
        return HD_OK;
    st = read_flag(root, "split_special_tokens", &r->to->splits_specials);
    if (!st && chosen && !chosen->ignores_prefix_space && has_value(root, "add_prefix_space")) {
        r->to->asks_prefix_space = true;
        st = read_flag(root, "add_prefix_space", &r->to->wants_prefix_space);
    }
    if (!st && r->to->splits_specials)
        hd_text_add(&r->to->notes,
                    "%s: split_special_tokens is true: special tokens that a text spells, and "
                    "those of a chat template, become ordinary tokens, as in transformers\n",
                    hd_companion_files[file]);
    return st ? hd_err_prefix(st, "%s", hd_companion_files[file]) : HD_OK;
}

static enum hd_status copy_asked_class(struct companions_reading *r)
{
    const char *own = word(r, HD_COMPANION_TOKENIZER_CONFIG, "tokenizer_class");

    r->to->asked_class = hd_arena_strdup(
        &r->to->arena, *own ? own : word(r, HD_COMPANION_CONFIG, "tokenizer_class"));
    if (r->to->asked_class)
        return HD_OK;
    r->to->asked_class = "";
    return hd_err(HD_NO_MEMORY, "no memory for special tokens");
}

static enum hd_status read_roots(struct companions_reading *r, bool is_byte_level)
{
    const struct hd_json *decoder =
        member(r, HD_COMPANION_TOKENIZER_CONFIG, "added_tokens_decoder");
    const struct tokenizer_class *chosen = choose_class(r, is_byte_level);
    struct hd_companions *c = r->to;
    enum hd_status st = add_class_names(r, chosen);

    c->tokenizer_class = chosen ? chosen->name : "";
    if (!st)
        st = copy_asked_class(r);
    c->rebuilds = chosen != NULL;
    c->resets = chosen && chosen->resets;
    c->has_decoder = decoder != NULL;
    if (!st)
        st = read_names(r, HD_COMPANION_TOKENIZER_CONFIG);
    if (!st && !decoder)
        st = read_names(r, HD_COMPANION_SPECIAL_TOKENS_MAP);
    if (!st)
        st = read_all_extras(r, !decoder);
    if (!st)
        st = decoder ? read_added_tokens_decoder(r, decoder) : read_added_tokens(r);
    if (c->listed_count)
        qsort(c->listed, (size_t)c->listed_count, sizeof *c->listed, compare_token_ids);
    sort_names(c);
    return st ? st : read_switches(r, chosen);
}

enum hd_status hd_companions_parse(const struct hd_companion_texts *texts,
                                   struct hd_companions *ret_companions)
{
    struct companions_reading r = {.to = ret_companions};
    enum hd_status st = HD_OK;

    *ret_companions = (struct hd_companions){.tokenizer_class = "", .asked_class = ""};
    hd_arena_init(&ret_companions->arena, arena_bytes_max);
    hd_arena_init(&r.json, arena_bytes_max);
    for (int i = 0; !st && i < HD_COMPANION_FILES; i++)
        st = parse_file(&r, &texts->files[i], (enum hd_companion_file)i);
    if (!st)
        st = read_roots(&r, texts->is_byte_level);
    if (!st && ret_companions->notes.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for special tokens");
    hd_arena_done(&r.json);
    return st;
}

static bool says(const struct hd_text *json, const char *what)
{
    return json->data && memmem(json->data, json->len_bytes, what, strlen(what));
}

enum hd_status hd_companions_read(const char *dir, const struct hd_text *tokenizer_json,
                                  struct hd_companions *ret_companions)
{
    static const char llama[] = "LlamaTokenizer"; /* the class that depends on is_byte_level */
    struct hd_companion_texts texts = {.is_byte_level = false};
    struct hd_text own = {0};
    enum hd_status st = HD_OK;

    *ret_companions = (struct hd_companions){.tokenizer_class = "", .asked_class = ""};
    for (int i = 0; !st && i < HD_COMPANION_FILES; i++)
        st =
            hd_folder_read_any(dir, hd_companion_files[i], HD_COMPANION_BYTES_MAX, &texts.files[i]);
    if (!st && !tokenizer_json &&
        (says(&texts.files[HD_COMPANION_TOKENIZER_CONFIG], llama) ||
         says(&texts.files[HD_COMPANION_CONFIG], llama)))
        st = hd_folder_read_any(dir, "tokenizer.json", HD_TOKENIZER_FILE_BYTES_MAX, &own);
    texts.is_byte_level = says(tokenizer_json ? tokenizer_json : &own, "\"ByteLevel\"");
    if (!st) {
        st = hd_companions_parse(&texts, ret_companions);
        st = st ? hd_err_prefix(st, "%s", dir) : HD_OK;
    }
    for (int i = 0; i < HD_COMPANION_FILES; i++)
        hd_text_free(&texts.files[i]);
    hd_text_free(&own);
    return st;
}

void hd_companions_done(struct hd_companions *companions)
{
    hd_arena_done(&companions->arena);
    hd_text_free(&companions->notes);
    *companions = (struct hd_companions){.tokenizer_class = "", .asked_class = ""};
}

const struct hd_companion_name *hd_companions_find(const struct hd_companions *companions,
                                                   const char *name)
{
    return find_name(companions, name);
}

bool hd_companions_find_tokenizer(const char *dir, struct hd_text *ret_path)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.model", "spiece.model"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (hd_folder_has(dir, names[i]))
            return !hd_folder_path(ret_path, dir, names[i]);
    hd_text_clear(ret_path);
    return false;
}

void hd_companions_explain_missing(const char *dir, struct hd_text *ret_text)
{
    static const char *const forms[] = {"tekken.json", "tiktoken.model", "vocab.json", "vocab.txt"};
    const char *form = NULL;

    for (size_t i = 0; !form && i < sizeof forms / sizeof forms[0]; i++)
        form = hd_folder_has(dir, forms[i]) ? forms[i] : NULL;
    if (form)
        hd_text_add(ret_text,
                    "%s has no tokenizer.json or tokenizer.model, only %s, which Heddle does not "
                    "read; make one with "
                    "transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
                    dir, form);
    else
        hd_text_add(ret_text, "%s has no tokenizer.json or tokenizer.model", dir);
}

/* ---- the hash ---- */

static void mix_token(struct hd_hash *hash, const char *name, const struct hd_companion_token *t)
{
    const unsigned char flags[] = {t->flags.lstrip,     t->flags.rstrip,  t->flags.single_word,
                                   t->flags.normalized, t->flags.special, t->is_text};

    hd_hash_add(hash, name, strlen(name) + 1);
    hd_hash_add(hash, t->content, strlen(t->content) + 1);
    hd_hash_add(hash, flags, sizeof flags);
}

uint64_t hd_companions_hash(const struct hd_companions *c)
{
    struct hd_hash hash;

    if (!c->name_count && !c->listed_count && !c->extra_count && !c->rebuilds &&
        !c->splits_specials)
        return 0;
    hd_hash_begin(&hash);
    for (int i = 0; i < c->name_count; i++)
        mix_token(&hash, c->names[i].name, &c->names[i].token);
    for (int i = 0; i < c->listed_count; i++)
        mix_token(&hash, "", &c->listed[i]);
    for (int i = 0; i < c->extra_count; i++)
        mix_token(&hash, "", &c->extras[i]);
    hd_hash_add(&hash, &(char){(char)(c->rebuilds + 2 * c->has_decoder + 4 * c->splits_specials)},
                1);
    return hd_hash_value(&hash);
}
