#include "train/prompts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "data/fingerprint.h"
#include "data/lines.h"

enum { LINE_BYTES_MAX = 1 << 20 };

struct prompt_reader {
    const struct hd_job *job;
    struct hd_prompts *prompts;
    struct hd_prompt_encoder encoder;
};

/* ---- encoding ---- */

/* Appends the ids of a text. An empty one is the token with which a text begins. */
static enum hd_status encode_text(const struct hd_whole_encoder *e, const char *text,
                                  struct hd_id_list *ids)
{
    enum hd_status st;

    if (*text)
        return hd_whole_encoder_plain(e, text, strlen(text), ids);
    if (e->begin < 0)
        return hd_err(HD_INVALID,
                      "it is empty, and the model has no token to begin with; write a text, "
                      "or leave the prompt out");
    st = hd_id_list_reserve(ids, 1);
    if (!st)
        ids->ids[ids->count++] = e->begin;
    return st;
}

/* Appends the ids of a chat that ends where the answer begins. */
static enum hd_status encode_messages(const struct hd_prompt_encoder *e,
                                      const struct hd_json *messages, const char *user,
                                      struct hd_id_list *ids)
{
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};
    const size_t first = ids->count;
    enum hd_status st;

    if (messages) {
        hd_json_add_value(&w, NULL, messages);
    } else {
        hd_json_begin(&w, NULL, '[');
        hd_json_begin(&w, NULL, '{');
        hd_json_add_string(&w, "role", "user");
        hd_json_add_string(&w, "content", user);
        hd_json_end(&w, '}');
        hd_json_end(&w, ']');
    }
    st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for a prompt")
                     : hd_conversation_prompt(e->conversations, text.data, text.len_bytes, ids);
    hd_text_free(&text);
    return st ? st : hd_whole_encoder_check(&e->whole, ids, first);
}

static enum hd_status keep_prompt(struct prompt_reader *r, const char *shown,
                                  const struct hd_id_list *ids)
{
    struct hd_prompt *p = &r->prompts->list[r->prompts->count];

    if ((int64_t)ids->count > r->job->context)
        return hd_err(HD_INVALID, "it has %lld tokens, and model.context is %lld: shorten it",
                      (long long)ids->count, (long long)r->job->context);
    p->text = strdup(shown);
    p->ids = malloc((ids->count + 1) * sizeof *p->ids);
    r->prompts->count++;
    if (!p->text || !p->ids)
        return hd_err(HD_NO_MEMORY, "no memory for a prompt");
    memcpy(p->ids, ids->ids, ids->count * sizeof *p->ids);
    p->count = (int64_t)ids->count;
    return HD_OK;
}

const char *hd_prompt_last_message(const struct hd_json *messages)
{
    const struct hd_json *last = messages->first;

    while (last && last->next)
        last = last->next;
    last = last && last->kind == HD_JSON_OBJECT ? hd_json_member(last, "content") : NULL;
    if (last && last->kind == HD_JSON_ARRAY) { /* parts: [{"type": "text", "text": ".."}] */
        for (last = last->first; last && !hd_json_member(last, "text");)
            last = last->next;
        last = last ? hd_json_member(last, "text") : NULL;
    }
    return last && last->kind == HD_JSON_STRING ? last->text : "";
}

enum hd_status hd_prompt_encode(const struct hd_prompt_encoder *e, const struct hd_json *messages,
                                const char *text, struct hd_id_list *ids)
{
    if (messages && !e->conversations)
        return hd_err(HD_INVALID, "it has messages, and the job has no chat template; give "
                                  "data.template, or a `prompt`");
    return e->conversations ? encode_messages(e, messages, text, ids)
                            : encode_text(&e->whole, text, ids);
}

/* Encodes a prompt and appends it. messages NULL: it is the text. */
static enum hd_status add_prompt(struct prompt_reader *r, const struct hd_json *messages,
                                 const char *text)
{
    struct hd_id_list ids = {0};
    enum hd_status st = hd_prompt_encode(&r->encoder, messages, text, &ids);

    if (!st)
        st = keep_prompt(r, messages ? hd_prompt_last_message(messages) : text, &ids);
    hd_id_list_free(&ids);
    return st;
}

/* ---- reading ---- */

static enum hd_status read_texts(struct prompt_reader *r)
{
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    for (int64_t i = 0; !st; i++) {
        hd_text_clear(&text);
        if (!hd_job_sample_prompt(r->job, i, &text))
            break;
        st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for a prompt")
                         : add_prompt(r, NULL, text.data ? text.data : "");
        if (st)
            st = hd_err_prefix(st, "validate.samples: prompt %lld", (long long)i + 1);
    }
    hd_text_free(&text);
    return st;
}

/* Reads a line {"prompt": TEXT} or {"messages": [..]}. */
static enum hd_status read_json(struct prompt_reader *r, const char *line, size_t bytes)
{
    static const struct hd_json_limits limits = {.values_max = 1000, .depth_max = 16};
    const struct hd_json *root, *messages;
    const char *text = "";
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_json_parse_line(&arena, line, bytes, &limits, &root);
    messages = st ? NULL : hd_json_member(root, "messages");
    if (messages && messages->kind != HD_JSON_ARRAY)
        st = hd_err(HD_INVALID, "messages: expected a list of {\"role\": .., \"content\": ..}");
    if (!st && !messages)
        st = hd_json_need_string(root, "prompt", &text);
    if (!st)
        st = add_prompt(r, messages, text);
    hd_arena_done(&arena);
    return st;
}

