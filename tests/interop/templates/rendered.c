/* rendered: prints what a chat template makes of some variables, for templates.sh to compare.
 *
 *     rendered NOW < CASES
 *
 * Each line of CASES is a JSON array: the template, then an object with the variables; or the
 * template, a line of a file of conversations as a string, and data.loss. Each line of the output
 * is a JSON object: `text` and `spans` (pairs of bytes), or `error`, which begins with the name of
 * the status. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/render.h"

enum { VARIABLES_MAX = 32 };

static enum hd_status render_line(const struct hd_template *template, const char *line,
                                  const char *loss, int64_t now, struct hd_template_output *output)
{
    const struct hd_json bos = {.kind = HD_JSON_STRING, .text = "<s>"},
                         eos = {.kind = HD_JSON_STRING, .text = "</s>"};
    const struct hd_template_variable variables[] = {{"bos_token", &bos}, {"eos_token", &eos}};
    const struct hd_template_input input = {
        .variables = variables, .count = 2, .has_clock = true, .now_s = now, .name = "T"};
    struct hd_conversation c;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_conversation_read(&arena, line, strlen(line), HD_CHAT_AUTO, NULL, &c);
    if (!st)
        st = hd_chat_render(template, &c,
                            strcmp(loss, "last") == 0  ? HD_CHAT_LAST
                            : strcmp(loss, "all") == 0 ? HD_CHAT_ALL
                                                       : HD_CHAT_ANSWERS,
                            &input, output);
    hd_arena_done(&arena);
    return st;
}

static enum hd_status render(const struct hd_json *root, int64_t now,
                             struct hd_template_output *output)
{
    struct hd_template_variable variables[VARIABLES_MAX];
    struct hd_template_input input = {.variables = variables, .has_clock = true, .now_s = now};
    struct hd_template *template = NULL;
    enum hd_status st;

    if (root->kind != HD_JSON_ARRAY || root->count < 2 || root->first->kind != HD_JSON_STRING)
        return hd_err(HD_INVALID, "a line is [template, variables] or [template, line, loss]");
    st = hd_template_parse(root->first->text, strlen(root->first->text), NULL, &template);
    if (st)
        return st;
    if (root->count == 3) {
        st = render_line(template, root->first->next->text, root->first->next->next->text, now,
                         output);
        hd_template_free(template);
        return st;
    }
    for (const struct hd_json *m = root->first->next->first; m && input.count < VARIABLES_MAX;
         m = m->next)
        variables[input.count++] = (struct hd_template_variable){m->key, m};
    st = hd_template_render(template, &input, NULL, output);
    hd_template_free(template);
    return st;
}

static void print(enum hd_status st, const struct hd_template_output *output)
{
    struct hd_text text = {0};
    struct hd_json_writer writer = {.out = &text};

    if (st)
        (void)hd_err_prefix(st, "%s", hd_status_name(st));
    hd_json_begin(&writer, NULL, '{');
    hd_json_add_string(&writer, st ? "error" : "text", st ? hd_err_message() : output->text.data);
    hd_json_begin(&writer, "spans", '[');
    for (size_t i = 0; !st && i < output->span_count; i++) {
        hd_json_add_int64(&writer, NULL, (int64_t)output->spans[i].begin);
        hd_json_add_int64(&writer, NULL, (int64_t)output->spans[i].end);
    }
    hd_json_end(&writer, ']');
    hd_json_end(&writer, '}');
    (void)printf("%s\n", text.data);
    hd_text_free(&text);
}

int main(int argc, char **argv)
{
    const struct hd_json_limits limits = {.values_max = 100000, .depth_max = 64};
    struct hd_template_output output = {0};
    size_t room = 0;
    char *line = NULL;
    ssize_t n;

    while ((n = getline(&line, &room, stdin)) > 0) {
        struct hd_arena arena;
        const struct hd_json *root = NULL;
        enum hd_status st;

        hd_arena_init(&arena, 0);
        st = hd_json_parse(&arena, line, (size_t)n, &limits, &root);
        if (!st)
            st = render(root, argc > 1 ? atoll(argv[1]) : 0, &output);
        print(st, &output);
        hd_arena_done(&arena);
    }
    free(line);
    hd_template_output_free(&output);
    return 0;
}
