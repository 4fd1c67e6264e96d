/* Layouts of a mixture of experts against one rank, twice: with routing left free, where a choice
 * may tip over by rounding (how near any came is printed), and with the choices of the one-rank run
 * played back, where it cannot.
 *
 * Method: a backend that launches as the CPU's does, and looks at the routers' results behind each
 * launch of theirs. Which rows a launch has follows from the layout and the number of the launch.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare.h"
#include "kernels/stream.h"
#include "mesh/zigzag.h"
#include "tests/program/test.h"
#include "tests/sanitized.h"

/* The sizes of harness_job. */
enum { STEPS = HD_TEST_SANITIZED ? 4 : 20, L = 2, E = 4, K = 2, S = 16, GLOBAL_BATCH = 8 };

struct choices {
    int32_t of[STEPS][L][GLOBAL_BATCH][S][K];
    double
        margin; /* the smallest distance of the last chosen from the first not chosen, in logits */
};

/* Instructions for the routers of this thread's rank, and their position. */
struct routing {
    enum { LOOK, PLAY_BACK } mode;
    struct choices *choices;
    const struct hd_rank_program *layout;
    int step, launches; /* of the step */
};
static _Thread_local struct routing routing;

static void look(const struct hd_route_forward_args *a, int64_t r, int32_t *choice)
{
    float last = INFINITY, next = 0;

    memcpy(choice, a->chosen + r * K, sizeof(int32_t[K]));
    for (int64_t e = 0; e < E; e++) {
        const float p = a->probs[r * E + e];
        bool is_chosen = false;

        for (int k = 0; k < K; k++)
            is_chosen = is_chosen || choice[k] == e;
        if (is_chosen)
            last = p < last ? p : last;
        else
            next = p > next ? p : next;
    }
    if (log((double)last / (double)next) < routing.choices->margin)
        routing.choices->margin = log((double)last / (double)next);
}

static void play_back(const struct hd_route_forward_args *a, int64_t r, const int32_t *choice)
{
    float sum = 0;

    for (int k = 0; k < K; k++)
        sum += a->probs[r * E + choice[k]];
    for (int k = 0; k < K; k++) {
        a->chosen[r * K + k] = choice[k];
        a->gate[r * K + k] = a->probs[r * E + choice[k]] / sum;
    }
}

/* Behind launch n of a step: layer n % L of micro-batch n / L. What follows the last step's (a
 * validation) is left alone. */
static void behind_router(const struct hd_route_forward_args *a)
{
    const struct hd_rank_program *l = routing.layout;
    const struct hd_zigzag mine = {S, l->mesh.sizes.cp, l->coord.cp};
    const int64_t rows = hd_zigzag_rows(&mine), B = l->job.micro_batch;
    const int64_t first = (l->coord.dp * l->micro_batches + routing.launches / L) * B;

    if (routing.launches >= l->micro_batches * L)
        return;
    for (int64_t r = 0; r < a->R; r++) {
        int32_t *choice = routing.choices->of[routing.step][routing.launches % L][first + r / rows]
                                             [hd_zigzag_position(&mine, r % rows)];

        if (routing.mode == LOOK)
            look(a, r, choice);
        else
            play_back(a, r, choice);
    }
    routing.launches++;
}

static struct hd_backend_table table; /* the CPU's, but for these */

static enum hd_status launch(struct hd_stream *stream, enum hd_kernel kernel, const void *args)
{
    const enum hd_status st = hd_backend_cpu()->launch(stream, kernel, args);

    if (!st && kernel == HD_K_route_forward && routing.choices)
        behind_router(args);
    return st;
}

static enum hd_status stream_open(struct hd_backend *backend, enum hd_stream_purpose purpose,
                                  struct hd_stream **ret_stream)
{
    const enum hd_status st = hd_backend_cpu()->stream_open(backend, purpose, ret_stream);

    if (!st)
        (*ret_stream)->table = &table;
    return st;
}

static void before_step(struct hd_trainer *t, int step, void *context)
{
    routing = *(const struct routing *)context;
    routing.layout = hd_trainer_rank_program(t);
    routing.step = step;
}

struct axes {
    int tp, cp, dp, ep;
};

static struct hd_job job_of(const struct harness *h, const struct axes *axes)
{
    struct hd_job job = harness_job(h, "mixtral", axes->dp);

    job.tp = axes->tp;
    job.cp = axes->cp;
    job.ep = axes->ep;
    job.sequence = axes->tp > 1;
    return job;
}

