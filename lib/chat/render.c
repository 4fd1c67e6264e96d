#include "chat/render.h"

#include <stdlib.h>
#include <string.h>

#include "chat/render_internal.h"

enum { VARIABLES_MAX = 32, OWN_VARIABLES = 4 };

/* Renders messages with the four variables that transformers always passes: messages, tools,
 * documents and add_generation_prompt. A variable that the caller does not give is none, for which
 * `is defined` is true. */
enum hd_status chat_render_messages(const struct chat_rendering *r, const struct hd_json *list,
                                    size_t count, bool prompt, struct hd_template_output *output)
{
    static const struct hd_json none = {.kind = HD_JSON_NULL};
    const struct hd_json flag = {.kind = prompt ? HD_JSON_TRUE : HD_JSON_FALSE};
    struct hd_template_variable variables[VARIABLES_MAX];
    struct hd_json messages = *list;
    struct hd_template_input input = *r->input;
    enum hd_status st;

    if (input.count > VARIABLES_MAX - OWN_VARIABLES)
        return hd_err(HD_LIMIT, "a chat template gets at most %d variables",
                      VARIABLES_MAX - OWN_VARIABLES);
    if (input.count)
        memcpy(variables, input.variables, input.count * sizeof *variables);
    messages.count = count;
    variables[input.count++] = (struct hd_template_variable){"messages", &messages};
    variables[input.count++] =
        (struct hd_template_variable){"tools", r->c->tools ? r->c->tools : &none};
    variables[input.count++] = (struct hd_template_variable){"documents", &none};
    variables[input.count++] = (struct hd_template_variable){"add_generation_prompt", &flag};
    input.variables = variables;
    st = hd_template_render(r->t, &input, NULL, output);
    /* the message of the template continues with LINE:COLUMN */
    return st ? hd_err_prefix(st, "the chat template") : HD_OK;
}

/* Reserves memory for `count` spans of the output, and removes all spans. */
static enum hd_status reserve(struct hd_template_output *output, size_t count)
{
    output->span_count = 0;
    if (count > output->span_capacity) {
        struct hd_template_span *spans = realloc(output->spans, count * sizeof *spans);

        if (!spans)
            return hd_err(HD_NO_MEMORY, "no memory for the answers of a conversation");
        output->spans = spans;
        output->span_capacity = count;
    }
    return HD_OK;
}

static bool is_answer(const struct hd_json *message)
{
    const struct hd_json *role = hd_json_member(message, "role");

    return role && role->kind == HD_JSON_STRING && strcmp(role->text, "assistant") == 0;
}

/* One answer of a conversation. */
struct chat_answer {
    size_t index; /* index of the answer's message */
    bool counts;
    size_t begin; /* offset of the answer in the rendered text; set only by choose_by_place */
};

static enum hd_status list_answers(const struct chat_rendering *r, struct chat_answer *answers,
                                   size_t *ret_count, bool *ret_all_count)
{
    size_t index = 0, n = 0, last = 0;

    for (const struct hd_json *m = r->c->messages.first; m; m = m->next, index++)
        if (is_answer(m)) {
            answers[n] = (struct chat_answer){.index = index, .counts = r->c->counts[index]};
            if (answers[n].counts)
                last = n;
            n++;
        }
    *ret_all_count = true;
    for (size_t i = 0; i < n; i++) {
        answers[i].counts &= !r->last || i == last;
        *ret_all_count &= answers[i].counts;
    }
    *ret_count = n;
    return n ? HD_OK : hd_err(HD_INVALID, "the conversation has no answer");
}

/* Removes the spans of answers that do not count for the loss, if the number of spans differs from
 * that of answers: a template may mark several parts of an answer, or none. A span belongs to the
 * last answer that begins before the span's end. */
static enum hd_status choose_by_place(const struct chat_rendering *r, struct chat_answer *answers,
                                      size_t count, struct hd_template_output *output)
{
    struct hd_template_span found;
    size_t kept = 0, at = 0;
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < count; i++) {
        st = chat_find_answer(r, answers[i].index, &output->text, &found);
        answers[i].begin = found.begin;
    }
    if (st)
        return hd_err(HD_INVALID,
                      "the chat template marks %zu answers by {%% generation %%}, and the "
                      "conversation has %zu",
                      output->span_count, count);
    for (size_t i = 0; i < output->span_count; i++) {
        while (at + 1 < count && answers[at + 1].begin < output->spans[i].end)
            at++;
        if (answers[at].counts)
            output->spans[kept++] = output->spans[i];
    }
    output->span_count = kept;
    return HD_OK;
}

