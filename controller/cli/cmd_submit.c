/* submit: gives a job to the controller, or the members of an array (array.h).
 *
 * All members are read and checked here, then by the controller, before the first is submitted.
 * Their request ids are ID-1, ID-2 ..: after a lost answer or Ctrl-C the same command with
 * --request-id ID submits the rest, and no member twice. A refusal in the middle cancels the members
 * before it. */
#include "controller/cli/submit.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/random.h"
#include "controller/cli/array.h"
#include "controller/cli/data_check.h"
#include "controller/cli/plan_command.h"
#include "controller/cli/rows.h"
#include "controller/cli/watch.h"
#include "hf/hf.h"
#include "plan/plan.h"
#include "spec/spec.h"

enum {
    SUBMIT_TRIES = 6,
    SUBMIT_PAUSE_MS = 300,
    /* time after which no further try starts, ms; one try may last 20 s */
    SUBMIT_PATIENCE_MS = 30000,
    REQUEST_ID_BYTES_MAX = 64, /* longest request id that the controller takes */
    ID_NUMBER_MAX = 5,         /* bytes of a member's number in a request id, "-1000" */
};

/* Makes a random request id. The controller stores it with the job, so that a repeated request
 * makes no second job. */
static enum hd_status make_request_id(char ret_id[CLI_REQUEST_ID_MAX])
{
    unsigned char bytes[16];
    enum hd_status st = hd_random_bytes(bytes, sizeof bytes);

    for (size_t i = 0; i < sizeof bytes; i++)
        (void)snprintf(ret_id + 2 * i, 3, "%02x", bytes[i]);
    return st;
}

/* Returns whether the controller may have taken a failed request: its answer was lost, or waits for
 * a disk. After any other failure no job was made. */
static bool may_have_happened(enum hd_status st)
{
    return st == HD_UNAVAILABLE || st == HD_TIMEOUT || st == HD_ABORTED || st == HD_IO ||
           st == HD_INTERNAL;
}

/* Submits the job again and again until the controller answers, or a signal stops it. Sets ret_id to
 * the request id used, and *ret_uncertain if the job may exist in spite of a failure. */
static int submit_spec(struct cli *cli, const struct hd_job *job, const char *request_id,
                       char ret_id[CLI_REQUEST_ID_MAX], bool *ret_uncertain,
                       Heddle__V1__SubmitJobResponse **ret_response)
{
    Heddle__V1__SubmitJobRequest request = HEDDLE__V1__SUBMIT_JOB_REQUEST__INIT;
    const int64_t end_ms = hd_clock_now_ms() + SUBMIT_PATIENCE_MS;
    char *id = ret_id;
    enum hd_status st = HD_OK;
    struct hd_arena arena;
    int code;

    *ret_uncertain = false;
    if (!request_id)
        st = make_request_id(id);
    request.request_id = request_id ? (char *)request_id : id;
    hd_arena_init(&arena, 0);
    request.spec = hd_spec_to_message(job, &arena);
    if (!st && !request.spec)
        st = hd_err(HD_NO_MEMORY, "no memory for a job");
    for (int try = 0; !st; try++) {
        st = cli_try_call(cli, "SubmitJob", &request.base, ret_response);
        if (!st || cli->wants_tls)
            break;
        *ret_uncertain |= may_have_happened(st); /* true if any try may have made the job */
        if ((st != HD_UNAVAILABLE && st != HD_TIMEOUT && st != HD_ABORTED) || try == SUBMIT_TRIES ||
            hd_clock_now_ms() >= end_ms)
            break;
        (void)nanosleep(&(struct timespec){.tv_nsec = SUBMIT_PAUSE_MS * 1000000L}, NULL);
        if (cli_stopped_by)
            break;
        st = HD_OK; /* retry with the same request id */
    }
    hd_arena_done(&arena);
    code = st ? cli_fail(st) : CLI_CONTINUE;
    return st && cli_stopped_by ? cli_exit_of_signal(cli_stopped_by) : code;
}

int cli_submit_spec(struct cli *cli, const struct hd_job *job, const char *request_id,
                    Heddle__V1__SubmitJobResponse **ret_response)
{
    char id[CLI_REQUEST_ID_MAX];
    bool uncertain;

    return submit_spec(cli, job, request_id, id, &uncertain, ret_response);
}

