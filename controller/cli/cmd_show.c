/* show: one job with its attempts. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "controller/cli/fetch.h"
#include "controller/cli/rows.h"
#include "controller/cli/say.h"
#include "controller/cli/submit.h"
#include "spec/spec.h"

static void add_fact(struct hd_text *out, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void add_fact(struct hd_text *out, const char *name, const char *fmt, ...)
{
    char text[HD_ERR_MAX];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!*text)
        return;
    hd_text_add(out, "%-12s", name);
    cli_add_clean(out, text);
    hd_text_add(out, "\n");
}

/* ratio of a measured step time to the predicted one, or the reverse, from which on it is named */
static const double far_off = 2;

/* Returns the text of a key of a job's spec that has no field of its own; "": its spec lacks it. */
static const char *key_of(const Heddle__V1__JobSpec *spec, const char *path)
{
    for (size_t i = 0; i < spec->n_keys; i++)
        if (strcmp(spec->keys[i]->path, path) == 0)
            return spec->keys[i]->value;
    return "";
}

/* Returns the tokens of each step of the job; 0: steps have different numbers, as with answers, whose
 * windows have padding, or batches that grow, so that tokens/s do not tell the time of a step. */
static double tokens_of_steps(const Heddle__V1__JobSpec *spec)
{
    const char *objective;

    if (!spec || !spec->train || !spec->model)
        return 0;
    objective = key_of(spec, "train.objective");
    if ((*objective && strcmp(objective, "next_token") != 0) ||
        *key_of(spec, "train.batch_schedule") || strchr(key_of(spec, "data.stages"), '@'))
        return 0;
    return (double)spec->train->global_batch * spec->model->context;
}

/* Appends what to do if steps take far more or less time than the plan predicts, which then may not
 * have chosen the fastest layout. */
static void add_far_off(struct hd_text *out, double step_ms, double predicted_ms)
{
    if (step_ms < far_off * predicted_ms && predicted_ms < far_off * step_ms)
        return;
    add_fact(out, "prediction",
             "off by a factor of %.1f, so another layout may be faster: heddle probe NODE measures "
             "what the devices do, and heddle plan JOB_FILE --live plans anew by that",
             step_ms > predicted_ms ? step_ms / predicted_ms : predicted_ms / step_ms);
}

/* Appends the step time that the newest attempt's plan predicts, beside the measured one. */
static void add_prediction(struct hd_text *out, const Heddle__V1__JobStatus *j)
{
    const Heddle__V1__Plan *plan = j->n_attempts ? j->attempts[j->n_attempts - 1]->plan : NULL;
    const double tokens = tokens_of_steps(j->spec);
    char memory[32];

    if (!plan || !(plan->predicted_step_ms > 0))
        return;
    hd_text_format_bytes(plan->predicted_memory_bytes, memory);
    if (j->tokens_per_s > 0 && tokens > 0) {
        add_fact(out, "step time", "%.4g ms, predicted %.4g ms", 1000 * tokens / j->tokens_per_s,
                 plan->predicted_step_ms);
        add_far_off(out, 1000 * tokens / j->tokens_per_s, plan->predicted_step_ms);
    } else {
        add_fact(out, "step time", "predicted %.4g ms", plan->predicted_step_ms);
    }
    add_fact(out, "memory", "predicted %s of a device", memory);
}

/* Appends the layers of each stage, or of each chunk. */
static void add_stages(struct hd_text *out, const struct hd_layout_sizes *sizes)
{
    const bool even = strcmp(sizes->stages, "auto") == 0;

    if (sizes->pp < 2)
        return;
    add_fact(out, "stages", "%lld%s%s", (long long)sizes->pp,
             sizes->virtual_stages > 1 ? " of several chunks each, layers by chunk " : ", layers ",
             even ? "spread evenly" : sizes->stages);
}