static enum hd_status read_prompt_lines(struct prompt_reader *r, struct hd_lines *lines)
{
    bool there = true;
    enum hd_status st = HD_OK;

    while (!st) {
        const char *line;

        st = hd_lines_next(lines, &there);
        if (st || !there)
            break;
        if (hd_lines_is_blank(lines))
            continue;
        line = lines->line.data;
        if (r->prompts->count == HD_SAMPLE_PROMPTS_MAX)
            st = hd_err(HD_INVALID, "more than %d prompts; leave some out", HD_SAMPLE_PROMPTS_MAX);
        else
            st = line[strspn(line, " \t")] == '{' ? read_json(r, line, lines->line.len_bytes)
                                                  : add_prompt(r, NULL, line);
        if (st)
            st = hd_err_prefix(st, "%s:%lld", lines->path, (long long)lines->number);
    }
    if (!st && !r->prompts->count)
        st = hd_err(HD_INVALID, "%s has no prompt", lines->path);
    return st;
}

/* Reads the file, if it is the one of the submission. */
static enum hd_status read_prompt_file(struct prompt_reader *r)
{
    struct hd_sample_file file;
    struct hd_lines lines;
    struct stat info;
    enum hd_status st = hd_job_read_sample_file(r->job, &file);

    if (st)
        return st;
    if (stat(file.path, &info) < 0)
        st = hd_err(HD_NOT_FOUND, "cannot find %s", file.path);
    else if (file.size_bytes >= 0 && info.st_size != file.size_bytes)
        st = hd_err(HD_INVALID,
                    "%s has %lld bytes, and had %lld when the job was submitted; restore it, or "
                    "submit the job again",
                    file.path, (long long)info.st_size, (long long)file.size_bytes);
    else
        st = hd_fingerprint_check(file.path, file.fingerprint);
    if (!st) {
        st = hd_lines_open(&lines, file.path, NULL, LINE_BYTES_MAX);
        if (!st)
            st = read_prompt_lines(r, &lines);
        hd_lines_close(&lines);
    }
    return st ? hd_err_prefix(st, "validate.samples") : HD_OK;
}

/* ---- opening ---- */

static enum hd_status open_chat(struct hd_prompt_encoder *e, const struct hd_job *job,
                                struct hd_job_tokenizer *tokenizer, const char *roles)
{
    struct hd_conversation_rules rules;
    enum hd_status st;

    if (!*job->template)
        return HD_OK;
    st = hd_job_chat_rules(&e->chat, tokenizer, job, HD_CHAT_MESSAGES, &rules);
    if (st)
        return st;
    rules.roles = roles;
    rules.end_of_text = -1;
    st = hd_conversation_encoder_new(&rules, &e->conversations);
    if (st)
        return st;
    (void)hd_conversation_find_end(e->conversations, &e->end); /* best effort: as the stops below */
    return hd_stops_add_chat(e->conversations, e->chat.opened, rules.tokenizer, &e->stops);
}

enum hd_status hd_prompt_encoder_open(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                                      const char *roles, struct hd_prompt_encoder *e)
{
    const struct hd_special *special = NULL;
    int64_t end = -1;
    enum hd_status st;

    *e = (struct hd_prompt_encoder){.drawn_max = 0};
    st = hd_job_tokenizer_need(tokenizer, job, &e->whole.tokenizer);
    if (!st)
        st = hd_job_tokenizer_special(tokenizer, job, &special);
    if (!st)
        st = hd_job_tokenizer_end_of_text(tokenizer, job, &end);
    if (!st)
        st = hd_encoder_new(e->whole.tokenizer, &e->whole.encoder);
    if (st)
        return st;
    e->whole.vocab = job->vocab;
    e->whole.begin = hd_special_begin(special);
    e->drawn_max = hd_tokenizer_vocab(e->whole.tokenizer);
    for (int i = 0; i < special->stop_count; i++)
        hd_stops_add(&e->stops, special->stops[i]);
    hd_stops_add(&e->stops, (int32_t)end);
    e->end = end >= 0 || !e->stops.count ? (int32_t)end : e->stops.ids[0];
    return open_chat(e, job, tokenizer, roles);
}

void hd_prompt_encoder_close(struct hd_prompt_encoder *e)
{
    hd_conversation_encoder_free(e->conversations);
    hd_job_chat_close(&e->chat);
    hd_encoder_free(e->whole.encoder);
    *e = (struct hd_prompt_encoder){.drawn_max = 0};
}

enum hd_status hd_prompts_open(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                               struct hd_prompts *ret_prompts)
{
    struct hd_job_tokenizer own = {.opened = NULL};
    struct prompt_reader r = {.job = job, .prompts = ret_prompts};
    enum hd_status st;

    *ret_prompts = (struct hd_prompts){.count = 0};
    if (!*job->samples)
        return HD_OK;
    /* prompts have the usual names of roles, whatever those of the data are */
    st = hd_prompt_encoder_open(job, tokenizer ? tokenizer : &own, NULL, &r.encoder);
    ret_prompts->stops = r.encoder.stops;
    ret_prompts->drawn_max = r.encoder.drawn_max;
    if (!st)
        st = hd_job_samples_in_file(job) ? read_prompt_file(&r) : read_texts(&r);
    hd_prompt_encoder_close(&r.encoder);
    hd_job_tokenizer_close(&own);
    return st;
}

void hd_prompts_close(struct hd_prompts *prompts)
{
    for (int64_t i = 0; i < prompts->count; i++) {
        free(prompts->list[i].text);
        free(prompts->list[i].ids);
    }
    *prompts = (struct hd_prompts){.count = 0};
}
