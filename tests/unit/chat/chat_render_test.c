/* Which bytes of a conversation count: with {% generation %}, by rendered prefixes, and without a
 * template. */
#include <string.h>

#include "chat/date.h"
#include "chat/render.h"
#include "tests/program/test.h"

#define CHATML                                                              \
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n{% endfor %}" \
    "{% if add_generation_prompt %}<assistant>{% endif %}"
#define MARKED                                                                               \
    "{% for m in messages %}{% if m.role == 'assistant' %}[{% generation %}{{ m.content }}." \
    "{% endgeneration %}]{% else %}{{ m.content }}{% endif %}{% endfor %}"
#define FORGETS                                                                                 \
    "{% for m in messages %}{{ m.role[0] }}{% if loop.last or m.role == 'user' %}{{ m.content " \
    "}}{% endif %}"                                                                             \
    "{% endfor %}{% if add_generation_prompt %}a{% endif %}"

static const char TWO[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
                          "\"assistant\", \"content\": \"b1\"}, {\"role\": \"user\", \"content\": "
                          "\"c\"}, {\"role\": \"assistant\", \"content\": \"d\"}]}";

/* The marked parts of the text, each in front of a bar. */
static enum hd_status spans_of(const char *source, const char *line, enum hd_chat_loss loss,
                               struct hd_text *ret)
{
    const struct hd_template_input input = {.name = "T"};
    struct hd_template_output output = {0};
    struct hd_template *t = NULL;
    struct hd_conversation c;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_template_parse(source, strlen(source), NULL, &t), HD_OK);
    assert_int_equal(hd_conversation_read(&arena, line, strlen(line), HD_CHAT_AUTO, NULL, &c),
                     HD_OK);
    st = hd_chat_render(t, &c, loss, &input, &output);
    for (size_t i = 0; !st && i < output.span_count; i++)
        hd_text_add(ret, "%.*s|", (int)(output.spans[i].end - output.spans[i].begin),
                    output.text.data + output.spans[i].begin);
    hd_template_output_free(&output);
    hd_template_free(t);
    hd_arena_done(&arena);
    return st;
}

static void counts(const char *source, const char *line, enum hd_chat_loss loss, const char *spans)
{
    struct hd_text text = {0};

    if (spans_of(source, line, loss, &text))
        fail_msg("%s: %s", line, hd_err_message());
    assert_string_equal(text.data, spans);
    hd_text_free(&text);
}

static void answers_and_what_ends_them_count(void **state)
{
    counts(CHATML, TWO, HD_CHAT_ANSWERS, "b1</>\n|d</>\n|");
    counts(CHATML, TWO, HD_CHAT_LAST, "d</>\n|");
    counts(MARKED, TWO, HD_CHAT_ANSWERS, "b1.|d.|");
    counts(MARKED, TWO, HD_CHAT_LAST, "d.|");
    counts(MARKED, TWO, HD_CHAT_ALL, "a[b1.]c[d.]|");
    counts(CHATML, "{\"prompt\": \"a\", \"completion\": \"b\"}", HD_CHAT_ANSWERS, "b|");
}

static void an_answer_that_is_not_shown_is_refused_unless_the_last_is_enough(void **state)
{
    struct hd_text text = {0};

    assert_int_equal(spans_of(FORGETS, TWO, HD_CHAT_ANSWERS, &text), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "message 2"));
    assert_non_null(strstr(hd_err_message(), "template T"));
    assert_non_null(strstr(hd_err_message(), "data.loss: last"));
    counts(FORGETS, TWO, HD_CHAT_LAST, "d|");
    hd_text_free(&text);
}

/* Writes thoughts behind the last question alone, as the templates of Qwen3 and its kin. */
#define THINKS                                                                                   \
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"           \
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"                                     \
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.index0 > ns.last" \
    " %}(think){{ m.reasoning_content }}(/think){% endif %}{{ m.content | trim }}"               \
    "{% if m.tool_calls %}[{{ m.tool_calls[0].function.name }}]{% endif %}</>\n{% endfor %}"     \
    "{% if add_generation_prompt %}<assistant>{% endif %}"
/* The prompt says more than history does, as that of DeepSeek-R1: its answers begin with <a>. */
#define OPENS                                                                                   \
    "{% for m in messages %}{% if m.role == 'user' %}<u>{{ m.content }}{% else %}<a>{{ "        \
    "m.content.split('(/think)')[-1] }}</s>{% endif %}{% endfor %}{% if add_generation_prompt " \
    "%}<a>(think)\n{% endif %}"
