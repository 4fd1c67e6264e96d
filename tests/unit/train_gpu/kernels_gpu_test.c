/* kernels_gpu: every launch that it times is one that the backend takes. */
#include <stdlib.h>
#include <string.h>

#include "tests/bench/kernels_gpu.h"
#include "tests/unit/kernels/harness.h"

/* Goal: a benchmark that runs where there is a GPU for the first time does not stumble over its own
 * arguments. Method: small tensors; a line for every kernel, with a time. */
static void every_launch_is_taken(void **state)
{
    static const char *const kinds[] = {"bytes", "gemm", "attention"};
    static const char *const names[][28] = {{"add",
                                             "cast",
                                             "zero",
                                             "copy_columns",
                                             "bias_forward",
                                             "bias_backward",
                                             "glu_forward",
                                             "glu_backward",
                                             "activation_forward",
                                             "activation_backward",
                                             "dropout",
                                             "rmsnorm_forward",
                                             "rmsnorm_backward",
                                             "rmsnorm_backward_weight",
                                             "layernorm_forward",
                                             "layernorm_backward",
                                             "layernorm_backward_weight",
                                             "head_norm_forward",
                                             "head_norm_backward",
                                             "rope",
                                             "embedding_forward",
                                             "embedding_backward",
                                             "cross_entropy",
                                             "square_sums",
                                             "adamw",
                                             "permute_forward",
                                             "combine_backward",
                                             "route_forward"},
                                            {"gemm"},
                                            {"attention_forward", "attention_backward"}};
    const struct hd_backend_table *table = on_backend();

    for (int type = 0; type < float_type_count; type++)
        for (int kind = 0; kind < 3; kind++) {
            const struct kernels_run run = {.table = table,
                                            .dtype = float_types[type],
                                            .rows = 160,
                                            .channels = 128,
                                            .rounds = 1};
            char *report = NULL;
            size_t bytes = 0;
            FILE *out = open_memstream(&report, &bytes);

            assert_non_null(out);
            if (kernels_gpu(kinds[kind], &run, out))
                fail_msg("%s: %s", kinds[kind], hd_err_message());
            assert_int_equal(fclose(out), 0);
            for (int i = 0; i < 28 && names[kind][i]; i++) {
                char line[64];
                const char *at;

                (void)snprintf(line, sizeof line, "\n%s ", names[kind][i]);
                at = strstr(report, line);
                if (!at)
                    fail_msg("no line for %s:\n%s", names[kind][i], report);
                at = strstr(at, " us ");
                assert_non_null(at);
            }
            free(report);
        }
}

static void another_kind_is_refused(void **state)
{
    const struct kernels_run run = {.table = on_backend(), .rows = 160, .channels = 128};

    assert_int_equal(kernels_gpu("speed", &run, stdout), HD_NOT_FOUND);
}

RUN_CASES()