/* Removes the spans of {% generation %} that belong to answers that do not count for the loss. */
static enum hd_status choose_marked(const struct chat_rendering *r,
                                    struct hd_template_output *output)
{
    struct chat_answer *answers = calloc(r->c->messages.count + 1, sizeof *answers);
    size_t count, kept = 0;
    bool all;
    enum hd_status st = answers ? list_answers(r, answers, &count, &all)
                                : hd_err(HD_NO_MEMORY, "no memory for a conversation's answers");

    if (!st && !output->span_count)
        st = hd_err(HD_INVALID, "the chat template marks no answer by {%% generation %%}");
    else if (!st && count == output->span_count) {
        for (size_t i = 0; i < count; i++)
            if (answers[i].counts)
                output->spans[kept++] = output->spans[i];
        output->span_count = kept;
    } else if (!st && !all) {
        st = choose_by_place(r, answers, count, output);
    }
    free(answers);
    return st;
}

static enum hd_status plain_text(const struct hd_conversation *c, enum hd_chat_loss loss,
                                 struct hd_template_output *output)
{
    const size_t from = loss == HD_CHAT_ALL ? 0 : strlen(c->prompt);
    enum hd_status st = reserve(output, 1);

    if (st)
        return st;
    hd_text_clear(&output->text);
    hd_text_add(&output->text, "%s%s", c->prompt, c->answer);
    if (output->text.failed)
        return hd_err(HD_NO_MEMORY, "no memory for the text of a conversation");
    output->spans[output->span_count++] = (struct hd_template_span){from, output->text.len_bytes};
    return HD_OK;
}

/* Finds the spans of the answers that count for the loss by rendering parts of the conversation
 * (answers.c). */
static enum hd_status find_answers(const struct chat_rendering *r,
                                   struct hd_template_output *output)
{
    const size_t count = r->c->messages.count;
    enum hd_status st = reserve(output, count);

    for (size_t i = count; !st && r->last && i-- > 0;)
        if (r->c->counts[i])
            return chat_find_answer(r, i, &output->text, &output->spans[output->span_count++]);
    for (size_t i = 0; !st && i < count; i++)
        if (r->c->counts[i])
            st = chat_find_answer(r, i, &output->text, &output->spans[output->span_count++]);
    for (size_t i = 1; !st && i < output->span_count; i++)
        if (output->spans[i].begin < output->spans[i - 1].end)
            st = hd_err(HD_INVALID,
                        "answers %zu and %zu overlap in the text that the chat template writes; "
                        "mark answers with {%% generation %%}, or set data.loss: last",
                        i, i + 1);
    return st;
}

/* Refuses a conversation with tool calls that the template would leave out. */
static enum hd_status check_calls(const struct hd_template *t, const struct hd_conversation *c)
{
    size_t number = 0;

    for (const struct hd_json *m = c->messages.first; m; m = m->next) {
        const struct hd_json *calls = hd_json_member(m, "tool_calls");

        number++;
        if (calls && calls->kind == HD_JSON_ARRAY && calls->count && !hd_template_writes_calls(t))
            return hd_err(HD_INVALID,
                          "message %zu has tool calls, and the chat template writes none; take a "
                          "template for tools, or make calls ordinary answers in the job file: "
                          "data.roles: {function_call: assistant}, for a function_call, or "
                          "data.columns: {messages: NAME}, which leaves tools out",
                          number);
    }
    return HD_OK;
}

enum hd_status hd_chat_render(const struct hd_template *t, const struct hd_conversation *c,
                              enum hd_chat_loss loss, const struct hd_template_input *input,
                              struct hd_template_output *output)
{
    const struct chat_rendering r = {.t = t, .c = c, .input = input, .last = loss == HD_CHAT_LAST};
    enum hd_status st;

    if (c->answer)
        return plain_text(c, loss, output);
    st = check_calls(t, c);
    if (!st)
        st = chat_render_messages(&r, &c->messages, c->messages.count, false, output);
    if (!st && loss == HD_CHAT_ALL) {
        st = reserve(output, 1);
        if (!st)
            output->spans[output->span_count++] =
                (struct hd_template_span){0, output->text.len_bytes};
        return st;
    }
    if (!st)
        st = hd_template_has_generation(t) ? choose_marked(&r, output) : find_answers(&r, output);
    return st;
}

enum hd_status hd_chat_render_prompt(const struct hd_template *t, const struct hd_conversation *c,
                                     bool prompt, const struct hd_template_input *input,
                                     struct hd_template_output *output)
{
    const struct chat_rendering r = {.t = t, .c = c, .input = input};
    enum hd_status st = check_calls(t, c);

    return st ? st : chat_render_messages(&r, &c->messages, c->messages.count, prompt, output);
}
