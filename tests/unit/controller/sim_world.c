/* Random worlds: whatever breaks, in whatever order. See sim.h. */
#include "sim.h"
#include "tests/program/test.h"

#include <stdlib.h>
#include <string.h>

static void break_something(struct sim *sim)
{
    struct sim_node *node = &sim->nodes[sim_draw(sim, (uint64_t)sim->node_count)];

    switch (sim_draw(sim, 8)) {
    case 0:
    case 1:
        node->cut = true;
        break;
    case 2:
        node->cut = sim_draw(sim, 3) != 0; /* so that many silences last for minutes */
        break;
    case 3:
        node->broken[sim_draw(sim, SIM_DEVICES)] = sim_draw(sim, 3) == 0;
        sim_daemon_restart(sim, node);
        break;
    case 4:
        if (sim_draw(sim, 4) == 0)
            sim_reboot(sim, node);
        break;
    case 5:
        if (sim_draw(sim, 3) == 0)
            sim_controller_crash(sim);
        break;
    case 6:
        node->faults.fail_at_step = 1 + (int)sim_draw(sim, 25);
        node->faults.fail_count = 1;
        break;
    case 7:
        node->faults.no_start = sim_draw(sim, 4) == 0;
        break;
    }
}

static void add_policies(struct sim *sim, struct hd_job_needs *needs, const uint64_t *jobs,
                         size_t count)
{
    static const char *const queues[] = {"default", "wide", "tight"};
    static const char *const owners[] = {"ann", "bob", "eve"};

    sim->owner = owners[sim_draw(sim, 3)];
    needs->queue = queues[sim_draw(sim, 3)];
    needs->priority = (int32_t)sim_draw(sim, 4) - 1;
    if (sim_draw(sim, 4) == 0) {
        needs->array = SIM_ARRAY;
        needs->array_at_once = SIM_AT_ONCE;
    }
    if (sim_draw(sim, 4) == 0)
        needs->time_limit_ms = 1000 * (10 + (int64_t)sim_draw(sim, 120));
    if (sim_draw(sim, 6) == 0 && count)
        needs->after[needs->after_count++] = jobs[sim_draw(sim, count)];
}

static void drain_or_undrain(struct sim *sim, const char *node, bool drain)
{
    const struct hd_core_event event = {
        .kind = drain ? HD_CORE_DRAIN : HD_CORE_UNDRAIN,
        .drain = {.node = node,
                  .reason = "a world",
                  .deadline_ms = drain ? 1000 * (int64_t)sim_draw(sim, 120) : 0,
                  .by = "root"}};

    (void)sim_event(sim, &event);
}

/* Asks for something besides jobs. True: it did. */
static bool change_policies(struct sim *sim, const uint64_t *jobs, size_t count)
{
    if (!count || sim_draw(sim, 3))
        return false;
    if (sim_draw(sim, 4) == 0)
        drain_or_undrain(sim, sim->nodes[sim_draw(sim, (uint64_t)sim->node_count)].name,
                         sim_draw(sim, 2));
    else if (sim_draw(sim, 2))
        (void)sim_hold(sim, jobs[sim_draw(sim, count)], sim_draw(sim, 2));
    else
        (void)sim_set_queue(sim, "wide", -1, -1, 1 + (int)sim_draw(sim, 5));
    return true;
}

static void submit(struct sim *sim, struct hd_job_needs *needs, uint64_t *jobs, size_t *count)
{
    uint64_t job;

    needs->wish.global_batch = 840; /* whatever shares it: 1 to 8 do */
    needs->restart_max = 50;
    needs->keep = (int)sim_draw(sim, 3);
    if (*count < 60 && !sim_submit(sim, needs, &job))
        jobs[(*count)++] = job;
}

static void ask_something(struct sim *sim, uint64_t *jobs, size_t *count, bool policies)
{
    const int devices = sim->node_count == 2 ? 2 : SIM_DEVICES * sim->node_count;
    struct hd_job_needs needs =
        sim_needs(1 + (int)sim_draw(sim, (uint64_t)devices), 5 + (int)sim_draw(sim, 30));

    if (policies && change_policies(sim, jobs, *count))
        return;
    if (sim_draw(sim, 4) == 0 && *count) {
        (void)sim_cancel(sim, jobs[sim_draw(sim, *count)], sim_draw(sim, 2));
        return;
    }
    if (sim->node_count > 2 && sim_draw(sim, 3) == 0)
        needs.devices_min = 1;
    if (sim_draw(sim, 3) == 0 && needs.devices_max % 2 == 0)
        needs.wish.sizes.tp = 2;
    else if (sim_draw(sim, 3) == 0 && needs.devices_max % 2 == 0)
        needs.wish.sizes.cp = 2;
    if (policies)
        add_policies(sim, &needs, jobs, *count);
    submit(sim, &needs, jobs, count);
}

/* Many small jobs, few gangs, mostly of one priority, and of so many steps that better places pay.
 */
static void ask_among_switches(struct sim *sim, uint64_t *jobs, size_t *count)
{
    static const char *const queues[] = {"default", "wide", "tight"};
    const bool gang = sim_draw(sim, 4) == 0;
    struct hd_job_needs needs =
        sim_needs(gang ? 2 + 2 * (int)sim_draw(sim, 2) : 1 + (sim_draw(sim, 4) == 0),
                  150 + (int)sim_draw(sim, 250));

    if (sim_draw(sim, 6) == 0 && change_policies(sim, jobs, *count))
        return;
    if (sim_draw(sim, 8) == 0 && *count) {
        (void)sim_cancel(sim, jobs[sim_draw(sim, *count)], true);
        return;
    }
    if (sim_draw(sim, 8) == 0)
        needs.devices_max += 2;
    if (sim_draw(sim, 12) == 0)
        needs.time_limit_ms = 1000 * (100 + (int64_t)sim_draw(sim, 600));
    sim->owner = sim_draw(sim, 2) ? "ann" : "bob";
    needs.queue = queues[sim_draw(sim, 3)];
    needs.priority = sim_draw(sim, 8) == 0;
    submit(sim, &needs, jobs, count);
}

