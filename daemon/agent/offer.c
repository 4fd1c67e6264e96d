/* What this node offers: its devices, asked for at the start, and the GPUs again and again.
 *
 * The question runs beside the loop (ask.h) and is looked at in each tick: now and then; soon again
 * while there is no answer or a GPU is out of order; and at once when an attempt on GPUs has failed
 * or somebody asks for it by SIGHUP. What the answer changes is told by a new hello. The end of a
 * failed attempt waits for the answer to a question that was asked behind it, and so is told behind
 * that hello: the controller must not give the GPU that broke to the next job.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/device.h"
#include "daemon/agent/doctor.h"

enum {
    START_MS = 5000,      /* that --devices auto waits for an answer before it goes on without */
    EVERY_MS = 300000,    /* from one answer to the next question, all being well */
    BROKEN_MS = 60000,    /* while a GPU is out of order */
    NO_ANSWER_MS = 10000, /* while nothing is known of them */
};

/* ---- what changes ---- */

static void log_device(const struct agent_one_device *d, const struct agent_one_device *before)
{
    if (!before && d->cuda)
        hd_log(HD_LOG_INFO, "device %d is %s, %s", d->number, d->name, d->uuid);
    if (d->problem[0] && (!before || strcmp(before->problem, d->problem) != 0))
        hd_log(HD_LOG_WARN, "device %d takes no jobs: %s", d->number, d->problem);
    else if (!d->problem[0] && before && before->problem[0])
        hd_log(HD_LOG_INFO, "device %d takes jobs again", d->number);
}

static bool is_same(const struct agent_devices *a, const struct agent_devices *b)
{
    for (int i = 0; a->count == b->count && i < a->count; i++) {
        const struct agent_one_device *x = &a->list[i], *y = agent_devices_at(b, x->number);

        if (!y || x->cuda != y->cuda || x->threads != y->threads || strcmp(x->uuid, y->uuid) != 0 ||
            strcmp(x->problem, y->problem) != 0)
            return false;
    }
    return a->count == b->count;
}

static void tell(struct agent *agent, const struct agent_devices *before)
{
    const struct agent_devices *devices = &agent->identity.devices;

    for (int i = 0; i < devices->count; i++)
        log_device(&devices->list[i], agent_devices_at(before, devices->list[i].number));
    if (agent->offer.answered && devices->note[0] && strcmp(devices->note, before->note) != 0)
        hd_log(devices->gpu_count || doctor_count_on_bus(DOCTOR_BUS) > 0 ? HD_LOG_WARN
                                                                         : HD_LOG_INFO,
               "%s%s", devices->note, devices->gpu_count ? "" : "; the CPU serves");
    if (agent_known_write(&agent->known))
        hd_log(HD_LOG_WARN, "a restart may number devices otherwise: %s", hd_err_message());
    stream_introduce(agent);
}

/* Chooses anew. `gpus` NULL: none were asked for. */
static enum hd_status choose(struct agent *agent, const struct hd_gpu_list *gpus)
{
    struct agent_offer *offer = &agent->offer;
    struct agent_devices *devices = &agent->identity.devices;
    struct agent_devices *before = malloc(sizeof *before);
    enum hd_status st;

    if (!before)
        return hd_err(HD_NO_MEMORY, "no memory for a list of devices");
    *before = *devices;
    st = agent_devices_choose(&offer->wish, gpus, offer->answered, agent_devices_cores(),
                              &agent->known, devices);
    for (int i = devices->gpu_count; !st && i < devices->count; i++)
        devices->list[i].bf16 = offer->cpu_bf16;
    if (st)
        *devices = *before;
    else if (!is_same(devices, before))
        tell(agent, before);
    free(before);
    return st;
}

/* ---- the question ---- */

/* What the question has come to: HD_OK, its answer; else this thread's story why there is none. */
static enum hd_status take_answer(struct agent *agent, enum hd_status asked)
{
    struct agent_offer *offer = &agent->offer;
    struct hd_gpu_list *gpus = calloc(1, sizeof *gpus);
    enum hd_status st;

    if (!gpus)
        return hd_err(HD_NO_MEMORY, "no memory for a list of GPUs");
    if (!asked)
        asked = agent_gpus_understand(&offer->ask, gpus);
    offer->answered = !asked;
    if (!asked)
        agent_withdrawn_judge(&offer->withdrawn, gpus);
    if (asked) {
        hd_gpu_list_init(gpus);
        (void)snprintf(gpus->plugin_problem, sizeof gpus->plugin_problem, "%s", hd_err_message());
    }
    st = choose(agent, gpus);
    free(gpus);
    return st;
}

/* Whether GPUs are looked for at all: what has turned out to be a node of cores stays one until
 * heddled is started again, since its cores may be in use. */
static bool looks_for_gpus(const struct agent *agent)
{
    return agent_devices_wants_gpus(&agent->offer.wish) &&
           (agent->identity.devices.gpu_count || !agent->offer.answered);
}

static bool any_is_broken(const struct agent_devices *devices)
{
    for (int i = 0; i < devices->count; i++)
        if (devices->list[i].problem[0])
            return true;
    return false;
}

/* The ends that waited for it can be told. */
static void release_ends(struct agent *agent)
{
    for (struct local *l = agent->locals.first; l; l = l->next) {
        if (!l->question || (l->question > agent->offer.question && looks_for_gpus(agent)))
            continue;
        l->question = 0;
        agent_soon(agent);
    }
}

