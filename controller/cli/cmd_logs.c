/* logs: prints logs of ranks. A position is (attempt, rank, byte): after a lost connection reading
 * continues at the next byte. With -f the logs of later attempts follow.
 *
 * One rank's log is printed byte for byte as it arrives. With several ranks, --tail or --since
 * output is by line: a line is printed when it is complete, and with several ranks it begins with
 * the rank's number.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "controller/cli/cli.h"
#include "controller/cli/watch.h"

enum {
    POLL_MS = 500,
    RANKS_MAX = 65536,
    STREAMS_MAX = 64,          /* limit of logs read at the same time */
    TAIL_GUESS_BYTES = 128,    /* assumed length of a line; more is read if it is too short */
    TAIL_BYTES_MAX = 64 << 20, /* limit on the bytes searched for the last lines */
    LINE_BYTES_MAX = 1 << 20,  /* a longer line is printed in pieces */
    TIME_CHARS = sizeof "2026-01-01T00:00:00" - 1,
};

struct logs;

struct rank_log {
    struct logs *l;
    int32_t rank, attempt;
    int64_t offset_bytes;
    struct hd_text line;  /* line output only: the incomplete last line */
    struct hd_text *keep; /* gets the log's bytes in place of stdout; NULL: stdout */
    int64_t keep_offset;  /* log offset of the first byte of `keep` */
    bool since_open;      /* a line not older than --since was found */
    bool open, done;      /* open: a call is running; done: everything was read */
    enum hd_status status;
    char message[HD_ERR_MAX];
    struct hd_rpc_call *call;
};

struct logs {
    struct cli *cli;
    uint64_t job;
    int32_t attempt;
    bool follow, fixed_attempt, to_terminal, in_lines;
    bool reached;                  /* the controller has accepted at least one call */
    int64_t tail;                  /* number of last lines to print (--tail); -1: all */
    char since[HD_CLOCK_TEXT_MAX]; /* time of --since; "": from the beginning */
    char note[HD_ERR_MAX];
    struct rank_log *ranks;
    size_t count;
    struct hd_text out;
    uv_signal_t interrupt;
    bool interrupted;
};

/* ---- printing ---- */

/* Appends bytes of a log. On a terminal, unsafe characters (hd_text_character) become '?'; a file
 * or pipe gets the bytes unchanged. */
static void add_bytes(struct logs *l, const char *bytes, size_t count)
{
    bool harmless;

    if (!l->to_terminal) {
        hd_text_add_bytes(&l->out, bytes, count);
        return;
    }
    for (size_t n; count; bytes += n, count -= n) {
        n = hd_text_character(bytes, count, &harmless);
        harmless |= *bytes == '\n' || *bytes == '\t';
        hd_text_add_bytes(&l->out, harmless ? bytes : "?", harmless ? n : 1);
    }
}

/* Returns whether the line begins with a time, as lines of Heddle's own log do. */
static bool has_time(const char *line, size_t len)
{
    static const char form[] = "dddd-dd-ddTdd:dd:dd";

    if (len < TIME_CHARS)
        return false;
    for (size_t i = 0; i < TIME_CHARS; i++)
        if (form[i] == 'd' ? line[i] < '0' || line[i] > '9' : line[i] != form[i])
            return false;
    return true;
}

/* Appends a complete line, including its line break. */
static void add_log_line(struct rank_log *r, const char *line, size_t len)
{
    struct logs *l = r->l;

    if (!r->since_open)
        r->since_open =
            !*l->since || (has_time(line, len) && memcmp(line, l->since, TIME_CHARS) >= 0);
    if (!r->since_open)
        return;
    if (l->count > 1)
        hd_text_add(&l->out, "%d: ", r->rank);
    add_bytes(l, line, len);
    if (line[len - 1] != '\n')
        hd_text_add(&l->out, "\n");
}

static void add_log_lines(struct rank_log *r, const char *bytes, size_t count)
{
    while (count) {
        const char *end = memchr(bytes, '\n', count);
        const size_t len = end ? (size_t)(end - bytes) + 1 : count;

        if (end && !r->line.len_bytes) {
            add_log_line(r, bytes, len);
        } else {
            hd_text_add_bytes(&r->line, bytes, len);
            if (end || r->line.len_bytes > LINE_BYTES_MAX) {
                add_log_line(r, r->line.data, r->line.len_bytes);
                hd_text_clear(&r->line);
            }
        }
        bytes += len;
        count -= len;
    }
}

