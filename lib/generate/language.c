#include "generate/language.h"

#include <stdlib.h>
#include <string.h>

#include "chat/date.h"
#include "data/conversations.h"
#include "tokenizer/companions.h"
#include "train/job_chat.h"

struct hd_language {
    const struct hd_job *job; /* job of the checkpoint; NULL: the model is from a model folder */
    const char *folder;       /* folder of the model's files; "": none */
    char dir[HD_JOB_PATH_MAX];
    struct hd_tokenizer *tokenizer;
    struct hd_encoder *encoder;
    struct hd_whole_encoder whole; /* of the tokenizer and encoder above */
    struct hd_chat *chat;
    struct hd_conversation_encoder *conversations;
    struct hd_special special;
    const char *date; /* date of the chat; "": the current day */
    struct hd_stops stops, chat_stops;
};

static enum hd_status open_tokenizer(const struct hd_decoder *decoder, const char *dir,
                                     struct hd_language *l)
{
    const char *name = hd_decoder_tokenizer(decoder);
    struct hd_text text = {0};
    enum hd_status st;

    if (!*name) {
        hd_companions_explain_missing(dir, &text);
        st = hd_err(HD_UNSUPPORTED, "%s; heddle-worker logits takes token ids",
                    text.data ? text.data : dir);
        hd_text_free(&text);
        return st;
    }
    if (strcmp(name, "none") == 0)
        return hd_err(HD_INVALID, "the job was trained on token files and names no data.tokenizer: "
                                  "the text of its token ids is unknown");
    st = hd_tokenizer_open(name, &l->tokenizer);
    return st ? st : hd_encoder_new(l->tokenizer, &l->encoder);
}

/* Sets l->stops to the tokens that end a text; for a checkpoint also the token that its job put
 * behind documents. */
static void find_stops(struct hd_language *l)
{
    for (int i = 0; i < l->special.stop_count; i++)
        hd_stops_add(&l->stops, l->special.stops[i]);
    if (l->job && l->job->end_of_text >= 0)
        hd_stops_add(&l->stops, (int32_t)l->job->end_of_text);
    else if (l->job && l->job->end_of_text == -2)
        hd_stops_add(&l->stops, l->special.end.id);
}

static enum hd_status set_up(const struct hd_decoder *decoder, const char *dir,
                             struct hd_language *l)
{
    enum hd_status st = open_tokenizer(decoder, dir, l);

    l->job = hd_decoder_is_checkpoint(decoder) ? hd_decoder_job(decoder) : NULL;
    l->folder = l->job ? l->job->from_dir : dir;
    if (l->job)
        hd_job_chat_folder(l->job, l->dir);
    if (!st)
        st = hd_special_resolve(l->tokenizer, l->folder, &l->special);
    if (!st)
        find_stops(l);
    l->whole = (struct hd_whole_encoder){.tokenizer = l->tokenizer,
                                         .encoder = l->encoder,
                                         .begin = hd_special_begin(&l->special),
                                         .vocab = hd_decoder_vocab(decoder)};
    return st;
}

enum hd_status hd_language_open(const struct hd_decoder *decoder, const char *dir,
                                struct hd_language **ret_language)
{
    struct hd_language *l = calloc(1, sizeof *l);
    enum hd_status st;

    if (!l)
        return hd_err(HD_NO_MEMORY, "no memory for a tokenizer");
    st = set_up(decoder, dir, l);
    if (st)
        hd_language_close(l);
    else
        *ret_language = l;
    return st;
}

void hd_language_close(struct hd_language *l)
{
    if (!l)
        return;
    hd_conversation_encoder_free(l->conversations);
    hd_chat_close(l->chat);
    hd_encoder_free(l->encoder);
    hd_tokenizer_close(l->tokenizer);
    free(l);
}

const struct hd_tokenizer *hd_language_tokenizer(const struct hd_language *l)
{
    return l->tokenizer;
}

const struct hd_stops *hd_language_stops(const struct hd_language *l)
{
    return &l->stops;
}

const struct hd_stops *hd_language_chat_stops(const struct hd_language *l)
{
    return &l->chat_stops;
}

int32_t hd_language_begin(const struct hd_language *l)
{
    return l->whole.begin;
}

const struct hd_special *hd_language_special(const struct hd_language *l)
{
    return &l->special;
}

const struct hd_whole_encoder *hd_language_encoder(const struct hd_language *l)
{
    return &l->whole;
}

enum hd_status hd_language_encode(struct hd_language *l, const char *text, size_t text_bytes,
                                  struct hd_id_list *ids)
{
    return hd_whole_encoder_plain(&l->whole, text, text_bytes, ids);
}

/* ---- chat ---- */

static enum hd_status find_template(const struct hd_language *l, const char *wish,
                                    struct hd_text *path)
{
    enum hd_status st = HD_OK;

    if (wish)
        hd_text_add(path, "%s", wish);
    else if (l->job && *l->job->template)
        hd_text_add(path, "%s", l->job->template);
    else if (*l->folder)
        st = hd_chat_find(l->folder, path);
    if (!st && path->failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a path");
    if (!st && (!path->data || !*path->data))
        st = hd_err(HD_INVALID, "the model has no chat template; put a chat_template.jinja into "
                                "its folder, or name one with --template");
    return st;
}

/* Sets the date that the chat template shows: l->date, or the current day, which changes while a
 * model is served for weeks. */
static enum hd_status set_date(struct hd_language *l)
{
    char today[HD_CHAT_DATE_MAX];

    if (*l->date)
        return hd_chat_set_date(l->chat, l->date);
    hd_chat_date_today(today);
    return hd_chat_set_date(l->chat, today);
}

enum hd_status hd_language_open_chat(struct hd_language *l, const char *template_path,
                                     const char *date)
{
    struct hd_conversation_rules rules = {.tokenizer = l->tokenizer, .end_of_text = -1};
    struct hd_text path = {0};
    enum hd_status st = find_template(l, template_path, &path);

    if (!st)
        st = hd_chat_open(path.data, *l->dir ? l->dir : *l->folder ? l->folder : NULL, &l->chat);
    l->date = date ? date : l->job ? l->job->date : "";
    if (!st)
        st = set_date(l);
    rules.chat = l->chat;
    if (!st)
        st = hd_conversation_encoder_new(&rules, &l->conversations);
    l->chat_stops = l->stops;
    if (!st)
        st = hd_stops_add_chat(l->conversations, l->chat, l->tokenizer, &l->chat_stops);
    hd_text_free(&path);
    return st;
}

enum hd_status hd_language_encode_chat(struct hd_language *l, const char *messages,
                                       size_t messages_bytes, struct hd_id_list *ids)
{
    const size_t first = ids->count;
    enum hd_status st = set_date(l);

    if (!st)
        st = hd_conversation_prompt(l->conversations, messages, messages_bytes, ids);
    return st ? st : hd_whole_encoder_check(&l->whole, ids, first);
}

enum hd_status hd_language_call_form(struct hd_language *l, enum hd_call_form *ret_form)
{
    enum hd_status st = set_date(l);

    return st ? st : hd_chat_calls_form(l->chat, ret_form);
}