struct submit_command {
    struct cli *cli;
    bool watch, quiet, times, dry, must_fit;
    const char *request_id, *plan; /* NULL: not given */
    struct array array;
    struct hd_job **jobs;        /* [array.count] */
    uint64_t *numbers;           /* jobs made so far, [array.count] */
    size_t done;                 /* number of jobs made so far */
    char id[CLI_REQUEST_ID_MAX]; /* request id that was made here; "": request_id was given */
    char never_fits[HD_ERR_MAX]; /* last warning of this kind, printed once */
    struct hd_text out;
    struct cli_rows rows; /* verdicts, or jobs that were submitted */
};

/* ---- before anything is submitted ---- */

/* Names the member that the last message is about. */
static void note_member(const struct submit_command *s, size_t i)
{
    if (!s->array.is_one)
        cli_note("heddle: this is member %zu of %zu, %s; none was submitted", i + 1, s->array.count,
                 s->jobs[i] ? s->jobs[i]->name : s->array.members[i].suffix + 1);
}

/* Reads and checks the jobs of all members. */
static int read_members(struct submit_command *s, struct hd_arena *arena)
{
    const char *path = s->cli->args[0], *tokenizer = NULL;
    const struct hd_json *epoch;
    int code = CLI_CONTINUE;

    if (s->array.count > 1 && strcmp(path, "-") == 0)
        return cli_usage("submit: standard input cannot be read for each member; give a file");
    for (size_t i = 0; i < s->array.count && code == CLI_CONTINUE; i++) {
        const struct cli_list *set = s->array.members[i].set;

        if (s->plan)
            code = plan_file_read_job(path, s->plan, set, arena, &s->jobs[i]);
        else
            code = s->dry ? cli_read_spec_and_epoch(path, set, arena, &s->jobs[i], &epoch)
                          : cli_read_spec(path, set, arena, &s->jobs[i]);
        /* before the connection starts threads; members mostly share a tokenizer */
        if (code == CLI_CONTINUE && (!tokenizer || strcmp(tokenizer, s->jobs[i]->tokenizer) != 0))
            code = data_check_tokenizer(s->jobs[i]);
        if (code == CLI_CONTINUE)
            tokenizer = s->jobs[i]->tokenizer;
        else
            note_member(s, i);
    }
    return code == CLI_CONTINUE ? array_name(&s->array, s->jobs) : code;
}

struct submit_verdict {
    const struct hd_job *job;
    const Heddle__V1__ValidateJobResponse *answer;
};

static void show_submit_verdict(struct hd_json_writer *w, const void *item)
{
    const struct submit_verdict *verdict = item;

    hd_json_add_string(w, "name", verdict->job->name);
    hd_json_add_bool(w, "accepted", true);
    hd_json_add_bool(w, "fits_now", verdict->answer->fits_now);
    hd_json_add_string(w, "reason", verdict->answer->reason);
    if (*verdict->answer->never_fits)
        hd_json_add_string(w, "never_fits", verdict->answer->never_fits);
}

static void add_submit_verdict(const struct cli *cli, struct hd_text *out, const void *item)
{
    const struct submit_verdict *verdict = item;

    (void)cli;
    hd_text_add(out, "%s would be taken, and would %s", verdict->job->name,
                verdict->answer->fits_now ? "start now" : "wait: ");
    if (!verdict->answer->fits_now)
        cli_add_people(out, verdict->answer->reason);
    hd_text_add(out, "; nothing was submitted\n");
}

static const struct rows_kind verdict_rows = {"VerdictList", "verdict", .show = show_submit_verdict,
                                              .line = add_submit_verdict};

/* Has the controller check a job. Refuses it if it can never run and --must-fit is given. */
static int ask_for_verdict(struct submit_command *s, const struct hd_job *job)
{
    Heddle__V1__ValidateJobRequest request = HEDDLE__V1__VALIDATE_JOB_REQUEST__INIT;
    Heddle__V1__ValidateJobResponse *verdict = NULL;
    struct hd_arena arena;
    int code;

    hd_arena_init(&arena, 0);
    code = cli_pack_spec(job, &arena, &request.spec);
    if (code == CLI_CONTINUE)
        code = cli_call(s->cli, "ValidateJob", &request.base, &verdict);
    hd_arena_done(&arena);
    if (code != CLI_CONTINUE)
        return code;
    if (s->must_fit && *verdict->never_fits) {
        (void)cli_usage("submit: %s can never run on this cluster: %s; nothing was submitted",
                        job->name, verdict->never_fits);
        code = CLI_NEVER_FITS;
    } else if (s->dry && (!s->quiet || s->cli->format >= CLI_JSON)) {
        rows_add(&s->rows, &(struct submit_verdict){job, verdict});
    }
    hd_rpc_message_free(&verdict->base);
    return code;
}

