#include "tokenizer/special.h"

#include <stdio.h>
#include <string.h>

#include "tokenizer/companions.h"

enum { CANDIDATES_MAX = 6 };

static const char generation_file[] = "generation_config.json", config_file[] = "config.json";

static void note(struct hd_special *s, const char *text)
{
    const size_t used = strlen(s->notes);

    (void)snprintf(s->notes + used, sizeof s->notes - used, "%s", text);
}

static struct hd_special_token named(const struct hd_tokenizer *tokenizer, const char *name)
{
    const struct hd_companions *c = tokenizer ? hd_tokenizer_companions(tokenizer) : NULL;
    const struct hd_companion_name *row = c ? hd_companions_find(c, name) : NULL;
    struct hd_special_token token = {-1, ""};

    if (row) {
        token.id = hd_tokenizer_find(tokenizer, row->token.content);
        token.file = row->file;
    }
    return token;
}

static bool has(const int32_t *ids, int count, int32_t id)
{
    for (int i = 0; i < count; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* Returns whether an id can be a token of the tokenizer; true for every id >= 0 if the tokenizer is
 * unknown. */
static bool is_token(const struct hd_tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && (!tokenizer || id < hd_tokenizer_vocab(tokenizer));
}

static void add_stop(const struct hd_tokenizer *tokenizer, const struct hd_model_ids *ids,
                     int32_t id, struct hd_special *s)
{
    char line[256];

    if (has(s->stops, s->stop_count, id))
        return;
    if (is_token(tokenizer, id)) {
        s->stops[s->stop_count++] = id;
        return;
    }
    (void)snprintf(line, sizeof line, "%s: eos_token_id %d is no token of %.100s and is left out\n",
                   ids->eos_file, (int)id,
                   tokenizer ? hd_tokenizer_name(tokenizer) : "the tokenizer");
    note(s, line);
}

static void add_ids(struct hd_text *text, const int32_t *ids, int count)
{
    for (int i = 0; i < count; i++)
        hd_text_add(text, "%s%d", i ? ", " : "", (int)ids[i]);
}

/* Adds a note if the tokenizer's eos_token is none of the eos ids in the model's files. */
static void compare_ends(const struct hd_tokenizer *tokenizer, const struct hd_model_ids *ids,
                         struct hd_special *s)
{
    const char *content = hd_tokenizer_content(tokenizer, s->end.id);
    struct hd_text line = {0};

    if (!s->stop_count || has(s->stops, s->stop_count, s->end.id))
        return;
    hd_text_add(&line, "%s: eos_token is '%.64s' (%d), and eos_token_id of %s is ", s->end.file,
                content ? content : "", (int)s->end.id, ids->eos_file);
    add_ids(&line, ids->eos, ids->eos_count);
    hd_text_add(&line, ": documents end with the former, generation stops at the latter, as in "
                       "transformers\n");
    if (!line.failed)
        note(s, line.data);
    hd_text_free(&line);
}

/* Sets the end of a document to the first of the model's ids that is a special token. Ordinary
 * tokens are skipped: by default, transformers' classes write ids of other tokenizers into
 * config.json. */
static void take_end_of_model(const struct hd_tokenizer *tokenizer, const struct hd_model_ids *ids,
                              struct hd_special *s)
{
    const bool has_names = tokenizer && hd_tokenizer_companions(tokenizer);
    const char *content;
    char line[512];

    for (int i = 0; has_names && i < s->stop_count && s->end.id < 0; i++)
        if (hd_tokenizer_is_special(tokenizer, s->stops[i]))
            s->end = (struct hd_special_token){s->stops[i], ids->eos_file};
    if (!has_names || !s->stop_count || s->end.id >= 0)
        return;
    content = hd_tokenizer_content(tokenizer, s->stops[0]);
    (void)snprintf(line, sizeof line,
                   "%s: eos_token_id %d is '%.64s', which is no special token: generation stops at "
                   "it, and it ends no document\n",
                   ids->eos_file, (int)s->stops[0], content ? content : "");
    note(s, line);
}

/* Adds a note: generation_config.json names no end of text, and which token stops generation
 * instead. */
static void note_no_end(const struct hd_tokenizer *tokenizer, const struct hd_model_ids *ids,
                        struct hd_special *s)
{
    const char *content = s->end.id >= 0 ? hd_tokenizer_content(tokenizer, s->end.id) : NULL;
    char line[512];

    if (content)
        (void)snprintf(line, sizeof line,
                       "%s: eos_token_id is %s: generation stops at eos_token '%.64s' (%d) of %s; "
                       "transformers' generate would not stop\n",
                       generation_file, ids->no_eos, content, (int)s->end.id, s->end.file);
    else
        (void)snprintf(line, sizeof line,
                       "%s: eos_token_id is %s, and no file names an eos_token: generation ends at "
                       "its limit alone\n",
                       generation_file, ids->no_eos);
    note(s, line);
}

/* Returns the tokenizer's token of a name (bos_token, pad_token), else the id that the model's
 * files have for it. */
static struct hd_special_token choose(const struct hd_tokenizer *tokenizer, const char *name,
                                      int32_t id, const struct hd_model_ids *ids,
                                      struct hd_special *s)
{
    const char *file = ids->has_generation ? generation_file : config_file;
    struct hd_special_token token = named(tokenizer, name);
    char line[512];

    if (token.id < 0 && is_token(tokenizer, id))
        return (struct hd_special_token){id, file};
    if (token.id >= 0 && id >= 0 && token.id != id) {
        (void)snprintf(line, sizeof line,
                       "%s: %s is token %d, and %s_id of %s is %d; %d is taken\n", token.file, name,
                       (int)token.id, name, file, (int)id, (int)token.id);
        note(s, line);
    }
    return token;
}

enum hd_status hd_special_resolve(const struct hd_tokenizer *tokenizer, const char *model_dir,
                                  struct hd_special *ret_special)
{
    const struct hd_companions *c = tokenizer ? hd_tokenizer_companions(tokenizer) : NULL;
    struct hd_special *s = ret_special;
    struct hd_model_ids ids;
    enum hd_status st = hd_model_ids_read(model_dir, &ids);

    *s = (struct hd_special){.stop_count = 0};
    if (st)
        return st;
    if (c && c->notes.data)
        note(s, c->notes.data);
    s->end = named(tokenizer, "eos_token");
    s->unk = named(tokenizer, "unk_token");
    for (int i = 0; i < ids.eos_count; i++)
        add_stop(tokenizer, &ids, ids.eos[i], s);
    if (s->end.id >= 0)
        compare_ends(tokenizer, &ids, s);
    else
        take_end_of_model(tokenizer, &ids, s);
    if (!s->stop_count && s->end.id >= 0)
        s->stops[s->stop_count++] = s->end.id;
    if (tokenizer && *ids.no_eos)
        note_no_end(tokenizer, &ids, s);
    s->bos = choose(tokenizer, "bos_token", ids.bos, &ids, s);
    s->pad = choose(tokenizer, "pad_token", ids.pad, &ids, s);
    return HD_OK;
}

void hd_special_explain_end(const struct hd_tokenizer *tokenizer, const char *what_to_write,
                            struct hd_text *ret_text)
{
    int shown = 0;

    hd_text_add(ret_text,
                "no file beside %s names an eos_token, so no token ends a document; write %s",
                hd_tokenizer_name(tokenizer), what_to_write);
    for (int32_t id = 0; id < hd_tokenizer_vocab(tokenizer) && shown < CANDIDATES_MAX; id++)
        if (hd_tokenizer_is_special(tokenizer, id)) {
            hd_text_add(ret_text, "%s%s %d", shown ? ", " : " (its special tokens: ",
                        hd_tokenizer_content(tokenizer, id), (int)id);
            shown++;
        }
    hd_text_add(ret_text, "%s", shown == CANDIDATES_MAX ? " ...)" : shown ? ")" : "");
}
