#include "controller/cli/eta.h"

enum { WINDOW_MS = 10000, WINDOW_STEPS_MIN = 20, WINDOW_STEPS_MAX = 1000 };

void eta_init(struct eta *eta, const struct eta_plan *plan)
{
    *eta = (struct eta){.plan = *plan};
    eta_restart(eta);
}

void eta_restart(struct eta *eta)
{
    const struct eta_pause none = {.at_step = -1, .ms = -1};
    const struct eta_plan plan = eta->plan;

    *eta = (struct eta){.plan = plan, .timed_steps = -1, .validation = none, .checkpoint = none};
}

/* Returns the milliseconds since the previous report; 0: this is the first one, or a clock was set
 * back. */
static double take_eta(struct eta *eta, int64_t time_unix_ms)
{
    const int64_t before_ms = eta->reported_ms;

    eta->reported_ms = time_unix_ms;
    return before_ms && time_unix_ms > before_ms ? (double)(time_unix_ms - before_ms) : 0;
}

/* Returns the number of recent steps to average at the present speed. */
static double window_steps(double step_ms)
{
    const double steps = WINDOW_MS / step_ms;

    if (steps < WINDOW_STEPS_MIN)
        return WINDOW_STEPS_MIN;
    return steps < WINDOW_STEPS_MAX ? steps : WINDOW_STEPS_MAX;
}

void eta_step(struct eta *eta, int64_t step, int64_t time_unix_ms)
{
    const double ms = take_eta(eta, time_unix_ms);
    const int64_t count = step - eta->step;
    double window;

    eta->step = step;
    if (eta->timed_steps < 0) { /* the attempt's first step */
        eta->timed_steps = 0;
        return;
    }
    if (count <= 0 || ms <= 0)
        return;
    eta->timed_steps += count;
    window = (double)eta->timed_steps; /* at first the mean of all steps */
    if (eta->step_ms > 0 && window > window_steps(eta->step_ms))
        window = window_steps(eta->step_ms);
    if (window < (double)count)
        window = (double)count;
    eta->step_ms += (ms / (double)count - eta->step_ms) * (double)count / window;
}

static void take_pause(struct eta *eta, struct eta_pause *pause, int64_t step, int64_t time_unix_ms)
{
    const double ms = take_eta(eta, time_unix_ms);

    if (pause->at_step != step) {
        pause->earlier_ms = pause->ms;
        pause->latest_ms = 0;
    }
    pause->at_step = step;
    pause->latest_ms += ms;
    if (pause->latest_ms > 0)
        pause->ms =
            pause->earlier_ms < 0 ? pause->latest_ms : (pause->earlier_ms + pause->latest_ms) / 2;
}

void eta_validation(struct eta *eta, int64_t step, int64_t time_unix_ms)
{
    take_pause(eta, &eta->validation, step, time_unix_ms);
}

void eta_checkpoint(struct eta *eta, int64_t step, int64_t time_unix_ms)
{
    take_pause(eta, &eta->checkpoint, step, time_unix_ms);
}

/* Returns the time of the remaining pauses: one after each `every` steps and one after the last
 * step. A pause of the present step is remaining until it is reported. */
static double pauses_left_ms(const struct eta *eta, const struct eta_pause *pause, int64_t every)
{
    const int64_t steps = eta->plan.steps;
    const int64_t done = pause->at_step < eta->step ? eta->step - 1 : eta->step;
    int64_t count = every > 0 ? steps / every - done / every : 0;

    if (steps > done && (every <= 0 || steps % every))
        count++;
    return pause->ms > 0 ? pause->ms * (double)count : 0;
}

int64_t eta_left_ms(const struct eta *eta)
{
    double ms;

    if (eta->step_ms <= 0 || eta->step > eta->plan.steps)
        return -1;
    ms = (double)(eta->plan.steps - eta->step) * eta->step_ms;
    if (eta->plan.validates)
        ms += pauses_left_ms(eta, &eta->validation, eta->plan.validate_every);
    if (eta->plan.checkpoints)
        ms += pauses_left_ms(eta, &eta->checkpoint, eta->plan.checkpoint_every);
    return (int64_t)ms;
}
