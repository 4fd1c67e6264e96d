/* template: renders the chat templates that models publish.
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
 * A template comes from strangers: its size, its steps, its memory, its output and its depth are
 * bounded (docs/decisions/conversations.md).
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

/* A member that is 0: the default. */
struct hd_template_limits {
    size_t source_bytes_max; /* of the template; default 1 MiB */
    size_t memory_bytes_max; /* of all values that one rendering makes; default 256 MiB */
    size_t output_bytes_max; /* default 64 MiB */
    int64_t steps_max;       /* expressions and statements that one rendering runs; default 2^24 */
    int depth_max;           /* of nested expressions, statements and macro calls; default 300 */
};

/* HD_INVALID: a syntax error; HD_UNSUPPORTED: a construct that is not supported; HD_LIMIT: too
 * large or nested too deep; HD_NO_MEMORY. The message begins with "line:column: ". limits may be
 * NULL. */
enum hd_status hd_template_parse(const char *source, size_t source_bytes,
                                 const struct hd_template_limits *limits,
                                 struct hd_template **ret_template);
void hd_template_free(struct hd_template *t);

/* Whether the template marks with {% generation %} what the model writes. */
bool hd_template_has_generation(const struct hd_template *t);
/* Whether the template names strftime_now, so that its text may depend on the day. */
bool hd_template_asks_date(const struct hd_template *t);

struct hd_template_variable {
    const char *name;
    const struct hd_json *value; /* of an array or object the first `count` children are read */
};

struct hd_template_input {
    const struct hd_template_variable *variables;
    size_t count;
    bool has_clock;   /* false: strftime_now is an error, so that a text cannot depend on the day */
    int64_t now_s;    /* what strftime_now formats: seconds since 1970 on a clock without a zone */
    const char *name; /* of the template, for messages of render; NULL: none */
};

struct hd_template_span {
    size_t begin, end; /* bytes of the output, `end` excluded */
};

/* Initialise with {0}; hd_template_output_free frees it. */
struct hd_template_output {
    struct hd_text text;
    struct hd_template_span *spans; /* one for each {% generation %} that was rendered, in order */
    size_t span_count, span_capacity;
};

/* Replaces what `output` held. HD_INVALID: the template stops with an error, for instance by
 * raise_exception; otherwise as hd_template_parse. */
enum hd_status hd_template_render(const struct hd_template *t,
                                  const struct hd_template_input *input,
                                  const struct hd_template_limits *limits,
                                  struct hd_template_output *output);
void hd_template_output_free(struct hd_template_output *output);

#endif
