#include "daemon/devices/health.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

/* ---- what changes ---- */

static void log_changes(const struct hd_devices *now, const struct hd_devices *before)
{
    for (int i = 0; i < now->count; i++) {
        const struct hd_device *d = &now->list[i], *old = hd_devices_at(before, d->number);

        if (d->cuda && !old)
            hd_log(HD_LOG_INFO, "device %d is %s, %s", d->number, d->name, d->uuid);
        if (d->problem[0] && (!old || strcmp(old->problem, d->problem) != 0))
            hd_log(HD_LOG_WARN, "device %d takes no jobs: %s", d->number, d->problem);
        if (!d->problem[0] && old && old->problem[0])
            hd_log(HD_LOG_INFO, "device %d takes jobs again", d->number);
    }
    if (now->note[0] && !now->list[0].problem[0])
        hd_log(HD_LOG_INFO, "%s; the CPU is used", now->note);
}

/* Warns if --device-memory exceeds a GPU's memory; the GPU's memory is then offered. */
static void log_memory(const struct hd_devices *now, int64_t selection_bytes)
{
    char selection[32], own[32];

    hd_text_format_bytes(selection_bytes, selection);
    for (int i = 0; i < now->gpu_count; i++) {
        const struct hd_device *d = &now->list[i];

        if (!d->memory_bytes || d->memory_bytes >= selection_bytes)
            continue;
        hd_text_format_bytes(d->memory_bytes, own);
        hd_log(HD_LOG_WARN,
               "--device-memory: %s is more than the memory of device %d; all its %s are offered",
               selection, d->number, own);
    }
}

/* Chooses the devices to offer, from the newest answer of `heddle-worker gpus` or, if `answered` is
 * false, without one. Sets *ret_changed to whether the devices differ from before. */
static enum hd_status choose(struct hd_health *health, const struct hd_gpu_list *list,
                             bool answered, bool *ret_changed)
{
    struct hd_devices *devices = &health->devices, *now = malloc(sizeof *now);
    enum hd_status st;

    if (!now)
        return hd_err(HD_NO_MEMORY, "no memory for a list of devices");
    st = hd_devices_choose(&health->selection, list, answered, hd_devices_cores(), &health->numbers,
                           now);
    if (!st && !answered) /* unknown at present: keeps the previous value */
        memcpy(now->compute, devices->compute, sizeof now->compute);
    for (int i = now->gpu_count; !st && i < now->count; i++)
        now->list[i].bf16 = health->cpu.bf16;
    *ret_changed = !st && memcmp(devices, now, sizeof *now) != 0;
    if (*ret_changed) {
        log_changes(now, devices);
        log_memory(now, health->selection.memory_bytes);
        *devices = *now;
    }
    free(now);
    if (hd_numbers_write(&health->numbers)) /* after a failure retried at the next check */
        hd_log(HD_LOG_WARN, "a restart of heddled may give devices other numbers: %s",
               hd_err_message());
    return st;
}

/* ---- checks ---- */

static bool has_problem(const struct hd_devices *devices)
{
    for (int i = 0; i < devices->gpu_count; i++)
        if (devices->list[i].problem[0])
            return true;
    return false;
}

/* Ends the newest check of the GPUs. asked: status of its run of `heddle-worker gpus`. */
static enum hd_status finish_check(struct hd_health *health, enum hd_status asked,
                                   bool *ret_changed)
{
    struct hd_gpu_list *list = calloc(1, sizeof *list);
    enum hd_status st;

    if (!list)
        return hd_err(HD_NO_MEMORY, "no memory for a list of GPUs");
    if (!asked)
        asked = hd_ask_gpus_read(&health->ask, list);
    if (asked) {
        list->count = 0;
        (void)snprintf(list->problem, sizeof list->problem, "%s", hd_err_message());
    }
    hd_ask_end(&health->ask); /* reaps the process, so that no zombie remains until the next
                                 check */
    st = choose(health, list, !asked, ret_changed);
    if (!asked && !hd_inventory_equal(&health->inventory, &list->inventory)) {
        health->inventory = list->inventory;
        *ret_changed = true;
    }
    free(list);
    health->is_checking = false;
    health->looks_for_gpus = asked || health->devices.gpu_count;
    health->due_ms = hd_clock_now_ms() + (asked                           ? HD_HEALTH_RETRY_MS
                                          : has_problem(&health->devices) ? HD_HEALTH_PROBLEM_MS
                                                                          : HD_HEALTH_EVERY_MS);
    return st;
}

