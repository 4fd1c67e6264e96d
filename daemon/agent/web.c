#include "daemon/agent/web.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/agent/agent.h"
#include "daemon/devices/network.h"
#include "daemon/devices/sample.h"
#include "http/http.h"
#include "prometheus/prometheus.h"
#include "version/version.h"

enum {
    SAMPLE_EVERY_MS = 15000,
    SAMPLE_WANTED_MS = 300000, /* time after a scrape during which GPUs are sampled, ms */
    SAMPLE_STALE_MS = 60000,
    SAMPLE_ANSWER_MS = 20000,
};

struct agent_web {
    struct hd_http *http;
    struct hd_rpc_tokens tokens;
    struct hd_prom_histogram delays;
    int64_t tick_due_ms;

    struct hd_worker_run ask;
    /* asking: a sample of GPU readings is being taken; failed: the last sample failed, and this was
     * logged */
    bool asking, failed;
    int64_t scraped_ms, next_ms; /* time of the last scrape; earliest time of the next sample */
    /* time of the newest sample: monotonic; wall clock; 0: none */
    int64_t sampled_ms, sampled_at_ms;
    struct hd_sample_list samples;
};

/* ---- samples of GPUs --------------------------------------------------------------------------*/

static bool has_gpus(const struct agent *agent)
{
    return agent->health.devices.gpu_count > 0;
}

static void report_failure(struct agent_web *web)
{
    if (!web->failed)
        hd_log(HD_LOG_WARN, "no metrics of GPUs: %s", hd_err_message());
    web->failed = true;
}

static void take_sample(struct agent_web *web)
{
    struct hd_sample_list *list = calloc(1, sizeof *list);
    enum hd_status st =
        list ? hd_sample_list_read(web->ask.answer.data, web->ask.answer.len_bytes, list)
             : hd_err(HD_NO_MEMORY, "no memory for a sample");

    if (!st) {
        web->samples = *list;
        web->sampled_ms = hd_clock_now_ms();
        web->sampled_at_ms = hd_clock_wall_ms();
        web->failed = false;
    } else {
        report_failure(web);
    }
    free(list);
}

static void step_sample(struct agent *agent, struct agent_web *web)
{
    const char *const argv[] = {agent->health.worker, "gpu-sample", NULL};
    const int64_t now_ms = hd_clock_now_ms();
    enum hd_status st;

    if (web->asking && hd_ask_step(&web->ask, &st)) {
        web->asking = false;
        if (st)
            report_failure(web);
        else
            take_sample(web);
    }
    if (web->asking || !has_gpus(agent) || now_ms < web->next_ms || !web->scraped_ms ||
        now_ms - web->scraped_ms > SAMPLE_WANTED_MS)
        return;
    web->next_ms = now_ms + SAMPLE_EVERY_MS;
    web->asking = !hd_ask_begin(&web->ask, argv, SAMPLE_ANSWER_MS);
    if (!web->asking)
        report_failure(web);
}

/* ---- the page ---------------------------------------------------------------------------------*/

static void add_adapters_left_out(const struct agent *agent, struct hd_text *out)
{
    const struct hd_devices *devices = &agent->health.devices;
    struct hd_network network;
    bool cuda = false;

    for (int i = 0; i < devices->count; i++)
        cuda |= devices->list[i].cuda;
    if (cuda && agent->locals.data_address[0] &&
        !hd_network_find(agent->locals.data_address, "/sys", &network))
        hd_prom_add_one(out, HD_PROM_daemon_adapters_left_out, hd_network_count_left_out(&network));
}

