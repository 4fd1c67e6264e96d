#include "daemon/devices/prober.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "daemon/devices/sample.h"

/* percent of the processors, or of a GPU, that other processes use; above it a measurement is unreliable */
enum { BUSY_PERCENT = 20, LOOK_MS = 10000 /* deadline of heddle-worker gpu-sample, ms */ };

static const char head[] = "heddle-probe 3\nhash ";

/* ---- the file ---- */

/* Checks the hash of the file. Format: lines "heddle-probe 3" and "hash HASH"; then, covered by the
 * hash, "key KEY", "ended_ms N", "processors PERCENT", "gpu PERCENT", "problem TEXT" and the
 * calibration. */
static enum hd_status check_hash(const struct hd_prober *p, const struct hd_text *text,
                                 char **ret_rest)
{
    const size_t body = strlen(head) + HD_HASH_TEXT_MAX; /* offset after the line with the hash */
    const char *data = text->data ? text->data : "";
    char hash[HD_HASH_TEXT_MAX] = "";

    if (hd_text_starts(data, "heddle-probe 1\n") || hd_text_starts(data, "heddle-probe 2\n"))
        return hd_err(HD_UNSUPPORTED, "%s was written by an older build of heddled", p->path);
    if (text->len_bytes >= body)
        hd_hash_format(hd_hash_bytes(data + body, text->len_bytes - body), hash);
    if (text->len_bytes < body || !hd_text_starts(data, head) ||
        strncmp(data + strlen(head), hash, strlen(hash)) != 0 || data[body - 1] != '\n')
        return hd_err(HD_CORRUPT, "%s is damaged, or not the result of a probe", p->path);
    *ret_rest = text->data + body;
    return HD_OK;
}

static enum hd_status read_result_lines(struct hd_prober *p, char *rest)
{
    static const char *const names[] = {"key ", "ended_ms ", "processors ", "gpu ", "problem "};
    enum { KEY, ENDED, PROCESSORS, GPU, PROBLEM, LINES };
    const char *lines[LINES];
    int64_t processors, gpu;
    bool is_result = true;

    for (int i = 0; i < LINES && is_result; i++) {
        lines[i] = strsep(&rest, "\n");
        is_result = rest && hd_text_starts(lines[i], names[i]);
        lines[i] += is_result ? strlen(names[i]) : 0;
    }
    if (!is_result || hd_text_to_int64(lines[ENDED], 1, INT64_MAX, &p->ended_ms) ||
        hd_text_to_int64(lines[PROCESSORS], 0, 100, &processors) ||
        hd_text_to_int64(lines[GPU], 0, 100, &gpu))
        return hd_err(HD_CORRUPT, "%s is not the result of a probe", p->path);
    if (strcmp(lines[KEY], p->key) != 0) {
        hd_log(HD_LOG_INFO,
               "the devices were probed as [%s] and are now [%s]; that result is dropped",
               lines[KEY], p->key);
        p->ended_ms = 0;
        return HD_OK;
    }
    p->processors_percent = (int)processors;
    p->gpu_percent = (int)gpu;
    (void)snprintf(p->problem, sizeof p->problem, "%s", lines[PROBLEM]);
    hd_text_add(&p->calibration, "%s", rest);
    return HD_OK;
}

static void read_file(struct hd_prober *p)
{
    struct hd_text text = {0};
    char *rest = NULL;
    enum hd_status st =
        hd_file_read(p->path, HD_PROBER_RESULT_MAX + HD_PROBER_KEY_MAX + HD_ERR_MAX, &text);

    if (!st)
        st = check_hash(p, &text, &rest);
    if (!st)
        st = read_result_lines(p, rest);
    if (st && st != HD_NOT_FOUND)
        hd_log(st == HD_UNSUPPORTED ? HD_LOG_INFO : HD_LOG_WARN,
               "the devices count as not probed: %s", hd_err_message());
    if (st)
        p->ended_ms = 0;
    hd_text_free(&text);
}

/* Saves the result of the probe. If that fails, the devices are probed again after a restart. */
static void write_file(const struct hd_prober *p)
{
    struct hd_text text = {0}, body = {0};
    char hash[HD_HASH_TEXT_MAX];
    enum hd_status st;

    hd_text_add(&body, "key %s\nended_ms %lld\nprocessors %d\ngpu %d\nproblem %s\n%s", p->key,
                (long long)p->ended_ms, p->processors_percent, p->gpu_percent, p->problem,
                p->calibration.data ? p->calibration.data : "");
    if (!body.failed) {
        hd_hash_format(hd_hash_bytes(body.data, body.len_bytes), hash);
        hd_text_add(&text, "%s%s\n%s", head, hash, body.data);
    }
    st = body.failed || text.failed
             ? hd_err(HD_NO_MEMORY, "no memory for the result of a probe")
             : hd_file_write_atomic(p->path, text.data, text.len_bytes, 0600);
    if (st)
        hd_log(HD_LOG_WARN,
               "cannot save the result of the probe, so a restart of heddled loses it: %s",
               hd_err_message());
    hd_text_free(&body);
    hd_text_free(&text);
}

