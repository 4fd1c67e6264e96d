#include "chat/conversation.h"

#include <string.h>

static const struct hd_json_limits LIMITS = {.values_max = 100000, .depth_max = 64};

const char *hd_chat_form_name(enum hd_chat_form form)
{
    static const char *const names[] = {
#define X(code, name) name,
        HD_CHAT_FORM_LIST(X)
#undef X
    };

    return names[form];
}

bool hd_chat_form_find(const char *name, enum hd_chat_form *ret_form)
{
    for (int i = HD_CHAT_AUTO; i <= HD_CHAT_TEXT; i++)
        if (i != HD_CHAT_PREFERENCE && strcmp(name, hd_chat_form_name((enum hd_chat_form)i)) == 0) {
            *ret_form = (enum hd_chat_form)i;
            return true;
        }
    return false;
}

static enum hd_status no_memory_for_conversation(void)
{
    return hd_err(HD_NO_MEMORY, "no memory for a conversation");
}

static enum hd_status find_form(const struct hd_json *root, enum hd_chat_form *ret_form)
{
    static const struct {
        const char *key;
        enum hd_chat_form form;
    } keys[] = {{"messages", HD_CHAT_MESSAGES},
                {"conversations", HD_CHAT_SHAREGPT},
                {"instruction", HD_CHAT_ALPACA},
                {"completion", HD_CHAT_COMPLETION},
                {"text", HD_CHAT_TEXT}};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (hd_json_member(root, keys[i].key)) {
            *ret_form = keys[i].form;
            return HD_OK;
        }
    if (hd_json_member(root, "chosen") || hd_json_member(root, "rejected"))
        return hd_err(HD_INVALID,
                      "it is a pair of answers, chosen and rejected; train on pairs with "
                      "train.objective: dpo, or orpo");
    return hd_err(HD_INVALID,
                  "no known form: none of the keys messages, conversations, instruction, "
                  "completion or text");
}

static struct hd_json *append(struct hd_arena *arena, struct hd_json *parent, struct hd_json **last,
                              const struct hd_json *value)
{
    struct hd_json *copy = hd_arena_alloc(arena, sizeof *copy);

    if (!copy)
        return NULL;
    *copy = *value;
    copy->next = NULL;
    if (*last)
        (*last)->next = copy;
    else
        parent->first = copy;
    *last = copy;
    parent->count++;
    return copy;
}

static enum hd_status add_message(struct hd_arena *arena, struct hd_json *list,
                                  struct hd_json **last, const char *role, const char *content,
                                  const struct hd_json *weight)
{
    const struct hd_json empty = {.kind = HD_JSON_OBJECT};
    const struct hd_json a = {.kind = HD_JSON_STRING, .key = "role", .text = role};
    const struct hd_json b = {.kind = HD_JSON_STRING, .key = "content", .text = content};
    struct hd_json *message = append(arena, list, last, &empty), *member = NULL;

    if (!message || !append(arena, message, &member, &a) || !append(arena, message, &member, &b) ||
        (weight && !append(arena, message, &member, weight)))
        return no_memory_for_conversation();
    return HD_OK;
}

static enum hd_status read_sharegpt(struct hd_arena *arena, const struct hd_json *root,
                                    struct hd_json *list, struct hd_json **last)
{
    static const char *const roles[][2] = {
        {"human", "user"},    {"user", "user"}, {"gpt", "assistant"},   {"assistant", "assistant"},
        {"system", "system"}, {"tool", "tool"}, {"observation", "tool"}};
    const struct hd_json *system = hd_json_member(root, "system"), *turns;
    enum hd_status st = hd_json_need(root, "conversations", HD_JSON_ARRAY, &turns);

    if (!st && system && system->kind == HD_JSON_STRING && *system->text)
        st = add_message(arena, list, last, "system", system->text, NULL);
    for (const struct hd_json *t = st ? NULL : turns->first; !st && t; t = t->next) {
        const char *from, *value, *role = NULL;

        st = hd_json_need_string(t, "from", &from);
        if (!st)
            st = hd_json_need_string(t, "value", &value);
        for (size_t i = 0; !st && i < sizeof roles / sizeof *roles; i++)
            if (strcmp(from, roles[i][0]) == 0)
                role = roles[i][1];
        if (!st && !role)
            st = hd_err(HD_INVALID, "'from' is '%.40s'; it must be system, human, gpt or tool",
                        from);
        if (!st)
            st = add_message(arena, list, last, role, value, hd_json_member(t, "weight"));
    }
    return st;
}