static void add_connection(struct agent *agent, struct hd_text *out)
{
    const int64_t silent_ms = hd_clock_now_ms() - agent->received_ms;
    size_t states[3] = {0}, troubled = 0;
    static const char *const words[] = {"planned", "alive", "ended"};

    for (const struct agent_attempt *l = agent->locals.first; l; l = l->next) {
        states[l->state]++;
        troubled += l->trouble[0] != '\0';
    }
    hd_prom_add_one(out, HD_PROM_daemon_connected, agent->welcomed);
    if (agent->received_ms)
        hd_prom_add_one(out, HD_PROM_daemon_heard_timestamp_seconds,
                        (double)(hd_clock_wall_ms() - silent_ms) / 1e3);
    hd_prom_begin(out, HD_PROM_daemon_attempts);
    for (int s = 0; s < 3; s++)
        hd_prom_add_label(out, HD_PROM_daemon_attempts, "state", words[s], (double)states[s]);
    hd_prom_add_one(out, HD_PROM_daemon_attempts_in_trouble, (double)troubled);
    add_adapters_left_out(agent, out);
}

static const char *number_label(char ret_number[16], int number)
{
    (void)snprintf(ret_number, 16, "%d", number);
    return ret_number;
}

static void add_devices(const struct agent *agent, struct hd_text *out)
{
    const struct hd_devices *devices = &agent->health.devices;
    char number[16];

    hd_prom_begin(out, HD_PROM_device_info);
    for (int i = 0; i < devices->count; i++) {
        const struct hd_device *d = &devices->list[i];
        const struct hd_prom_pair pairs[] = {{"device", number_label(number, d->number)},
                                             {"kind", d->cuda ? "cuda" : "cpu"},
                                             {"name", d->name},
                                             {"uuid", d->uuid}};

        hd_prom_add_labels(out, HD_PROM_device_info, "", pairs, 4, 1);
    }
    hd_prom_begin(out, HD_PROM_device_usable);
    for (int i = 0; i < devices->count; i++)
        hd_prom_add_label(out, HD_PROM_device_usable, "device",
                          number_label(number, devices->list[i].number),
                          !devices->list[i].problem[0]);
}

/* metric family, member of the sample, and a second label with its value (NULL: none); rows of a
 * family are adjacent */
static const struct gpu_value {
    enum hd_prom_family family;
    size_t offset;
    const char *label, *value;
} gpu_values[] = {
#define VALUE(family, member, label, value)                                \
    {                                                                      \
        HD_PROM_##family, offsetof(struct hd_sample, member), label, value \
    }
    VALUE(gpu_power_watts, power_watts, NULL, NULL),
    VALUE(gpu_power_limit_watts, power_limit_watts, NULL, NULL),
    VALUE(gpu_energy_joules_total, energy_joules, NULL, NULL),
    VALUE(gpu_temperature_celsius, temperature_celsius, NULL, NULL),
    VALUE(gpu_clock_hertz, sm_hertz, "clock", "sm"),
    VALUE(gpu_clock_hertz, memory_hertz, "clock", "memory"),
    VALUE(gpu_clock_limit_hertz, sm_hertz_max, "clock", "sm"),
    VALUE(gpu_clock_limit_hertz, memory_hertz_max, "clock", "memory"),
    VALUE(gpu_throttled, throttled_power, "reason", "power"),
    VALUE(gpu_throttled, throttled_thermal, "reason", "thermal"),
    VALUE(gpu_throttled, throttled_hardware, "reason", "hardware"),
    VALUE(gpu_throttled, throttled_brake, "reason", "brake"),
    VALUE(gpu_busy_ratio, busy_ratio, NULL, NULL),
    VALUE(gpu_memory_used_bytes, memory_used_bytes, NULL, NULL),
    VALUE(gpu_memory_bytes, memory_bytes, NULL, NULL),
    VALUE(gpu_ecc_errors_total, ecc_corrected, "severity", "corrected"),
    VALUE(gpu_ecc_errors_total, ecc_uncorrected, "severity", "uncorrected"),
#undef VALUE
};

static double value_in(const struct hd_sample *sample, size_t offset)
{
    double value;

    memcpy(&value, (const char *)sample + offset, sizeof value);
    return value;
}

