#include "chat/render.h"

#include <stdlib.h>
#include <string.h>

enum { VARIABLES_MAX = 32, OWN_VARIABLES = 3 };

struct answers {
    const struct hd_template *t;
    const struct hd_conversation *c;
    const struct hd_template_input *input;
};

/* The first `count` messages. */
static enum hd_status render(const struct answers *a, size_t count, bool prompt,
                             struct hd_template_output *output)
{
    struct hd_template_variable variables[VARIABLES_MAX];
    struct hd_json messages = a->c->messages;
    const struct hd_json flag = {.kind = prompt ? HD_JSON_TRUE : HD_JSON_FALSE};
    struct hd_template_input input = *a->input;
    enum hd_status st;

    if (input.count > VARIABLES_MAX - OWN_VARIABLES)
        return hd_err(HD_LIMIT, "a chat template gets at most %d variables",
                      VARIABLES_MAX - OWN_VARIABLES);
    if (input.count)
        memcpy(variables, input.variables, input.count * sizeof *variables);
    messages.count = count;
    variables[input.count++] = (struct hd_template_variable){"messages", &messages};
    variables[input.count++] = (struct hd_template_variable){"add_generation_prompt", &flag};
    if (a->c->tools)
        variables[input.count++] = (struct hd_template_variable){"tools", a->c->tools};
    input.variables = variables;
    st = hd_template_render(a->t, &input, NULL, output);
    return st ? hd_err_prefix(st, "the chat template") : HD_OK; /* LINE:COLUMN follows */
}

/* Makes room for `count` spans and forgets those that there were. */
static enum hd_status reserve(struct hd_template_output *output, size_t count)
{
    output->span_count = 0;
    if (count > output->span_room) {
        struct hd_template_span *spans = realloc(output->spans, count * sizeof *spans);

        if (!spans)
            return hd_err(HD_NO_MEMORY, "no memory for the answers of a conversation");
        output->spans = spans;
        output->span_room = count;
    }
    return HD_OK;
}

static bool begins(const struct hd_text *whole, const struct hd_text *part)
{
    return part->len_bytes <= whole->len_bytes &&
           memcmp(whole->data, part->data, part->len_bytes) == 0;
}

/* The answer `index` by the texts in front of it and up to its end. */
static enum hd_status add_answer(const struct answers *a, size_t index,
                                 struct hd_template_output *output)
{
    struct hd_template_output before = {0}, upto = {0};
    enum hd_status st = render(a, index, true, &before);

    if (!st)
        st = render(a, index + 1, false, &upto);
    if (!st && !begins(&upto.text, &before.text))
        st = hd_err(HD_INVALID,
                    "message %zu: the chat template writes the prompt for an answer in another way "
                    "than the answer; mark answers with {%% generation %%}",
                    index + 1);
    if (!st && !begins(&output->text, &upto.text))
        st = hd_err(HD_INVALID,
                    "message %zu: the chat template rewrites history: it writes this answer in "
                    "another way when messages follow; mark answers with {%% generation %%}",
                    index + 1);
    if (!st && upto.text.len_bytes == before.text.len_bytes)
        st =
            hd_err(HD_INVALID,
                   "message %zu: the chat template does not show this answer; take one that writes "
                   "the messages of the role assistant",
                   index + 1);
    if (!st)
        output->spans[output->span_count++] =
            (struct hd_template_span){before.text.len_bytes, upto.text.len_bytes};
    hd_template_output_free(&before);
    hd_template_output_free(&upto);
    return st;
}

/* Of what the template has marked, the answers that count. */
static enum hd_status choose_marked(const struct hd_conversation *c,
                                    struct hd_template_output *output)
{
    const size_t marked = output->span_count;
    size_t kept = 0, index = 0, answer = 0;

    for (const struct hd_json *m = c->messages.first; m; m = m->next, index++) {
        const struct hd_json *role = hd_json_member(m, "role");

        if (!role || role->kind != HD_JSON_STRING || strcmp(role->text, "assistant") != 0)
            continue;
        if (c->counts[index] && answer < marked)
            output->spans[kept++] = output->spans[answer];
        answer++;
    }
    if (answer != marked)
        return hd_err(HD_INVALID,
                      "the chat template marks %zu answers by {%% generation %%}, and the "
                      "conversation has %zu",
                      marked, answer);
    output->span_count = kept;
    return HD_OK;
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

enum hd_status hd_chat_render(const struct hd_template *t, const struct hd_conversation *c,
                              enum hd_chat_loss loss, const struct hd_template_input *input,
                              struct hd_template_output *output)
{
    const struct answers a = {.t = t, .c = c, .input = input};
    const size_t count = c->messages.count;
    enum hd_status st;

    if (c->answer)
        return plain_text(c, loss, output);
    st = render(&a, count, false, output);
    if (!st && loss == HD_CHAT_ALL) {
        st = reserve(output, 1);
        if (!st)
            output->spans[output->span_count++] =
                (struct hd_template_span){0, output->text.len_bytes};
        return st;
    }
    if (!st && hd_template_has_generation(t)) {
        st = choose_marked(c, output);
    } else if (!st) {
        st = reserve(output, count);
        for (size_t i = 0; !st && i < count; i++)
            if (c->counts[i])
                st = add_answer(&a, i, output);
    }
    if (!st && loss == HD_CHAT_LAST && output->span_count > 1) {
        output->spans[0] = output->spans[output->span_count - 1];
        output->span_count = 1;
    }
    return st;
}

enum hd_status hd_chat_render_prompt(const struct hd_template *t, const struct hd_conversation *c,
                                     bool prompt, const struct hd_template_input *input,
                                     struct hd_template_output *output)
{
    const struct answers a = {.t = t, .c = c, .input = input};

    return render(&a, c->messages.count, prompt, output);
}
