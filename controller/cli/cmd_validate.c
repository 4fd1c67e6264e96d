/* validate: checks a job file and describes its data files. */
#include <string.h>

#include "controller/cli/data_check.h"
#include "controller/cli/fetch.h"
#include "controller/cli/rows.h"
#include "controller/cli/stage_table.h"
#include "controller/cli/submit.h"
#include "spec/spec.h"

struct validated {
    struct cli *cli;
    const struct hd_job *spec;
    /* answer of the controller; NULL: no controller was asked */
    const Heddle__V1__ValidateJobResponse *verdict;
    struct hd_arena arena;
    /* result of data_check_files; NULL: heddle-worker is not installed */
    const struct hd_json *data;
    struct hd_text questions; /* result of data_check_questions */
    /* result of data_check_epoch; NULL: the job has neither conversations nor train.epochs */
    const struct hd_json *epoch;
};

static int ask_to_validate(struct cli *cli, const struct hd_job *spec, struct hd_arena *arena,
                           Heddle__V1__ValidateJobResponse **ret_response)
{
    Heddle__V1__ValidateJobRequest request = HEDDLE__V1__VALIDATE_JOB_REQUEST__INIT;
    const int code = cli_pack_spec(spec, arena, &request.spec);

    return code == CLI_CONTINUE ? cli_call(cli, "ValidateJob", &request.base, ret_response) : code;
}

/* ---- for programs ---- */

static void copy_value(struct hd_json_writer *w, const struct hd_json *value)
{
    int64_t number;

    if (value->kind == HD_JSON_STRING)
        hd_json_add_string(w, value->key, value->text);
    else if (!hd_json_to_int64(value, INT64_MIN, INT64_MAX, &number))
        hd_json_add_int64(w, value->key, number);
    else
        hd_json_add_null(w, value->key);
}