static void add_gpu_value(const struct agent *agent, const struct gpu_value *v, struct hd_text *out)
{
    const struct hd_devices *devices = &agent->health.devices;
    char number[16];

    for (int i = 0; i < devices->gpu_count; i++) {
        const struct hd_sample *s = hd_sample_find(&agent->web->samples, devices->list[i].uuid);
        const struct hd_prom_pair pairs[] = {
            {"device", number_label(number, devices->list[i].number)}, {v->label, v->value}};

        if (s && !isnan(value_in(s, v->offset)))
            hd_prom_add_labels(out, v->family, "", pairs, 2, value_in(s, v->offset));
    }
}

static void add_xids(const struct agent *agent, struct hd_text *out)
{
    const struct hd_devices *devices = &agent->health.devices;
    char number[16], xid[16];

    hd_prom_begin(out, HD_PROM_gpu_xid);
    for (int i = 0; i < devices->gpu_count; i++) {
        const struct hd_sample *s = hd_sample_find(&agent->web->samples, devices->list[i].uuid);
        const bool failed = s && s->xid > 0; /* NaN, for a GPU that tells none, is no int */
        const struct hd_prom_pair pairs[] = {
            {"device", number_label(number, devices->list[i].number)},
            {"xid", number_label(xid, failed ? (int)s->xid : 0)}};

        if (failed)
            hd_prom_add_labels(out, HD_PROM_gpu_xid, "", pairs, 2, 1);
    }
}

static void add_gpus(const struct agent *agent, struct hd_text *out)
{
    const struct agent_web *web = agent->web;
    enum hd_prom_family family = HD_PROM_COUNT;

    if (!web->sampled_ms)
        return;
    hd_prom_add_one(out, HD_PROM_gpu_sample_timestamp_seconds, (double)web->sampled_at_ms / 1e3);
    if (hd_clock_now_ms() - web->sampled_ms > SAMPLE_STALE_MS)
        return;
    for (size_t i = 0; i < sizeof gpu_values / sizeof gpu_values[0]; i++) {
        if (gpu_values[i].family != family)
            hd_prom_begin(out, family = gpu_values[i].family);
        add_gpu_value(agent, &gpu_values[i], out);
    }
    add_xids(agent, out);
}

static void add_copies(const struct agent *agent, struct hd_text *out)
{
    struct copies_stats stats;

    copies_get_stats(agent->copies, &stats);
    hd_prom_begin(out, HD_PROM_checkpoint_copies_total);
    hd_prom_add_label(out, HD_PROM_checkpoint_copies_total, "result", "done", (double)stats.done);
    hd_prom_add_label(out, HD_PROM_checkpoint_copies_total, "result", "failed",
                      (double)stats.failed);
    hd_prom_add_one(out, HD_PROM_checkpoint_copy_bytes_total, (double)stats.sent_bytes);
    hd_prom_add_one(out, HD_PROM_checkpoint_copies_waiting, (double)stats.waiting);
    hd_prom_add_one(out, HD_PROM_checkpoint_copy_lag_seconds, stats.oldest_seconds);
}

static void on_web_request(void *user, struct hd_http_request *request)
{
    struct agent *agent = user;
    struct agent_web *web = agent->web;
    struct hd_http_stats stats;
    struct hd_text page = {0};

    if (strcmp(hd_http_path(request), "/metrics") != 0) {
        hd_http_fail(request, hd_err(HD_NOT_FOUND, "heddled has the page /metrics alone"));
        return;
    }
    web->scraped_ms = hd_clock_now_ms();
    hd_prom_add_process(&page, "heddled", hd_version_text);
    hd_prom_add_histogram(&page, HD_PROM_loop_delay_seconds, &web->delays);
    hd_http_get_stats(web->http, &stats);
    hd_prom_add_listener(&page, stats.answered, stats.connections);
    add_connection(agent, &page);
    add_devices(agent, &page);
    add_gpus(agent, &page);
    add_copies(agent, &page);
    hd_http_reply(request, 200, HD_PROM_TYPE, &page);
}

/* ---- the HTTP endpoint ----------------------------------------------------------------------- */