/* ---- a probe ---- */

/* Cuts the text to one line, and replaces bytes if it is not UTF-8, so that it can be sent as a
 * message. */
static void keep_sendable(char *text)
{
    text[strcspn(text, "\n")] = '\0';
    if (hd_text_is_utf8(text, strlen(text)))
        return;
    for (; *text; text++)
        *text = (unsigned char)*text < 0x80 ? *text : '?';
}

/* Records the end of the newest probe. problem: why it measured nothing; "": it measured. */
static void end_probe(struct hd_prober *p, const char *problem)
{
    p->ended_ms = hd_clock_wall_ms();
    p->answered = p->asked;
    (void)snprintf(p->problem, sizeof p->problem, "%s", problem);
    keep_sendable(p->problem);
    write_file(p);
}

static void fail_probe(struct hd_prober *p)
{
    p->has_failed = true;
    hd_log(HD_LOG_WARN, "the probe of the devices failed, plans use %s: %s",
           p->calibration.len_bytes ? "the previous result" : "the built-in tables",
           hd_err_message());
    end_probe(p, hd_err_message());
}

static enum hd_status begin(struct hd_prober *p)
{
    char seconds[16], out[PATH_MAX + 32];
    const char *const argv[] = {p->worker, "probe",    "--devices", p->devices, "--seconds",
                                seconds,   "--answer", "--out",     out,        NULL};

    (void)hd_file_remove_tree(p->dir); /* may be left over from a helper that was killed */
    if (hd_file_make_dirs(p->dir, 0700))
        return HD_IO;
    (void)snprintf(seconds, sizeof seconds, "%d", p->seconds ? p->seconds : HD_PROBER_SECONDS);
    (void)snprintf(out, sizeof out, "%s/calibration", p->dir);
    return hd_ask_begin(&p->run, argv, p->timeout_ms ? p->timeout_ms : HD_PROBER_MS);
}

/* Starts the helper that tells how busy the GPUs are; for CPU devices the one that measures. */
static enum hd_status begin_with_a_look(struct hd_prober *p)
{
    const char *const argv[] = {p->worker, "gpu-sample", NULL};

    p->gpu_now_percent = 0;
    p->looks = hd_text_starts(p->devices, "cuda:");
    return p->looks ? hd_ask_begin(&p->run, argv, LOOK_MS) : begin(p);
}

/* Takes over how busy the devices' busiest GPU is. */
static void take_look(struct hd_prober *p)
{
    struct hd_sample_list *list = calloc(1, sizeof *list);

    if (list && !hd_sample_list_read(p->run.answer.data, p->run.answer.len_bytes, list))
        for (int i = 0; i < list->count; i++) {
            const double percent = 100 * list->samples[i].busy_ratio; /* NaN: unknown */

            if (strstr(p->devices, list->samples[i].uuid) && percent > p->gpu_now_percent)
                p->gpu_now_percent = percent < 100 ? (int)percent : 100;
        }
    free(list);
}

/* Takes over the result of the helper (heddle-worker probe), which prints "measured", or why it did
 * not measure. */
static enum hd_status take(struct hd_prober *p)
{
    char path[PATH_MAX + 32];
    struct hd_text text = {0};
    enum hd_status st;

    p->run.answer.data[strcspn(p->run.answer.data, "\n")] = '\0';
    if (strcmp(p->run.answer.data, "measured") != 0)
        return hd_err(HD_IO, "%s", p->run.answer.data);
    (void)snprintf(path, sizeof path, "%s/calibration", p->dir);
    st = hd_file_read(path, HD_PROBER_RESULT_MAX, &text);
    if (!st && (!text.len_bytes || strlen(text.data) != text.len_bytes))
        st = hd_err(HD_CORRUPT, "%s is not a text", path);
    if (st) {
        hd_text_free(&text);
        return st;
    }
    hd_text_free(&p->calibration);
    p->calibration = text;
    return HD_OK;
}

static struct hd_load load_now(const struct hd_prober *p)
{
    return hd_load_read(p->stat_path ? p->stat_path : "/proc/stat");
}

/* Returns how much of the processors' time other programs have used since p->since, percent. */
static int percent_of_others(const struct hd_prober *p)
{
    const struct hd_load now = load_now(p);

    return (int)(100 * hd_load_of_others(&p->since, &now) + 0.5);
}

/* Returns whether other programs were so busy since p->since that a probe without a request of the
 * controller must wait. Logs that once, with advice. */
