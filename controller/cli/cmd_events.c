/* events: what happened to a job, or to nodes and controller. */
#include "base/clock.h"
#include "controller/cli/show.h"
#include "controller/cli/table.h"

enum { PAGE = 500 };

static const struct table_column event_columns[] = {
    {"TIME", false}, {"KIND", false}, {"ATTEMPT", true},
    {"NODE", false}, {"RANK", true},  {"MESSAGE", false},
};

static void add_number(struct table *table, bool known, int32_t number)
{
    if (known)
        table_add(table, NULL, "%d", number);
    else
        table_add(table, NULL, "%s", "");
}

static void add_event_row(struct table *table, const Heddle__V1__Event *e)
{
    char when[HD_CLOCK_TEXT_MAX];
    struct hd_text message = {0};

    cli_add_people(&message, e->message);
    hd_clock_format_utc(e->time_unix_ms, when);
    table_begin_row(table);
    table_add(table, NULL, "%s", when);
    table_add(table, NULL, "%s", e->kind);
    add_number(table, e->attempt > 0, e->attempt);
    table_add(table, NULL, "%s", e->node);
    add_number(table, e->rank >= 0, e->rank);
    table_add(table, NULL, "%s", message.failed ? "?" : message.data);
    hd_text_free(&message);
}

/* Pages until the last; each is shown as it comes, a table with widths of its own per page. */
static int list_events(struct cli *cli, Heddle__V1__ListEventsRequest *request, struct table *table,
                       struct show_list *list)
{
    Heddle__V1__ListEventsResponse *page = NULL;
    bool more = true;
    int code = CLI_CONTINUE;

    while (more && code == CLI_CONTINUE) {
        code = cli_call(cli, "ListEvents", &heddle__v1__list_events_response__descriptor,
                        &request->base, &page);
        if (code != CLI_CONTINUE)
            break;
        for (size_t i = 0; i < page->n_events; i++) {
            request->after_sequence = page->events[i]->sequence;
            if (cli->format < CLI_JSON) {
                add_event_row(table, page->events[i]);
                continue;
            }
            show_item_begin(list);
            show_event(&list->writer, page->events[i]);
            show_item_end(list);
        }
        more = page->more && page->n_events;
        hd_rpc_message_free(&page->base);
    }
    return code;
}

int cli_events(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__ListEventsRequest request = HEDDLE__V1__LIST_EVENTS_REQUEST__INIT;
    struct hd_text out = {0};
    struct show_list list;
    struct table table;
    int code = cli_parse(cli, argc, argv, NULL, 0, 0, 1);

    request.limit = PAGE;
    if (code == CLI_CONTINUE && cli->arg_count)
        code = cli_parse_job(cli->args[0], &request.job);
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code != CLI_CONTINUE)
        return code;
    table_init(&table, event_columns, sizeof event_columns / sizeof event_columns[0]);
    if (cli->format >= CLI_JSON)
        show_list_begin(&list, &out, cli->format, "EventList", "event");
    code = list_events(cli, &request, &table, &list);
    if (code == CLI_CONTINUE) {
        if (cli->format >= CLI_JSON)
            show_list_end(&list);
        else
            table_render(&table, cli->colour,
                         cli->format == CLI_WIDE ? 0 : table_terminal_columns(), &out);
        (void)cli_out(&out);
        code = cli_out_end(CLI_OK);
    }
    table_done(&table);
    hd_text_free(&out);
    return code;
}