static void show_data(struct hd_json_writer *w, const struct hd_json *data)
{
    hd_json_begin(w, "tokenizer", '{');
    for (const struct hd_json *m = hd_json_member(data, "tokenizer")->first; m; m = m->next)
        copy_value(w, m);
    hd_json_end(w, '}');
    hd_json_begin(w, "data", '[');
    for (const struct hd_json *s = hd_json_member(data, "sources")->first; s; s = s->next) {
        hd_json_begin(w, NULL, '{');
        for (const struct hd_json *m = s->first; m; m = m->next)
            copy_value(w, m);
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
}

static void show_validated(struct hd_json_writer *w, const void *item)
{
    const struct validated *v = item;

    hd_spec_add_json(v->spec, "spec", w);
    if (v->data)
        show_data(w, v->data);
    if (v->epoch) {
        hd_json_begin(w, "epoch", '{');
        for (const struct hd_json *m = v->epoch->first; m; m = m->next)
            if (m->kind == HD_JSON_NUMBER)
                copy_value(w, m);
        hd_json_end(w, '}');
    }
    if (v->verdict) {
        hd_json_add_bool(w, "fits_now", v->verdict->fits_now);
        hd_json_add_string(w, "reason", v->verdict->reason);
    }
}

/* ---- for people ---- */

/* Returns the number at `key` of a JSON object; -1: it has none. */
static int64_t json_number_of(const struct hd_json *object, const char *key)
{
    int64_t number = -1;

    return hd_json_need_int64(object, key, 0, INT64_MAX, &number) ? -1 : number;
}

static const char *json_text_of(const struct hd_json *object, const char *key)
{
    const char *text = hd_json_text(object, key);

    return text ? text : "";
}

static void add_count(struct hd_text *out, int64_t count, const char *what, const char *unknown)
{
    if (count < 0)
        hd_text_add(out, "%s", unknown);
    else
        hd_text_add(out, "%lld %s%s", (long long)count, what, count == 1 ? "" : "s");
}

static void print_tokenizer(const struct hd_json *t, struct hd_text *out)
{
    const int64_t end = json_number_of(t, "end_of_text");

    hd_text_add(out, "tokenizer: ");
    cli_add_clean(out, json_text_of(t, "name"));
    if (json_number_of(t, "vocab") >= 0)
        hd_text_add(out, ", %lld tokens", (long long)json_number_of(t, "vocab"));
    if (end >= 0)
        hd_text_add(out, ", %lld ends a text\n", (long long)end);
    else
        hd_text_add(out, ", no token ends a text\n");
}

static void print_source(const struct validated *v, const struct hd_json *s, struct hd_text *out)
{
    const struct hd_job *job = v->spec;
    const int64_t number = json_number_of(s, "source");
    char size[32], set[HD_JOB_VAL_NAME_MAX];

    hd_text_format_bytes(json_number_of(s, "size_bytes"), size);
    if (hd_job_stage_count(job) && strcmp(json_text_of(s, "list"), "train") == 0)
        hd_text_add(out, "data.stages, source %lld", (long long)number);
    else
        hd_text_add(out, "data.%s", json_text_of(s, "list"));
    if (job->weight_count && !hd_job_stage_count(job) &&
        strcmp(json_text_of(s, "list"), "train") == 0 && number < job->weight_count)
        hd_text_add(out, "[%lld], weight %g", (long long)number, hd_job_weight(job, 0, number));
    if (*job->val_sets && strcmp(json_text_of(s, "list"), "val") == 0) {
        hd_job_val_set_name(job, number, set);
        hd_text_add(out, ".%s", set);
    }
    hd_text_add(out, ": %s, ", json_text_of(s, "kind"));
    add_count(out, json_number_of(s, "files"), "file", "");
    hd_text_add(out, " of %s: ", size);
    add_count(out, json_number_of(s, "documents"), "document", "documents not told");
    hd_text_add(out, ", ");
    add_count(out, json_number_of(s, "tokens"), "token", "tokens to be made when the job starts");
    if (json_number_of(s, "checked_bytes") < json_number_of(s, "size_bytes")) {
        hd_text_format_bytes(json_number_of(s, "checked_bytes"), size);
        hd_text_add(out, "; only %s of it were checked", size);
    }
    if (json_number_of(s, "checked_one_in") > 1)
        hd_text_add(out, "; 1 record in %lld was checked, with the first and the last",
                    (long long)json_number_of(s, "checked_one_in"));
    if (json_number_of(s, "left_out") > 0 && !v->epoch)
        hd_text_add(out, "; %lld that cannot be used left out (data.bad_rows)",
                    (long long)json_number_of(s, "left_out"));
    hd_text_add(out, "\n");
}

/* Prints the stages, with the tokens of each source that heddle-worker has counted. */
static void print_stages(const struct validated *v, struct hd_text *out)
{
    int64_t tokens[HD_JOB_SOURCES_MAX];

    for (int k = 0; k < HD_JOB_SOURCES_MAX; k++)
        tokens[k] = -1;
    for (const struct hd_json *s = v->data ? hd_json_member(v->data, "sources")->first : NULL; s;
         s = s->next) {
        const int64_t number = json_number_of(s, "source");

        if (strcmp(json_text_of(s, "list"), "train") == 0 && number >= 0 &&
            number < HD_JOB_SOURCES_MAX)
            tokens[number] = json_number_of(s, "tokens");
    }
    stage_table_add(v->spec, tokens, out);
}

static void print_summary(const struct validated *v, struct hd_text *out)
{
    const struct hd_job *spec = v->spec;

    hd_text_add(out, "%s is valid%s: job %s, %lld steps, %lld training file%s\n", v->cli->args[0],
                v->data ? "" : ", but its data was not looked at", spec->name,
                (long long)spec->steps, (long long)spec->train_count,
                spec->train_count == 1 ? "" : "s");
    fetch_describe(spec, out);
    if (v->data) {
        print_tokenizer(hd_json_member(v->data, "tokenizer"), out);
        for (const struct hd_json *s = hd_json_member(v->data, "sources")->first; s; s = s->next)
            print_source(v, s, out);
    }
    print_stages(v, out);
    if (v->epoch)
        data_check_describe(spec, v->epoch, out);
    hd_text_add(out, "%s", v->questions.data ? v->questions.data : "");
    if (v->verdict) {
        hd_text_add(out, "%s%s", v->verdict->fits_now ? "it would start now" : "it would wait",
                    *v->verdict->reason ? ": " : "");
        cli_add_clean(out, v->verdict->reason);
        hd_text_add(out, "\n");
    }
}

static void add_summary(const struct cli *cli, struct hd_text *out, const void *item)
{
    (void)cli;
    print_summary(item, out);
}

static const struct rows_kind validated_rows = {"JobSpecList", "spec", .show = show_validated,
                                                .line = add_summary};

static int cli_validate(struct cli *cli, int argc, char **argv)
{
    struct cli_list overrides = {.count = 0};
    const struct cli_flag flags[] = {
        {"set", 0, CLI_FLAG_LIST, &overrides, "KEY=VALUE",
         .help = "in place of what the file says, such as train.steps=100"},
        {"-o json", .kind = CLI_FLAG_NOTE, .help = "the job with every default filled in"},
    };
    Heddle__V1__ValidateJobResponse *verdict = NULL;
    struct hd_job *spec = NULL;
    struct validated v = {.cli = cli};
    struct hd_text problem = {0};
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);

    hd_arena_init(&v.arena, 0);
    if (code == CLI_CONTINUE)
        code = cli_read_spec_and_epoch(cli->args[0], &overrides, &v.arena, &spec, &v.epoch);
    v.spec = spec;
    if (code == CLI_CONTINUE && hd_spec_check_size(spec, &v.arena))
        code = cli_fail(HD_INVALID);
    if (code == CLI_CONTINUE) /* before the connection starts threads */
        code = data_check_files(spec, &v.arena, &v.data, &problem);
    if (code == CLI_CONTINUE && !v.epoch)
        code = data_check_epoch(spec, &v.arena, &v.epoch, &problem);
    if (code == CLI_CONTINUE)
        code = data_check_questions(spec, &v.questions, &problem);
    if (problem.len_bytes)
        cli_print_problem(cli->args[0], &overrides, false, &problem);
    if (code == CLI_CONTINUE && cli->controller) /* checking the file alone needs no controller */
        code = cli_find_after(cli, spec);
    if (code == CLI_CONTINUE && cli->controller)
        code = ask_to_validate(cli, spec, &v.arena, &verdict);
    v.verdict = verdict;
    if (code == CLI_CONTINUE) {
        (void)rows_print_one(cli, &validated_rows, &v);
        code = cli_out_end(CLI_OK);
    }
    if (verdict)
        hd_rpc_message_free(&verdict->base);
    hd_text_free(&v.questions);
    hd_arena_done(&v.arena);
    return code;
}

const struct cli_body cli_body_validate = {
    .usage = "Usage: heddle validate FILE|- [--set KEY=VALUE]... [--controller ADDR]\n",
    .about = "Checks a job file (docs/job-file.md), opens its data files and says what they\n"
             "hold: documents and tokens. Starts nothing. With --controller it also says\n"
             "whether the job would start now.\n",
    .examples = "heddle validate job.yaml -o json",
    .run = cli_validate,
};