/* Has the controller check all members, where that is needed. */
static int validate_members(struct submit_command *s)
{
    int code = CLI_CONTINUE;

    if (s->dry)
        rows_begin(&s->rows, s->cli, &verdict_rows);
    for (size_t i = 0; i < s->array.count && code == CLI_CONTINUE; i++) {
        code = cli_find_after(s->cli, s->jobs[i]);
        if (code == CLI_CONTINUE && (s->dry || s->must_fit || s->array.count > 1))
            code = ask_for_verdict(s, s->jobs[i]);
        if (code != CLI_CONTINUE)
            note_member(s, i);
    }
    if (s->dry)
        rows_end_in(&s->rows, &s->out);
    return code;
}

/* ---- submitting ---- */

/* Warns, once for members that need the same, that the cluster can never run the job. */
static void warn_never_fits(struct submit_command *s, const char *never_fits)
{
    struct hd_text line = {0};
    const bool coloured = cli_has_colour(STDERR_FILENO);

    if (!*never_fits || strncmp(never_fits, s->never_fits, sizeof s->never_fits - 1) == 0)
        return;
    (void)snprintf(s->never_fits, sizeof s->never_fits, "%s", never_fits);
    cli_add_coloured(&line, coloured ? "33" : NULL,
                     "heddle: this job can never run on this cluster:");
    hd_text_add(&line, " ");
    cli_add_clean(&line, never_fits);
    hd_text_add(&line, ". It waits until nodes join; submit --must-fit refuses such a job\n");
    if (!line.failed)
        (void)fputs(line.data, stderr);
    hd_text_free(&line);
}

static void show_submitted(struct submit_command *s, const Heddle__V1__SubmitJobResponse *response)
{
    if (s->quiet)
        hd_text_add(&s->out, "%llu\n", (unsigned long long)response->job->job);
    else
        rows_add(&s->rows, response->job);
}

/* Prints the numbers of the members that were submitted: "12-15, 17". */
static void note_done(const struct submit_command *s, const char *what)
{
    struct hd_text line = {0};

    hd_text_add(&line, "heddle: %zu of %zu members %s: ", s->done, s->array.count, what);
    for (size_t i = 0, last; i < s->done; i = last + 1) {
        for (last = i; last + 1 < s->done && s->numbers[last + 1] == s->numbers[last] + 1;)
            last++;
        hd_text_add(&line, "%s%llu", i ? ", " : "", (unsigned long long)s->numbers[i]);
        if (last > i)
            hd_text_add(&line, "-%llu", (unsigned long long)s->numbers[last]);
    }
    cli_note_text(&line);
}

/* Cancels the members before one that was refused. */
static void take_back(struct submit_command *s)
{
    size_t cancelled = 0;

    for (size_t i = 0; i < s->done; i++) {
        Heddle__V1__CancelJobRequest request = HEDDLE__V1__CANCEL_JOB_REQUEST__INIT;
        Heddle__V1__CancelJobResponse *response = NULL;

        request.job = s->numbers[i];
        request.now = true;
        if (cli_try_call(s->cli, "CancelJob", &request.base, &response))
            cli_note("heddle: job %llu was not cancelled: %s", (unsigned long long)request.job,
                     hd_err_message());
        else
            cancelled++;
        if (response)
            hd_rpc_message_free(&response->base);
    }
    note_done(s, cancelled == s->done ? "had been submitted, and are cancelled"
                                      : "had been submitted");
    if (cancelled == s->done)
        s->done = 0; /* none is printed */
}

/* Says after a failure or a signal what was submitted, and how to go on. */
static void explain_partial(struct submit_command *s, bool uncertain)
{
    const char *id = s->request_id ? s->request_id : s->id;

    if (s->array.is_one) {
        if (uncertain && !s->request_id) {
            cli_note(
                "heddle: the controller may have accepted the job before its answer was lost;");
            cli_note("  to try again without making a second job: heddle submit --request-id %s",
                     id);
        }
        return;
    }
    if (!uncertain && !cli_stopped_by && !s->request_id && s->done) {
        take_back(s);
    } else if (!s->done && !uncertain) {
        cli_note("heddle: none was submitted");
    } else {
        if (s->done)
            note_done(s, "are submitted");
        else
            cli_note("heddle: it is not known whether the first of %zu members was submitted",
                     s->array.count);
        cli_note("  to submit the rest, and none twice: the same command with --request-id %s", id);
    }
}

