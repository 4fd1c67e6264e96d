#include "chat/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "chat/columns.h"
#include "chat/turns.h"

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
        if (i != HD_CHAT_PREFERENCE && i != HD_CHAT_UNPAIRED &&
            strcmp(name, hd_chat_form_name((enum hd_chat_form)i)) == 0) {
            *ret_form = (enum hd_chat_form)i;
            return true;
        }
    return false;
}

static enum hd_status find_form(const struct hd_json *root, enum hd_chat_form *ret_form)
{
    static const struct {
        const char *key;
        enum hd_chat_form form;
    } keys[] = {{"messages", HD_CHAT_MESSAGES},     {"conversations", HD_CHAT_SHAREGPT},
                {"conversation", HD_CHAT_SHAREGPT}, {"instruction", HD_CHAT_ALPACA},
                {"completion", HD_CHAT_COMPLETION}, {"text", HD_CHAT_TEXT}};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (hd_json_member(root, keys[i].key)) {
            *ret_form = keys[i].form;
            return HD_OK;
        }
    if (hd_json_member(root, "chosen") || hd_json_member(root, "rejected") ||
        hd_json_member(root, "chosen_response"))
        return hd_err(HD_INVALID,
                      "it is a pair of answers, chosen and rejected; train on pairs with "
                      "train.objective: dpo, or orpo");
    if (chat_columns_have_turn(root)) {
        *ret_form = HD_CHAT_ALPACA;
        return HD_OK;
    }
    return chat_columns_unknown(root);
}

/* Adds a list of turns with from and value. */
static enum hd_status add_turns(struct chat_reading *r, const struct hd_json *turns,
                                struct hd_json *list, struct hd_json **last)
{
    enum hd_status st = HD_OK;

    for (const struct hd_json *t = turns->first; !st && t; t = t->next) {
        const struct hd_json *weight = hd_json_member(t, "weight");
        const struct hd_json *train = hd_json_member(t, "train");
        const char *from, *value, *role = NULL;

        st = hd_json_need_string(t, "from", &from);
        if (!st)
            st = hd_json_need_string(t, "value", &value);
        if (!st)
            role = chat_columns_role(r->roles, from);
        if (!st && !role)
            st = chat_columns_refuse_role(turns, "from", from);
        weight = weight && weight->kind != HD_JSON_NULL ? weight : train;
        if (!st)
            st = chat_add_turn(r, from, value, weight, list, last);
    }
    return st;
}

/* Adds the turns in front of an instruction: pairs of a user's text and an answer. */
static enum hd_status add_history(struct hd_arena *arena, const struct hd_json *history,
                                  struct hd_json *list, struct hd_json **last)
{
    enum hd_status st = HD_OK;

    for (const struct hd_json *h = history ? history->first : NULL; !st && h; h = h->next) {
        const struct hd_json *user = h->first, *answer = user ? user->next : NULL;

        if (h->kind != HD_JSON_ARRAY || h->count != 2 || user->kind != HD_JSON_STRING ||
            answer->kind != HD_JSON_STRING)
            return hd_err(HD_INVALID, "'history' must be a list of pairs of texts: a question and "
                                      "its answer");
        st = chat_add_message(arena, list, last, "user", user->text, NULL);
        if (!st)
            st = chat_add_message(arena, list, last, "assistant", answer->text, NULL);
    }
    return st;
}

static enum hd_status read_alpaca(struct hd_arena *arena, const struct hd_json *root,
                                  struct hd_json *list, struct hd_json **last)
{
    struct chat_turn turn;
    enum hd_status st = chat_columns_read_turn(root, &turn);

    if (!st && turn.system)
        st = chat_add_message(arena, list, last, "system", turn.system, NULL);
    if (!st)
        st = add_history(arena, hd_json_member(root, "history"), list, last);
    if (!st && turn.input) {
        turn.prompt = hd_arena_printf(arena, "%s\n\n%s", turn.prompt, turn.input);
        if (!turn.prompt)
            return hd_err(HD_NO_MEMORY, "no memory for a conversation");
    }
    if (!st)
        st = chat_add_message(arena, list, last, "user", turn.prompt, NULL);
    return st ? st : chat_add_message(arena, list, last, "assistant", turn.answer, NULL);
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
static bool add_as_given(struct chat_reading *r, const struct hd_json *m, struct hd_json *list,
                         struct hd_json **last)
{
    const struct hd_json *reasoning = m->kind == HD_JSON_OBJECT ? reasoning_of(m) : NULL;
    const struct hd_json *thinking = hd_json_member(m, "thinking");
    struct hd_json *copy = chat_append(r->arena, list, last, m), *member = NULL;
    bool is_there = false;

