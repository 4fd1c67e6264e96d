/* Which bytes of a conversation count: with {% generation %}, by rendered prefixes, and without a
 * template. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "chat/render.h"

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
    const struct hd_template_input input = {0};
    struct hd_template_output output = {0};
    struct hd_template *t = NULL;
    struct hd_conversation c;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_template_parse(source, strlen(source), NULL, &t), HD_OK);
    assert_int_equal(hd_conversation_read(&arena, line, strlen(line), HD_CHAT_AUTO, &c), HD_OK);
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

    assert_int_equal(spans_of(source, line, loss, &text), HD_OK);
    assert_string_equal(text.data, spans);
    hd_text_free(&text);
}

static void answers_and_what_ends_them_count(void **state)
{
    (void)state;
    counts(CHATML, TWO, HD_CHAT_ANSWERS, "b1</>\n|d</>\n|");
    counts(CHATML, TWO, HD_CHAT_LAST, "d</>\n|");
    counts(MARKED, TWO, HD_CHAT_ANSWERS, "b1.|d.|");
    counts(MARKED, TWO, HD_CHAT_LAST, "d.|");
    counts(MARKED, TWO, HD_CHAT_ALL, "a[b1.]c[d.]|");
    counts(CHATML, "{\"prompt\": \"a\", \"completion\": \"b\"}", HD_CHAT_ANSWERS, "b|");
}

static void a_template_that_rewrites_history_is_refused(void **state)
{
    struct hd_text text = {0};

    (void)state;
    assert_int_equal(spans_of(FORGETS, TWO, HD_CHAT_ANSWERS, &text), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "message 2: the chat template rewrites history"));
    hd_text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_and_what_ends_them_count),
        cmocka_unit_test(a_template_that_rewrites_history_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