static bool is_disturbed(struct hd_prober *p)
{
    const bool has_result = p->calibration.len_bytes > 0;
    const int percent = percent_of_others(p);

    if ((p->beside_others && !has_result) || p->asked != p->answered ||
        (percent <= BUSY_PERCENT && p->gpu_now_percent <= BUSY_PERCENT))
        return false;
    if (!p->has_reported_busy)
        hd_log(
            HD_LOG_WARN,
            "the devices are not probed while other programs use %d%% of %s; until then plans use "
            "%s (heddle probe%s measures at once)",
            percent > BUSY_PERCENT ? percent : p->gpu_now_percent,
            percent > BUSY_PERCENT ? "the processors" : "a GPU",
            has_result ? "what was measured beside them" : "the built-in tables",
            has_result ? "" : " or --probe anyway");
    p->has_reported_busy = true;
    return true;
}

static void clean_up(struct hd_prober *p)
{
    p->is_running = p->looks = false;
    hd_ask_end(&p->run);
    (void)hd_file_remove_tree(p->dir); /* best effort: the next probe removes it, too */
}

static bool is_over(struct hd_prober *p)
{
    enum hd_status st;

    if (!hd_ask_step(&p->run, &st))
        return false;
    hd_ask_reap(&p->run);
    if (!st && is_disturbed(p)) {
        clean_up(p);
        p->idle_since_ms = 0;
        return false;
    }
    if (!st)
        st = take(p);
    if (!st) {
        p->processors_percent = percent_of_others(p);
        p->gpu_percent = p->gpu_now_percent;
    }
    clean_up(p);
    if (st) {
        fail_probe(p);
        return true;
    }
    hd_log(HD_LOG_INFO, "the devices were probed");
    end_probe(p, "");
    return true;
}

static bool was_disturbed(const struct hd_prober *p)
{
    return p->processors_percent > BUSY_PERCENT || p->gpu_percent > BUSY_PERCENT;
}

/* Starts the helper that measures when the one that looks has ended; without its answer GPUs count as
 * free. */
static bool is_seen(struct hd_prober *p)
{
    enum hd_status st;

    if (!hd_ask_step(&p->run, &st))
        return false;
    hd_ask_reap(&p->run);
    if (!st)
        take_look(p);
    clean_up(p);
    if (is_disturbed(p)) {
        p->idle_since_ms = 0;
        return false;
    }
    p->since = load_now(p);
    p->is_running = !begin(p);
    if (!p->is_running)
        fail_probe(p);
    return true;
}

static bool is_wanted(const struct hd_prober *p, int64_t now_ms)
{
    if (p->asked != p->answered)
        return true;
    return p->at_first && !p->has_failed && (!p->calibration.len_bytes || was_disturbed(p)) &&
           now_ms - p->idle_since_ms >= HD_PROBER_QUIET_MS;
}

bool hd_prober_step(struct hd_prober *p, bool idle)
{
    const int64_t now_ms = hd_clock_now_ms();

    if (p->is_running)
        return p->looks ? is_seen(p) : is_over(p);
    if (!idle) {
        p->idle_since_ms = 0;
        return false;
    }
    if (!p->idle_since_ms) {
        p->gpu_now_percent = 0; /* asked anew after HD_PROBER_QUIET_MS */
        p->idle_since_ms = now_ms;
        p->since = load_now(p);
    }
    if (!is_wanted(p, now_ms))
        return false;
    if (is_disturbed(p)) {
        p->idle_since_ms = 0;
        return false;
    }
    p->since = load_now(p);
    if (begin_with_a_look(p)) {
        p->looks = false;
        fail_probe(p);
        return true;
    }
    p->is_running = true;
    hd_log(HD_LOG_INFO, "probing %s, for at most %d s", p->devices, HD_PROBER_MS / 1000);
    return true;
}

void hd_prober_yield(struct hd_prober *p, const char *why)
{
    p->idle_since_ms = 0;
    if (p->is_running) {
        clean_up(p);
        hd_log(HD_LOG_INFO, "the probe of the devices was ended: %s", why);
    }
    if (p->asked != p->answered)
        end_probe(p, why);
}

void hd_prober_conditions(const struct hd_prober *p, struct hd_text *text)
{
    hd_text_add(text, "%s", p->key);
    if (p->calibration.len_bytes && was_disturbed(p))
        hd_text_add(
            text,
            "; other programs used %d%% of the processors and %d%% of a GPU meanwhile, so these "
            "figures are too slow%s",
            p->processors_percent, p->gpu_percent,
            p->at_first ? ", and the idle node measures again" : ": heddle probe it when idle");
}

void hd_prober_ask(struct hd_prober *p, uint64_t question)
{
    p->asked = question;
}

/* ---- the start and the end ---- */

void hd_prober_open(struct hd_prober *p, const char *state_dir)
{
    (void)snprintf(p->path, sizeof p->path, "%s/probe", state_dir);
    (void)snprintf(p->dir, sizeof p->dir, "%s/probing", state_dir);
    (void)hd_file_remove_tree(p->dir);
    p->ended_ms = p->idle_since_ms = p->processors_percent = p->gpu_percent = 0;
    p->problem[0] = '\0';
    p->has_failed = false;
    read_file(p);
}

void hd_prober_close(struct hd_prober *p)
{
    if (p->is_running)
        clean_up(p);
    hd_text_free(&p->calibration);
}
