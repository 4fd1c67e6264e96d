#include "train/prompts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "data/fingerprint.h"
#include "data/lines.h"
#include "train/job_chat.h"
#include "train/questions.h"

enum { LINE_BYTES_MAX = 1 << 20 };

struct prompt_reader {
    const struct hd_job *job;
    struct hd_prompts *prompts;
    struct hd_whole_encoder encoder;
    struct hd_job_chat chat;
    struct hd_conversation_encoder *conversations; /* NULL: the job has no chat template */
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
static enum hd_status encode_messages(const struct prompt_reader *r, const struct hd_json *messages,
                                      const char *user, struct hd_id_list *ids)
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
                     : hd_conversation_prompt(r->conversations, text.data, text.len_bytes, ids);
    hd_text_free(&text);
    return st ? st : hd_whole_encoder_check(&r->encoder, ids, first);
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

/* Returns the text of the last message; "": it is not a text. */
static const char *last_message(const struct hd_json *messages)
{
    const struct hd_json *last = messages->first;

    while (last && last->next)
        last = last->next;
    last = last && last->kind == HD_JSON_OBJECT ? hd_json_member(last, "content") : NULL;
    return last && last->kind == HD_JSON_STRING ? last->text : "";
}

/* Encodes a prompt and appends it. messages NULL: it is the text. */
static enum hd_status add_prompt(struct prompt_reader *r, const struct hd_json *messages,
                                 const char *text)
{
    struct hd_id_list ids = {0};
    enum hd_status st;

    if (messages && !r->conversations)
        st = hd_err(HD_INVALID, "it has messages, and the job has no chat template; give "
                                "data.template, or a `prompt`");
    else if (r->conversations)
        st = encode_messages(r, messages, text, &ids);
    else
        st = encode_text(&r->encoder, text, &ids);
    if (!st)
        st = keep_prompt(r, messages ? last_message(messages) : text, &ids);
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

static enum hd_status open_chat(struct prompt_reader *r, struct hd_job_tokenizer *tokenizer)
{
    struct hd_conversation_rules rules;
    enum hd_status st;

    if (!*r->job->template)
        return HD_OK;
    st = hd_job_chat_rules(&r->chat, tokenizer, r->job, HD_CHAT_MESSAGES, &rules);
    if (st)
        return st;
    rules.roles = NULL; /* prompts have the usual names of roles, whatever those of the data are */
    rules.end_of_text = -1;
    st = hd_conversation_encoder_new(&rules, &r->conversations);
    return st ? st
              : hd_stops_add_chat(r->conversations, r->chat.opened, rules.tokenizer,
                                  &r->prompts->stops);
}

static enum hd_status open_reader(struct prompt_reader *r, struct hd_job_tokenizer *tokenizer)
{
    const struct hd_special *special = NULL;
    int64_t end = -1;
    enum hd_status st = hd_job_tokenizer_need(tokenizer, r->job, &r->encoder.tokenizer);

    if (!st)
        st = hd_job_tokenizer_special(tokenizer, r->job, &special);
    if (!st)
        st = hd_job_tokenizer_end_of_text(tokenizer, r->job, &end);
    if (!st)
        st = hd_encoder_new(r->encoder.tokenizer, &r->encoder.encoder);
    if (st)
        return st;
    r->encoder.vocab = r->job->vocab;
    r->encoder.begin = hd_special_begin(special);
    r->prompts->drawn_max = hd_tokenizer_vocab(r->encoder.tokenizer);
    for (int i = 0; i < special->stop_count; i++)
        hd_stops_add(&r->prompts->stops, special->stops[i]);
    hd_stops_add(&r->prompts->stops, (int32_t)end);
    return open_chat(r, tokenizer);
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
    st = open_reader(&r, tokenizer ? tokenizer : &own);
    if (!st)
        st = hd_job_samples_in_file(job) ? read_prompt_file(&r) : read_texts(&r);
    hd_conversation_encoder_free(r.conversations);
    hd_job_chat_close(&r.chat);
    hd_encoder_free(r.encoder.encoder);
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
