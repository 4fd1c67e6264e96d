#include "controller/cli/plan_command.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "plan/cluster.h"
#include "plan/plan.h"

/* ---- devices ---- */

/* Refuses a value of --devices. word: the text before the colon; if it is no kind, the message
 * names the nearest kind. */
static int refuse_devices(const char *text, const char *word)
{
    const bool is_cpu = strcmp(word, "cpu") == 0;
    struct hd_text words = {0};
    const char *nearest;
    int code;

    if (is_cpu || hd_gpu_kind_find(word))
        return cli_usage("plan: --devices %s is not understood; give %s:N%s, of 1 to %d devices",
                         text, word, is_cpu ? ", or cpu:N:T with T threads each" : "",
                         HD_PLAN_DEVICES_MAX);
    nearest = hd_cluster_nearest_kind(word);
    hd_cluster_add_kinds(&words);
    code = cli_usage("plan: --devices %s is not understood%s%s%s give cpu:N or cpu:N:T, N devices "
                     "(1 to %d) of T "
                     "threads, or KIND:N, N GPUs of one of these kinds: %s",
                     text, nearest ? "; did you mean " : ";", nearest ? nearest : "",
                     nearest ? ":N?" : "", HD_PLAN_DEVICES_MAX, words.failed ? "" : words.data);
    hd_text_free(&words);
    return code;
}

/* Appends "KEY=VALUE". origin: its name in messages. Refuses a key that an earlier option gave
 * another value. */
static int add_override(struct cli_list *overrides, const char *text, const char *origin)
{
    const size_t key_bytes = strcspn(text, "=") + 1;

    for (size_t i = 0; i < overrides->count; i++) {
        const char *item = overrides->items[i], *by = overrides->origins[i];

        if (strncmp(item, text, key_bytes) == 0 && strcmp(item, text) != 0)
            return cli_usage("plan: %s%s and %s both give %.*s; leave one out", by ? by : "--set ",
                             by ? "" : item, origin, (int)(key_bytes - 1), text);
    }
    if (overrides->count == sizeof overrides->items / sizeof overrides->items[0])
        return cli_usage("plan: too many --set and --pin; leave some out");
    overrides->origins[overrides->count] = origin;
    overrides->items[overrides->count++] = text;
    return CLI_CONTINUE;
}

/* Parses --devices cpu:N[:T] or KIND:N into overrides of resources.devices and
 * resources.device_type, so that the job file's rules are checked with them. */
static int read_devices(const char *text, struct plan_asked *a, struct cli_list *overrides)
{
    char copy[64], *rest = copy, *word, *count, *threads;
    bool cpu;

    if (!text)
        return CLI_CONTINUE;
    (void)snprintf(copy, sizeof copy, "%s", text);
    word = strsep(&rest, ":");
    count = strsep(&rest, ":");
    threads = strsep(&rest, ":");
    cpu = strcmp(word, "cpu") == 0;
    a->kind = hd_gpu_kind_find(word);
    if (rest || !(cpu || a->kind) || !count ||
        hd_text_to_int64(count, 1, HD_PLAN_DEVICES_MAX, &a->devices) ||
        (threads && (!cpu || hd_text_to_int64(threads, 1, 4096, &a->threads))))
        return refuse_devices(text, word);
    (void)snprintf(a->override, sizeof a->override, "resources.devices=%s", count);
    (void)snprintf(a->origin, sizeof a->origin, "--devices %s", text);
    if (add_override(overrides, a->override, a->origin) != CLI_CONTINUE)
        return CLI_USAGE;
    return add_override(overrides, cpu ? "resources.device_type=cpu" : "resources.device_type=cuda",
                        a->origin);
}

/* ---- pins ---- */

/* Returns the next pin at *at, which ends before a comma outside brackets: "stages=[7,8]" is one
 * pin. */
static char *next_pin(char **at)
{
    char *pin = *at, *end = pin;
    int depth = 0;

    if (!pin)
        return NULL;
    for (; *end && (*end != ',' || depth > 0); end++)
        depth += (*end == '[' || *end == '{') - (*end == ']' || *end == '}');
    *at = *end ? end + 1 : NULL;
    *end = '\0';
    return pin;
}

/* Parses --pin tp=8,pp=2 into overrides of parallel.NAME; `precision` is a key of train. The texts
 * live in the arena. */
static int read_pins(const struct cli_list *pins, struct hd_arena *arena,
                     struct cli_list *overrides)
{
    for (size_t i = 0; i < pins->count; i++) {
        char *copy = hd_arena_strdup(arena, pins->items[i]), *pin;

        while ((pin = next_pin(&copy)) != NULL) {
            const char *group = strncmp(pin, "precision=", 10) == 0 ? "train" : "parallel";
            const size_t size = strlen(pin) + sizeof "parallel.";
            char *override = hd_arena_alloc(arena, size);
            const char *origin = hd_arena_printf(arena, "--pin %s", pin);

            if (!strchr(pin, '='))
                return cli_usage("plan: --pin %s is not understood; give NAME=VALUE,.. of the keys "
                                 "below parallel, such as tp=8,pp=2",
                                 pins->items[i]);
            if (!override || !origin)
                break;
            (void)snprintf(override, size, "%s.%s", group, pin);
            if (add_override(overrides, override, origin) != CLI_CONTINUE)
                return CLI_USAGE;
        }
    }
    return hd_arena_failed(arena) ? cli_fail(hd_err(HD_NO_MEMORY, "no memory for a plan"))
                                  : CLI_CONTINUE;
}

int plan_flags_read(struct plan_flags *f, struct plan_asked *a)
{
    int code = read_devices(f->devices, a, &f->overrides);

    if (code == CLI_CONTINUE && f->cluster)
        code = add_override(&f->overrides, "resources.device_type=cuda", "--cluster");
    return code == CLI_CONTINUE ? read_pins(&f->pins, &a->arena, &f->overrides) : code;
}

/* ---- --out ---- */

static bool is_same_file(const char *path, const struct stat *out)
{
    struct stat info;

    return stat(path, &info) == 0 && info.st_dev == out->st_dev && info.st_ino == out->st_ino;
}

static int refuse_out(const char *out, const char *path)
{
    return cli_usage("plan: --out %s would overwrite %s; give another file", out, path);
}

int plan_flags_check_out(const struct plan_flags *f, const char *job_file,
                         const struct hd_job *spec)
{
    const char *const read[] = {job_file, f->cluster, f->calibration, spec ? spec->tokenizer : NULL,
                                spec ? spec->template : NULL};
    struct stat out;

    if (!f->out || stat(f->out, &out) < 0)
        return CLI_CONTINUE;
    for (size_t i = 0; i < sizeof read / sizeof read[0]; i++)
        if (read[i] && is_same_file(read[i], &out))
            return refuse_out(f->out, read[i]);
    for (int64_t i = 0; spec && i < spec->train_count; i++)
        if (is_same_file(spec->train[i].path, &out))
            return refuse_out(f->out, spec->train[i].path);
    for (int64_t i = 0; spec && i < spec->val_count; i++)
        if (is_same_file(spec->val[i].path, &out))
            return refuse_out(f->out, spec->val[i].path);
    return CLI_CONTINUE;
}
