#include "controller/cli/rows.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "controller/cli/say.h"

static bool is_json(const struct cli_rows *rows)
{
    return rows->cli->format >= CLI_JSON;
}

static bool is_shown(const struct cli_rows *rows, const struct rows_column *column)
{
    const bool is_top = rows->kind->is_top, wide = rows->cli->format == CLI_WIDE && !is_top;

    return column->title &&
           (column->in_width == ROWS_ALWAYS ||
            (column->in_width == ROWS_WIDE_OR_TOP ? wide || is_top
                                                  : (column->in_width == ROWS_WIDE_ONLY) == wide));
}

static bool has_table(const struct rows_kind *kind)
{
    return !kind->text && !kind->line;
}

/* Returns whether a column is right-aligned. */
static bool is_right(const struct rows_column *c)
{
    return c->right || c->form == ROWS_WHEN ||
           (c->form != ROWS_TIME && c->type != ROWS_NONE && c->type != ROWS_TEXT);
}

void rows_begin(struct cli_rows *rows, const struct cli *cli, const struct rows_kind *kind)
{
    size_t count = 0;

    *rows = (struct cli_rows){.cli = cli, .kind = kind, .writer = {.out = &rows->out}};
    if (is_json(rows) && cli->format != CLI_JSONL) {
        show_envelope_begin(&rows->writer, kind->kind);
        hd_json_begin(&rows->writer, "items", '[');
    } else if (!is_json(rows) && has_table(kind)) {
        for (size_t i = 0; i < kind->column_count; i++)
            if (is_shown(rows, &kind->columns[i]))
                rows->titles[count++] =
                    (struct table_column){kind->columns[i].title, is_right(&kind->columns[i])};
        table_init(&rows->table, rows->titles, count);
    }
}

/* ---- items ---- */

static int64_t column_number(const struct rows_column *c, const void *item)
{
    const char *at = (const char *)item + c->offset;
    int32_t number;
    int64_t long_number;

    if (c->type == ROWS_BOOL)
        return *(const bool *)at;
    if (c->type == ROWS_INT32) {
        memcpy(&number, at, sizeof number);
        return number;
    }
    memcpy(&long_number, at, sizeof long_number);
    return long_number;
}

static const char *column_text(const struct rows_column *c, const void *item)
{
    const char *text;

    memcpy(&text, (const char *)item + c->offset, sizeof text);
    return text;
}

static void add_column(struct cli_rows *rows, const struct rows_column *c, const void *item)
{
    char text[HD_CLOCK_TEXT_MAX > 32 ? HD_CLOCK_TEXT_MAX : 32] = "";
    struct hd_text said = {0};
    int64_t number;

    if (c->cell) {
        c->cell(rows, item);
        return;
    }
    if (c->text) {
        cli_say(&said, item, c->text);
        rows_text_cell(rows, NULL, &said);
        return;
    }
    if (c->type == ROWS_TEXT) {
        rows_cell(rows, NULL, "%s", column_text(c, item) ? column_text(c, item) : "");
        return;
    }
    number = column_number(c, item);
    if (c->form == ROWS_TIME && number)
        hd_clock_format_utc(number, text);
    else if (c->form == ROWS_WHEN)
        cli_format_when(rows->cli, number, rows->kind->is_top ? CLI_TABLE : rows->cli->format,
                        text);
    else if (c->form == ROWS_BYTES || (c->form == ROWS_SOME_BYTES && number))
        hd_text_format_bytes(number, text);
    else if (c->form == ROWS_PLAIN || (c->form == ROWS_SOME && number))
        (void)snprintf(text, sizeof text, "%" PRId64, number);
    rows_cell(rows, NULL, "%s", text);
}

static void add_member(struct hd_json_writer *w, const struct rows_column *c, const void *item)
{
    if (c->type == ROWS_TEXT && column_text(c, item))
        hd_json_add_string(w, c->json, column_text(c, item));
    else if (c->type == ROWS_TEXT)
        hd_json_add_null(w, c->json);
    else if (c->type == ROWS_BOOL)
        hd_json_add_bool(w, c->json, column_number(c, item) != 0);
    else if (c->form == ROWS_TIME || c->form == ROWS_WHEN)
        show_time(w, c->json, column_number(c, item));
    else
        hd_json_add_int64(w, c->json, column_number(c, item));
}

static void add_json(struct cli_rows *rows, const void *item)
{
    const struct rows_kind *kind = rows->kind;
    struct hd_json_writer *w = &rows->writer;

    if (rows->cli->format == CLI_JSONL)
        *w = (struct hd_json_writer){.out = &rows->out};
    else
        hd_json_add_line(w);
    hd_json_begin(w, NULL, '{');
    if (rows->cli->format == CLI_JSONL)
        hd_json_add_string(w, "type", kind->type);
    if (kind->json)
        show_members(w, item, kind->json);
    else if (kind->show)
        kind->show(w, item);
    for (size_t i = 0; i < kind->column_count && !kind->show && !kind->json; i++)
        if (kind->columns[i].json)
            add_member(w, &kind->columns[i], item);
    hd_json_end(w, '}');
    if (rows->cli->format == CLI_JSONL)
        hd_text_add(&rows->out, "\n");
}