static const struct axes layouts[] = {
    {1, 1, 1, 1}, {2, 1, 1, 1}, {1, 1, 2, 2}, {1, 2, 1, 2},
    {1, 1, 4, 4}, {2, 1, 2, 2}, {2, 2, 2, 4},
};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

static void check(const struct hd_job *job, const struct axes *axes, const char *how,
                  const struct run *one)
{
    double worst = 0;

    if (compare_with(job, one, &worst))
        fail_msg("tp=%d cp=%d dp=%d ep=%d, routing %s: %s", axes->tp, axes->cp, axes->dp, axes->ep,
                 how, hd_err_message());
    print_message("PASS mixtral tp=%d cp=%d dp=%d ep=%d routing %s, worst %.1e\n", axes->tp,
                  axes->cp, axes->dp, axes->ep, how, worst);
}

static void mixtures_train_alike_with_routing_free_and_played_back(void **state)
{
    struct choices *choices = harness_shared(sizeof *choices);
    struct routing look_on = {.mode = LOOK, .choices = choices};
    struct routing play = {.mode = PLAY_BACK, .choices = choices};
    struct run *one = run_new(STEPS);
    struct harness h;
    struct hd_job job;

    table = *hd_backend_cpu();
    table.launch = launch;
    table.stream_open = stream_open;
    harness_setup(&h, 20000);
    choices->margin = INFINITY;
    one->backend = &table;
    one->before_step = before_step;
    one->context = &look_on;
    one->noise = 0.2f;
    job = job_of(&h, &layouts[0]);
    if (run_on_threads(&job, one))
        fail_msg("%s", hd_err_message());
    print_message("free routing: the nearest choice was won by %.2e of a logit\n", choices->margin);
    assert_true(choices->margin < 1); /* somebody looked */

    for (int i = 0; i < LAYOUTS; i++) {
        job = job_of(&h, &layouts[i]);
        one->context = &play;
        check(&job, &layouts[i], "played back", one);
        one->backend = NULL;
        one->before_step = NULL;
        check(&job, &layouts[i], "free", one);
        one->backend = &table;
        one->before_step = before_step;
    }
    run_free(one);
    harness_shared_free(choices, sizeof *choices);
    harness_teardown(&h);
}

/* In bf16 or fp16 with the choices played back: gradients of the first step within the bound that
 * grows with the layers above. */
static void half_case(const char *precision)
{
    struct choices *choices = harness_shared(sizeof *choices);
    struct routing look_on = {.mode = LOOK, .choices = choices};
    struct routing play = {.mode = PLAY_BACK, .choices = choices};
    struct run *one = run_new(1);
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    one->backend = &table;
    one->before_step = before_step;
    one->context = &look_on;
    job = job_of(&h, &layouts[0]);
    job.precision = hd_job_find_word(hd_job_precision_words, precision);
    if (run_on_threads(&job, one))
        fail_msg("%s", hd_err_message());
    for (int i = 1; i < LAYOUTS; i++) {
        struct run *mine = run_new(1);

        mine->backend = &table;
        mine->before_step = before_step;
        mine->context = &play;
        job = job_of(&h, &layouts[i]);
        job.precision = hd_job_find_word(hd_job_precision_words, precision);
        if (run_on_threads(&job, mine) ||
            compare_gradients(&job, mine->first_grad, one->first_grad, half_bound, NULL))
            fail_msg("layout %d: %s", i, hd_err_message());
        run_free(mine);
    }
    run_free(one);
    harness_shared_free(choices, sizeof *choices);
    harness_teardown(&h);
}

static void in_bf16_they_stay_within_its_rounding(void **state)
{
    half_case("bf16");
}

static void in_fp16_they_stay_within_its_rounding(void **state)
{
    half_case("fp16");
}

/* Goal: play-back is not idle. Method: other choices than the routers' give another loss. */
static void other_choices_give_another_loss(void **state)
{
    struct choices *choices = harness_shared(sizeof *choices); /* all zeros: expert 0, twice */
    struct routing play = {.mode = PLAY_BACK, .choices = choices};
    struct run *free_run = run_new(1), *played = run_new(1);
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = job_of(&h, &layouts[0]);
    free_run->noise = played->noise = 0.2f;
    played->backend = &table;
    played->before_step = before_step;
    played->context = &play;
    if (run_on_threads(&job, free_run) || run_on_threads(&job, played))
        fail_msg("%s", hd_err_message());
    assert_true(fabs(played->loss[0] - free_run->loss[0]) > 1e-3);
    run_free(free_run);
    run_free(played);
    harness_shared_free(choices, sizeof *choices);
    harness_teardown(&h);
}

RUN_CASES()
