#include "trial.h"

#include "tests/program/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CORPUS_BYTES = 20000, PAIRS = 40, TUNED_STEPS = 3 };
static const float NOISE = 0.05F; /* of a tuned model's weights: those of A are within 0.25 */

void grid_bench_open(struct grid_bench *bench, const char *model)
{
    *bench = (struct grid_bench){.model = grid_model_find(model), .reference = run_new(GRID_STEPS)};
    harness_setup(&bench->harness, CORPUS_BYTES);
    if (bench->model->tuned) {
        pairs_write(&bench->harness, 0, PAIRS, PAIRS_BOTH, bench->pairs, &bench->harness.file);
        bench->reference->steps = TUNED_STEPS;
        bench->reference->noise = NOISE;
    }
    if (grid_ask_engine(bench->model, &bench->harness))
        fail_msg("%s: %s", model, hd_err_message());
}

void grid_bench_refer(struct grid_bench *bench)
{
    bench->referred = (struct grid_layout){{0}};
    bench->has_reference = true;
    run_threads(grid_reference(bench->model, &bench->harness), 1, bench->reference);
}

/* Returns by how much results may differ. With masters on the host, writing them does not change
 * the copies that compute. */
static float noise_of(const struct grid_model *model, const struct grid_layout *layout)
{
    return model->tuned && !layout->value[GRID_OFFLOAD] ? NOISE : 0;
}

static enum hd_status refer_to(struct grid_bench *bench, const struct grid_layout *layout)
{
    const struct hd_job job = grid_reference_of(bench->model, &bench->harness, layout);
    const float noise = noise_of(bench->model, layout);
    struct run *fresh;

    if (bench->has_reference && grid_same_reference(&bench->referred, layout) &&
        bench->reference->noise == noise)
        return HD_OK;
    fresh = run_new(bench->reference->steps);
    fresh->noise = noise;
    run_free(bench->reference);
    bench->reference = fresh;
    bench->referred = *layout;
    pairs_forget_reference(&bench->harness);
    if (run_on_threads(&job, fresh)) {
        bench->has_reference = false;
        return hd_err_prefix(HD_INVALID, "one rank");
    }
    bench->has_reference = true;
    return HD_OK;
}

void grid_bench_close(struct grid_bench *bench)
{
    run_free(bench->reference);
    harness_teardown(&bench->harness);
}

static struct grid_bench *bench_of(struct grid_bench benches[GRID_BENCHES_MAX], const char *model)
{
    for (int i = 0; i < GRID_BENCHES_MAX; i++) {
        if (!benches[i].model)
            grid_bench_open(&benches[i], model);
        if (strcmp(benches[i].model->name, model) == 0)
            return &benches[i];
    }
    fail_msg("more than %d models", GRID_BENCHES_MAX);
    return NULL;
}

int grid_pick(const char *const *names, int count, struct grid_bench benches[GRID_BENCHES_MAX],
              struct grid_pick *ret_picks)
{
    int picked = 0;

    for (int i = 0; i < count; i++) {
        const char *const words = strchr(names[i], ':') + 1;
        struct grid_pick *pick = &ret_picks[picked];
        const char *reason;
        char model[32];

        (void)snprintf(model, sizeof model, "%.*s", (int)(words - names[i] - 1), names[i]);
        pick->bench = bench_of(benches, model);
        (void)snprintf(pick->text, sizeof pick->text, "%s", names[i]);
        if (grid_read(words + strspn(words, " "), &pick->layout))
            fail_msg("%s: %s", names[i], hd_err_message());
        for (int a = 0; a < GRID_AXES; a++)
            if (pick->layout.value[a] < 0)
                pick->layout.value[a] = 0;
        reason = grid_exclusion(&pick->layout);
        if (reason)
            (void)printf("EXCLUDED %s: %s\n", names[i], reason);
        else
            picked++;
    }
    return picked;
}

void grid_benches_close(struct grid_bench benches[GRID_BENCHES_MAX])
{
    for (int i = 0; i < GRID_BENCHES_MAX && benches[i].model; i++)
        grid_bench_close(&benches[i]);
}

/* A layout of DPO makes the log-probabilities of its reference itself. */
enum hd_status grid_try(struct grid_bench *bench, const struct grid_layout *layout,
                        double *ret_worst)
{
    const bool is_counted =
        !harness_backend()->device; /* which counts bytes, but not those of rows */
    struct traffic *traffic = calloc(1, sizeof *traffic);
    struct hd_rank_program_options options;
    struct hd_job job = grid_job(bench->model, &bench->harness, layout, &options);
    enum hd_status st;

    if (!traffic)
        return hd_err(HD_NO_MEMORY, "no memory to count traffic");
    *ret_worst = 0;
    traffic->layout = options;
    st = refer_to(bench, layout);
    pairs_forget_reference(&bench->harness);
    if (!st)
        st = compare_layout(&job, &options, bench->reference, is_counted ? traffic : NULL,
                            ret_worst);
    if (!st && is_counted)
        st = traffic_compare_dry(traffic, &job);
    free(traffic);
    return st;
}
