/* eval: `heddle-worker eval`, computes the loss of a checkpoint or a model folder on data. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "flags/flags.h"
#include "train/evaluate.h"
#include "worker/worker.h"

enum { PROGRESS_MS = 200, LINE_MS = 10000, INTERRUPTED = 130, TERMINATED = 143 };

struct eval_bar {
    bool shown, tokenizing;
    int64_t begin_ms, last_ms;
};

/* Shows the progress: on a terminal one line that is overwritten, else a new line every LINE_MS.
 * Returns false after a signal. */
static bool show_eval_progress(void *user, const struct hd_evaluation_progress *p)
{
    struct eval_bar *bar = user;
    const int64_t now = hd_clock_now_ms();
    const bool is_terminal = isatty(STDERR_FILENO);
    char done[32], total[32], left[HD_CLOCK_TEXT_MAX];

    if (hd_worker_stop_signal())
        return false;
    if (bar->tokenizing != p->tokenizing)
        bar->begin_ms = now;
    bar->tokenizing = p->tokenizing;
    if (!p->done || !p->total || now - bar->last_ms < (is_terminal ? PROGRESS_MS : LINE_MS))
        return true;
    bar->last_ms = now;
    bar->shown = is_terminal;
    if (p->tokenizing) {
        hd_text_format_bytes(p->done, done);
        hd_text_format_bytes(p->total, total);
    } else {
        (void)snprintf(done, sizeof done, "%lld", (long long)p->done);
        (void)snprintf(total, sizeof total, "%lld windows", (long long)p->total);
    }
    hd_clock_format_span(
        (int64_t)((double)(p->total - p->done) * (double)(now - bar->begin_ms) / (double)p->done),
        left);
    (void)fprintf(stderr, "%s%s%s of %s, %s left%s", is_terminal ? "\r\033[K" : "",
                  p->tokenizing ? "tokenizing: " : "", done, total, left, is_terminal ? "" : "\n");
    return true;
}

enum eval_form { FORM_TEXT, FORM_JSON, FORM_JSONL };

/* Reads the command-line flags; they come before "--", data files after it. */
static enum hd_status read_eval_options(int argc, char **argv, struct hd_evaluation_options *ret,
                                        enum eval_form *ret_form)
{
    struct hd_evaluation_options o = {.backend = hd_backend_cpu(),
                                      .threads = hd_flags_threads(HD_FLAG_THREADS_MAX)};
    bool json = false, lines = false;
    struct hd_flag f[] = {HD_FLAGS_OF_MODEL(o),
                          HD_FLAG_INT64("--windows", o.windows, 1, INT64_C(1) << 40),
                          HD_FLAG_INT64("--context", o.context, 1, 1 << 24),
                          HD_FLAG_SWITCH("--json", json),
                          HD_FLAG_SWITCH("--jsonl", lines),
                          HD_FLAG_TEXT("--val", o.set)};
    const int flags = hd_flags_count(argc, argv);
    const enum hd_status st = HD_FLAGS_READ(flags, argv, f);

    if (flags + 1 < argc) {
        o.files = (const char *const *)argv + flags + 1;
        o.file_count = (size_t)(argc - flags - 1);
    }
    *ret = o;
    *ret_form = lines ? FORM_JSONL : json ? FORM_JSON : FORM_TEXT;
    return st;
}

static double nats_per_byte(const struct hd_evaluation *e)
{
    return e->loss * (double)e->targets / (double)e->bytes;
}

