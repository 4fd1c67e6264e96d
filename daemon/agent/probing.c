/* probing: decides when this node's devices are probed: only while no attempt uses or waits for one
 * of them. A starting attempt ends a probe. See devices/prober.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/convert.h"
#include "version/version.h"

enum {
    KEY_LINE_MAX = 64,
    DEVICES_MAX = 128,
    /* letters at the start of the traits text that contain the hash of the build's kernels */
    TRAITS_HASH = 16,
};

/* Reads the first line of a short file; "-": no file. */
static void read_line(const char *path, char ret_line[KEY_LINE_MAX])
{
    struct hd_text text = {0};

    (void)snprintf(ret_line, KEY_LINE_MAX, "-");
    if (!hd_file_read(path, KEY_LINE_MAX - 1, &text) && text.len_bytes) {
        text.data[strcspn(text.data, "\n")] = '\0';
        (void)snprintf(ret_line, KEY_LINE_MAX, "%s", text.data);
    }
    hd_text_free(&text);
}

/* Makes the key under which a probe result of `p->devices` is valid: build, machine, devices,
 * compute library. */
static void make_key(const struct agent *agent, struct hd_prober *p)
{
    const struct hd_processor *cpu = &agent->health.cpu;
    char machine[KEY_LINE_MAX], driver[KEY_LINE_MAX], devices[DEVICES_MAX];
    const size_t length = strlen(p->devices);

    read_line("/etc/machine-id", machine); /* the machine id of systemd */
    read_line("/sys/module/nvidia/version", driver);
    if (length < sizeof devices)
        memcpy(devices, p->devices, length + 1);
    else /* many GPUs: their number and a hash of their ids */
        (void)snprintf(devices, sizeof devices, "cuda:%d (%016llx)",
                       agent->health.devices.gpu_count,
                       (unsigned long long)hd_hash_bytes(p->devices, length));
    (void)snprintf(p->key, sizeof p->key,
                   "build %s (kernels %.*s), machine %s, driver %s, devices %s, %s and %s%s%s",
                   hd_version, TRAITS_HASH, cpu->traits[0] ? cpu->traits : "-", machine, driver,
                   devices, cpu->isa, cpu->library, agent->health.devices.compute[0] ? ", " : "",
                   agent->health.devices.compute);
    for (char *c = p->key; *c; c++)
        *c = *c == '\n' ? ' ' : *c;
}

/* Appends a GPU to the devices to probe. */
static void name_gpu(const struct hd_device *gpu, struct hd_prober *p)
{
    const size_t at = strlen(p->devices);

    (void)snprintf(p->devices + at, sizeof p->devices - at, "%s%s", at ? "," : "cuda:", gpu->uuid);
}

/* Names the devices to probe, including those with a problem: the result then says which device
 * failed. Slices of GPUs do not connect: beside whole GPUs they are left out, and of slices alone
 * the first is measured. */
static void name_devices(const struct hd_devices *devices, struct hd_prober *p)
{
    p->devices[0] = '\0';
    for (int i = 0; i < devices->gpu_count; i++)
        if (!hd_text_starts(devices->list[i].uuid, "MIG-"))
            name_gpu(&devices->list[i], p);
    if (!devices->gpu_count)
        (void)snprintf(p->devices, sizeof p->devices, "cpu:%d:%d", devices->count,
                       devices->list[0].threads);
    else if (!p->devices[0])
        name_gpu(&devices->list[0], p);
}

/* Returns whether the devices to measure and their compute library are known to heddled; until then
 * a request of the controller waits. At the start a known list is enough; later one GPU must work,
 * because a GPU with a problem does not report its library. */
static bool are_known(const struct hd_devices *devices, bool at_start)
{
    if (!devices->gpu_count) /* CPU devices: a problem says that the GPUs are not known yet */
        return !devices->list[0].problem[0];
    for (int i = 0; !at_start && i < devices->gpu_count; i++)
        if (!devices->list[i].problem[0])
            return true;
    return at_start;
}

