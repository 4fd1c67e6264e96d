/* plan_live: `heddle plan --live`: has the controller plan for its nodes, and shows the answer. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "controller/cli/plan_command.h"
#include "controller/cli/submit.h"
#include "controller/cli/table.h"

enum { ANSWER_VALUES_MAX = 4 << 20 };

static const struct table_column columns[] = {
    {"#", true},    {"TP", true},    {"PP", true},    {"DP", true},        {"CP", true},
    {"EP", true},   {"MICRO", true}, {"ZERO", true},  {"SCHEDULE", false}, {"RECOMPUTE", false},
    {"STEP", true}, {"TOK/S", true}, {"BUBBLE", true}};

/* Returns the text of a member of a JSON object: a number as written, or a word; "-": unknown. */
static const char *member_text(const struct hd_json *object, const char *key)
{
    const struct hd_json *m = object ? hd_json_member(object, key) : NULL;

    return m && (m->kind == HD_JSON_NUMBER || m->kind == HD_JSON_STRING) ? m->text : "-";
}

/* Formats a number of a JSON object; "-": unknown. */
static void format_scaled(const struct hd_json *object, const char *key, double scale,
                          const char *unit, char ret_text[32])
{
    const char *text = member_text(object, key);

    (void)snprintf(ret_text, 32, *text == '-' ? "-" : "%.3g%s", scale * strtod(text, NULL), unit);
}

static void add_plan_row(struct table *t, int number, const struct hd_json *plan)
{
    const struct hd_json *l = hd_json_member(plan, "layout");
    char step[32], rate[32], bubble[32];

    format_scaled(plan, "step_time_s", 1, " s", step);
    format_scaled(plan, "tokens_per_s", 1, "", rate);
    format_scaled(plan, "bubble_fraction", 100, "%", bubble);
    table_add_row(
        t, "%d\t%.20s\t%.20s\t%.20s\t%.20s\t%.20s\t%.20s\t%.20s\t%.20s\t%.20s\t%s\t%s\t%s", number,
        member_text(l, "tp"), member_text(l, "pp"), member_text(l, "dp"), member_text(l, "cp"),
        member_text(l, "ep"), member_text(l, "micro_batch"), member_text(l, "zero"),
        member_text(l, "schedule"), member_text(l, "recompute"), step, rate, bubble);
}

/* Notes groups of nodes whose search took too long; they may have a faster plan. */
static void add_unsearched(const struct hd_json *inputs, struct hd_text *out)
{
    const long count = strtol(member_text(inputs, "groups_unsearched"), NULL, 10);

    if (count > 0)
        hd_text_add(out,
                    "note: %ld other group%s of nodes took too long to search and may be faster; "
                    "pin more of parallel (--pin) to make the search shorter\n",
                    count, count == 1 ? "" : "s");
}

static void print_plans(const struct cli *cli, const struct hd_json *root, struct hd_text *out)
{
    const struct hd_json *inputs = hd_json_member(root, "inputs"), *alternatives, *rejected;
    const struct hd_json *chosen = hd_json_member(root, "chosen");
    struct table table;
    int number = 1;

    hd_text_add(out, "on %s %s devices of this cluster (", member_text(inputs, "devices"),
                member_text(inputs, "device"));
    cli_add_clean(out, member_text(inputs, "group"));
    hd_text_add(out, ")\n");
    alternatives = hd_json_member(root, "alternatives");
    rejected = hd_json_member(root, "rejected");
    if (chosen && chosen->kind == HD_JSON_OBJECT) {
        table_init(&table, columns, sizeof columns / sizeof columns[0]);
        add_plan_row(&table, number++, chosen);
        for (const struct hd_json *p = alternatives ? alternatives->first : NULL; p; p = p->next)
            add_plan_row(&table, number++, p);
        table_end(&table, cli->colour, 0, out);
    } else {
        hd_text_add(out, "no layout fits the memory of the devices: ");
        cli_add_clean(out, member_text(hd_json_member(root, "least"), "reason"));
        hd_text_add(out, "\n");
    }
    add_unsearched(inputs, out);
    for (const struct hd_json *r = rejected ? rejected->first : NULL; r; r = r->next) {
        const struct hd_json *layout = hd_json_member(r, "layout");

        hd_text_add(out, "rejected: tp %s, pp %s, dp %s: ", member_text(layout, "tp"),
                    member_text(layout, "pp"), member_text(layout, "dp"));
        cli_add_clean(out, member_text(r, "reason"));
        hd_text_add(out, "\n");
    }
}

static int show_plans(const struct cli *cli, const char *plan, const char *out_file,
                      struct hd_arena *arena)
{
    const struct hd_json_limits limits = {.values_max = ANSWER_VALUES_MAX, .depth_max = 16};
    const struct hd_json *root = NULL, *chosen;
    struct hd_text out = {0};
    enum hd_status st = hd_json_parse(arena, plan, strlen(plan), &limits, &root);

    if (!st && out_file)
        st = hd_file_write_atomic(out_file, plan, strlen(plan), 0644);
    if (st)
        return cli_fail(st);
    chosen = hd_json_member(root, "chosen");
    if (cli->format >= CLI_JSON)
        hd_text_add(&out, "%s", plan);
    else
        print_plans(cli, root, &out);
    return cli_print(&out, chosen && chosen->kind == HD_JSON_OBJECT ? CLI_OK : CLI_USAGE);
}

int plan_live(struct cli *cli, const struct hd_job *spec, int top, const char *out_file,
              struct hd_arena *arena)
{
    Heddle__V1__PlanJobRequest request = HEDDLE__V1__PLAN_JOB_REQUEST__INIT;
    Heddle__V1__PlanJobResponse *response = NULL;
    int code = cli_pack_spec(spec, arena, &request.spec);

    request.top = top;
    if (code == CLI_CONTINUE)
        code = cli_call(cli, "PlanJob", &request.base, &response);
    if (code != CLI_CONTINUE)
        return code;
    code = show_plans(cli, response->plan, out_file, arena);
    hd_rpc_message_free(&response->base);
    return code;
}