/* Appends the incomplete last line of a log at the end of an attempt. */
static void end_line(struct rank_log *r)
{
    if (r->line.len_bytes)
        add_log_line(r, r->line.data, r->line.len_bytes);
    hd_text_clear(&r->line);
}

/* Prints a note once; after a reconnect the controller sends it again. */
static void note_once(struct logs *l, const char *note)
{
    struct hd_text text = {0};

    if (l->cli->run) /* says that its node is away, which goes without saying */
        return;
    cli_add_clean(&text, note);
    if (!text.failed && strcmp(text.data, l->note) != 0) {
        (void)snprintf(l->note, sizeof l->note, "%s", text.data);
        cli_note("heddle: %s", l->note);
    }
    hd_text_free(&text);
}

/* Notes that the log outgrew its limit, so that its middle part was discarded. */
static void note_gap(const struct rank_log *r, const Heddle__V1__ReadLogResponse *chunk)
{
    if (r->offset_bytes > 0 && chunk->attempt == r->attempt && !r->keep &&
        chunk->offset_bytes > r->offset_bytes)
        cli_note("heddle: bytes %lld to %lld of the log of rank %d were removed: it had grown "
                 "beyond its limit (heddled --log-limit)",
                 (long long)r->offset_bytes, (long long)chunk->offset_bytes, r->rank);
}

/* ---- reading ---- */

static void on_open(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    struct rank_log *r = hd_rpc_call_user(call);

    (void)message;
    r->l->reached = true;
    cli_wait_end(r->l->cli);
}

static void on_chunk(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ReadLogResponse *chunk = (const Heddle__V1__ReadLogResponse *)message;
    struct rank_log *r = hd_rpc_call_user(call);
    struct logs *l = r->l;

    if (*chunk->note)
        note_once(l, chunk->note);
    note_gap(r, chunk);
    r->attempt = chunk->attempt;
    r->offset_bytes = chunk->offset_bytes + (int64_t)chunk->data.len;
    if (r->keep) {
        if (!r->keep->len_bytes)
            r->keep_offset = chunk->offset_bytes;
        hd_text_add_bytes(r->keep, chunk->data.data, chunk->data.len);
        return;
    }
    if (l->in_lines)
        add_log_lines(r, (const char *)chunk->data.data, chunk->data.len);
    else
        add_bytes(l, (const char *)chunk->data.data, chunk->data.len);
    if (!cli_out(&l->out)) /* the pipe's reader has closed it */
        hd_rpc_call_cancel(call);
}

static void on_log_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct rank_log *r = hd_rpc_call_user(call);

    r->status = status;
    (void)snprintf(r->message, sizeof r->message, "%s", message);
    r->call = NULL;
    r->open = false;
    r->done = status == HD_OK;
    cli_wait_end(r->l->cli);
}

static void on_logs_interrupt(uv_signal_t *handle, int number)
{
    struct logs *l = handle->data;

    (void)number;
    l->interrupted = true;
    uv_stop(&l->cli->loop);
}

/* Starts reading a rank's log at the position reached so far. */
static enum hd_status open_rank(struct rank_log *r, bool follow)
{
    Heddle__V1__ReadLogRequest request = HEDDLE__V1__READ_LOG_REQUEST__INIT;
    static const struct hd_rpc_handler handler = {
        .on_open = on_open, .on_msg = on_chunk, .on_done = on_log_done};
    enum hd_status st;

    request.job = r->l->job;
    request.attempt = r->attempt;
    request.rank = r->rank;
    request.offset_bytes = r->offset_bytes;
    request.follow = follow;
    cli_wait_begin(r->l->cli);
    st = cli_begin_call(r->l->cli, "ReadLog", HD_RPC_SERVER_STREAM, &request.base, &handler, r,
                        &r->call);
    r->open = st == HD_OK;
    return st;
}

