#include "controller/cli/plan_command.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "controller/cli/process.h"
#include "spec/spec.h"

void plan_machine_divide(struct plan_asked *a)
{
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;

    a->devices = hd_spec_most_devices(a->spec);
    if (!a->threads)
        a->threads = a->spec->threads         ? a->spec->threads
                     : cores / a->devices > 1 ? cores / a->devices
                                              : 1;
    a->spec->threads = a->threads;
    a->spec->devices_min = a->spec->devices_max = a->devices;
}

/* Runs `heddle-worker device` and returns its answer; sets between_bytes. measure: include slow
 * measurements. */
static enum hd_status ask_about(struct plan_asked *a, enum hd_job_device device, bool measure,
                                struct hd_text *ret_answer, int *ret_status)
{
    const int32_t connected = hd_plan_ranks_max(device, NULL);
    char number[24], ranks[24];
    const char *argv[] = {"heddle-worker",
                          "device",
                          "--threads",
                          number,
                          "--world",
                          ranks,
                          "--device",
                          hd_job_device_words[device],
                          measure ? "--measure" : NULL,
                          NULL};
    const char *word;
    enum hd_status st;

    (void)snprintf(number, sizeof number, "%lld", (long long)a->threads);
    (void)snprintf(ranks, sizeof ranks, "%lld",
                   (long long)(a->devices < connected ? a->devices : connected));
    st = process_ask(argv, NULL, measure ? PROCESS_MEASURE_MS : PROCESS_QUESTION_MS, ret_answer,
                     NULL, ret_status);
    word = !st && ret_answer->data ? strstr(ret_answer->data, "\ngloo_bytes ") : NULL;
    a->between_bytes = word ? strtoll(word + strlen("\ngloo_bytes "), NULL, 10) : 0;
    return st;
}

/* Returns the number in the line "NAME NUMBER" of an answer of heddle-worker; 0: no such line. */
static double number_after(const char *answer, const char *name)
{
    const char *word = answer ? strstr(answer, name) : NULL;

    return word ? strtod(word + strlen(name), NULL) : 0;
}

static void find_rates(struct plan_asked *a, const char *answer)
{
    const double half = number_after(answer, "\npeak_bf16 "),
                 single = number_after(answer, "\npeak_fp32 "),
                 copy = number_after(answer, "\ncopy_bytes_per_s ");

    if (half > 0 && single > 0 && copy > 0)
        hd_rates_of_peaks(half, single, copy, 0, 0, &a->rates);
}

enum hd_status plan_machine_measure(struct plan_asked *a)
{
    struct hd_text answer = {0};
    int status = 0;
    enum hd_status st = ask_about(a, a->spec->device, true, &answer, &status);
    char *word;

    if (!st && status && a->spec->device == HD_JOB_DEVICE_CUDA)
        st = hd_err(HD_UNSUPPORTED,
                    "resources.device_type: cuda: no GPU of this machine can be used; "
                    "run heddle plan where there is one, or give --devices KIND:N, "
                    "such as h100:8, or --devices cpu:N");
    else if (!st && status)
        st = hd_err(HD_IO, "heddle-worker could not describe the device; its message is above");
    if (!st) {
        find_rates(a, answer.data);
        word = answer.data ? strstr(answer.data, "\ntraits ") : NULL;
        if (word) {
            word += strlen("\ntraits ");
            word[strcspn(word, "\n")] = '\0';
        }
        st = hd_traits_read(word ? word : "", &a->traits);
        if (st)
            st = hd_err_prefix(st, "heddle-worker");
    }
    hd_text_free(&answer);
    return st;
}

void plan_machine_find_between(struct plan_asked *a)
{
    struct hd_text answer = {0};
    int status;

    if (a->devices > 1)
        (void)ask_about(a, HD_JOB_DEVICE_CPU, false, &answer, &status);
    hd_text_free(&answer);
}

void plan_machine_note_memory(int64_t given_bytes, int64_t own_bytes, const char *whose)
{
    char given[32], own[32];

    if (!own_bytes || given_bytes <= own_bytes)
        return;
    hd_text_format_bytes(given_bytes, given);
    hd_text_format_bytes(own_bytes, own);
    cli_note("heddle: --device-memory: %s is more than %s, which is %s", given, whose, own);
}

void plan_machine_find_memory(struct plan_asked *a, bool other_machines)
{
    const int64_t machine = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    const bool cuda = hd_traits_is_cuda(&a->traits);
    const int64_t own = cuda ? a->traits.memory_bytes : other_machines ? 0 : machine / a->devices;

    if (cuda || !other_machines)
        plan_machine_note_memory(a->memory_bytes, cuda ? own : machine,
                                 cuda ? "such a GPU has" : "this machine has");
    if (!a->memory_bytes || (cuda && own < a->memory_bytes))
        a->memory_bytes = own;
    if (cuda)
        /* messages about fitting then speak of the given memory */
        a->traits.memory_bytes = a->memory_bytes;
}
