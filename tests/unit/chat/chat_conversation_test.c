/* Lines of conversations in each form, and lines that are wrong. */
#include <string.h>

#include "chat/conversation.h"
#include "tests/program/test.h"

/* "role:content" of each message, '+' behind those that count. */
static void reads_roles(const char *line, const char *roles, enum hd_chat_form form,
                        const char *messages)
{
    struct hd_conversation c;
    struct hd_text text = {0};
    struct hd_arena arena;
    size_t i = 0;

    hd_arena_init(&arena, 0);
    if (hd_conversation_read(&arena, line, strlen(line), HD_CHAT_AUTO, roles, &c))
        fail_msg("%s: %s", line, hd_err_message());
    assert_string_equal(hd_chat_form_name(c.form), hd_chat_form_name(form));
    for (const struct hd_json *m = c.messages.first; m; m = m->next, i++) {
        const char *role = "", *content = "";

        assert_int_equal(hd_json_need_string(m, "role", &role), HD_OK);
        assert_int_equal(hd_json_need_string(m, "content", &content), HD_OK);
        assert_null(hd_json_member(m, "name")); /* null is left out */
        hd_text_add(&text, "%s:%s%s ", role, content, c.counts[i] ? "+" : "");
    }
    assert_int_equal(c.messages.count, i);
    if (c.answer)
        hd_text_add(&text, "%s|%s", c.prompt, c.answer);
    assert_string_equal(text.data, messages);
    hd_text_free(&text);
    hd_arena_done(&arena);
}

static void reads(const char *line, enum hd_chat_form form, const char *messages)
{
    reads_roles(line, NULL, form, messages);
}

static void fails(const char *line, const char *message)
{
    struct hd_conversation c;
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_conversation_read(&arena, line, strlen(line), HD_CHAT_AUTO, NULL, &c),
                     HD_INVALID);
    if (!strstr(hd_err_message(), message))
        fail_msg("'%s' is not in '%s'", message, hd_err_message());
    hd_arena_done(&arena);
}

/* Names of data.roles win over the usual ones, in messages of either kind and in pairs. */
static void own_names_of_roles_are_roles(void **state)
{
    static const char line[] =
        "{\"conversations\": [{\"from\": \"Bob\", \"value\": \"a\"}, "
        "{\"from\": \"Alice, PhD\", \"value\": \"b\"}, {\"from\": \"Bob\", \"value\": \"c\"}]}";
    static const char both[] =
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"q\"}], \"chosen\": [{\"role\": \"Al\", "
        "\"content\": \"a\"}], \"rejected\": [{\"role\": \"Al\", \"content\": \"b\"}]}";
    struct hd_conversation pair[HD_CHAT_PAIR];
    struct hd_arena arena;

    reads_roles("{\"conversations\": [{\"from\": \"Bob\", \"value\": \"a\"}, "
                "{\"from\": \"gpt\", \"value\": \"b\"}]}",
                "gpt=user,Bob=assistant", HD_CHAT_SHAREGPT, "assistant:a+ user:b ");
    reads_roles("{\"messages\": [{\"role\": \"User\", \"content\": \"a\"}, "
                "{\"role\": \"Alice\", \"content\": \"b\"}]}",
                "Alice=assistant", HD_CHAT_MESSAGES, "user:a assistant:b+ ");
    fails(line, "'from' is 'Bob', which is no known role; the conversation has Bob, Alice, PhD;");
    hd_arena_init(&arena, 0);
    must(hd_conversation_read_pair(&arena, both, strlen(both), "Al=assistant", pair));
    assert_true(pair[HD_CHAT_CHOSEN].counts[1]);
    hd_arena_done(&arena);
    assert_int_equal(hd_chat_check_roles("Bob=user,Al=assistant"), HD_OK);
    assert_int_equal(hd_chat_check_roles("Bob=narrator"), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "'narrator' is no role; write system, developer"));
    assert_int_equal(hd_chat_check_roles("Bob=user,Bob=tool"), HD_INVALID);
    assert_int_equal(hd_chat_check_roles("Bob"), HD_INVALID);
}