static size_t count_open(const struct logs *l)
{
    size_t open = 0;

    for (size_t i = 0; i < l->count; i++)
        open += l->ranks[i].open;
    return open;
}

/* Waits until at most `most` ReadLog calls are running. */
static void wait_for_calls(struct logs *l, size_t most)
{
    while (count_open(l) > most && !l->interrupted)
        (void)uv_run(&l->cli->loop, UV_RUN_ONCE);
    if (!l->interrupted)
        return;
    for (size_t i = 0; i < l->count; i++)
        if (l->ranks[i].open)
            hd_rpc_call_cancel(l->ranks[i].call);
    while (count_open(l))
        (void)uv_run(&l->cli->loop, UV_RUN_ONCE);
}

/* Reads the logs of all unfinished ranks from their positions until their streams end: in parallel
 * with -f, else one after the other. Returns the first failure. */
static enum hd_status read_ranks_once(struct logs *l)
{
    for (size_t i = 0; i < l->count && !l->interrupted; i++) {
        struct rank_log *r = &l->ranks[i];
        enum hd_status st = r->done ? HD_OK : open_rank(r, l->follow);

        if (st)
            return st;
        wait_for_calls(l, l->follow ? STREAMS_MAX - 1 : 0);
        if (!l->follow && r->done)
            end_line(r);
    }
    wait_for_calls(l, 0);
    for (size_t i = 0; i < l->count && !l->interrupted; i++)
        if (l->ranks[i].status)
            return hd_err(l->ranks[i].status, "%s", l->ranks[i].message);
    return HD_OK;
}

/* ---- the last lines ---- */

/* Returns the start of the last `lines` lines; *ret_found is their number, at most `lines`. */
static const char *last_lines(const struct hd_text *bytes, int64_t lines, int64_t *ret_found)
{
    const char *p = bytes->data + bytes->len_bytes;
    int64_t found = 0;

    for (; p > bytes->data; p--)
        if (p[-1] == '\n' && p < bytes->data + bytes->len_bytes && ++found == lines)
            break;
    *ret_found = found + (p == bytes->data && bytes->len_bytes ? 1 : 0);
    return p;
}

/* Prints the last lines of a rank's log and sets the position to its end. Reads backwards from the
 * end in growing steps until there are enough lines. */
static enum hd_status read_tail(struct rank_log *r)
{
    struct logs *l = r->l;
    int64_t back = l->tail ? l->tail * TAIL_GUESS_BYTES : 1, found = 0;
    struct hd_text bytes = {0};
    const char *from;
    enum hd_status st;

    for (;;) {
        hd_text_clear(&bytes);
        r->keep = &bytes;
        r->keep_offset = 0;
        r->offset_bytes = -back;
        st = open_rank(r, false);
        wait_for_calls(l, 0);
        if (!st && r->status)
            st = hd_err(r->status, "%s", r->message);
        if (st || l->interrupted || !bytes.len_bytes || !l->tail)
            break;
        from = last_lines(&bytes, l->tail, &found);
        if ((found < l->tail || from == bytes.data) && r->keep_offset > 0 &&
            back < TAIL_BYTES_MAX) {
            back *= 4;
            continue;
        }
        r->keep = NULL;
        add_log_lines(r, from, bytes.len_bytes - (size_t)(from - bytes.data));
        break;
    }
    if (r->offset_bytes < 0)
        r->offset_bytes = 0; /* the log was empty */
    r->keep = NULL;
    if (!l->follow)
        end_line(r);
    hd_text_free(&bytes);
    (void)cli_out(&l->out);
    return st;
}

static enum hd_status read_tails(struct logs *l)
{
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < l->count && !l->interrupted; i++)
        st = read_tail(&l->ranks[i]);
    for (size_t i = 0; i < l->count; i++)
        l->ranks[i].done = !l->follow;
    return st;
}

/* ---- to the end ---- */

static void pause_logs(struct logs *l, int64_t ms)
{
    int64_t end_ms = hd_clock_now_ms() + ms;

    while (!l->interrupted && hd_clock_now_ms() < end_ms) {
        (void)uv_run(&l->cli->loop, UV_RUN_NOWAIT);
        (void)usleep(20000);
    }
}