static void question_is_over(struct agent *agent)
{
    struct agent_offer *offer = &agent->offer;

    offer->asking = false;
    offer->next_ms = hd_clock_now_ms() + (!offer->answered                          ? NO_ANSWER_MS
                                          : any_is_broken(&agent->identity.devices) ? BROKEN_MS
                                                                                    : EVERY_MS);
    if (offer->again)
        offer->next_ms = 0;
    offer->again = false;
    release_ends(agent);
}

/* One that hangs in the driver cannot be asked over: the last answer counts until it is gone. */
static void begin(struct agent *agent)
{
    struct agent_offer *offer = &agent->offer;
    enum hd_status st = agent_gpus_begin(offer->worker, AGENT_ASK_MS, &offer->ask);

    offer->question++;
    offer->asking = !st;
    if (!st)
        return;
    if (st != HD_CONFLICT && take_answer(agent, st))
        hd_log(HD_LOG_WARN, "%s", hd_err_message());
    question_is_over(agent);
}

void offer_tick(struct agent *agent)
{
    struct agent_offer *offer = &agent->offer;
    enum hd_status st;

    if (!offer->asking) {
        if (looks_for_gpus(agent) && hd_clock_now_ms() >= offer->next_ms)
            begin(agent);
        return;
    }
    if (!agent_ask_step(&offer->ask, &st))
        return;
    if (take_answer(agent, st))
        hd_log(HD_LOG_WARN, "%s", hd_err_message());
    question_is_over(agent);
}

void offer_ask_now(struct agent *agent)
{
    struct agent_offer *offer = &agent->offer;

    if (!looks_for_gpus(agent)) {
        hd_log(HD_LOG_INFO, "no GPUs are looked for; start heddled again when there are some");
        return;
    }
    hd_log(HD_LOG_INFO, "looking for GPUs");
    offer->withdrawn = (struct agent_withdrawn){.count = 0};
    if (offer->asking)
        agent_ask_done(&offer->ask);
    offer->asking = false;
    offer->next_ms = 0;
}

void offer_attempt_ended(struct agent *agent, struct local *local)
{
    const struct hd_link_report *end = &local->end;
    struct agent_offer *offer = &agent->offer;

    if (local->weighed || !local->on_gpus || !looks_for_gpus(agent))
        return;
    local->weighed = true;
    if (end->end.bad_input ||
        (end->end.cause != HD_LINK_CAUSE_RANK_EXIT && end->end.cause != HD_LINK_CAUSE_HANG &&
         end->end.cause != HD_LINK_CAUSE_LAUNCH_FAILED))
        return;
    local->question = offer->question + 1; /* one under way was asked before */
    offer->again = offer->asking;
    offer->next_ms = 0;
}

/* ---- the start ---- */

/* Without an answer the node is as good as before, but for precision `auto`, which then means fp32.
 */
static void ask_processor(struct agent *agent)
{
    struct agent_identity *id = &agent->identity;
    struct agent_devices *devices = &id->devices;
    const int first = devices->gpu_count; /* CPU devices are alike */
    const int threads = first < devices->count ? devices->list[first].threads : 1;
    struct agent_device device;

    if (agent_device_ask(agent->offer.worker, threads, &device)) {
        hd_log(HD_LOG_WARN, "precision auto will be fp32 on this node's CPU devices: %s",
               hd_err_message());
        return;
    }
    agent->offer.cpu_bf16 = device.bf16;
    for (int i = first; i < devices->count; i++)
        devices->list[i].bf16 = device.bf16;
    id->spans = device.gloo;
    (void)snprintf(id->compute, sizeof id->compute, "%s%s%s", device.isa,
                   device.library[0] ? " and " : "", device.library);
    if (!device.gloo)
        hd_log(HD_LOG_INFO, "jobs stay on this node: its heddle-worker was built without gloo");
    if (first < devices->count)
        hd_log(HD_LOG_INFO, "%d devices of %d threads, %s, bf16 %s", devices->count - first,
               threads, device.isa, device.bf16 ? "native" : "slower than fp32");
}

/* GPUs that must be there are waited for; for what there is by itself not too long. */
static enum hd_status ask_at_start(struct agent *agent)
{
    struct agent_offer *offer = &agent->offer;
    enum hd_status st;

    st = agent_gpus_begin(offer->worker, AGENT_ASK_MS, &offer->ask);
    offer->question++;
    offer->asking =
        !st && !agent_ask_wait(&offer->ask, offer->wish.gpus_if_any ? START_MS : INT_MAX, &st);
    if (offer->asking)
        st = hd_err(HD_TIMEOUT, "%s has not answered yet", offer->ask.program);
    st = take_answer(agent, st);
    if (!st && !offer->asking)
        question_is_over(agent);
    return st;
}

enum hd_status offer_open(struct agent *agent)
{
    struct agent_offer *offer = &agent->offer;
    enum hd_status st = HD_OK;

    if (agent_known_read(&agent->known, agent->identity.state_dir, agent->identity.boot_id))
        hd_log(HD_LOG_WARN, "devices are numbered anew: %s", hd_err_message());
    offer->answered = true;
    if (agent_devices_wants_gpus(&offer->wish))
        st = ask_at_start(agent);
    else
        st = choose(agent, NULL);
    if (!st)
        ask_processor(agent);
    return st;
}

void offer_close(struct agent *agent)
{
    agent_ask_done(&agent->offer.ask);
}