    if (!copy || m->kind != HD_JSON_OBJECT)
        return copy != NULL;
    copy->first = NULL;
    copy->count = 0;
    if (reasoning && (!thinking || thinking->kind == HD_JSON_NULL)) {
        if (!chat_append(r->arena, copy, &member, reasoning))
            return false;
        member->key = "thinking";
    }
    for (const struct hd_json *c = m->first; c; c = c->next) {
        const bool is_reasoning = reasoning && strcmp(c->key, "reasoning_content") == 0;

        if (c->kind == HD_JSON_NULL)
            continue;
        is_there |= is_reasoning;
        if (!chat_append(r->arena, copy, &member, c))
            return false;
        if (strcmp(c->key, "role") == 0 && c->kind == HD_JSON_STRING &&
            chat_columns_role(r->roles, c->text))
            member->text = chat_columns_role(r->roles, c->text);
    }
    if (reasoning && !is_there) {
        if (!chat_append(r->arena, copy, &member, reasoning))
            return false;
        member->key = "reasoning_content";
    }
    return true;
}

static enum hd_status add_all(struct chat_reading *r, const struct hd_json *from,
                              struct hd_json *list, struct hd_json **last)
{
    for (const struct hd_json *m = from->first; m; m = m->next) {
        const struct hd_json *role = hd_json_member(m, "role"),
                             *content = hd_json_member(m, "content");
        struct hd_chat_calls calls = {.count = 0};
        enum hd_status st = HD_OK;

        if (role && role->kind == HD_JSON_STRING && content && content->kind == HD_JSON_STRING &&
            chat_columns_is_call(r->roles, role->text))
            st = hd_chat_calls_of_value(r->arena, content->text, &calls);
        if (!st && calls.count)
            st = chat_add_calls(r, list, last, &calls, hd_json_member(m, "weight"));
        else if (!st && !add_as_given(r, m, list, last))
            st = hd_err(HD_NO_MEMORY, "no memory for a conversation");
        if (st)
            return st;
    }
    return HD_OK;
}

/* Adds a list of messages with role and content, or with from and value. */
static enum hd_status add_listed(struct chat_reading *r, const struct hd_json *from,
                                 struct hd_json *list, struct hd_json **last)
{
    return from->first && !hd_json_member(from->first, "role") &&
                   hd_json_member(from->first, "from")
               ? add_turns(r, from, list, last)
               : add_all(r, from, list, last);
}

/* Returns the text of the member `system` beside a list of messages; NULL: none, or the list begins
 * with one. */
static const char *system_beside(struct chat_reading *r, const struct hd_json *root,
                                 const struct hd_json *list)
{
    const struct hd_json *system = hd_json_member(root, "system");
    const struct hd_json *first = list->first ? chat_columns_first_role(list->first) : NULL;
    const bool begins = first && first->kind == HD_JSON_STRING &&
                        chat_columns_role(r->roles, first->text) &&
                        strcmp(chat_columns_role(r->roles, first->text), "system") == 0;

    return system && system->kind == HD_JSON_STRING && *system->text && !begins ? system->text
                                                                                : NULL;
}

/* Adds the messages of a record: a list of objects with role and content, or with from and value;
 * or, as old tables have them, an object of lists, one for each. */
static enum hd_status read_messages(struct chat_reading *r, const struct hd_json *root,
                                    const char *key, struct hd_json *list, struct hd_json **last)
{
    const struct hd_json *from = hd_json_member(root, key);
    enum hd_status st = chat_columns_unzip(r->arena, from, &from);

    if (st)
        return st;
    if (!from || from->kind != HD_JSON_ARRAY)
        return hd_json_need(root, key, HD_JSON_ARRAY, &from);
    if (system_beside(r, root, from))
        st = chat_add_message(r->arena, list, last, "system", system_beside(r, root, from), NULL);
    if (st)
        return st;
    /* the message about a faulty first turn of `conversations` names from and value */
    return from->first && !hd_json_member(from->first, "role") && strcmp(key, "conversations") == 0
               ? add_turns(r, from, list, last)
               : add_listed(r, from, list, last);
}

enum hd_status hd_conversation_of_messages(struct hd_arena *arena, const struct hd_json *messages,
                                           struct hd_conversation *ret)
{
    struct chat_reading r = {.arena = arena};
    struct hd_json *last = NULL;