static enum hd_status read_alpaca(struct hd_arena *arena, const struct hd_json *root,
                                  struct hd_json *list, struct hd_json **last)
{
    const struct hd_json *input = hd_json_member(root, "input");
    const struct hd_json *system = hd_json_member(root, "system");
    const struct hd_json *history = hd_json_member(root, "history");
    const char *instruction, *output;
    enum hd_status st = hd_json_need_string(root, "instruction", &instruction);

    if (!st && history && history->count)
        st = hd_err(HD_INVALID, "'history' is not read; write its turns as \"messages\"");
    if (!st && system && system->kind == HD_JSON_STRING && *system->text)
        st = add_message(arena, list, last, "system", system->text, NULL);
    if (!st)
        st = hd_json_need_string(root, "output", &output);
    if (!st && input && input->kind == HD_JSON_STRING && *input->text) {
        instruction = hd_arena_printf(arena, "%s\n\n%s", instruction, input->text);
        if (!instruction)
            return no_memory_for_conversation();
    }
    if (!st)
        st = add_message(arena, list, last, "user", instruction, NULL);
    return st ? st : add_message(arena, list, last, "assistant", output, NULL);
}

/* Returns the member of a message with its reasoning, which has one of several names; NULL: it has
 * none. */
static const struct hd_json *reasoning_of(const struct hd_json *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct hd_json *v = hd_json_member(message, names[i]);

        if (v && v->kind != HD_JSON_NULL)
            return v;
    }
    return NULL;
}

/* Adds a message as transformers passes it to a template: without null members, because templates
 * test `is defined`, and with its reasoning as both `reasoning_content` and `thinking`. */
static bool add_as_given(struct hd_arena *arena, const struct hd_json *m, struct hd_json *list,
                         struct hd_json **last)
{
    const struct hd_json *reasoning = m->kind == HD_JSON_OBJECT ? reasoning_of(m) : NULL;
    const struct hd_json *thinking = hd_json_member(m, "thinking");
    struct hd_json *copy = append(arena, list, last, m), *member = NULL;
    bool is_there = false;

    if (!copy || m->kind != HD_JSON_OBJECT)
        return copy != NULL;
    copy->first = NULL;
    copy->count = 0;
    if (reasoning && (!thinking || thinking->kind == HD_JSON_NULL)) {
        if (!append(arena, copy, &member, reasoning))
            return false;
        member->key = "thinking";
    }
    for (const struct hd_json *c = m->first; c; c = c->next) {
        const bool is_reasoning = reasoning && strcmp(c->key, "reasoning_content") == 0;

        if (c->kind == HD_JSON_NULL)
            continue;
        is_there |= is_reasoning;
        if (!append(arena, copy, &member, c))
            return false;
    }
    if (reasoning && !is_there) {
        if (!append(arena, copy, &member, reasoning))
            return false;
        member->key = "reasoning_content";
    }
    return true;
}

static enum hd_status add_all(struct hd_arena *arena, const struct hd_json *from,
                              struct hd_json *list, struct hd_json **last)
{
    for (const struct hd_json *m = from->first; m; m = m->next)
        if (!add_as_given(arena, m, list, last))
            return no_memory_for_conversation();
    return HD_OK;
}

enum hd_status hd_conversation_of_messages(struct hd_arena *arena, const struct hd_json *messages,
                                           struct hd_conversation *ret)
{
    struct hd_json *last = NULL;

    if (messages->kind != HD_JSON_ARRAY)
        return hd_err(HD_INVALID, "the messages are not a list");
    *ret = (struct hd_conversation){
        .form = HD_CHAT_MESSAGES, .messages = {.kind = HD_JSON_ARRAY}, .prompt = ""};
    return add_all(arena, messages, &ret->messages, &last);
}

/* Reads the form prompt_completion. Sets *prompt_count to the number of messages of the prompt,
 * which do not count for the loss. */
static enum hd_status read_completion(struct hd_arena *arena, const struct hd_json *root,
                                      struct hd_conversation *c, struct hd_json **last,
                                      size_t *prompt_count)
{
    const struct hd_json *prompt = hd_json_member(root, "prompt"),
                         *completion = hd_json_member(root, "completion");
    enum hd_status st;

    if (!prompt || !completion || prompt->kind != completion->kind ||
        (prompt->kind != HD_JSON_STRING && prompt->kind != HD_JSON_ARRAY))
        return hd_err(HD_INVALID,
                      "prompt and completion must be two strings or two lists of messages");
    if (prompt->kind == HD_JSON_STRING) {
        c->prompt = prompt->text;
        c->answer = completion->text;
        return *c->answer ? HD_OK : hd_err(HD_INVALID, "the completion is empty");
    }
    st = add_all(arena, prompt, &c->messages, last);
    *prompt_count = prompt->count;
    return st ? st : add_all(arena, completion, &c->messages, last);
}