/* Waits until the next attempt begins, whose logs are then read, or the job has ended. */
static enum hd_status next_attempt(struct logs *l, bool *ret_over)
{
    Heddle__V1__GetJobRequest request = HEDDLE__V1__GET_JOB_REQUEST__INIT;
    Heddle__V1__GetJobResponse *response = NULL;
    const int32_t attempt = l->ranks[0].attempt;
    enum hd_status st;

    *ret_over = l->fixed_attempt;
    request.job = l->job;
    while (!*ret_over && !l->interrupted) {
        st = cli_try_call(l->cli, "GetJob", &request.base, &response);
        if (st)
            return st;
        if (response->job->attempt > attempt) {
            for (size_t i = 0; i < l->count; i++) {
                end_line(&l->ranks[i]);
                l->ranks[i].attempt = attempt + 1;
                l->ranks[i].offset_bytes = 0;
                l->ranks[i].done = false;
            }
            (void)cli_out(&l->out);
            cli_note("heddle: attempt %d", attempt + 1);
            hd_rpc_message_free(&response->base);
            return HD_OK;
        }
        *ret_over = cli_job_ended(response->job->state);
        hd_rpc_message_free(&response->base);
        if (!*ret_over)
            pause_logs(l, POLL_MS);
    }
    return HD_OK;
}

static int read_logs(struct logs *l)
{
    int64_t down_since_ms = 0;
    bool over = false;
    enum hd_status st = l->tail >= 0 ? read_tails(l) : HD_OK;

    if (st)
        return cli_fail(st);
    while (!over && !l->interrupted && !ferror(stdout)) {
        st = read_ranks_once(l);
        if (!st) {
            down_since_ms = 0;
            if (!l->follow)
                break;
            st = next_attempt(l, &over);
        }
        if (!st || ferror(stdout))
            continue;
        if (!down_since_ms)
            down_since_ms = hd_clock_now_ms();
        if (!l->follow || !l->reached ||
            (st != HD_UNAVAILABLE && st != HD_ABORTED && st != HD_TIMEOUT) ||
            hd_clock_now_ms() - down_since_ms > watch_patience_ms(l->cli))
            return cli_fail(l->reached ? st : cli_explain_stream(l->cli, st));
        pause_logs(l, POLL_MS); /* then retry from the next byte */
    }
    for (size_t i = 0; i < l->count; i++)
        end_line(&l->ranks[i]);
    (void)cli_out(&l->out);
    return l->interrupted ? CLI_INTERRUPTED : CLI_OK;
}

/* ---- which ranks ---- */

/* Finds the number of ranks of the attempt that is read. */
static int find_world(struct logs *l, int32_t *ret_world)
{
    Heddle__V1__GetJobResponse *response = NULL;
    const int code = cli_get_job(l->cli, l->job, &response);
    int32_t newest = 0;

    if (code != CLI_CONTINUE)
        return code;
    *ret_world = 0;
    for (size_t i = 0; i < response->job->n_attempts; i++) {
        const Heddle__V1__AttemptStatus *a = response->job->attempts[i];

        if (!a->plan || (l->attempt ? a->attempt != l->attempt : a->attempt <= newest))
            continue;
        newest = a->attempt;
        *ret_world = (int32_t)a->plan->n_ranks;
    }
    hd_rpc_message_free(&response->base);
    return *ret_world > 0 ? CLI_CONTINUE
                          : cli_fail(hd_err(HD_NOT_FOUND, "job %llu has no attempt yet",
                                            (unsigned long long)l->job));
}

static void add_rank(struct logs *l, int64_t rank)
{
    for (size_t i = 0; i < l->count; i++)
        if (l->ranks[i].rank == rank)
            return;
    l->ranks[l->count++] = (struct rank_log){.l = l, .rank = (int32_t)rank, .attempt = l->attempt};
}

/* Parses the value of --rank, "0-3,7": numbers and ranges. */
static enum hd_status take_ranks(struct logs *l, const char *text)
{
    enum hd_status st = HD_OK;