/* Submits one member. *ret_response is set on success. */
static int submit_member(struct submit_command *s, size_t i, bool *ret_uncertain,
                         Heddle__V1__SubmitJobResponse **ret_response)
{
    char id[REQUEST_ID_BYTES_MAX + 1], made[CLI_REQUEST_ID_MAX];

    if (s->array.is_one)
        return submit_spec(s->cli, s->jobs[0], s->request_id, s->id, ret_uncertain, ret_response);
    (void)snprintf(id, sizeof id, "%s-%zu", s->request_id ? s->request_id : s->id, i + 1);
    return submit_spec(s->cli, s->jobs[i], id, made, ret_uncertain, ret_response);
}

/* Submits all members. Returns CLI_CONTINUE, or an exit code after saying what was submitted. */
static int submit_members(struct submit_command *s)
{
    int code = CLI_CONTINUE;

    if (!s->array.is_one && !s->request_id && make_request_id(s->id))
        return cli_fail(HD_IO);
    if (!s->array.is_one) {
        array_limit(&s->array, s->request_id ? s->request_id : s->id, s->jobs);
        cli_catch_stop(SIGINT, NULL);
        cli_catch_stop(SIGTERM, NULL);
    }
    while (s->done < s->array.count && code == CLI_CONTINUE) {
        Heddle__V1__SubmitJobResponse *response = NULL;
        bool uncertain = false;

        code = cli_stopped_by ? cli_exit_of_signal(cli_stopped_by)
                              : submit_member(s, s->done, &uncertain, &response);
        if (code != CLI_CONTINUE) {
            explain_partial(s, uncertain);
            break;
        }
        if (!s->done) /* once for all members */
            cli_warn(response->warning);
        warn_never_fits(s, response->never_fits);
        s->numbers[s->done++] = response->job->job;
        if (!s->watch || (s->cli->format <= CLI_WIDE && !s->quiet))
            show_submitted(s, response);
        hd_rpc_message_free(&response->base);
    }
    return code;
}

static void note_next(const struct submit_command *s)
{
    const unsigned long long job = s->numbers[0];
    struct hd_text line = {0}, pattern = {0};

    if (s->array.is_one) {
        cli_note("  next: heddle watch %llu | heddle logs -f %llu | heddle cancel %llu", job, job,
                 job);
        return;
    }
    hd_text_add(&pattern, "%.*s-*",
                (int)(strlen(s->jobs[0]->name) - strlen(s->array.members[0].suffix)),
                s->jobs[0]->name);
    hd_text_add(&line, "  next: heddle jobs --name ");
    cli_add_quoted(&line, pattern.failed ? "" : pattern.data);
    hd_text_add(&line, " | heddle cancel ");
    cli_add_quoted(&line, pattern.failed ? "" : pattern.data);
    cli_note_text(&line);
    hd_text_free(&pattern);
}

static int watch_submitted(struct submit_command *s)
{
    struct watch_options options = {.job = s->numbers[0], .quiet = s->quiet, .times = s->times};
    const unsigned long long job = options.job;
    const int code = cli_watch_job(s->cli, &options);

    if (cli_is_interrupted(code))
        cli_note("heddle: the watching has ended; job %llu goes on if it has not ended; heddle "
                 "watch %llu | heddle cancel %llu",
                 job, job, job);
    cli_print_next_commands(s->cli, options.job, code);
    return code;
}

static int submit_all(struct submit_command *s)
{
    /* with --watch and JSON the first line is the first event */
    const bool lists = !s->quiet && !(s->watch && s->cli->format >= CLI_JSON);
    int code;

    if (lists)
        rows_begin(&s->rows, s->cli, &rows_job_named);
    code = submit_members(s);
    if (lists)
        rows_end_in(&s->rows, &s->out);
    if (code != CLI_CONTINUE && !s->done)
        return code;
    (void)cli_out(&s->out);
    if (code != CLI_CONTINUE)
        return cli_out_end(code);
    if (s->watch)
        return watch_submitted(s);
    if (!s->quiet && s->cli->format <= CLI_WIDE)
        note_next(s);
    code = cli_out_end(CLI_OK);
    if (code != CLI_OK && s->array.is_one)
        cli_note("heddle: the job was submitted nevertheless; it is job %llu",
                 (unsigned long long)s->numbers[0]);
    else if (code != CLI_OK)
        note_done(s, "were submitted nevertheless");
    return code;
}

