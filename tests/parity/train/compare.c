#include "compare.h"

#include <math.h>
#include <string.h>

#include "traffic.h"

/* Key biases shift all scores of a query alike, and softmax does not see it: without RoPE their
 * true gradient is zero and what is computed is rounding. */
static bool has_no_gradient(const struct hd_job *job, const struct hd_param *p)
{
    return job->positions != HD_JOB_POSITIONS_ROPE && strstr(p->name, "attention.k.bias");
}

/* ||a - b|| / ||b|| over one parameter. */
static double distance(const float *a, const float *b, int64_t n)
{
    double difference = 0, size = 0;

    for (int64_t i = 0; i < n; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / size);
}

static double length(const float *a, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)a[i];
    return sqrt(sum);
}

double fp32_bound(const struct hd_rank_program *layout, const struct hd_param *p)
{
    return 1e-5;
}

double reduce_bound(const struct hd_rank_program *layout, const struct hd_param *p)
{
    const struct hd_job *job = &layout->job;
    const double P = (double)(job->dp * job->cp),
                 M = (double)(job->global_batch / job->dp) / (double)job->micro_batch;
    const double blocks = job->zero && job->zero_shard ? P / (double)job->zero_shard : 1;
    const double cancelled = (job->cp > 1 ? 2 : 1) * (hd_job_has_pairs(job) ? 2 : 1);
    double roundings = cancelled * sqrt(job->zero >= 2 ? P * M : P);

    if (job->zero == 0)
        roundings += 1;
    else if (blocks > 1)
        roundings += sqrt(blocks) + 1;
    return 1e-5 + 0x1p-9 * roundings;
}

static bool travels_in_bf16(const struct hd_job *job)
{
    return job->reduce == HD_JOB_REDUCE_BF16;
}

static double eps_of(const struct hd_job *job)
{
    return job->precision == HD_JOB_PRECISION_FP16 ? 0x1p-10 : 0x1p-7;
}

static double bound_above(const struct hd_rank_program *layout, const struct hd_param *p,
                          double eps)
{
    const double units_above = (double)(layout->model.config.L + 1 - p->unit);

    return 4 * pow(1.03, units_above) * eps;
}

double half_bound(const struct hd_rank_program *layout, const struct hd_param *p)
{
    return bound_above(layout, p, eps_of(&layout->job));
}

double fp8_bound(const struct hd_rank_program *layout, const struct hd_param *p)
{
    return bound_above(layout, p, sqrt(0x1p-7 * 0x1p-2));
}

double fp8_rounding_bound(const struct hd_rank_program *layout, const struct hd_param *p)
{
    return bound_above(layout, p, 0x1p-2 / sqrt(12));
}

double half_loss_bound(const struct hd_job *job)
{
    const double eps = job->precision == HD_JOB_PRECISION_FP8 ? 0x1p-3 : eps_of(job);

    return 2 * 0.02 * sqrt((double)job->hidden) * (double)(job->layers + 1) * eps;
}

/* A gradient that is zero but for rounding. With dK the gradient of the keys, the key matrix gets
 * dK^T x with |x| about 1, and the bias the column sums of dK, which cancel: what is left may be as
 * large, in units of the former, as two gradients may lie apart. */
static enum hd_status check_zero(const struct hd_param *p, const float *grad,
                                 double key_matrix_length, double bound)
{
    if (length(grad, param_elements(p)) <= bound * key_matrix_length)
        return HD_OK;
    return hd_err(HD_INVALID, "%s: a gradient of length %g where there is none", p->name,
                  length(grad, param_elements(p)));
}

static enum hd_status compare_all(const struct hd_job *job, const struct hd_rank_program *layout,
                                  const float *mine, const float *reference, bound_fn *bound,
                                  double *ret_worst)
{
    double key_length = 0, worst = 0;
    int compared = 0, frozen = 0;

    for (int i = 0; i < layout->registry.param_count; i++) {
        const struct hd_param *p = &layout->registry.params[i];
        const int64_t n = param_elements(p);
        enum hd_status st = HD_OK;

        if (strstr(p->name, "attention.k.weight"))
            key_length = length(reference, n);
        if (!p->trainable) {
            frozen++;
            st = length(mine, n) > 0 ? hd_err(HD_INVALID, "%s: has a gradient", p->name) : HD_OK;
        } else if (p->adapter && length(reference, n) == 0) { /* of A, as long as B is zero */
            st = length(mine, n) > 0 ? hd_err(HD_INVALID, "%s: has a gradient", p->name) : HD_OK;
        } else if (has_no_gradient(job, p)) {
            st = check_zero(p, mine, key_length, bound(layout, p));
            if (!st)
                st = check_zero(p, reference, key_length, bound(layout, p));
        } else {
            const double d = distance(mine, reference, n);

            if (!(d <= bound(layout, p)))
                st = hd_err(HD_INVALID, "%s: gradients %g apart, at most %g allowed", p->name, d,
                            bound(layout, p));
            worst = d > worst ? d : worst;
            compared++;
        }
        if (st)
            return st;
        mine += n;
        reference += n;
    }
    if (ret_worst && worst > *ret_worst)
        *ret_worst = worst;
    /* every family has as many: olmo, without weights of norms, 7 in each of 2 blocks and 2 more */
    if (compared + frozen < 16)
        return hd_err(HD_INVALID, "only %d tensors have a gradient", compared);
    return HD_OK;
}