static bool is_empty(const struct hd_json *message)
{
    const struct hd_json *content = hd_json_member(message, "content"),
                         *calls = hd_json_member(message, "tool_calls");

    if (calls && calls->kind == HD_JSON_ARRAY && calls->count)
        return false;
    return !content || content->kind == HD_JSON_NULL ||
           (content->kind == HD_JSON_STRING && !*content->text) ||
           (content->kind == HD_JSON_ARRAY && !content->count);
}

static enum hd_status check_message(const struct hd_json *m, size_t index, bool learned,
                                    bool *ret_counts)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    const struct hd_json *weight = hd_json_member(m, "weight");
    const char *role;
    int64_t w = 1;
    bool known = false;
    enum hd_status st = hd_json_need_string(m, "role", &role);

    for (size_t i = 0; !st && i < sizeof roles / sizeof *roles; i++)
        known |= strcmp(role, roles[i]) == 0;
    if (!st && !known)
        st = hd_err(HD_INVALID,
                    "the role '%.40s' is none of system, developer, user, assistant, tool", role);
    if (!st && weight)
        st = hd_json_need_int64(m, "weight", 0, 1, &w);
    *ret_counts = !st && learned && w && strcmp(role, "assistant") == 0;
    if (*ret_counts && is_empty(m))
        st = hd_err(HD_INVALID, "the answer is empty");
    return st ? hd_err_prefix(st, "message %zu", index + 1) : HD_OK;
}

static enum hd_status check_messages(struct hd_arena *arena, struct hd_conversation *c,
                                     size_t prompt_count)
{
    bool *counts = hd_arena_alloc(arena, c->messages.count + 1), any = false;
    size_t i = 0;
    enum hd_status st = HD_OK;

    if (!counts)
        return no_memory_for_conversation();
    c->counts = counts;
    for (const struct hd_json *m = c->messages.first; !st && m; m = m->next, i++) {
        st = check_message(m, i, i >= prompt_count, &counts[i]);
        any |= counts[i];
    }
    if (!st && !any)
        st = hd_err(HD_INVALID, "the conversation has no answer to learn: no message of the role "
                                "assistant with weight 1");
    return st;
}

enum hd_status hd_conversation_read(struct hd_arena *arena, const char *line, size_t line_bytes,
                                    enum hd_chat_form form, struct hd_conversation *ret)
{
    const struct hd_json *root = NULL, *list = NULL;
    struct hd_conversation c = {.messages = {.kind = HD_JSON_ARRAY}, .form = form, .prompt = ""};
    struct hd_json *last = NULL;
    size_t prompt_count = 0;
    enum hd_status st = hd_json_parse_line(arena, line, line_bytes, &LIMITS, &root);

    if (!st && form == HD_CHAT_AUTO)
        st = find_form(root, &c.form);
    if (st)
        return st;
    if (c.form == HD_CHAT_MESSAGES) {
        st = hd_json_need(root, "messages", HD_JSON_ARRAY, &list);
        if (!st)
            st = add_all(arena, list, &c.messages, &last);
    } else if (c.form == HD_CHAT_SHAREGPT) {
        st = read_sharegpt(arena, root, &c.messages, &last);
    } else if (c.form == HD_CHAT_ALPACA) {
        st = read_alpaca(arena, root, &c.messages, &last);
    } else if (c.form == HD_CHAT_COMPLETION) {
        st = read_completion(arena, root, &c, &last, &prompt_count);
    } else {
        st = hd_json_need_string(root, "text", &c.answer); /* the text may be empty */
    }
    c.tools = hd_json_member(root, "tools");
    if (c.tools && c.tools->kind == HD_JSON_NULL)
        c.tools = NULL;
    if (!st && c.tools && c.tools->kind != HD_JSON_ARRAY)
        st = hd_err(HD_INVALID, "tools must be a list");
    if (!st && !c.answer)
        st = check_messages(arena, &c, prompt_count);
    if (!st)
        *ret = c;
    return st;
}

/* ---- pairs ---- */

/* Returns whether two JSON values are equal; the order of an object's members does not matter. */
static bool equal(const struct hd_json *a, const struct hd_json *b)
{
    const struct hd_json *other = b->first;

    if (a->kind != b->kind || a->count != b->count)
        return false;
    if (a->kind == HD_JSON_STRING || a->kind == HD_JSON_NUMBER)
        return strcmp(a->text, b->text) == 0;
    for (const struct hd_json *m = a->first; m; m = m->next) {
        const struct hd_json *of_b = a->kind == HD_JSON_OBJECT ? hd_json_member(b, m->key) : other;

        if (!of_b || !equal(m, of_b))
            return false;
        other = other->next;
    }
    return true;
}