void rows_add(struct cli_rows *rows, const void *item)
{
    const struct rows_kind *kind = rows->kind;

    if (is_json(rows)) {
        add_json(rows, item);
    } else if (!has_table(kind)) {
        if (kind->text)
            cli_say(&rows->out, item, kind->text);
        if (kind->line)
            kind->line(rows->cli, &rows->out, item);
    } else {
        table_begin_row(&rows->table);
        for (size_t i = 0; i < kind->column_count; i++)
            if (is_shown(rows, &kind->columns[i]))
                add_column(rows, &kind->columns[i], item);
    }
}

void rows_cell(struct cli_rows *rows, const char *colour, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    table_add_args(&rows->table, colour, fmt, ap);
    va_end(ap);
}

void rows_text_cell(struct cli_rows *rows, const char *colour, struct hd_text *text)
{
    rows_cell(rows, colour, "%s", text->failed ? "?" : text->data ? text->data : "");
    hd_text_free(text);
}

/* ---- the end ---- */

bool rows_flush(struct cli_rows *rows)
{
    return cli_out(&rows->out);
}

static void finish(struct cli_rows *rows)
{
    const struct cli *cli = rows->cli;
    const bool cut = cli->format != CLI_WIDE && !rows->kind->is_uncut;

    if (cli->format == CLI_JSON) {
        hd_json_end(&rows->writer, ']');
        hd_json_end(&rows->writer, '}');
        hd_text_add(&rows->out, "\n");
    } else if (!is_json(rows) && has_table(rows->kind)) {
        table_end(&rows->table, cli->colour, cut ? table_terminal_columns() : 0, &rows->out);
    }
}

int rows_end(struct cli_rows *rows, int code)
{
    finish(rows);
    if (code == CLI_CONTINUE)
        return cli_print(&rows->out, CLI_OK);
    hd_text_free(&rows->out);
    return code;
}

void rows_end_in(struct cli_rows *rows, struct hd_text *out)
{
    finish(rows);
    hd_text_add(out, "%s", rows->out.data ? rows->out.data : "");
    hd_text_free(&rows->out);
}

int rows_print(const struct cli *cli, const struct rows_kind *kind, const void *const *items,
               size_t count)
{
    struct cli_rows rows;

    rows_begin(&rows, cli, kind);
    for (size_t i = 0; i < count; i++)
        rows_add(&rows, items[i]);
    return rows_end(&rows, CLI_CONTINUE);
}

int rows_print_array(const struct cli *cli, const struct rows_kind *kind, const void *items,
                     size_t count, size_t item_bytes)
{
    struct cli_rows rows;

    rows_begin(&rows, cli, kind);
    for (size_t i = 0; i < count; i++)
        rows_add(&rows, (const char *)items + i * item_bytes);
    return rows_end(&rows, CLI_CONTINUE);
}

int rows_print_one(const struct cli *cli, const struct rows_kind *kind, const void *item)
{
    return rows_print_array(cli, kind, item, 1, 0);
}

/* Prints the warning of a response or of a job in it, if it has one. */
static void warn_of(const ProtobufCMessage *message, const char *member)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, member);
    const char *text = NULL;

    if (field && field->type == PROTOBUF_C_TYPE_STRING)
        memcpy(&text, (const char *)message + field->offset, sizeof text);
    if (text)
        cli_warn(text);
}

int rows_ask(struct cli *cli, const char *method, const ProtobufCMessage *request,
             const char *member, const struct rows_kind *kind)
{
    const ProtobufCFieldDescriptor *field;
    ProtobufCMessage *response = NULL;
    const void *items;
    size_t count = 1;
    int code = cli_call(cli, method, request, &response);

    if (code != CLI_CONTINUE)
        return code;
    warn_of(response, "warning");
    field = member ? protobuf_c_message_descriptor_get_field_by_name(response->descriptor, member)
                   : NULL;
    items = response;
    if (field)
        memcpy(&items, (const char *)response + field->offset, sizeof items);
    if (field && field->label == PROTOBUF_C_LABEL_REPEATED)
        memcpy(&count, (const char *)response + field->quantifier_offset, sizeof count);
    else if (field)
        warn_of(items, "stale");
    if (field && field->label == PROTOBUF_C_LABEL_REPEATED)
        code = rows_print(cli, kind, items, count);
    else
        code = rows_print_one(cli, kind, items);
    hd_rpc_message_free(response);
    return code;
}

/* ---- jobs ---- */

static void end_job_line(const struct cli *cli, struct hd_text *out, const void *item)
{
    const Heddle__V1__JobStatus *job = item;
    const bool runs = job->state == HEDDLE__V1__JOB_STATE__JOB_STATE_RUNNING;

    (void)cli;
    hd_text_add(out, "%s\n",
                job->held && runs && !*job->reason
                    ? ", held: the running attempt continues, no further one starts"
                    : "");
}

const struct rows_kind rows_job_named = {"JobList", "job", .json = show_job_form,
                                         .text = "job {job} {name} {state}[: {reason}]",
                                         .line = end_job_line};
const struct rows_kind rows_job_state = {"JobList", "job", .json = show_job_form,
                                         .text = "job {job} {state}[: {reason}]",
                                         .line = end_job_line};