enum hd_status compare_gradients(const struct hd_job *job, const float *mine,
                                 const float *reference, bound_fn *bound, double *ret_worst)
{
    struct hd_arena arena;
    struct hd_rank_program layout;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    run_layout(job, &(struct hd_rank_program_options){0}, &arena, &layout);
    st = compare_all(job, &layout, mine, reference, bound, ret_worst);
    hd_arena_done(&arena);
    return st;
}

/* ||(w - w0) - (w' - w0)|| / ||w' - w0||, over everything that has a gradient. */
static double change_distance(const struct hd_job *job, const float *mine, const float *reference,
                              const float *initial)
{
    struct hd_arena arena;
    struct hd_rank_program layout;
    double difference = 0, size = 0;
    int64_t at = 0;

    hd_arena_init(&arena, 0);
    run_layout(job, &(struct hd_rank_program_options){0}, &arena, &layout);
    for (int i = 0; i < layout.registry.param_count; i++) {
        const struct hd_param *p = &layout.registry.params[i];

        for (int64_t k = at; k < at + param_elements(p) && !has_no_gradient(job, p); k++) {
            double apart = (double)mine[k] - (double)reference[k];
            double change = (double)reference[k] - (double)initial[k];

            difference += apart * apart;
            size += change * change;
        }
        at += param_elements(p);
    }
    hd_arena_done(&arena);
    return sqrt(difference / size);
}

enum hd_status compare_ranks_agree(const struct run *run, int world)
{
    for (int r = 0; r < world; r++)
        if (run->disagree[r])
            return hd_err(HD_INVALID,
                          "rank %d: %lld elements differ from what other ranks hold of them", r,
                          (long long)run->disagree[r]);
    return HD_OK;
}

/* How far two courses may lie apart. */
struct course {
    bound_fn *gradient;
    double change, loss, norm, first_norm;
};

static struct course course_of(const struct hd_job *job)
{
    const struct course exact = {fp32_bound, 1e-4, 1e-4, 1e-3, 1e-5};
    /* Adam's first updates divide a gradient by its size, so those that are small beside their
     * rounding count like all others: up to 1.4 percent of the change was seen to differ, and so
     * may as much of what a step takes off the loss, less than 0.1. */
    const struct course rounded = {reduce_bound, 3e-2, 1e-3, 1e-3, 0x1p-9};
    const struct course of_pairs = {reduce_bound, 3e-2, 1e-3, 0x1p-8, 0x1p-8}; /* as reduce_bound */

    if (travels_in_bf16(job))
        return hd_job_has_pairs(job) ? of_pairs : rounded;
    return exact;
}

/* At the same weights routers choose the same; their losses are means over the same tokens. */
static enum hd_status compare_routers(const struct run *mine, const struct run *reference)
{
    const struct run_routers *a = &mine->routers, *b = &reference->routers;

    if (!(fabs(a->balance - b->balance) <= 1e-5 * b->balance) ||
        !(fabs(a->z - b->z) <= 1e-5 * b->z))
        return hd_err(HD_INVALID,
                      "routers: balance %.8g and z %.8g, the reference has %.8g and %.8g",
                      a->balance, a->z, b->balance, b->z);
    if (a->dropped != b->dropped)
        return hd_err(HD_INVALID, "routers: %lld choices dropped, the reference has %lld",
                      (long long)a->dropped, (long long)b->dropped);
    for (int e = 0; e < RUN_EXPERTS_MAX; e++)
        if (a->load[e] != b->load[e])
            return hd_err(HD_INVALID, "routers: %lld choices of expert %d, the reference has %lld",
                          (long long)a->load[e], e, (long long)b->load[e]);
    return HD_OK;
}