    if (messages->kind != HD_JSON_ARRAY)
        return hd_err(HD_INVALID, "the messages are not a list");
    *ret = (struct hd_conversation){
        .form = HD_CHAT_MESSAGES, .messages = {.kind = HD_JSON_ARRAY}, .prompt = ""};
    return add_all(&r, messages, &ret->messages, &last);
}

/* Reads the form prompt_completion. Sets *prompt_count to the number of messages of the prompt,
 * which do not count for the loss. */
static enum hd_status read_completion(struct chat_reading *r, const struct hd_json *root,
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
    st = add_all(r, prompt, &c->messages, last);
    *prompt_count = prompt->count;
    return st ? st : add_all(r, completion, &c->messages, last);
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

static enum hd_status check_message(const struct hd_json *messages, const struct hd_json *m,
                                    size_t index, bool learned, bool *ret_counts)
{
    const char *role;
    bool weighs = true;
    enum hd_status st = hd_json_need_string(m, "role", &role);

    if (!st && !chat_columns_role(NULL, role))
        st = chat_columns_refuse_role(messages, "role", role);
    if (!st)
        st = chat_columns_weight(m, &weighs);
    if (!st)
        st = chat_columns_check_content(m);
    *ret_counts = !st && learned && weighs && strcmp(role, "assistant") == 0;
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
        return hd_err(HD_NO_MEMORY, "no memory for a conversation");
    c->counts = counts;
    for (const struct hd_json *m = c->messages.first; !st && m; m = m->next, i++) {
        st = check_message(&c->messages, m, i, i >= prompt_count, &counts[i]);
        any |= counts[i];
    }
    if (!st && !any)
        st = hd_err(HD_INVALID, "the conversation has no answer to learn: no message of the role "
                                "assistant with weight 1");
    return st;
}

/* Reads the conversation of a parsed line, whatever its label is. */
static enum hd_status read_root(const struct chat_reading *reading, const struct hd_json *root,
                                enum hd_chat_form form, bool rated, struct hd_conversation *ret)
{
    struct chat_reading r = *reading;
    struct hd_arena *arena = r.arena;
    struct hd_conversation c = {.messages = {.kind = HD_JSON_ARRAY}, .form = form, .prompt = ""};
    struct hd_json *last = NULL;
    size_t prompt_count = 0;
    enum hd_status st = form == HD_CHAT_AUTO ? find_form(root, &c.form) : HD_OK;

    if (st)
        return st;
    r.has_tools = hd_json_member(root, "tools") != NULL;
    st = chat_columns_refuse_media(root);
    if (!st && c.form != HD_CHAT_TEXT && !rated)
        st = chat_columns_refuse_rated(root);
    if (st)
        return st;
    if (c.form == HD_CHAT_MESSAGES) {
        st = read_messages(&r, root, "messages", &c.messages, &last);
    } else if (c.form == HD_CHAT_SHAREGPT) {
        st = read_messages(&r, root,
                           hd_json_member(root, "conversations") ? "conversations" : "conversation",
                           &c.messages, &last);
    } else if (c.form == HD_CHAT_ALPACA) {
        st = read_alpaca(arena, root, &c.messages, &last);
    } else if (c.form == HD_CHAT_COMPLETION) {
        st = read_completion(&r, root, &c, &last, &prompt_count);
    } else {
        st = hd_json_need_string(root, "text", &c.answer); /* the text may be empty */
    }
    if (!st)
        st = chat_columns_tools(arena, root, c.form == HD_CHAT_SHAREGPT, &c.tools);
    if (!st && !c.answer)
        st = check_messages(arena, &c, prompt_count);
    if (!st)
        *ret = c;
    return st;
}

enum hd_status hd_conversation_read(struct hd_arena *arena, const char *line, size_t line_bytes,
                                    enum hd_chat_form form, const char *roles,
                                    struct hd_conversation *ret)
{
    const struct chat_reading r = {.arena = arena, .roles = roles};
    const struct hd_json *root = NULL;
    const enum hd_status st = hd_json_parse_line(arena, line, line_bytes, &LIMITS, &root);

    return st ? st : read_root(&r, root, form, false, ret);
}

/* ---- pairs ---- */

/* A line of the form preference: where its prompt and its answers are. */
struct pair {
    const struct hd_json *answers[HD_CHAT_PAIR]; /* strings, lists of messages, or messages */
    const struct hd_json *prompt; /* list of messages in front of the answers; NULL: none */
    struct chat_turn turn;        /* question of a user; .prompt NULL: none */
    const char *text;             /* text in front of answers that are text; NULL: none */
    size_t shared_bytes;          /* bytes of `text` with which both answers begin */
    size_t alike; /* messages at the beginning of both lists that belong to the prompt */
};

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

/* Makes the conversation of a prompt with one of its answers. */
static enum hd_status read_answer(struct chat_reading *r, const struct pair *p, size_t index,
                                  struct hd_conversation *c)
{
    const struct hd_json *answer = p->answers[index];
    struct hd_json one = *answer, *last = NULL;
    const struct hd_json alone = {.kind = HD_JSON_ARRAY, .count = 1, .first = &one};
    enum hd_status st = HD_OK;

    one.next = NULL;
    if (p->text) {
        c->prompt = p->text;
        c->answer = answer->text + p->shared_bytes;
        return *c->answer ? HD_OK : hd_err(HD_INVALID, "the answer is empty");
    }
    if (p->turn.system)
        st = chat_add_message(r->arena, &c->messages, &last, "system", p->turn.system, NULL);
    if (!st && p->turn.prompt)
        st = chat_add_message(r->arena, &c->messages, &last, "user", p->turn.prompt, NULL);
    if (!st && p->prompt)
        st = add_listed(r, p->prompt, &c->messages, &last);
    if (!st && answer->kind == HD_JSON_STRING)
        st = chat_add_message(r->arena, &c->messages, &last, "assistant", answer->text, NULL);
    else if (!st && answer->kind == HD_JSON_OBJECT)
        st = add_listed(r, &alone, &c->messages, &last);
    else if (!st)
        st = add_listed(r, answer, &c->messages, &last);
    if (st)
        return st;
    return check_messages(r->arena, c,
                          (p->turn.system != NULL) + (p->turn.prompt != NULL) +
                              (p->prompt ? p->prompt->count : 0) + p->alike);
}

/* Returns whether `text` is the last message of a user among the first `count` of a list. */
static bool is_last_question(struct chat_reading *r, const struct hd_json *list, size_t count,
                             const char *text)
{
    const struct hd_json *m = list->first, *content;
    bool is_it = false;

    for (size_t i = 0; i < count && m; i++, m = m->next) {
        const struct hd_json *role = chat_columns_first_role(m);

        content = hd_json_member(m, "content");
        content = content ? content : hd_json_member(m, "value");
        if (role && role->kind == HD_JSON_STRING && chat_columns_role(r->roles, role->text) &&
            strcmp(chat_columns_role(r->roles, role->text), "user") == 0)
            is_it = content && content->kind == HD_JSON_STRING && strcmp(content->text, text) == 0;
    }
    return is_it;
}

/* Finds the prompt of answers that are lists of messages: a list in front of them; or the messages
 * that they share at their beginning, which a prompt beside them only repeats. */
static enum hd_status find_shared(struct chat_reading *r, struct pair *p)
{
    const struct hd_json *prompt = p->prompt;
    const size_t alike = common_messages(p->answers[0], p->answers[1]);

    if (prompt && prompt->kind == HD_JSON_STRING) {
        if (!is_last_question(r, p->answers[0], alike, prompt->text))
            return wrong_pair();
        p->prompt = NULL;
    } else if (prompt && prompt->kind == HD_JSON_ARRAY) {
        if (!prompt->count || common_messages(prompt, p->answers[0]) < prompt->count ||
            common_messages(prompt, p->answers[1]) < prompt->count)
            return HD_OK;
        p->prompt = NULL;
    }
    p->alike = alike;
    return HD_OK;
}

/* Finds the prompt that two texts share at their beginning: up to the last "Assistant:" that begins
 * a paragraph, as Anthropic's hh-rlhf has them. */
static enum hd_status find_shared_text(struct hd_arena *arena, struct pair *p)
{
    static const char mark[] = "\n\nAssistant:";
    const char *a = p->answers[0]->text, *b = p->answers[1]->text;
    size_t shared = 0, end = 0;

    while (a[shared] && a[shared] == b[shared])
        shared++;
    for (size_t i = 0; i + sizeof mark - 1 <= shared; i++)
        if (strncmp(a + i, mark, sizeof mark - 1) == 0)
            end = i + sizeof mark - 1;
    if (!end)
        return wrong_pair();
    p->text = hd_arena_printf(arena, "%.*s", (int)end, a);
    p->shared_bytes = end;
    return p->text ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for a conversation");
}

/* Finds the members of a pair's line with the answers. */
static enum hd_status find_both_answers(const struct hd_json *root, struct pair *p)
{
    static const char *const names[][2] = {{"chosen", "chosen_response"},
                                           {"rejected", "rejected_response"}};

    for (int i = 0; i < HD_CHAT_PAIR; i++) {
        p->answers[i] = hd_json_member(root, names[i][0]);
        if (!p->answers[i])
            p->answers[i] = hd_json_member(root, names[i][1]);
        if (!p->answers[i] || p->answers[i]->kind == HD_JSON_NULL)
            return hd_err(HD_INVALID,
                          "the line has no %s answer; a pair is {\"prompt\", \"chosen\", "
                          "\"rejected\"}",
                          names[i][0]);
    }
    if (p->answers[0]->kind != p->answers[1]->kind ||
        (p->answers[0]->kind != HD_JSON_STRING && p->answers[0]->kind != HD_JSON_ARRAY &&
         p->answers[0]->kind != HD_JSON_OBJECT))
        return wrong_pair();
    return equal(p->answers[0], p->answers[1])
               ? hd_err(HD_INVALID, "chosen and rejected are the same answer")
               : HD_OK;
}

/* Finds the prompt of a pair. */
static enum hd_status find_pair_prompt(struct chat_reading *r, const struct hd_json *root,
                                       struct pair *p)
{
    static const char *const names[] = {"prompt", "messages", "conversations"};
    const enum hd_json_kind kind = p->answers[0]->kind;
    bool found = false;
    enum hd_status st = HD_OK;

    for (size_t i = 0; !p->prompt && i < sizeof names / sizeof *names; i++) {
        p->prompt = hd_json_member(root, names[i]);
        if (p->prompt && p->prompt->kind == HD_JSON_NULL)
            p->prompt = NULL;
    }
    if (p->prompt && p->prompt->kind != HD_JSON_STRING && p->prompt->kind != HD_JSON_ARRAY)
        return wrong_pair();
    if (p->prompt && p->prompt->kind == HD_JSON_ARRAY)
        p->turn.system = system_beside(r, root, p->prompt);
    else if (kind == HD_JSON_ARRAY)
        p->turn.system = system_beside(r, root, p->answers[0]);
    if (kind == HD_JSON_ARRAY)
        return find_shared(r, p);
    if (p->prompt && p->prompt->kind == HD_JSON_STRING) {
        p->text = kind == HD_JSON_STRING ? p->prompt->text : NULL;
        p->turn.prompt = kind == HD_JSON_OBJECT ? p->prompt->text : NULL;
        p->prompt = NULL;
        return HD_OK;
    }
    if (p->prompt)
        return HD_OK;
    st = chat_columns_read_prompt(root, &p->turn, &found);
    if (!st && found && p->turn.input)
        p->turn.prompt = hd_arena_printf(r->arena, "%s\n\n%s", p->turn.prompt, p->turn.input);
    if (!st && found)
        return p->turn.prompt ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for a conversation");
    p->turn = (struct chat_turn){.prompt = NULL};
    if (st)
        return st;
    return kind == HD_JSON_STRING ? find_shared_text(r->arena, p) : wrong_pair();
}

enum hd_status hd_conversation_read_pair(struct hd_arena *arena, const char *line,
                                         size_t line_bytes, const char *roles,
                                         struct hd_conversation ret_pair[HD_CHAT_PAIR])
{
    static const char *const names[] = {"chosen", "rejected"};
    struct chat_reading r = {.arena = arena, .roles = roles};
    const struct hd_json *root = NULL, *tools = NULL;
    struct pair p = {.text = NULL};
    enum hd_status st = hd_json_parse_line(arena, line, line_bytes, &LIMITS, &root);

    if (!st)
        st = chat_columns_refuse_media(root);
    if (!st)
        st = find_both_answers(root, &p);
    if (!st)
        st = find_pair_prompt(&r, root, &p);
    if (!st)
        st = chat_columns_tools(arena, root, false, &tools);
    for (size_t i = 0; !st && i < HD_CHAT_PAIR; i++) {
        ret_pair[i] = (struct hd_conversation){.messages = {.kind = HD_JSON_ARRAY},
                                               .form = HD_CHAT_PREFERENCE,
                                               .prompt = "",
                                               .has_margin = hd_json_member(root, "margin") != NULL,
                                               .tools = tools};
        st = read_answer(&r, &p, i, &ret_pair[i]);
        st = st ? hd_err_prefix(st, "%s", names[i]) : HD_OK;
    }
    return st;
}

/* ---- rated answers ---- */

/* Finds the label of a line: a truth value, or 0 or 1. Returns false if there is none. */
static bool find_label(const struct hd_json *root, bool *ret_desirable)
{
    static const char *const names[] = {"label", "kto_tag"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct hd_json *m = hd_json_member(root, names[i]);

        if (!m || m->kind == HD_JSON_NULL)
            continue;
        *ret_desirable =
            m->kind == HD_JSON_TRUE || (m->kind == HD_JSON_NUMBER && strcmp(m->text, "1") == 0);
        return *ret_desirable || m->kind == HD_JSON_FALSE ||
               (m->kind == HD_JSON_NUMBER && strcmp(m->text, "0") == 0);
    }
    return false;
}

/* Makes only the last answer of a conversation count. */
static enum hd_status count_last(struct hd_arena *arena, struct hd_conversation *c)
{
    bool *counts = hd_arena_alloc(arena, c->messages.count + 1);
    size_t last = 0;

    if (!counts)
        return hd_err(HD_NO_MEMORY, "no memory for a conversation");
    for (size_t i = 0; i < c->messages.count; i++)
        last = c->counts[i] ? i : last;
    for (size_t i = 0; i < c->messages.count; i++)
        counts[i] = i == last;
    c->counts = counts;
    return HD_OK;
}

enum hd_status hd_conversation_read_unpaired(struct hd_arena *arena, const char *line,
                                             size_t line_bytes, const char *roles,
                                             struct hd_conversation ret_pair[HD_CHAT_PAIR],
                                             bool ret_has[HD_CHAT_PAIR])
{
    const struct chat_reading r = {.arena = arena, .roles = roles};
    const struct hd_json *root = NULL;
    bool desirable = false;
    struct hd_conversation *c;
    enum hd_status st = hd_json_parse_line(arena, line, line_bytes, &LIMITS, &root);

    ret_has[HD_CHAT_CHOSEN] = ret_has[HD_CHAT_REJECTED] = true;
    if (st)
        return st;
    if (hd_json_member(root, "chosen") || hd_json_member(root, "chosen_response"))
        return hd_conversation_read_pair(arena, line, line_bytes, roles, ret_pair);
    if (!find_label(root, &desirable))
        return hd_err(HD_INVALID, "the answer is not rated: give 'label', true or false, beside "
                                  "prompt and completion; or chosen and rejected");
    ret_has[desirable ? HD_CHAT_REJECTED : HD_CHAT_CHOSEN] = false;
    c = &ret_pair[desirable ? HD_CHAT_CHOSEN : HD_CHAT_REJECTED];
    st = read_root(&r, root, HD_CHAT_AUTO, true, c);
    if (!st && c->form == HD_CHAT_TEXT)
        st =
            hd_err(HD_INVALID, "the line has a label, and a text without a prompt; give prompt and "
                               "completion");
    if (!st && c->form != HD_CHAT_COMPLETION && !c->answer)
        st = count_last(arena, c);
    if (!st)
        c->form = HD_CHAT_UNPAIRED;
    return st;
}
