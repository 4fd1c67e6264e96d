/* show_list: writes a list of items as one envelope or as lines. */
#include "controller/cli/show.h"

void show_list_begin(struct show_list *list, struct hd_text *out, enum cli_format format,
                     const char *kind, const char *type)
{
    *list = (struct show_list){
        .out = out, .writer = {.out = out}, .lines = format == CLI_JSONL, .type = type};
    if (list->lines)
        return;
    show_envelope_begin(&list->writer, kind);
    hd_json_begin(&list->writer, "items", '[');
}

void show_item_begin(struct show_list *list)
{
    if (list->lines)
        list->writer = (struct hd_json_writer){.out = list->out};
    else
        hd_json_add_line(&list->writer);
    hd_json_begin(&list->writer, NULL, '{');
    if (list->lines)
        hd_json_add_string(&list->writer, "type", list->type);
}

void show_item_end(struct show_list *list)
{
    hd_json_end(&list->writer, '}');
    if (list->lines)
        hd_text_add(list->out, "\n");
}

void show_list_end(struct show_list *list)
{
    if (list->lines)
        return;
    hd_json_end(&list->writer, ']');
    hd_json_end(&list->writer, '}');
    hd_text_add(list->out, "\n");
}

void show_job_item(struct show_list *list, const Heddle__V1__JobStatus *job)
{
    show_item_begin(list);
    show_job(&list->writer, job, false);
    show_item_end(list);
}

void show_job_line(struct hd_text *out, const Heddle__V1__JobStatus *job, bool with_name)
{
    char word[CLI_WORD_MAX];

    hd_text_add(out, "job %llu ", (unsigned long long)job->job);
    if (with_name) {
        cli_add_clean(out, job->name);
        hd_text_add(out, " ");
    }
    hd_text_add(out, "%s", cli_job_state(job->state, word));
    if (*job->reason) {
        hd_text_add(out, ": ");
        cli_add_clean(out, job->reason);
    } else if (job->held && job->state == HEDDLE__V1__JOB_STATE__JOB_STATE_RUNNING) {
        hd_text_add(out, ", held: the running attempt continues, no further one starts");
    }
    hd_text_add(out, "\n");
}

void show_one_job(const struct cli *cli, const Heddle__V1__JobStatus *job, bool with_name)
{
    struct hd_text out = {0};
    struct show_list list;

    if (cli->format >= CLI_JSON) {
        show_list_begin(&list, &out, cli->format, "JobList", "job");
        show_job_item(&list, job);
        show_list_end(&list);
    } else {
        show_job_line(&out, job, with_name);
    }
    (void)cli_out(&out);
    hd_text_free(&out);
}
