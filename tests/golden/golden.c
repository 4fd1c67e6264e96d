#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/program/test.h"

/* ---- the rule of numbers ---- */

double golden_number(const char *name, int64_t i)
{
    uint64_t key = 0xCBF29CE484222325, z;

    for (const char *c = name; *c; c++)
        key = (key ^ (unsigned char)*c) * 0x100000001B3;
    z = key + (uint64_t)(i + 1) * 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    return (double)(z >> 40) / 0x1p24;
}

float golden_weight(const char *name, int dim_count, int64_t i)
{
    const double u = golden_number(name, i) - 0.5;
    const size_t len = strlen(name);

    if (len > 4 && strcmp(name + len - 4, "bias") == 0)
        return (float)(u / 8);
    return (float)(dim_count == 1 ? 1 + u / 4 : u / 2);
}

/* ---- files ---- */

static bool set_int(int64_t *member, const char *value)
{
    char *end;

    *member = strtoll(value, &end, 10);
    return *end == '\0';
}

/* Settings are named as in the text of version 1. */
static bool set(struct hd_job *job, const char *name, const char *value)
{
    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];

        if (key->kind != HD_KEY_FORM && strcmp(key->v1_path ? key->v1_path : key->path, name) == 0)
            return hd_job_parse(key, value, job) == HD_OK;
    }
    return false;
}

static void read_line(char *line, struct hd_job *job, struct golden *g)
{
    struct golden_tensor *t = &g->tensors[g->tensor_count];
    char *value = strchr(line, ' ');

    if (strncmp(line, "tensor ", 7) == 0) {
        char *count = strrchr(line, ' ');

        assert_true(g->tensor_count < GOLDEN_TENSORS_MAX);
        *count = '\0';
        (void)snprintf(t->name, sizeof t->name, "%s", line + 7);
        assert_true(set_int(&t->count, count + 1));
        g->tensor_count++;
        return;
    }
    assert_non_null(value);
    *value = '\0';
    if (!set(job, line, value + 1))
        fail_msg("golden: '%s %s' is no setting of a job", line, value + 1);
    g->setting_count++;
}

void golden_read(const char *name, struct hd_arena *arena, struct hd_job *job,
                 struct golden *ret_golden)
{
    const char *source = getenv("HEDDLE_SOURCE_DIR");
    struct hd_text file = {0};
    const float *values;
    char path[512], *copy, *line, *next;

    (void)snprintf(path, sizeof path, "%s/tests/golden/values/%s.golden", source ? source : ".",
                   name);
    if (hd_file_read(path, 4 << 20, &file))
        fail_msg("%s", hd_err_message());
    copy = hd_arena_alloc(arena, file.len_bytes + 1);
    assert_non_null(copy);
    memcpy(copy, file.data, file.len_bytes);
    copy[file.len_bytes] = '\0';
    *ret_golden = (struct golden){.tensor_count = 0};
    assert_int_equal(strncmp(copy, "golden 1\n", 9), 0);
    for (line = copy + 9; strncmp(line, "end\n", 4) != 0; line = next + 1) {
        next = strchr(line, '\n');
        assert_non_null(next);
        *next = '\0';
        if (*line != '#')
            read_line(line, job, ret_golden);
    }
    line += 4;
    values = hd_arena_alloc(arena, file.len_bytes); /* aligned, unlike the text */
    assert_non_null(values);
    memcpy((void *)values, line, (size_t)(copy + file.len_bytes - line));
    for (int i = 0; i < ret_golden->tensor_count; i++) {
        ret_golden->tensors[i].values = values;
        values += ret_golden->tensors[i].count;
        line += ret_golden->tensors[i].count * (int64_t)sizeof *values;
    }
    assert_ptr_equal(line, copy + file.len_bytes); /* all of the file is accounted for */
    hd_text_free(&file);
}

const struct golden_tensor *golden_find(const struct golden *golden, const char *name)
{
    for (int i = 0; i < golden->tensor_count; i++)
        if (strcmp(golden->tensors[i].name, name) == 0)
            return &golden->tensors[i];
    return NULL;
}

void golden_set_weights(struct hd_trainer *t)
{
    const struct hd_registry *r = &hd_trainer_rank_program(t)->registry;

    for (int i = 0; i < r->param_count; i++) {
        const struct hd_param *p = &r->params[i];
        float *w = harness_take(t, i, HD_STATE_WEIGHT);

        for (int64_t k = 0; k < p->real_count; k++)
            w[k] = golden_weight(p->name, p->dim_count, k);
        harness_put(t, i, HD_STATE_WEIGHT, w);
    }
}

void golden_open(const char *name, int steps, struct harness *h, struct hd_arena *arena,
                 struct hd_job *ret_job, struct golden *ret_golden)
{
    harness_setup(h, 100);
    hd_arena_init(arena, 0);
    *ret_job = harness_job(h, "llama", 1);
    ret_job->steps = steps;
    ret_job->lr_warmup_steps = 4;
    ret_job->lr_peak = 0.01;
    ret_job->lr_min = 0.001;
    ret_job->lr_decay_steps = steps - 4;
    ret_job->beta1 = 0.9;
    ret_job->beta2 = 0.95;
    ret_job->adam_eps = 1e-6;
    ret_job->weight_decay = 0.1;
    ret_job->clip = 0.5;
    ret_job->val_split = 0;
    ret_job->micro_batch = 1;
    ret_job->order = HD_JOB_ORDER_SEQUENTIAL;
    golden_read(name, arena, ret_job, ret_golden);
    if (strcmp(ret_job->family, "gpt2") == 0)
        ret_job->positions = HD_JOB_POSITIONS_LEARNED;
}

static void make_ids(const char *what, int k, int64_t vocab, int64_t count, int32_t *ids)
{
    char name[32];

    (void)snprintf(name, sizeof name, "%s %d", what, k);
    for (int64_t i = 0; i < count; i++)
        ids[i] = (int32_t)(golden_number(name, i) * (double)vocab);
}

void golden_make_completions(int64_t vocab, struct golden_completions *c)
{
    static const float none[GOLDEN_COMPLETION_IDS_MAX];

    for (int k = 0; k < GOLDEN_COMPLETIONS; k++) {
        c->list[k] = (struct hd_policy_completion){.prompt = c->prompt[k],
                                                   .prompt_count = 2 + k % 3,
                                                   .ids = c->ids[k],
                                                   .count = 3 + k % 4,
                                                   .sampled = none};
        make_ids("prompt", k, vocab, c->list[k].prompt_count, c->prompt[k]);
        make_ids("completion", k, vocab, c->list[k].count, c->ids[k]);
    }
}