/* Returns the number of equal messages with which both lists begin; they are the prompt if the line
 * has none. */
static size_t common_messages(const struct hd_json *a, const struct hd_json *b)
{
    const struct hd_json *x = a->first, *y = b->first;
    size_t count = 0;

    for (; x && y && equal(x, y); x = x->next, y = y->next)
        count++;
    return count;
}

static enum hd_status wrong_pair(void)
{
    return hd_err(HD_INVALID,
                  "chosen and rejected must be two strings behind a prompt, or two lists "
                  "of messages");
}

/* Makes the conversation of a prompt with one of its answers. alike: number of messages at the
 * beginning of `answer` that belong to the prompt. */
static enum hd_status read_answer(struct hd_arena *arena, const struct hd_json *prompt,
                                  const struct hd_json *answer, size_t alike,
                                  struct hd_conversation *c)
{
    struct hd_json *last = NULL;
    enum hd_status st = HD_OK;

    if (prompt && prompt->kind == HD_JSON_STRING) {
        c->prompt = prompt->text;
        c->answer = answer->text;
        return *c->answer ? HD_OK : hd_err(HD_INVALID, "the answer is empty");
    }
    if (prompt)
        st = add_all(arena, prompt, &c->messages, &last);
    if (!st && answer->kind == HD_JSON_STRING)
        st = add_message(arena, &c->messages, &last, "assistant", answer->text, NULL);
    else if (!st)
        st = add_all(arena, answer, &c->messages, &last);
    return st ? st : check_messages(arena, c, (prompt ? prompt->count : 0) + alike);
}

/* Finds the members of a pair's line with the answers and the prompt; *ret_prompt NULL: the lists
 * of answers begin with the prompt. */
static enum hd_status find_pair(const struct hd_json *root,
                                const struct hd_json *ret_answers[HD_CHAT_PAIR],
                                const struct hd_json **ret_prompt)
{
    static const char *const names[] = {"chosen", "rejected"};
    const struct hd_json *prompt = hd_json_member(root, "prompt");

    for (int i = 0; i < HD_CHAT_PAIR; i++) {
        ret_answers[i] = hd_json_member(root, names[i]);
        if (!ret_answers[i] || ret_answers[i]->kind == HD_JSON_NULL)
            return hd_err(HD_INVALID,
                          "the line has no %s answer; a pair is {\"prompt\", \"chosen\", "
                          "\"rejected\"}",
                          names[i]);
    }
    *ret_prompt = prompt ? prompt : hd_json_member(root, "messages");
    prompt = *ret_prompt;
    if (ret_answers[0]->kind != ret_answers[1]->kind ||
        (prompt && prompt->kind != HD_JSON_STRING && prompt->kind != HD_JSON_ARRAY))
        return wrong_pair();
    if (ret_answers[0]->kind == HD_JSON_ARRAY)
        return prompt && prompt->kind != HD_JSON_ARRAY ? wrong_pair() : HD_OK;
    return ret_answers[0]->kind == HD_JSON_STRING && prompt ? HD_OK : wrong_pair();
}

enum hd_status hd_conversation_read_pair(struct hd_arena *arena, const char *line,
                                         size_t line_bytes,
                                         struct hd_conversation ret_pair[HD_CHAT_PAIR])
{
    static const char *const names[] = {"chosen", "rejected"};
    const struct hd_json *root = NULL, *prompt = NULL, *answers[HD_CHAT_PAIR] = {NULL};
    const struct hd_json *tools;
    size_t alike = 0;
    enum hd_status st = hd_json_parse_line(arena, line, line_bytes, &LIMITS, &root);

    if (!st)
        st = find_pair(root, answers, &prompt);
    if (!st && equal(answers[0], answers[1]))
        st = hd_err(HD_INVALID, "chosen and rejected are the same answer");
    if (st)
        return st;
    if (!prompt)
        alike = common_messages(answers[0], answers[1]);
    tools = hd_json_member(root, "tools");
    if (tools && tools->kind != HD_JSON_ARRAY && tools->kind != HD_JSON_NULL)
        return hd_err(HD_INVALID, "tools must be a list");
    for (int i = 0; !st && i < HD_CHAT_PAIR; i++) {
        ret_pair[i] =
            (struct hd_conversation){.messages = {.kind = HD_JSON_ARRAY},
                                     .form = HD_CHAT_PREFERENCE,
                                     .prompt = "",
                                     .has_margin = hd_json_member(root, "margin") != NULL,
                                     .tools = tools && tools->kind == HD_JSON_ARRAY ? tools : NULL};
        st = read_answer(arena, prompt, answers[i], alike, &ret_pair[i]);
        st = st ? hd_err_prefix(st, "%s", names[i]) : HD_OK;
    }
    return st;
}
