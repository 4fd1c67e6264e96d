#include "tests/bench/bench_job.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

void bench_job_word(char *ret_word, const char *text)
{
    (void)snprintf(ret_word, HD_JOB_WORD_MAX, "%s", text);
}

struct hd_job bench_job(const char *family, const char *precision, const char *device,
                        struct hd_job_file *file)
{
    struct hd_job j =
        HD_JOB(.rope_factor = 1, .norm_eps = 1e-5, .tie_embeddings = true, .steps = 1000000,
               .lr_peak = 6e-4, .lr_min = 6e-4, .beta1 = 0.9, .beta2 = 0.95, .adam_eps = 1e-8,
               .weight_decay = 0.1, .clip = 1, .seed = 1, .threads = 1, .pp = 1, .dp = 1, .cp = 1,
               .tp = 1, .ep = 1, .devices_min = 1, .devices_max = 1, .job_id = 1, .attempt = 1,
               .train = file, .train_count = 1);

    j.name = "bench";
    j.family = family;
    j.positions =
        hd_job_find_word(hd_job_positions_words, strcmp(family, "gpt2") == 0 ? "learned" : "rope");
    j.rope_scaling = HD_JOB_ROPE_SCALING_NONE;
    j.cp_exchange = HD_JOB_CP_EXCHANGE_RING;
    bench_job_word(j.stages, "auto");
    bench_job_word(j.schedule, "none");
    bench_job_word(j.recompute, "none");
    j.documents = HD_JOB_DOCUMENTS_JOINED;
    j.lr_decay = HD_JOB_LR_DECAY_CONSTANT;
    j.precision = hd_job_find_word(hd_job_precision_words, precision);
    j.device = hd_job_find_word(hd_job_device_words, device);
    j.base_manifest_hash = "-";
    return j;
}

enum hd_status bench_make_dir(char ret_dir[BENCH_DIR_MAX])
{
    const char *place = getenv("TMPDIR");
    const int length = snprintf(ret_dir, BENCH_DIR_MAX, "%s/heddle-bench-XXXXXX",
                                place && *place ? place : "/tmp");

    if (length >= BENCH_DIR_MAX)
        return hd_err(HD_INVALID, "TMPDIR is a path of more than %d bytes", BENCH_DIR_MAX);
    if (!mkdtemp(ret_dir))
        return hd_err(HD_IO, "cannot make a folder %s: %s", ret_dir, strerror(errno));
    return HD_OK;
}

enum hd_status bench_write_corpus(const char *dir, char ret_corpus[BENCH_CORPUS_MAX])
{
    static char bytes[BENCH_CORPUS_BYTES];
    uint32_t x = 1;

    for (int i = 0; i < BENCH_CORPUS_BYTES; i++) {
        x = x * 1664525u + 1013904223u;
        bytes[i] = (char)(x >> 24);
    }
    (void)snprintf(ret_corpus, BENCH_CORPUS_MAX, "%s/corpus", dir);
    return hd_file_write_atomic(ret_corpus, bytes, sizeof bytes, 0600);
}