/* Tools stand in front of the last question, and nothing in front of an answer: Mistral's way. */
#define MOVES                                                                                    \
    "{% for m in messages %}{% if m.role == 'user' %}{% if tools and loop.index0 >= messages | " \
    "length - 2 %}[T]{{ tools | tojson }}[/T]{% endif %}[I]{{ m.content }}[/I]{% else %} "       \
    "{{ m.content }}</s>{% endif %}{% endfor %}"
/* One more token where no message follows, as Phi-3's. */
#define ENDS                                                                        \
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}" \
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}<|endoftext|>{% endif %}"
/* No conversation without a question, and the end of a turn is in front of the next one. */
#define ASKS                                                                                  \
    "{% if not messages[0].role %}{% endif %}{% if messages | selectattr('role', 'equalto', " \
    "'user') | list | length == 0 %}{{ raise_exception('no question') }}{% endif %}"          \
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"                     \
    "{% if add_generation_prompt %}<assistant>{% endif %}"

#define USER(text)     "{\"role\": \"user\", \"content\": \"" text "\"}"
#define ANSWER(text)   "{\"role\": \"assistant\", \"content\": \"" text "\"}"
#define THOUGHT(a, b)  "{\"role\": \"assistant\", \"content\": \"" b "\", \"thinking\": \"" a "\"}"
#define MESSAGES(list) "{\"messages\": [" list "]}"
#define CALL                                                                                   \
    "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": {\"name\": " \
    "\"f\"}}]}"
#define RESULT           "{\"role\": \"tool\", \"content\": \"21\"}"
#define WITH_TOOLS(list) "{\"tools\": [{\"name\": \"f\"}], \"messages\": [" list "]}"

/* Goal: an answer counts as the whole text has it, whatever the template does to history. Method:
 * templates that each rewrite it in one way, and by hand what lies between the prompt for an answer
 * and the next message. */
static void answers_count_where_a_template_rewrites_history(void **state)
{
    const char *const two =
        MESSAGES(USER("q") "," THOUGHT("x", "b ") "," USER("r") "," THOUGHT("y", "d"));

    counts(THINKS, two, HD_CHAT_ANSWERS, "b</>\n|(think)y(/think)d</>\n|");
    counts(THINKS, two, HD_CHAT_LAST, "(think)y(/think)d</>\n|");
    /* an answer that spells the prompt, and equal messages, are not taken for one another */
    counts(THINKS,
           MESSAGES(USER("<assistant>") "," ANSWER("<assistant>") "," USER(
               "<assistant>") "," ANSWER("z")),
           HD_CHAT_ANSWERS, "<assistant></>\n|(think)(/think)z</>\n|");
    counts(
        THINKS,
        MESSAGES(USER("q") "," CALL "," RESULT "," THOUGHT("x", "b") "," USER("r") "," ANSWER("d")),
        HD_CHAT_ANSWERS, "[f]</>\n|b</>\n|(think)(/think)d</>\n|");
    /* of an answer that is not learned, and behind the last one, nothing counts */
    counts(THINKS,
           MESSAGES(USER("q") "," THOUGHT("x", "b") "," USER(
               "r") ",{\"role\": \"assistant\", "
                    "\"content\": \"d\", \"weight\": 0}," USER("s")),
           HD_CHAT_LAST, "b</>\n|");
    counts(OPENS, MESSAGES(USER("q") "," ANSWER("t(/think)<b") "," USER("r") "," ANSWER("d")),
           HD_CHAT_ANSWERS, "<b</s>|d</s>|");
    counts(MOVES, WITH_TOOLS(USER("q") "," ANSWER("b") "," USER("r") "," ANSWER("d")),
           HD_CHAT_ANSWERS, " b</s>| d</s>|");
    counts(ENDS, MESSAGES(USER("q") "," ANSWER("b") "," USER("r") "," ANSWER("d")), HD_CHAT_ANSWERS,
           "b<|end|>\n|d<|end|>\n<|endoftext|>|");
}

static void a_conversation_may_begin_with_an_answer(void **state)
{
    struct hd_text text = {0};

    counts(CHATML, MESSAGES(ANSWER("b") "," USER("q") "," ANSWER("d")), HD_CHAT_ANSWERS,
           "b</>\n|d</>\n|");
    counts(MOVES, MESSAGES(ANSWER("b") "," USER("q") "," ANSWER("d")), HD_CHAT_ANSWERS,
           " b</s>| d</s>|");
    counts(ASKS, MESSAGES(ANSWER("b") "," USER("q") "," ANSWER("d")), HD_CHAT_LAST, "d</>|");
    assert_int_equal(
        spans_of(ASKS, MESSAGES(ANSWER("b") "," USER("q") "," ANSWER("d")), HD_CHAT_ANSWERS, &text),
        HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "begins with an answer"));
    assert_int_equal(spans_of(ASKS, MESSAGES(ANSWER("b")), HD_CHAT_ANSWERS, &text), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "no question"));
    hd_text_free(&text);
}

