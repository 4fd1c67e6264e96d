/* template: parses and renders chat templates, in the Jinja2 subset that published models use.
 *
 * A chat template is a Jinja2 text that turns the messages of a conversation into the text that a
 * model was trained on. This is an interpreter for the part of Jinja2 that published templates use,
 * with the settings of Hugging Face's transformers: trim_blocks, lstrip_blocks, loop controls, an
 * immutable sandbox, no escaping of HTML, and `{% generation %}`, which marks what the model
 * writes. A construct outside that part is an error with its line and column, never a different
 * text. Strings count and slice in code points.
 *
 *     hd_template_parse(source, size, NULL, &template);        once
 *     hd_template_render(template, &input, NULL, &output);     for each conversation
 *
 * Templates are untrusted: their size, steps, memory, output and nesting depth are limited
 * (docs/decisions/conversations.md).
 *
 * Used by: data, worker.   Uses: base.
 * Threads: a parsed template is immutable; several threads may render it at a time.
 */
#ifndef HD_CHAT_TEMPLATE_H
#define HD_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/status.h"
#include "base/text.h"

struct hd_template;

/* Limits of a template; a member of 0 means its default. */
struct hd_template_limits {
    size_t source_bytes_max; /* bytes of the template; default 1 MiB */
    size_t memory_bytes_max; /* bytes of all values that one rendering makes; default 256 MiB */
    size_t output_bytes_max; /* bytes of the text that one rendering makes; default 64 MiB */
    int64_t steps_max;       /* expressions and statements that one rendering executes; default
                                2^24 */
    int depth_max; /* nesting depth of expressions, statements and macro calls; default 300 */
};

/* Parses a template; limits may be NULL (all defaults). HD_INVALID: syntax error. HD_UNSUPPORTED:
 * unsupported construct. HD_LIMIT: too large or nested too deep. HD_NO_MEMORY. The message begins
 * with "line:column: ". */
enum hd_status hd_template_parse(const char *source, size_t source_bytes,
                                 const struct hd_template_limits *limits,
                                 struct hd_template **ret_template);
void hd_template_free(struct hd_template *t);

/* Returns whether the template marks what the model writes with {% generation %}. */
bool hd_template_has_generation(const struct hd_template *t);
/* Returns whether the template uses strftime_now, so that its text may depend on the date. */
bool hd_template_asks_date(const struct hd_template *t);

/* Returns whether the template mentions tool_calls; one that does not writes no tool call. */
bool hd_template_writes_calls(const struct hd_template *t);

struct hd_template_variable {
    const char *name;
    /* value of the variable; of an array or object the template sees the first `count` children */
    const struct hd_json *value;
};

struct hd_template_input {
    const struct hd_template_variable *variables;
    size_t count;
    /* true: strftime_now returns now_s; false: strftime_now is an error, so no text depends on the
     * date */
    bool has_clock;
    int64_t now_s;    /* time for strftime_now: seconds since 1970, local time without a zone */
    const char *name; /* name of the template in error messages; NULL: none */
};

struct hd_template_span {
    size_t begin, end; /* byte range of the output, without `end` */
};

/* Result of a rendering. Initialise with {0}; free with hd_template_output_free. */
struct hd_template_output {
    struct hd_text text;
    struct hd_template_span *spans; /* bytes that each rendered {% generation %} wrote, in order */
    size_t span_count, span_capacity;
};

/* Renders the template into `output`, whose old contents are replaced. HD_INVALID: the template
 * fails, for instance by raise_exception. Other failures as in hd_template_parse. */
enum hd_status hd_template_render(const struct hd_template *t,
                                  const struct hd_template_input *input,
                                  const struct hd_template_limits *limits,
                                  struct hd_template_output *output);
void hd_template_output_free(struct hd_template_output *output);

#endif