bool hd_health_step(struct hd_health *health)
{
    enum hd_status st = HD_OK;
    bool is_over, changed = false;

    if (!health->looks_for_gpus)
        return false;
    if (health->is_checking) {
        is_over = hd_ask_step(&health->ask, &st);
    } else if (health->needed > health->begun || hd_clock_now_ms() >= health->due_ms) {
        health->begun++;
        st = hd_ask_gpus_begin(&health->ask, health->worker);
        health->is_checking = true;
        is_over = st != HD_OK;
    } else {
        return false;
    }
    if (is_over && finish_check(health, st, &changed))
        hd_log(HD_LOG_WARN, "%s", hd_err_message());
    return changed;
}

int64_t hd_health_check_soon(struct hd_health *health)
{
    health->needed = health->begun + 1;
    return health->needed;
}

bool hd_health_has_checked(const struct hd_health *health, int64_t number)
{
    return !health->looks_for_gpus || number < health->begun ||
           (number == health->begun && !health->is_checking);
}

void hd_health_repaired(struct hd_health *health)
{
    if (!health->looks_for_gpus) {
        hd_log(HD_LOG_INFO, "this node offers no GPUs; restart heddled if GPUs were added");
        return;
    }
    hd_log(HD_LOG_INFO, "checking the GPUs");
    for (int i = 0; i < health->numbers.count; i++)
        health->numbers.list[i].fault[0] = '\0';
    if (health->is_checking) {
        hd_ask_end(&health->ask);
        health->is_checking = false;
        health->begun--; /* the next check reuses this number, for which ends of attempts may
                            wait */
    }
    (void)hd_health_check_soon(health);
}

/* ---- the start ---- */

/* Queries the processor. Without an answer, precision `auto` means fp32 on this node's CPU devices,
 * and their jobs cannot use other nodes. */
static void ask_processor(struct hd_health *health)
{
    struct hd_devices *devices = &health->devices;
    const int first = devices->gpu_count; /* all CPU devices are alike */
    const int threads = first < devices->count ? devices->list[first].threads : 1;

    if (hd_ask_processor(health->worker, threads, &health->cpu)) {
        hd_log(HD_LOG_WARN, "precision auto is fp32 on this node's CPU devices: %s",
               hd_err_message());
        return;
    }
    for (int i = first; i < devices->count; i++)
        devices->list[i].bf16 = health->cpu.bf16;
    if (!health->cpu.gloo)
        hd_log(HD_LOG_INFO, "jobs stay on this node: its heddle-worker was built without gloo");
    if (first < devices->count)
        hd_log(HD_LOG_INFO, "CPU devices: %d of %d threads, %s, bf16 %s", devices->count - first,
               threads, health->cpu.isa, health->cpu.bf16 ? "native" : "slower than fp32");
}

enum hd_status hd_health_open(struct hd_health *health, const char *state_dir, const char *boot_id)
{
    static const struct hd_gpu_list none;
    enum hd_status st;
    bool changed;

    if (hd_numbers_read(&health->numbers, state_dir, boot_id))
        hd_log(HD_LOG_WARN, "devices get new numbers: %s", hd_err_message());
    if (hd_device_selection_has_gpus(&health->selection)) {
        if (hd_devices_visible())
            hd_log(
                HD_LOG_INFO,
                "CUDA_VISIBLE_DEVICES=%.200s is set: other GPUs of this machine are not offered; "
                "--devices can choose among those that are left",
                hd_devices_visible());
        st = hd_ask_gpus_begin(&health->ask, health->worker);
        if (!st)
            st = hd_ask_wait(&health->ask);
        st = finish_check(health, st, &changed);
    } else {
        hd_inventory_read("/sys", NULL, NULL, 0, &health->inventory);
        st = choose(health, &none, true, &changed);
    }
    if (!st)
        ask_processor(health);
    return st;
}

void hd_health_close(struct hd_health *health)
{
    hd_ask_end(&health->ask);
}