static void each_form_is_found(void **state)
{
    reads("{\"messages\": [{\"role\": \"user\", \"name\": null, \"content\": \"a\"}, {\"role\": "
          "\"assistant\", "
          "\"content\": \"b\", \"weight\": 0}, {\"role\": \"assistant\", \"content\": \"c\"}]}",
          HD_CHAT_MESSAGES, "user:a assistant:b assistant:c+ ");
    reads("{\"system\": \"s\", \"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, "
          "{\"from\": \"gpt\", \"value\": \"b\"}]}",
          HD_CHAT_SHAREGPT, "system:s user:a assistant:b+ ");
    reads("{\"instruction\": \"a\", \"input\": \"b\", \"output\": \"c\"}", HD_CHAT_ALPACA,
          "user:a\n\nb assistant:c+ ");
    reads("{\"instruction\": \"a\", \"output\": \"c\", \"system\": \"s\", \"history\": []}",
          HD_CHAT_ALPACA, "system:s user:a assistant:c+ ");
    reads("{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", "
          "\"value\": \"b\", \"weight\": 0}, {\"from\": \"gpt\", \"value\": \"c\"}]}",
          HD_CHAT_SHAREGPT, "user:a assistant:b assistant:c+ ");
    reads("{\"prompt\": \"a\", \"completion\": \"b\"}", HD_CHAT_COMPLETION, "a|b");
    reads(
        "{\"prompt\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"completion\": [{\"role\": "
        "\"assistant\", \"content\": \"b\"}]}",
        HD_CHAT_COMPLETION, "assistant:a assistant:b+ ");
    reads("{\"text\": \"a\"}", HD_CHAT_TEXT, "|a");
}

/* Goal: records as published sets have them need no conversion. Method: the members of Dolly,
 * OpenOrca, GSM8K, MetaMath, SlimOrca, glaive and old tables of `datasets`, in short. */
static void other_names_of_the_forms_are_read(void **state)
{
    reads("{\"instruction\": \"a\", \"context\": \"b\", \"response\": \"c\", \"category\": \"x\"}",
          HD_CHAT_ALPACA, "user:a\n\nb assistant:c+ ");
    reads("{\"id\": 1, \"system_prompt\": \"s\", \"question\": \"a\", \"response\": \"b\"}",
          HD_CHAT_ALPACA, "system:s user:a assistant:b+ ");
    reads("{\"question\": \"a\", \"answer\": \"b\"}", HD_CHAT_ALPACA, "user:a assistant:b+ ");
    reads("{\"query\": \"a\", \"response\": \"b\"}", HD_CHAT_ALPACA, "user:a assistant:b+ ");
    reads("{\"prompt\": \"a\", \"response\": \"b\"}", HD_CHAT_ALPACA, "user:a assistant:b+ ");
    reads("{\"problem\": \"a\", \"solution\": \"b\"}", HD_CHAT_ALPACA, "user:a assistant:b+ ");
    reads("{\"instruction\": \"c\", \"output\": \"d\", \"history\": [[\"a\", \"b\"]]}",
          HD_CHAT_ALPACA, "user:a assistant:b+ user:c assistant:d+ ");
    reads("{\"conversations\": [{\"role\": \"User\", \"content\": \"a\"}, {\"role\": "
          "\"assistant\", \"content\": \"b\"}]}",
          HD_CHAT_SHAREGPT, "user:a assistant:b+ ");
    reads("{\"messages\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", "
          "\"value\": \"b\"}]}",
          HD_CHAT_MESSAGES, "user:a assistant:b+ ");
    reads(
        "{\"conversations\": [{\"from\": \"system\", \"value\": \"s\", \"weight\": null}, "
        "{\"from\": \"human\", \"value\": \"a\", \"weight\": 0.0}, {\"from\": \"gpt\", \"value\": "
        "\"b\", \"weight\": 1.0}]}",
        HD_CHAT_SHAREGPT, "system:s user:a assistant:b+ ");
    reads("{\"conversations\": [{\"from\": \"function_call\", \"value\": \"a\"}, {\"from\": "
          "\"observation\", \"value\": \"b\"}, {\"from\": \"GPT\", \"value\": \"c\"}]}",
          HD_CHAT_SHAREGPT, "assistant:a+ tool:b assistant:c+ ");
    reads("{\"messages\": {\"role\": [\"user\", \"assistant\"], \"content\": [\"a\", \"b\"]}}",
          HD_CHAT_MESSAGES, "user:a assistant:b+ ");
    reads("{\"system\": \"s\", \"messages\": [{\"role\": \"assistant\", \"content\": \"a\", "
          "\"train\": false}, {\"role\": \"assistant\", \"content\": \"b\"}], \"tools\": \"[]\"}",
          HD_CHAT_MESSAGES, "system:s assistant:a assistant:b+ ");
}