static void add_evaluation_json(struct hd_text *text, const struct hd_evaluation_options *o,
                                const struct hd_evaluation *e, enum eval_form form)
{
    struct hd_json_writer w = {.out = text};

    if (form == FORM_JSON) {
        hd_json_begin(&w, NULL, '{');
        hd_json_add_string(&w, "api_version", "heddle/v1");
        hd_json_add_string(&w, "kind", "EvaluationList");
        hd_json_begin(&w, "items", '[');
    }
    hd_json_begin(&w, NULL, '{');
    if (form == FORM_JSONL)
        hd_json_add_string(&w, "type", "evaluation");
    hd_json_add_real(&w, "loss", e->loss);
    if (e->pairs.count) {
        hd_json_add_int64(&w, "pairs", e->pairs.count);
        hd_json_add_real(&w, "accuracy", e->pairs.accuracy);
        hd_json_add_real(&w, "margin", e->pairs.margin);
        hd_json_add_real(&w, "reward", e->pairs.reward);
    } else {
        hd_json_add_real(&w, "perplexity", exp(e->loss));
        hd_json_add_int64(&w, "tokens", e->targets);
    }
    if (e->bytes) {
        hd_json_add_real(&w, "byte_perplexity", exp(nats_per_byte(e)));
        hd_json_add_real(&w, "bits_per_byte", nats_per_byte(e) / log(2));
        hd_json_add_int64(&w, "bytes", e->bytes);
    }
    hd_json_add_int64(&w, "windows", e->windows);
    hd_json_add_int64(&w, "all_windows", e->all_windows);
    hd_json_add_int64(&w, "context", e->context);
    hd_json_add_string(&w, "precision", e->precision);
    hd_json_add_string(&w, "model", o->dirs.dir);
    if (o->dirs.adapter)
        hd_json_add_string(&w, "adapter", o->dirs.adapter);
    if (*e->set)
        hd_json_add_string(&w, "set", e->set);
    if (e->is_checkpoint)
        hd_json_add_int64(&w, "step", e->step);
    else
        hd_json_add_null(&w, "step");
    hd_json_end(&w, '}');
    if (form == FORM_JSON) {
        hd_json_end(&w, ']');
        hd_json_end(&w, '}');
    }
    hd_text_add(text, "\n");
}

static void add_evaluation_text(struct hd_text *text, const struct hd_evaluation_options *o,
                                const struct hd_evaluation *e)
{
    hd_text_add(text, "loss        %.6f\n", e->loss);
    if (e->pairs.count)
        hd_text_add(text, "accuracy    %.2f%%\nmargin      %.6f\nreward      %.6f\n",
                    100 * e->pairs.accuracy, e->pairs.margin, e->pairs.reward);
    else
        hd_text_add(text, "perplexity  %.6g\n", exp(e->loss));
    if (e->bytes)
        hd_text_add(text, "of a byte   %.6g, %.6g bits\n", exp(nats_per_byte(e)),
                    nats_per_byte(e) / log(2));
    hd_text_add(text, "%s      %lld, %lld of %lld windows of %lld\n",
                e->pairs.count ? "pairs " : "tokens",
                (long long)(e->pairs.count ? e->pairs.count : e->targets), (long long)e->windows,
                (long long)e->all_windows, (long long)e->context);
    if (*e->set)
        hd_text_add(text, "set         %s\n", e->set);
    if (e->is_checkpoint)
        hd_text_add(text, "step        %lld\n", (long long)e->step);
    hd_text_add(text, "model       %s, %s\n", o->dirs.dir, e->precision);
    if (o->dirs.adapter)
        hd_text_add(text, "adapter     %s\n", o->dirs.adapter);
}

int hd_worker_eval(int argc, char **argv)
{
    struct hd_evaluation_options options;
    struct hd_evaluation result;
    struct eval_bar bar = {.begin_ms = hd_clock_now_ms()};
    struct hd_text text = {0};
    enum eval_form form = FORM_TEXT;
    enum hd_status st = read_eval_options(argc, argv, &options, &form);

    bar.last_ms = bar.begin_ms;
    hd_worker_catch_stop();
    if (!st) {
        options.progress = show_eval_progress;
        options.user = &bar;
        st = hd_evaluate(&options, &result);
    }
    if (bar.shown)
        (void)fprintf(stderr, "\r\033[K");
    if (!st && form == FORM_TEXT)
        add_evaluation_text(&text, &options, &result);
    else if (!st)
        add_evaluation_json(&text, &options, &result, form);
    st = hd_worker_print(st, &text);
    if (st == HD_ABORTED) {
        (void)hd_worker_finish("eval", st);
        return hd_worker_stop_signal() == SIGTERM ? TERMINATED : INTERRUPTED;
    }
    return hd_worker_finish("eval", st);
}
