#include "daemon/agent/device.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER_MAX = 4096, GPUS_ANSWER_MAX = 1 << 20 };

/* "key value" lines; what is not known here is passed over, so that a worker may say more. */
static enum hd_status understand(char *answer, struct agent_device *ret_device)
{
    struct agent_device d = {.isa = ""};
    bool bf16_told = false;
    char *rest = answer;

    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *value = strchr(line, ' ');

        if (!value)
            continue;
        *value++ = '\0';
        if (strcmp(line, "isa") == 0)
            (void)snprintf(d.isa, sizeof d.isa, "%s", value);
        if (strcmp(line, "library") == 0)
            (void)snprintf(d.library, sizeof d.library, "%s", value);
        if (strcmp(line, "gloo") == 0)
            d.gloo = strcmp(value, "1") == 0;
        if (strcmp(line, "bf16_fast") == 0) {
            d.bf16 = strcmp(value, "1") == 0;
            bf16_told = true;
        }
    }
    if (!d.isa[0] || !bf16_told)
        return hd_err(HD_CORRUPT, "its answer names no instruction set");
    *ret_device = d;
    return HD_OK;
}

enum hd_status agent_device_ask(const char *worker, int threads, struct agent_device *ret_device)
{
    struct agent_ask ask = {.pid = 0};
    char number[16];
    char *argv[] = {(char *)worker, (char *)"device", (char *)"--threads", number, NULL};
    enum hd_status st;

    (void)snprintf(number, sizeof number, "%d", threads);
    st = agent_ask_begin(&ask, argv, ANSWER_MAX, AGENT_ASK_MS);
    if (!st)
        (void)agent_ask_wait(&ask, INT_MAX, &st); /* it has a deadline of its own */
    if (!st) {
        st = understand(ask.answer.data ? ask.answer.data : (char[]){""}, ret_device);
        if (st)
            st = hd_err_prefix(st, "%s device", worker);
    }
    agent_ask_done(&ask);
    return st;
}

enum hd_status agent_gpus_begin(const char *worker, int timeout_ms, struct agent_ask *ask)
{
    char *argv[] = {(char *)worker, (char *)"gpus", NULL};

    return agent_ask_begin(ask, argv, GPUS_ANSWER_MAX, timeout_ms);
}

enum hd_status agent_gpus_understand(const struct agent_ask *ask, struct hd_gpu_list *ret_list)
{
    const struct hd_text *answer = &ask->answer;
    enum hd_status st =
        hd_gpu_list_read(answer->data ? answer->data : "", answer->len_bytes, ret_list);

    return st ? hd_err_prefix(st, "%s", ask->program) : HD_OK;
}

enum hd_status agent_gpus_ask(const char *worker, int timeout_ms, struct hd_gpu_list *ret_list)
{
    struct agent_ask ask = {.pid = 0};
    enum hd_status st = agent_gpus_begin(worker, timeout_ms, &ask);

    if (!st)
        (void)agent_ask_wait(&ask, INT_MAX, &st); /* it has a deadline of its own */
    if (!st)
        st = agent_gpus_understand(&ask, ret_list);
    agent_ask_done(&ask);
    return st;
}