/* Compares the losses of every step, and of a validation behind the last one. */
static enum hd_status compare_losses(const struct run *mine, const struct run *reference,
                                     const struct course *bounds)
{
    for (int s = 0; s < mine->steps; s++) {
        if (!(fabs(mine->loss[s] - reference->loss[s]) <= bounds->loss))
            return hd_err(HD_INVALID, "step %d: loss %.8g, the reference has %.8g", s + 1,
                          mine->loss[s], reference->loss[s]);
        if (!(fabs(mine->grad_norm[s] / reference->grad_norm[s] - 1) <=
              (s ? bounds->norm : bounds->first_norm)))
            return hd_err(HD_INVALID, "step %d: gradient norm %.8g, the reference has %.8g", s + 1,
                          mine->grad_norm[s], reference->grad_norm[s]);
        if (mine->targets[s] != reference->targets[s] || mine->tokens[s] != reference->tokens[s])
            return hd_err(HD_INVALID,
                          "step %d: %lld targets of %lld tokens, the reference has %lld of %lld",
                          s + 1, (long long)mine->targets[s], (long long)mine->tokens[s],
                          (long long)reference->targets[s], (long long)reference->tokens[s]);
    }
    if (!(fabs(mine->validation_loss - reference->validation_loss) <= bounds->loss) ||
        mine->validation_targets != reference->validation_targets)
        return hd_err(HD_INVALID,
                      "validation: %.8g over %lld targets, the reference has %.8g, %lld",
                      mine->validation_loss, (long long)mine->validation_targets,
                      reference->validation_loss, (long long)reference->validation_targets);
    return HD_OK;
}

static enum hd_status compare_course(const struct hd_job *job, const struct run *mine,
                                     const struct run *reference, double *ret_worst)
{
    const double own = mine->steps > 1 ? change_distance(job, mine->before_last,
                                                         reference->before_last, reference->initial)
                                       : 0;
    const double last = change_distance(job, mine->weights, reference->weights, reference->initial);
    const struct course bounds = course_of(job);
    enum hd_status st = compare_ranks_agree(mine, run_world(job));

    if (!st && mine->count != reference->count)
        st = hd_err(HD_INVALID, "%lld parameters, the reference has %lld", (long long)mine->count,
                    (long long)reference->count);
    if (!st &&
        memcmp(mine->initial, reference->initial, (size_t)mine->count * sizeof *mine->initial) != 0)
        st = hd_err(HD_INVALID, "the initial weights are not those of the reference");
    if (!st)
        st = compare_gradients(job, mine->first_grad, reference->first_grad, bounds.gradient,
                               ret_worst);
    if (!st && !(own <= bounds.change && last <= bounds.change))
        st = hd_err(HD_INVALID,
                    "weight changes are %g apart before the last step, %g behind it, at most %g "
                    "allowed",
                    own, last, bounds.change);
    if (!st)
        st = compare_losses(mine, reference, &bounds);
    if (!st)
        st = compare_routers(mine, reference);
    return st;
}

/* With masters on the host the copies that compute are of the run's own course also in the last
 * step, which may be as far from the reference's as changes of weights may. */
static double course_bound(const struct hd_rank_program *layout, const struct hd_param *p)
{
    return 1e-4;
}

static bound_fn *last_bound(const struct hd_job *job)
{
    const bool offloads = job->offload != HD_JOB_OFFLOAD_NONE && harness_backend()->device;

    return offloads && !travels_in_bf16(job) ? course_bound : course_of(job).gradient;
}

enum hd_status compare_with(const struct hd_job *job, const struct run *reference,
                            double *ret_worst)
{
    return compare_layout(job, &(struct hd_rank_program_options){0}, reference, NULL, ret_worst);
}

enum hd_status compare_layout(const struct hd_job *job,
                              const struct hd_rank_program_options *options,
                              const struct run *reference, struct traffic *traffic,
                              double *ret_worst)
{
    struct run *mine = run_new(reference->steps);
    enum hd_status st;

    mine->layout = *options;
    mine->noise = reference->noise;
    mine->backend = traffic ? traffic_backend() : reference->backend;
    mine->traffic = traffic;
    mine->before_step = reference->before_step;
    mine->context = reference->context;
    mine->last_at = reference->before_last;
    st = run_on_threads(job, mine);
    if (!st)
        st = compare_course(job, mine, reference, ret_worst);
    if (!st)
        st = compare_gradients(job, mine->last_grad, reference->last_grad, last_bound(job),
                               ret_worst);
    run_free(mine);
    return st;
}
