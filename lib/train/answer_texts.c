#include "train/answer_texts.h"

#include <string.h>

#include "base/json.h"
#include "job/frozen_model.h"

enum hd_status hd_answer_texts_open(const struct hd_job *job, struct hd_answer_texts *t)
{
    struct hd_conversation_rules rules;
    enum hd_status st;

    *t = (struct hd_answer_texts){.talks = *job->template != '\0'};
    hd_arena_init(&t->arena, 0);
    st = hd_job_of_reward_model(job, &t->arena, &t->job);
    if (!st && t->talks && !*t->job.template)
        st =
            hd_err(HD_INVALID,
                   "%s has no chat template, and the prompts of the job are conversations; put the "
                   "chat_template.jinja of its training into the folder",
                   t->job.init_from);
    if (!st)
        st = hd_job_chat_rules(&t->chat, &t->tokenizer, &t->job, HD_CHAT_MESSAGES, &rules);
    if (!st)
        st = hd_conversation_encoder_new(&rules, &t->encoder);
    return st ? hd_err_prefix(st, "%s", hd_job_frozen_path(job)) : HD_OK;
}

void hd_answer_texts_close(struct hd_answer_texts *t)
{
    hd_conversation_encoder_free(t->encoder);
    t->encoder = NULL;
    hd_job_chat_close(&t->chat);
    hd_job_tokenizer_close(&t->tokenizer);
    hd_text_free(&t->line);
    hd_arena_done(&t->arena);
}

static void add_message(struct hd_json_writer *w, const char *role, const char *content)
{
    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "role", role);
    hd_json_add_string(w, "content", content);
    hd_json_end(w, '}');
}

/* Writes the line of a conversation. messages NULL: `prompt` is what a user says. */
static void write_conversation(const struct hd_json *root, const struct hd_json *messages,
                               const char *prompt, const char *answer, struct hd_json_writer *w)
{
    const struct hd_json *tools = hd_json_member(root, "tools");

    hd_json_begin(w, "messages", '[');
    for (const struct hd_json *m = messages ? messages->first : NULL; m; m = m->next)
        hd_json_add_value(w, NULL, m);
    if (!messages)
        add_message(w, "user", prompt);
    add_message(w, "assistant", answer);
    hd_json_end(w, ']');
    if (tools && tools->kind == HD_JSON_ARRAY)
        hd_json_add_value(w, "tools", tools);
}

static enum hd_status encode_row(struct hd_answer_texts *t, const struct hd_json *root,
                                 const char *answer, struct hd_id_list *ids)
{
    const struct hd_json *prompt = hd_json_member(root, "prompt");
    const struct hd_json *messages =
        prompt && prompt->kind == HD_JSON_ARRAY ? prompt : hd_json_member(root, "messages");
    const char *text = prompt && prompt->kind == HD_JSON_STRING ? prompt->text : "";
    struct hd_json_writer w = {.out = &t->line};

    hd_text_clear(&t->line);
    hd_json_begin(&w, NULL, '{');
    if (messages || t->talks) {
        write_conversation(root, messages, text, answer, &w);
    } else {
        hd_json_add_string(&w, "prompt", text);
        hd_json_add_string(&w, "completion", answer);
    }
    hd_json_end(&w, '}');
    if (t->line.failed)
        return hd_err(HD_NO_MEMORY, "no memory for an answer");
    return hd_conversation_whole(t->encoder, t->line.data, t->line.len_bytes, ids);
}

enum hd_status hd_answer_texts_encode(struct hd_answer_texts *t, const char *row,
                                      const char *answer, struct hd_id_list *ids)
{
    static const struct hd_json_limits limits = {.values_max = 1 << 16, .depth_max = 32};
    const struct hd_json *root;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_json_parse_line(&arena, row, strlen(row), &limits, &root);
    if (!st)
        st = encode_row(t, root, answer, ids);
    hd_arena_done(&arena);
    return st ? hd_err_prefix(st, "train.rewards.model") : HD_OK;
}