    while (!st && *text) {
        const size_t len = strcspn(text, ",");
        char word[32], *dash;
        int64_t first, last;

        (void)snprintf(word, sizeof word, "%.*s", (int)len, text);
        dash = strchr(word, '-');
        if (dash)
            *dash = '\0';
        st = hd_text_to_int64(word, 0, RANKS_MAX - 1, &first);
        last = first;
        if (!st && dash)
            st = hd_text_to_int64(dash + 1, first, RANKS_MAX - 1, &last);
        for (; !st && first <= last; first++)
            add_rank(l, first);
        text += len + (text[len] == ',');
    }
    return st;
}

static int choose_ranks(struct logs *l, const char *ranks)
{
    int32_t world = 0;
    int code = CLI_CONTINUE;

    l->ranks = calloc(RANKS_MAX, sizeof *l->ranks);
    if (!l->ranks)
        return cli_fail(hd_err(HD_NO_MEMORY, "no memory for ranks"));
    if (strcmp(ranks, "all") != 0) {
        if (take_ranks(l, ranks) || !l->count)
            return cli_usage("logs: --rank %s is not all, a rank, or a list such as 0-3,7", ranks);
        return CLI_CONTINUE;
    }
    code = find_world(l, &world);
    for (int32_t rank = 0; code == CLI_CONTINUE && rank < world; rank++)
        add_rank(l, rank);
    return code;
}

/* ---- all ---- */

static int run(struct logs *l, const char *ranks)
{
    int code = choose_ranks(l, ranks);

    l->in_lines = l->count > 1 || l->tail >= 0 || *l->since;
    l->to_terminal = isatty(STDOUT_FILENO);
    if (code != CLI_CONTINUE)
        return code;
    if (uv_signal_init(&l->cli->loop, &l->interrupt))
        return cli_fail(hd_err(HD_IO, "cannot wait for signals"));
    l->interrupt.data = l;
    /* on failure Ctrl-C ends the process at once */
    (void)uv_signal_start(&l->interrupt, on_logs_interrupt, SIGINT);
    code = read_logs(l);
    cli_close_handle(l->cli, &l->interrupt);
    return cli_out_end(code);
}

static int cli_logs(struct cli *cli, int argc, char **argv)
{
    struct logs l = {.cli = cli, .tail = -1};
    const char *ranks = "0";
    int64_t attempt = 0, since_ms = 0;
    const struct cli_flag flags[] = {
        {"follow", 'f', CLI_FLAG_BOOL, &l.follow,
         .help = "go on as it writes, and with the next attempts, until the\n"
                 "job's end"},
        {"rank", 0, CLI_FLAG_TEXT, &ranks, "R",
         .help = "which rank, or several: 0-3,7, or all; else 0"},
        {"attempt", 0, CLI_FLAG_INT, &attempt, "K", .min = 1, .max = INT32_MAX,
         .help = "which attempt; else the newest"},
        {"tail", 0, CLI_FLAG_INT, &l.tail, "N", .min = 0, .max = 10000000,
         .help = "only the last N lines of each rank"},
        {"since", 0, CLI_FLAG_SPAN, &since_ms, "TIME", .min = 1000, .max = CLI_YEAR_MS,
         .help = "from the first line on that has a time, not longer ago than\n"
                 "TIME: 10m, 2h"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);

    if (code == CLI_CONTINUE)
        code = cli_find_job_or_run(cli, cli->args[0], &l.job);
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code != CLI_CONTINUE)
        return code;
    l.attempt = (int32_t)attempt;
    l.fixed_attempt = attempt > 0;
    if (since_ms)
        hd_clock_format_utc(hd_clock_wall_ms() - since_ms, l.since);
    code = run(&l, ranks);
    for (size_t i = 0; i < l.count; i++)
        hd_text_free(&l.ranks[i].line);
    free(l.ranks);
    hd_text_free(&l.out);
    return code;
}

const struct cli_body cli_body_logs = {
    .usage = "Usage: heddle logs JOB|RUN [-f] [--rank R|A-B|all] [--attempt K] [--tail N]\n"
             "                   [--since TIME]\n",
    .about = "Prints what ranks wrote to their logs; of several ranks, each line begins with\n"
             "the rank's number.\n",
    .examples = "heddle logs 7 -f --rank 1",
    .run = cli_logs,
    .is_raw = true,
};
