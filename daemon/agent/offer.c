/* What this node offers: its devices, asked for at the start, and the GPUs again and again.
 *
 * The question runs beside the loop (ask.h) and is looked at in each tick; question.h says when it
 * is asked, and what no answer means. What the answer changes is told by a new hello. The end of a
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
    START_MS = 5000,  /* that --devices auto waits for an answer before it goes on without */
    KILLED_MS = 5000, /* that a killed question has for its end, before it hangs */
    WRITE_AGAIN_MS = 5000,
};

/* ---- what changes ---- */

static void log_device(const struct agent_one_device *d, const struct agent_one_device *before)
{
    if (!before && d->cuda)
        hd_log(HD_LOG_INFO, "device %d is %s, %s", d->number, d->name, d->uuid);
    if (d->held)
        return;
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
    if (agent->offer.question.answered && devices->note[0] &&
        strcmp(devices->note, before->note) != 0)
        hd_log(devices->gpu_count || doctor_count_on_bus(DOCTOR_BUS) > 0 ? HD_LOG_WARN
                                                                         : HD_LOG_INFO,
               "%s%s", devices->note, devices->gpu_count ? "" : "; the CPU serves");
    agent->offer.write_ms = hd_clock_now_ms() + WRITE_AGAIN_MS;
    if (agent_known_write(&agent->known))
        hd_log(HD_LOG_WARN, "a restart may number devices otherwise: %s", hd_err_message());
    stream_introduce(agent);
}

/* Whether an attempt may use what this heddled has never given. */
static bool any_inherited(const struct agent *agent)
{
    for (const struct local *l = agent->locals.first; l; l = l->next)
        if (l->inherited)
            return true;
    return agent->offer.opening;
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
    st = agent_devices_choose(&offer->wish, gpus, offer->question.answered, agent_devices_cores(),
                              any_inherited(agent), &agent->known, devices);
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

/* Weighs what the question has come to: HD_OK, its answer; else this thread's story why there is
 * none. */
static enum hd_status take_answer(struct agent *agent, enum hd_status asked)
{
    struct agent_offer *offer = &agent->offer;
    struct hd_gpu_list *gpus = calloc(1, sizeof *gpus);
    enum hd_status st;

    if (!gpus)
        return hd_err(HD_NO_MEMORY, "no memory for a list of GPUs");
    if (!asked)
        asked = agent_gpus_understand(&offer->ask, gpus);
    if (!agent_question_counts(&offer->question, !asked)) {
        hd_log(HD_LOG_INFO, "%s; what is known of the GPUs stands until the next question",
               hd_err_message());
        free(gpus);
        return HD_OK;
    }
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
           (agent->identity.devices.gpu_count || !agent->offer.question.answered);
}

static bool any_is_broken(const struct agent_devices *devices)
{
    for (int i = 0; i < devices->count; i++)
        if (devices->list[i].cuda && devices->list[i].problem[0])
            return true;
    return false;
}

/* The ends that waited for it can be told. */
static void release_ends(struct agent *agent)
{
    for (struct local *l = agent->locals.first; l; l = l->next) {
        if (!l->question || (l->question > agent->offer.question.number && looks_for_gpus(agent)))
            continue;
        l->question = 0;
        agent_soon(agent);
    }
}

static void question_is_over(struct agent *agent, enum hd_status asked)
{
    struct agent_offer *offer = &agent->offer;

    if (take_answer(agent, asked))
        hd_log(HD_LOG_WARN, "%s", hd_err_message());
    agent_question_end(&offer->question, any_is_broken(&agent->identity.devices),
                       hd_clock_now_ms());
    release_ends(agent);
}

/* One that hangs in the driver cannot be asked over, and is no answer either. */
static void begin(struct agent *agent)
{
    struct agent_offer *offer = &agent->offer;
    enum hd_status st;

    if (offer->killed_ms && agent_ask_is_left(&offer->ask) &&
        hd_clock_now_ms() < offer->killed_ms + KILLED_MS)
        return;
    offer->killed_ms = 0;
    st = agent_gpus_begin(offer->worker, AGENT_ASK_MS, &offer->ask);
    agent_question_begin(&offer->question, !st);
    if (st)
        question_is_over(agent, st);
}

void offer_attempts_known(struct agent *agent)
{
    agent->offer.opening = false;
    if (!any_inherited(agent) && agent_devices_let_go(&agent->identity.devices))
        stream_introduce(agent);
}

/* What could not be written is not news: tell() has said so. */
static void write_again(struct agent *agent)
{
    struct agent_offer *offer = &agent->offer;

    if (!agent->known.changed || hd_clock_now_ms() < offer->write_ms)
        return;
    offer->write_ms = hd_clock_now_ms() + WRITE_AGAIN_MS;
    if (agent_known_write(&agent->known) == HD_OK)
        hd_log(HD_LOG_INFO, "the devices' numbers could be written at last");
}

void offer_tick(struct agent *agent)
{
    struct agent_offer *offer = &agent->offer;
    enum hd_status st;

    offer_attempts_known(agent);
    write_again(agent);
    if (looks_for_gpus(agent) && agent_question_is_due(&offer->question, hd_clock_now_ms()))
        begin(agent);
    else if (offer->question.under_way && agent_ask_step(&offer->ask, &st))
        question_is_over(agent, st);
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
    if (offer->question.under_way) {
        agent_ask_done(&offer->ask);
        offer->killed_ms = hd_clock_now_ms();
    }
    offer->question.under_way = false;
    agent_question_press(&offer->question);
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
    agent_question_press(&offer->question);
    local->question = offer->question.pressing;
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

    agent_question_press(&offer->question);
    st = agent_gpus_begin(offer->worker, AGENT_ASK_MS, &offer->ask);
    agent_question_begin(
        &offer->question,
        !st && !agent_ask_wait(&offer->ask, offer->wish.gpus_if_any ? START_MS : INT_MAX, &st));
    if (offer->question.under_way)
        st = hd_err(HD_TIMEOUT, "%s has not answered yet", offer->ask.program);
    st = take_answer(agent, st);
    if (!st && !offer->question.under_way)
        agent_question_end(&offer->question, any_is_broken(&agent->identity.devices),
                           hd_clock_now_ms());
    return st;
}

enum hd_status offer_open(struct agent *agent)
{
    struct agent_offer *offer = &agent->offer;
    enum hd_status st = HD_OK;

    offer->opening = true;
    if (agent_known_read(&agent->known, agent->identity.state_dir, agent->identity.boot_id))
        hd_log(HD_LOG_WARN, "devices are numbered anew: %s", hd_err_message());
    offer->question.answered = !agent_devices_wants_gpus(&offer->wish);
    if (!offer->question.answered)
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
