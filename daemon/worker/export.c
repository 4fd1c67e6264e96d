/* export: `heddle-worker export`, a model directory of transformers from a checkpoint. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "hf/hf.h"
#include "worker/flags.h"
#include "worker/worker.h"

enum { PROGRESS_MS = 200, SHARD_MB_MAX = 1 << 20, SHARD_MB_DEFAULT = 5000 };

struct export_bar {
    bool shown;
    int64_t last_ms;
};

/* Shown on a terminal only, and not for every tensor. */
static void show_progress(void *context, int64_t done_bytes, int64_t total_bytes)
{
    struct export_bar *bar = context;
    const int64_t now = hd_clock_now_ms();
    char done[32], total[32];

    if (!isatty(STDERR_FILENO) || (done_bytes < total_bytes && now - bar->last_ms < PROGRESS_MS))
        return;
    bar->last_ms = now;
    bar->shown = true;
    hd_text_format_bytes(done_bytes, done);
    hd_text_format_bytes(total_bytes, total);
    (void)fprintf(stderr, "\r\033[K%s of %s written", done, total);
}

static enum hd_status read_options(int argc, char **argv, struct hd_hf_export *ret_options)
{
    struct hd_flag f[] = {{"--checkpoint", true, false, NULL},
                          {"--out", true, false, NULL},
                          {"--dtype", false, false, NULL},
                          {"--max-shard-size", false, false, NULL},
                          {"--force", false, true, NULL}};
    int64_t shard_mb = 0;
    enum hd_status st = hd_flags_read(argc, argv, f, sizeof f / sizeof f[0]);

    if (!st)
        st = hd_flag_int(&f[3], 1, SHARD_MB_MAX, SHARD_MB_DEFAULT, &shard_mb);
    if (st)
        return st;
    *ret_options = (struct hd_hf_export){.checkpoint_dir = f[0].value,
                                         .out_dir = f[1].value,
                                         .dtype = HD_F32,
                                         .shard_bytes_max = shard_mb * 1000 * 1000,
                                         .force = f[4].value != NULL};
    if (f[2].value && strcmp(f[2].value, "bf16") == 0)
        ret_options->dtype = HD_BF16;
    else if (f[2].value && strcmp(f[2].value, "fp32") != 0)
        return hd_err(HD_INVALID, "--dtype: '%.20s' is neither fp32 nor bf16", f[2].value);
    return HD_OK;
}

int hd_worker_export(int argc, char **argv)
{
    struct hd_hf_export options;
    struct export_bar bar = {.shown = false};
    enum hd_status st = read_options(argc, argv, &options);

    if (!st) {
        options.progress = show_progress;
        options.context = &bar;
        st = hd_hf_export(&options);
    }
    if (bar.shown)
        (void)fprintf(stderr, "\n");
    if (!st)
        (void)printf("%s\n", options.out_dir);
    return hd_worker_finish("export", st);
}