static void add_layout(struct hd_text *out, const Heddle__V1__Plan *p)
{
    struct hd_layout_sizes sizes;
    struct hd_text layout = {0};

    /* the plan of a newer controller is not understood */
    if (hd_spec_plan_from_message(p, &sizes)) {
        add_fact(out, "layout", "of a newer build: %s", hd_err_message());
        return;
    }
    cli_add_layout(&sizes, &layout);
    add_fact(out, "layout", "%s, micro-batch %lld x %d, zero %lld, schedule %s, recompute %s, %s",
             layout.failed ? "?" : layout.data, (long long)sizes.micro_batch, p->micro_batches,
             (long long)sizes.zero, sizes.schedule, sizes.recompute,
             hd_job_precision_words[sizes.precision]);
    add_stages(out, &sizes);
    hd_text_free(&layout);
}

/* Appends "0-1 on n1, 2 on n2": consecutive ranks share a node. */
static void add_ranks(struct hd_text *out, const Heddle__V1__Plan *p)
{
    struct hd_text placements = {0};

    for (size_t first = 0, last; first < p->n_ranks; first = last + 1) {
        last = first;
        while (last + 1 < p->n_ranks &&
               strcmp(p->ranks[last + 1]->node, p->ranks[first]->node) == 0)
            last++;
        hd_text_add(&placements, "%s%d", first ? ", " : "", p->ranks[first]->rank);
        if (last > first)
            hd_text_add(&placements, "-%d", p->ranks[last]->rank);
        hd_text_add(&placements, " on %s", p->ranks[first]->node);
    }
    add_fact(out, "ranks", "%s",
             placements.failed      ? "?"
             : placements.len_bytes ? placements.data
                                    : "");
    hd_text_free(&placements);
}

static void add_end_message_cell(struct cli_rows *rows, const void *item)
{
    const Heddle__V1__AttemptStatus *a = item;

    if (a->end && a->end->rank >= 0)
        rows_cell(rows, NULL, "rank %d on %s: %s", a->end->rank, a->end->node, a->end->message);
    else
        rows_cell(rows, NULL, "%s", a->end ? a->end->message : "");
}

static const struct rows_column attempt_columns[] = {
    {"ATTEMPT", ROWS_OF(Heddle__V1__AttemptStatus, attempt)},
    {"STATE", .text = "{state}"},
    {"RANKS", .text = "{plan.ranks}", .right = true},
    {"FROM STEP", .text = "{base_checkpoint.step}", .right = true},
    {"STARTED", ROWS_OF(Heddle__V1__AttemptStatus, created_unix_ms), .form = ROWS_WHEN},
    {"CAUSE", .text = "{end.cause}"},
    {"MESSAGE", .cell = add_end_message_cell},
};
static const struct rows_kind attempt_rows = {NULL, NULL, ROWS_COLUMNS(attempt_columns)};

static void add_attempts(const struct cli *cli, struct hd_text *out, const Heddle__V1__JobStatus *j)
{
    struct cli_rows rows;

    rows_begin(&rows, cli, &attempt_rows);
    for (size_t i = 0; i < j->n_attempts; i++)
        rows_add(&rows, j->attempts[i]);
    hd_text_add(out, "\n");
    rows_end_in(&rows, out);
}

/* Appends the best checkpoint of a job with checkpoint.best. On failure appends nothing: the
 * command shows the job in any case. */
static void add_best(struct cli *cli, struct hd_text *out, uint64_t job)
{
    Heddle__V1__ListCheckpointsRequest request = HEDDLE__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    Heddle__V1__ListCheckpointsResponse *response = NULL;

    request.job = job;
    if (cli_try_call(cli, "ListCheckpoints", &request.base, &response))
        return;
    for (size_t i = 0; i < response->n_checkpoints; i++)
        if (response->checkpoints[i]->best)
            add_fact(out, "best", "step %lld, validation loss %.4f",
                     (long long)response->checkpoints[i]->step, response->checkpoints[i]->val_loss);
    hd_rpc_message_free(&response->base);
}

