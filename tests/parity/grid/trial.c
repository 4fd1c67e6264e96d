#include "trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { CORPUS_BYTES = 20000 };

void grid_bench_open(struct grid_bench *bench, const char *model)
{
    *bench = (struct grid_bench){.model = grid_model_find(model), .reference = run_new(GRID_STEPS)};
    harness_setup(&bench->harness, CORPUS_BYTES);
    if (grid_ask_engine(bench->model, &bench->harness))
        fail_msg("%s: %s", model, hd_err_message());
    run_threads(grid_reference(bench->model, &bench->harness), 1, bench->reference);
}

void grid_bench_close(struct grid_bench *bench)
{
    run_free(bench->reference);
    harness_teardown(&bench->harness);
}

enum hd_status grid_try(const struct grid_bench *bench, const struct grid_layout *layout,
                        double *ret_worst)
{
    struct traffic *traffic = calloc(1, sizeof *traffic);
    struct hd_layout_options options;
    const struct hd_job job = grid_job(bench->model, &bench->harness, layout, &options);
    enum hd_status st;

    if (!traffic)
        return hd_err(HD_NO_MEMORY, "no memory to count traffic");
    *ret_worst = 0;
    traffic->layout = options;
    st = compare_layout(&job, &options, bench->reference, ret_worst);
    if (!st)
        st = traffic_try(&job, traffic);
    if (!st)
        st = traffic_compare_dry(traffic, &job);
    free(traffic);
    return st;
}