/* transformers takes all spans that a template marks, however many an answer has. */
static void an_answer_may_have_several_marks(void **state)
{
    static const char parts[] =
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %}#{% generation %}.{% endgeneration %}{% else %}<u>{{ m.content }}<a>"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{% endif %}";

    counts(parts, TWO, HD_CHAT_ANSWERS, "b1|.|d|.|");
    counts(parts, TWO, HD_CHAT_LAST, "d|.|");
}

static void gives(const char *source, const char *line, const char *text)
{
    struct hd_template_output output = {0};
    struct hd_template_input input = {.has_clock = true};
    struct hd_template *t = NULL;
    struct hd_conversation c;
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_chat_date_read("2024-02-29T01:02:03", &input.now_s), HD_OK);
    assert_int_equal(hd_template_parse(source, strlen(source), NULL, &t), HD_OK);
    assert_int_equal(hd_conversation_read(&arena, line, strlen(line), HD_CHAT_AUTO, NULL, &c),
                     HD_OK);
    assert_int_equal(hd_chat_render(t, &c, HD_CHAT_ALL, &input, &output), HD_OK);
    assert_string_equal(output.text.data, text);
    hd_template_output_free(&output);
    hd_template_free(t);
    hd_arena_done(&arena);
}

static void a_template_gets_what_transformers_gives_it(void **state)
{
    static const char message[] = MESSAGES(USER("q") "," ANSWER("b"));

    gives("{% if tools is not none %}T{% else %}N{% endif %}", message, "N");
    gives("{% if tools is not none %}T{% else %}N{% endif %}", WITH_TOOLS(ANSWER("b")), "T");
    gives("{{ tools is defined }}{{ documents is none }}{{ add_generation_prompt }}", message,
          "TrueTrueFalse");
    gives("{{ enable_thinking is defined }}{{ bos_token is defined }}", message, "FalseFalse");
    /* reasoning goes by the name that the template knows; a null is no member */
    gives("{{ messages[1].thinking }}{{ messages[1].reasoning_content }}",
          MESSAGES(USER("q") ",{\"role\": \"assistant\", \"content\": \"b\", \"reasoning\": "
                             "\"x\", \"thinking\": null}"),
          "xx");
    gives("{{ messages[0].name is defined }}",
          MESSAGES("{\"role\": \"assistant\", \"content\": \"b\", \"name\": null}"), "False");
}

/* 29 February 2024 was a Thursday, the 60th day of the year. Python writes nothing for the zone of
 * a time without one. */
static void a_template_gets_the_date_that_the_job_has(void **state)
{
    static const char message[] = MESSAGES(USER("q") "," ANSWER("b"));
    char today[HD_CHAT_DATE_MAX];
    int64_t seconds;

    gives("{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}", message,
          "29 Feb 2024");
    gives("{{ strftime_now('%A %j %-d/%-m %H:%M:%S.%f%z%Z%:z%%') }}", message,
          "Thursday 060 29/2 01:02:03.000000%");
    assert_int_equal(hd_chat_date_read("1970-01-02", &seconds), HD_OK);
    assert_int_equal(seconds, 24 * 60 * 60);
    assert_int_equal(hd_chat_date_read("2023-02-29", &seconds), HD_INVALID);
    assert_int_equal(hd_chat_date_read("2023-2-3", &seconds), HD_INVALID);
    assert_int_equal(hd_chat_date_read("2023-02-03T24:00:00", &seconds), HD_INVALID);
    assert_int_equal(hd_chat_date_read("2023-02-03 ", &seconds), HD_INVALID);
    hd_chat_date_today(today);
    assert_int_equal(hd_chat_date_read(today, &seconds), HD_OK);
}

RUN_CASES()