static void what_is_wrong_is_said(void **state)
{
    fails(
        "{\"messages\": [{\"role\": \"robot\", \"content\": \"a\"}]}",
        "message 1: 'role' is 'robot', which is no known role; the conversation has robot; say in "
        "the job file what it is, as data.roles: {robot: user}");
    fails("{\"messages\": [{\"role\": \"assistant\", \"content\": \"\"}]}",
          "message 1: the answer is empty");
    fails("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "no answer to learn");
    fails("{\"conversations\": [{\"from\": \"x\", \"value\": \"a\"}]}",
          "'from' is 'x', which is no known role; the conversation has x;");
    fails("{\"instruction\": \"a\", \"output\": \"c\", \"history\": [[\"x\"]]}",
          "'history' must be a list of pairs");
    fails("{\"question\": \"a\", \"query\": \"b\", \"answer\": \"c\"}",
          "'question' and 'query' could both be meant");
    fails("{\"body\": \"a\", \"id\": 1}",
          "no known form: it has body, id; say in the job file which of them has what, as "
          "data.columns: {text: NAME}");
    fails("{\"prompt\": \"a\", \"completion\": \"b\", \"label\": false}",
          "its answer is rated ('label')");
    fails("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
          "\"content\": \"b\"}], \"kto_tag\": true}",
          "its answer is rated ('kto_tag')");
    fails("{\"text\": \"a\", \"images\": [\"b.png\"]}",
          "it has 'images', and Heddle trains on text");
    fails("{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}",
          "message 1: its content has a part of type 'image'");
    fails("{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0.5}]}",
          "'weight' is 0.5; it must be 0 or 1");
    fails("{\"tools\": \"[1\", \"messages\": []}", "tools, written as text");
    fails("{\"prompt\": \"a\", \"completion\": []}", "two strings or two lists");
    fails("{\"question\": 1}", "no known form");
    fails("{}", "the record is empty");
    fails("[1]", "the line is a JSON array, not an object");
}

/* ---- pairs ---- */

#define U       "{\"role\": \"user\", \"content\": \"q\"}"
#define A(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"

/* Both conversations as reads() shows one, with '/' between them. */
static void reads_pair(const char *line, const char *both)
{
    struct hd_conversation pair[HD_CHAT_PAIR];
    struct hd_text text = {0};
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    if (hd_conversation_read_pair(&arena, line, strlen(line), NULL, pair))
        fail_msg("%s: %s", line, hd_err_message());
    for (int k = 0; k < HD_CHAT_PAIR; k++) {
        size_t i = 0;

        hd_text_add(&text, "%s", k ? "/" : "");
        for (const struct hd_json *m = pair[k].messages.first; m; m = m->next, i++)
            hd_text_add(&text, "%s%s ", hd_json_member(m, "content")->text,
                        pair[k].counts[i] ? "+" : "");
        if (pair[k].answer)
            hd_text_add(&text, "%s|%s", pair[k].prompt, pair[k].answer);
    }
    assert_string_equal(text.data, both);
    hd_text_free(&text);
    hd_arena_done(&arena);
}

static void fails_as_pair(const char *line, const char *message)
{
    struct hd_conversation pair[HD_CHAT_PAIR];
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_conversation_read_pair(&arena, line, strlen(line), NULL, pair), HD_INVALID);
    if (!strstr(hd_err_message(), message))
        fail_msg("'%s' is not in '%s'", message, hd_err_message());
    hd_arena_done(&arena);
}

