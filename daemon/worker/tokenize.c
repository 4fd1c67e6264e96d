/* tokenize_files: `heddle-worker tokenize`, text files into a token file. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "data/tokenize_files.h"
#include "worker/flags.h"
#include "worker/worker.h"

enum { PROGRESS_MS = 200, INTERRUPTED = 130 };

static volatile sig_atomic_t stop; /* set by the handler alone: nothing else may be done there */

static void on_signal(int number)
{
    (void)number;
    stop = 1;
}

struct bar {
    bool shown;
    int64_t begin_ms, last_ms;
};

/* On a terminal a line that renews itself. */
static bool show_progress(void *context, const struct hd_tokenize_counts *c)
{
    struct bar *bar = context;
    const int64_t now = hd_clock_now_ms(), spent = now - bar->begin_ms;
    char done[32], total[32], rate[32], left[HD_CLOCK_TEXT_MAX];

    if (stop)
        return false;
    if (!isatty(STDERR_FILENO) || !c->read_bytes || now - bar->last_ms < PROGRESS_MS || !spent)
        return true;
    bar->last_ms = now;
    bar->shown = true;
    hd_text_format_bytes(c->read_bytes, done);
    hd_text_format_bytes(c->total_bytes, total);
    hd_text_format_bytes((int64_t)((double)c->read_bytes * 1000 / (double)spent), rate);
    hd_clock_format_span(
        (int64_t)((double)(c->total_bytes - c->read_bytes) * (double)spent / (double)c->read_bytes),
        left);
    (void)fprintf(stderr, "\r\033[K%s of %s, %s/s, %s left", done, total, rate, left);
    return true;
}

/* What is before "--" are flags, what is behind it input files. */
static enum hd_status read_options(int argc, char **argv, struct hd_tokenize_job *ret_how,
                                   bool *ret_json)
{
    struct hd_flag f[] = {
        {"--out", true, false, NULL},           {"--tokenizer", true, false, NULL},
        {"--threads", false, false, NULL},      {"--key", false, false, NULL},
        {"--no-append-eot", false, true, NULL}, {"--json", false, true, NULL}};
    int64_t threads = 0;
    int inputs = 0;
    enum hd_status st;

    while (inputs < argc && strcmp(argv[inputs], "--") != 0)
        inputs++;
    st = hd_flags_read(inputs, argv, f, sizeof f / sizeof f[0]);
    if (!st && inputs + 1 >= argc)
        st = hd_err(HD_INVALID, "no input files; they stand behind --");
    if (!st)
        st =
            hd_flag_int(&f[2], 1, HD_TOKENIZE_THREADS_MAX, sysconf(_SC_NPROCESSORS_ONLN), &threads);
    if (st)
        return st;
    *ret_how = (struct hd_tokenize_job){
        .inputs = (const char *const *)argv + inputs + 1,
        .input_count = (size_t)(argc - inputs - 1),
        .out = f[0].value,
        .tokenizer = f[1].value,
        .key = f[3].value,
        .threads = threads < HD_TOKENIZE_THREADS_MAX ? (int)threads : HD_TOKENIZE_THREADS_MAX,
        .ends_documents = !f[4].value};
    *ret_json = f[5].value != NULL;
    return HD_OK;
}

static void print_summary(const struct hd_tokenize_job *how, const struct hd_tokenize_counts *c,
                          int64_t spent_ms, bool as_json)
{
    const double per_token = c->tokens ? (double)c->read_bytes / (double)c->tokens : 0;
    const double rate = (double)c->read_bytes / 1e3 / (double)(spent_ms ? spent_ms : 1);
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};

    if (!as_json) {
        (void)printf("%s: %lld documents, %lld tokens, %.2f bytes/token, %.1f MB/s\n", how->out,
                     (long long)c->documents, (long long)c->tokens, per_token, rate);
        return;
    }
    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "api_version", "heddle/v1");
    hd_json_add_string(&w, "kind", "TokenFile");
    hd_json_begin(&w, "items", '[');
    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "path", how->out);
    hd_json_add_int64(&w, "documents", c->documents);
    hd_json_add_int64(&w, "tokens", c->tokens);
    hd_json_add_int64(&w, "read_bytes", c->read_bytes);
    hd_json_add_real(&w, "bytes_per_token", per_token);
    hd_json_add_real(&w, "mb_per_s", rate);
    hd_json_end(&w, '}');
    hd_json_end(&w, ']');
    hd_json_end(&w, '}');
    (void)printf("%s\n", text.data ? text.data : "");
    hd_text_free(&text);
}

int hd_worker_tokenize(int argc, char **argv)
{
    const struct sigaction action = {.sa_handler = on_signal};
    struct hd_tokenize_job how;
    struct hd_tokenize_counts counts = {0};
    struct bar bar = {.begin_ms = hd_clock_now_ms()};
    bool as_json = false;
    enum hd_status st = read_options(argc, argv, &how, &as_json);

    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    if (!st) {
        how.progress = show_progress;
        how.context = &bar;
        st = hd_tokenize_files(&how, &counts);
    }
    if (bar.shown)
        (void)fprintf(stderr, "\r\033[K");
    if (!st)
        print_summary(&how, &counts, hd_clock_now_ms() - bar.begin_ms, as_json);
    if (st == HD_ABORTED) {
        (void)hd_worker_finish("tokenize", st);
        return INTERRUPTED;
    }
    return hd_worker_finish("tokenize", st);
}