static int check_submit_flags(const struct submit_command *s, bool is_array)
{
    if (s->dry && (s->watch || s->request_id))
        return cli_usage("submit: --dry-run submits nothing: leave out %s",
                         s->watch ? "--watch" : "--request-id");
    if (is_array && (s->watch || s->plan))
        return cli_usage("submit: --array and --sweep make several jobs: leave out %s",
                         s->watch ? "--watch, and follow one with heddle watch"
                                  : "--plan, which is of one job");
    if (is_array && s->request_id && strlen(s->request_id) + ID_NUMBER_MAX > REQUEST_ID_BYTES_MAX)
        return cli_usage("submit: --request-id: at most %d characters with --array or --sweep, "
                         "whose members have it with their number",
                         REQUEST_ID_BYTES_MAX - ID_NUMBER_MAX);
    return CLI_CONTINUE;
}

static int run_submission(struct submit_command *s, const char *range,
                          const struct cli_list *sweeps, const struct cli_list *set)
{
    struct hd_arena arena;
    int code;

    hd_arena_init(&arena, 0);
    code = array_expand(range, sweeps, set, &arena, &s->array);
    if (code == CLI_CONTINUE) {
        s->jobs = hd_arena_array(&arena, s->array.count, sizeof(struct hd_job *));
        s->numbers = hd_arena_array(&arena, s->array.count, sizeof *s->numbers);
        if (!s->jobs || !s->numbers)
            code = cli_fail(hd_err(HD_NO_MEMORY, "no memory for a list of jobs"));
    }
    if (code == CLI_CONTINUE)
        code = read_members(s, &arena);
    if (code == CLI_CONTINUE)
        code = cli_connect(s->cli);
    if (code == CLI_CONTINUE)
        code = validate_members(s);
    if (code == CLI_CONTINUE && s->dry) {
        code = cli_print(&s->out, CLI_OK);
    } else if (code == CLI_CONTINUE) {
        code = submit_all(s);
    }
    hd_text_free(&s->out);
    hd_arena_done(&arena);
    return code;
}

static int cli_submit(struct cli *cli, int argc, char **argv)
{
    struct submit_command s = {.cli = cli};
    const char *range = NULL;
    struct cli_list set = {.count = 0}, sweeps = {.count = 0};
    const struct cli_flag flags[] = {
        {"watch", 'w', CLI_FLAG_BOOL, &s.watch, .help = "then follow the job as heddle watch does"},
        {"set", 0, CLI_FLAG_LIST, &set, "KEY=VALUE",
         .help = "in place of what the file says, such as train.steps=100"},
        {"array", 0, CLI_FLAG_TEXT, &range, "N|A-B",
         .help = "jobs NAME-1 to NAME-N; --set train.seed=%a: their numbers;\n"
                 "1-99%4: at most 4 of them run at a time"},
        {"sweep", 0, CLI_FLAG_LIST, &sweeps, "KEY=V1,V2",
         .help = "jobs NAME-KEYV1 .. with these values, of all --sweep"},
        {"must-fit", 0, CLI_FLAG_BOOL, &s.must_fit,
         .help = "refuse what the cluster can never run (exit code 7)"},
        {"dry-run", 0, CLI_FLAG_BOOL, &s.dry,
         .help = "only ask whether the job would be taken, and start now"},
        {"plan", 0, CLI_FLAG_TEXT, &s.plan, "FILE",
         .help = "run the layout of plan --out FILE, if the job is still that"},
        {"quiet", 'q', CLI_FLAG_BOOL, &s.quiet,
         .help = "print the numbers only. --times: as of heddle watch"},
        {"request-id", 0, CLI_FLAG_TEXT, &s.request_id, "ID",
         .help = "16 to 64 letters, digits, - and _: of one ID one job is\n"
                 "made, however often it is submitted"},
        {"times", 0, CLI_FLAG_BOOL, &s.times, .help = NULL},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);

    if (code == CLI_CONTINUE)
        code = check_submit_flags(&s, range || sweeps.count);
    return code == CLI_CONTINUE ? run_submission(&s, range, &sweeps, &set) : code;
}

const struct cli_body cli_body_submit = {
    .usage = "Usage: heddle submit FILE|- [--watch] [--set KEY=VALUE]... [--plan FILE] [-q]\n"
             "                     [--must-fit] [--times] [--request-id ID] [--dry-run]\n"
             "       heddle submit FILE --array N|A-B [--set KEY=VALUE]... [...]\n"
             "       heddle submit FILE --sweep KEY=V1,V2,... [--sweep ...]... [...]\n",
    .about = "Checks a job file and gives the job, or all members of an array, to the\n"
             "controller. Prints the numbers of the jobs.\n",
    .examples = "heddle submit job.yaml --sweep train.lr.peak=1e-3,3e-4 --sweep train.seed=1,2",
    .run = cli_submit,
};