void probing_choose(struct agent *agent)
{
    const struct hd_devices *devices = &agent->health.devices;
    struct hd_prober *p = &agent->prober;
    char key[sizeof p->key];

    if (!are_known(devices, !p->key[0]))
        return;
    (void)snprintf(key, sizeof key, "%s", p->key);
    name_devices(devices, p);
    make_key(agent, p);
    if (strcmp(p->key, key) == 0)
        return;
    if (p->is_running)
        hd_log(HD_LOG_INFO, "the probe of the devices was ended: the devices have changed");
    hd_prober_close(p);
    hd_prober_open(p, agent->identity.state_dir);
}

void probing_open(struct agent *agent)
{
    struct hd_prober *p = &agent->prober;

    memcpy(p->worker, agent->health.worker, sizeof p->worker);
    p->at_first = agent->options.probe ? strcmp(agent->options.probe, "never") != 0
                                       : !agent->options.ephemeral;
    p->beside_others = agent->options.probe && strcmp(agent->options.probe, "anyway") == 0;
    probing_choose(agent);
}

/* Returns an attempt that has devices here or is about to get some; NULL: none. */
static const struct agent_attempt *find_busy(const struct agent *agent)
{
    for (const struct agent_attempt *l = agent->locals.first; l; l = l->next)
        if (l->state != LOCAL_ENDED)
            return l;
    return NULL;
}

void probing_yield(struct agent *agent, int64_t job)
{
    char why[128];

    (void)snprintf(why, sizeof why,
                   "job %" PRId64 " has devices of the node; probe it when they are idle", job);
    hd_prober_yield(&agent->prober, why);
}

static bool has_news(const struct agent *agent)
{
    const struct hd_prober *p = &agent->prober;

    return p->ended_ms != agent->probe_reported_ms ||
           (p->asked && p->asked == p->answered && p->asked != agent->probe_reported_request);
}

static void send_report(struct agent *agent)
{
    struct hd_prober *p = &agent->prober;
    Heddle__V1__NodeMessage message = HEDDLE__V1__NODE_MESSAGE__INIT;
    Heddle__V1__ProbeReport body = HEDDLE__V1__PROBE_REPORT__INIT;
    struct hd_text conditions = {0};
    enum hd_status st;

    body.request = p->answered;
    body.ended_unix_ms = p->ended_ms;
    body.problem = convert_text_of(p->problem);
    hd_prober_conditions(p, &conditions);
    body.measured_on = convert_text_of(conditions.failed ? p->key : conditions.data);
    body.calibration.data = (uint8_t *)p->calibration.data;
    body.calibration.len = p->calibration.len_bytes;
    message.body_case = HEDDLE__V1__NODE_MESSAGE__BODY_PROBE_REPORT;
    message.probe_report = &body;
    st = send_message(agent, &message);
    hd_text_free(&conditions);
    if (st) /* the stream's queue is full: the next tick retries */
        return;
    agent->probe_reported_ms = p->ended_ms;
    agent->probe_reported_request = p->answered;
}

/* Starts and ends probes. Devices count as idle only after the controller has sent its desired
 * state. */
void probing_tick(struct agent *agent)
{
    const struct agent_attempt *busy = find_busy(agent);
    struct hd_prober *p = &agent->prober;

    if (!p->key[0])
        return;
    if (busy && p->asked != p->answered)
        probing_yield(agent, busy->job);
    (void)hd_prober_step(p, !busy && agent->desired && !agent->reconcile_dirty);
    if (agent->welcomed && has_news(agent))
        send_report(agent);
}

void probing_welcome(struct agent *agent, int64_t known_ms)
{
    agent->probe_reported_ms = known_ms;
    agent->probe_reported_request =
        /* an answer that was not sent is requested again by the controller */
        agent->prober.answered;
}

void probing_ask(struct agent *agent, uint64_t request)
{
    hd_prober_ask(&agent->prober, request);
    agent->probe_reported_request = 0;
}