/* Returns the user that the ranks run as; "-": the policy named no user (core/record.h) */
static const char *run_as_word(const char *run_as)
{
    return strcmp(run_as, "-") == 0 ? "no user: the policy names none for this owner" : run_as;
}

/* Appends the repositories of the hub that the job reads, with their commits. */
static void add_sources(struct hd_text *out, const Heddle__V1__JobStatus *j)
{
    struct hd_text names = {0};
    struct hd_arena arena;
    struct hd_job *job;

    hd_arena_init(&arena, 0);
    if (j->spec && !cli_open_spec(j->spec, &arena, &job))
        fetch_describe(job, &names);
    for (char *line = names.data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        add_fact(out, line == names.data ? "hub" : "", "%s", line);
    }
    hd_text_free(&names);
    hd_arena_done(&arena);
}

static void show_facts(struct cli *cli, struct hd_text *out, const Heddle__V1__JobStatus *j)
{
    static const char *const head[][2] = {{"job", "{job} {name}"}, {"owner", "{owner:people}"}};
    static const char *const steps[][2] = {
        {"reason", "{reason}"},
        {"submitted", "{submitted_unix_ms:utc}"},
        {"step", "{step} of {steps}"},
        {"loss", "[{step?}{loss:4}]"},
        {"rate", "[{step?}{tokens_per_s:count} tok/s]"},
    };
    static const char *const reached[][2] = {{"mfu", "[{mfu:percent}]"},
                                             {"checkpoint", "[step {checkpoint_step}]"}};
    static const char *const place[][2] = {
        {"devices", "{devices}"}, {"nodes", "{nodes}"}, {"directory", "{directory}"}};
    const Heddle__V1__AttemptStatus *newest = j->n_attempts ? j->attempts[j->n_attempts - 1] : NULL;
    char word[CLI_WORD_MAX];

    cli_say_facts(out, 12, j, CLI_FACTS(head));
    hd_text_add(out, "%-12s", "state");
    cli_add_coloured(out, cli->colour ? cli_state_colour(j->state) : NULL,
                     cli_job_state(j->state, word));
    hd_text_add(out, "\n");
    cli_say_facts(out, 12, j, CLI_FACTS(steps));
    add_prediction(out, j);
    cli_say_facts(out, 12, j, CLI_FACTS(reached));
    add_best(cli, out, j->job);
    if (newest && *newest->run_as)
        add_fact(out, "runs as", "%s", run_as_word(newest->run_as));
    cli_say_facts(out, 12, j, CLI_FACTS(place));
    add_sources(out, j);
    if (newest && newest->plan) {
        add_layout(out, newest->plan);
        add_ranks(out, newest->plan);
    }
    if (newest)
        add_attempts(cli, out, j);
}

static const struct rows_kind whole_job_rows = {"JobList", "job", .show = show_whole_job};

static int cli_show(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__GetJobResponse *response = NULL;
    struct hd_text out = {0};
    uint64_t job;
    int code = cli_parse_job(cli, argc, argv, true, &job);

    if (code == CLI_CONTINUE)
        code = cli_get_job(cli, job, &response);
    if (code != CLI_CONTINUE)
        return code;
    cli_warn(response->job->stale);
    if (cli->format >= CLI_JSON) {
        code = rows_print_one(cli, &whole_job_rows, response->job);
    } else {
        show_facts(cli, &out, response->job);
        code = cli_print(&out, CLI_OK);
    }
    hd_rpc_message_free(&response->base);
    return code;
}

const struct cli_body cli_body_show = {
    .usage = "Usage: heddle show JOB|RUN [-o FORMAT]\n",
    .about = "Shows one job: its state, its last step, and its attempts with where they ran\n"
             "and how they ended. With -o json also the whole job file. JOB is a number, or a\n"
             "name: that of one job alone, or of one alone that has not ended. RUN is the\n"
             "folder of a run of heddle local, under way or not.\n",
    .examples = "heddle show 7",
    .run = cli_show,
};