static enum hd_status authorize_reader(void *user, const struct hd_http_caller *caller)
{
    const struct agent_web *web = ((struct agent *)user)->web;

    if (caller->is_unix)
        return caller->uid == 0 || caller->uid == geteuid()
                   ? HD_OK
                   : hd_err(HD_DENIED, "this socket is for root and heddled's user");
    if (!web->tokens.count || (caller->token && hd_rpc_tokens_find(&web->tokens, caller->token)))
        return HD_OK;
    return hd_err(HD_DENIED, "a token of heddled's --http-token-file is needed (Authorization: "
                             "Bearer TOKEN)");
}

/* Returns whether the HTTP endpoint uses TLS: a joined node has a certificate even if no option
 * names one. On loopback plain HTTP is kept, for health checks. */
static bool shows_certificate(const struct agent *agent)
{
    const struct agent_options *o = &agent->options;

    return o->has_tls && o->http && !(agent->joined.joined && hd_rpc_address_is_loopback(o->http));
}

enum hd_status web_open(struct agent *agent)
{
    const struct agent_options *o = &agent->options;
    const bool tls = shows_certificate(agent);
    struct hd_http_options options = {.address = o->http,
                                      .hosts = &o->http_host,
                                      .host_count = o->http_host != NULL,
                                      .cert_path = tls ? o->tls.cert_path : NULL,
                                      .key_path = tls ? o->tls.key_path : NULL,
                                      .asks_tokens = o->http_token_file != NULL,
                                      .authorize = authorize_reader,
                                      .on_request = on_web_request,
                                      .user = agent};
    struct agent_web *web;
    enum hd_status st = HD_OK;

    if (!o->http)
        return o->http_host || o->http_token_file
                   ? hd_err(HD_INVALID, "--http-host and --http-token-file belong to --http ADDR")
                   : HD_OK;
    web = calloc(1, sizeof *web);
    if (!web)
        return hd_err(HD_NO_MEMORY, "no memory for an HTTP endpoint");
    web->delays.bounds = &hd_prom_latencies;
    if (o->http_token_file)
        st = hd_rpc_tokens_read(&web->tokens, o->http_token_file, agent->options.state_dir,
                                HD_RPC_PARTY_USER);
    if (!st)
        st = hd_http_new(agent->loop, &options, &web->http);
    if (st) {
        hd_rpc_tokens_done(&web->tokens);
        free(web);
        return hd_err_prefix(st, "--http");
    }
    agent->web = web;
    if (hd_rpc_address_is_unix(o->http))
        hd_log(HD_LOG_INFO, "metrics on %s", o->http);
    else
        hd_log(HD_LOG_INFO, "metrics on %s://%.*s:%d/metrics", options.cert_path ? "https" : "http",
               (int)(strrchr(o->http, ':') - o->http), o->http, hd_http_port(web->http));
    return HD_OK;
}

void web_use_certificate(struct agent *agent)
{
    const struct hd_rpc_tls *tls = &agent->options.tls;

    if (agent->web && agent->options.has_tls &&
        hd_http_set_tls(agent->web->http, tls->cert_path, tls->key_path))
        hd_log(HD_LOG_ERROR, "--http shows its certificate of before: %s", hd_err_message());
}

void web_tick(struct agent *agent)
{
    struct agent_web *web = agent->web;
    const int64_t now_ms = hd_clock_now_ms();

    if (!web)
        return;
    if (web->tick_due_ms)
        hd_prom_observe(&web->delays,
                        now_ms > web->tick_due_ms ? 1e-3 * (double)(now_ms - web->tick_due_ms) : 0);
    web->tick_due_ms = now_ms + AGENT_TICK_MS;
    step_sample(agent, web);
}

void web_close(struct agent *agent)
{
    struct agent_web *web = agent->web;

    if (!web)
        return;
    agent->web = NULL;
    hd_ask_end(&web->ask);
    /* no request is open, because each was answered in its callback */
    hd_http_close(web->http, NULL, NULL);
    hd_rpc_tokens_done(&web->tokens);
    free(web);
}