/* Answers as the core decides without questions, so that worlds with and without are compared by
 * the same rules. */
static void plan_as_asked(const struct hd_core_asked *asked, struct hd_core_answer *answer)
{
    assert_int_equal(hd_plan_size(&asked->wish, asked->devices, &answer->layout), HD_PLAN_FITS);
    answer->fits = true;
}

/* Within a node or at one switch a step takes half the time. */
static void price_by_tier(const struct hd_core_asked *asked, struct hd_core_answer *answer)
{
    plan_as_asked(asked, answer);
    answer->step_s = asked->tier > (asked->devices > SIM_DEVICES) ? 2 : 1;
}

/* Two nodes at each switch. */
static void add_switches(struct sim *sim)
{
    static const struct hd_node_tree tree = {.tier_count = 1,
                                             .tier_nodes = {2},
                                             .tiers = {{.name = "leaf"}},
                                             .group_count = 1,
                                             .groups = {{.names = "n[1-8]"}}};

    sim->config.tree = &tree;
    sim_ask_layouts(sim, price_by_tier, (int)sim_draw(sim, 4));
}

/* Goal: whatever breaks, in whatever order, no invariant falls, nothing acknowledged is lost, and
 * once the world is whole again every job ends, a succeeded one with exactly the weights of an
 * undisturbed run. Method: seeded random faults around the real core; the simulation asserts. */
static void live_through(uint64_t seed, int node_count, bool policies, bool switches)
{
    struct sim *sim = sim_new(seed, node_count);
    const uint64_t calm = switches ? 64 : 1;
    uint64_t jobs[64];
    size_t count = 0;

    if (switches)
        add_switches(sim);
    else if (policies)
        sim_ask_layouts(sim, plan_as_asked, 4);
    if (policies) {
        for (int n = 0; n < sim->node_count; n++)
            sim->nodes[n].memory_bytes = 1000;
        assert_int_equal(sim_set_queue(sim, "wide", -1, -1, 2), HD_OK);
        assert_int_equal(sim_set_queue(sim, "tight", 3, 2, 1), HD_OK);
    }
    sim->slow_store = !switches || sim_draw(sim, 3) == 0;
    sim->max_delay_s = switches ? (int)sim_draw(sim, 4) : 4;
    for (int second = 0; second < 3000; second++) {
        if (sim_draw(sim, 12 * calm) == 0)
            break_something(sim);
        if (sim_draw(sim, switches ? 30 : 25) == 0)
            switches ? ask_among_switches(sim, jobs, &count)
                     : ask_something(sim, jobs, &count, policies);
        if (sim_draw(sim, 3) == 0)
            sim_commit(sim);
        sim_second(sim);
    }
    sim->slow_store = false;
    sim_commit(sim);
    for (int n = 0; n < sim->node_count; n++) {
        sim->nodes[n].cut = false;
        sim->nodes[n].faults = (struct sim_faults){0};
        memset(sim->nodes[n].broken, 0, sizeof sim->nodes[n].broken);
        sim_daemon_restart(sim, &sim->nodes[n]); /* it says so in a new hello */
    }
    for (int n = 0; policies && n < sim->node_count; n++)
        drain_or_undrain(sim, sim->nodes[n].name, false);
    for (size_t i = 0; policies && i < count; i++)
        (void)sim_hold(sim, jobs[i], false);
    for (size_t i = 0; i < count; i++) {
        const uint64_t job = jobs[i];

        if (!sim->acknowledged[job])
            continue; /* it may be gone, and its number used again */
        sim_run_until_ended(sim, job, 4000);
        if (sim_job(sim, job)->state == HD_JOB_STATE_FAILED)
            assert_true(policies && strncmp(sim_job(sim, job)->reason, "time_limit", 10) == 0);
        if (sim_job(sim, job)->state == HD_JOB_STATE_SUCCEEDED)
            assert_int_equal(sim_final_value(sim, job),
                             sim_undisturbed_value(job, sim_job(sim, job)->steps));
    }
    assert_true(count > 20);
    sim_free(sim);
}

void sim_live_through(uint64_t seed, int node_count)
{
    live_through(seed, node_count, false, false);
}

void sim_live_with_policies(uint64_t seed, int node_count)
{
    live_through(seed, node_count, true, false);
}

void sim_live_among_switches(uint64_t seed, int node_count)
{
    live_through(seed, node_count, true, true);
}

void sim_live_through_all(uint64_t seed_count, int fewest_nodes, int most_nodes)
{
    const char *given = getenv("HEDDLE_SIM_SEED");
    const uint64_t first = given ? (uint64_t)atoll(given) : 1;
    const uint64_t last = given ? first : seed_count;

    for (uint64_t seed = first; seed <= last; seed++) {
        print_message("world %llu (to see it alone: HEDDLE_SIM_SEED=%llu)\n",
                      (unsigned long long)seed, (unsigned long long)seed);
        sim_live_through(seed,
                         most_nodes - (int)(seed % (uint64_t)(most_nodes - fewest_nodes + 1)));
    }
}