/* No token of the prompt counts, also where it has answers. */
static void pairs_are_read_in_each_form(void **state)
{
    reads_pair("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}", "a|b/a|c");
    reads_pair("{\"prompt\": [" U "], \"chosen\": [" A("x") "], \"rejected\": [" A("y") "]}",
               "q x+ /q y+ ");
    reads_pair("{\"messages\": [" U "," A("p") "," U "], \"chosen\": \"x\", \"rejected\": \"y\"}",
               "q p q x+ /q p q y+ ");
    reads_pair("{\"chosen\": [" U
               "," A("p") "," U "," A("x") "], \"rejected\": [" U
                                           "," A("p") "," U "," A("y") "," U "," A("z") "]}",
               "q p q x+ /q p q y+ q z+ ");
    /* as ultrafeedback_binarized, TRL's lists that repeat the prompt, LLaMA-Factory's messages,
     * orca_dpo_pairs and hh-rlhf have them */
    reads_pair("{\"prompt\": \"q\", \"chosen\": [" U "," A("x") "], \"rejected\": [" U
                                                                "," A("y") "]}",
               "q x+ /q y+ ");
    reads_pair("{\"prompt\": [" U "], \"chosen\": [" U "," A("x") "], \"rejected\": [" U
                                                                  "," A("y") "]}",
               "q x+ /q y+ ");
    reads_pair("{\"conversations\": [" U "], \"chosen\": " A("x") ", \"rejected\": " A("y") "}",
               "q x+ /q y+ ");
    reads_pair("{\"system\": \"s\", \"question\": \"q\", \"chosen\": \"x\", \"rejected\": \"y\"}",
               "s q x+ /s q y+ ");
    reads_pair("{\"system\": \"s\", \"conversations\": [" U
               "], \"chosen\": " A("x") ", \"rejected\": " A("y") "}",
               "s q x+ /s q y+ ");
    reads_pair("{\"system\": \"s\", \"prompt\": null, \"chosen\": [" U
               "," A("x") "], \"rejected\": [" U "," A("y") "]}",
               "s q x+ /s q y+ ");
    reads_pair("{\"instruction\": \"q\", \"chosen_response\": \"x\", \"rejected_response\": \"y\"}",
               "q x+ /q y+ ");
    reads_pair("{\"chosen\": \"\\n\\nHuman: q\\n\\nAssistant: x\", \"rejected\": \"\\n\\nHuman: "
               "q\\n\\nAssistant: y\"}",
               "\n\nHuman: q\n\nAssistant:| x/\n\nHuman: q\n\nAssistant:| y");
}

static void what_is_wrong_with_a_pair_is_said(void **state)
{
    fails_as_pair("{\"prompt\": \"a\", \"rejected\": \"c\"}", "no chosen answer");
    fails_as_pair("{\"prompt\": \"a\", \"chosen\": \"c\", \"rejected\": null}",
                  "no rejected answer");
    fails_as_pair("{\"chosen\": [" U "," A("x") "], \"rejected\": [" U "," A("x") "]}",
                  "are the same answer");
    fails_as_pair("{\"chosen\": [" U "], \"rejected\": [" U "," A("x") "]}",
                  "chosen: the conversation "
                  "has no answer");
    fails_as_pair("{\"prompt\": \"a\", \"chosen\": [" A("x") "], \"rejected\": [" A("y") "]}",
                  "two strings behind a prompt, or two lists");
    fails_as_pair(
        "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"images\": [\"d\"]}",
        "it has 'images', and Heddle trains on text");
    fails("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}", "train.objective: dpo");
}

RUN_CASES()
