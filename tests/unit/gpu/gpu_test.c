/* What is known of GPUs: from NVML (a stand-in, standin_nvml.c), from the kernel's log, and whether
 * it survives the way to another process. No GPU is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "daemon/gpu/gpu.h"
#include "daemon/gpu/nvml.h"
#include "daemon/gpu/xid.h"

/* One list at a time: it is large. */
static struct hd_gpu_list list;

static enum hd_status ask(const char *library, const char *words)
{
    assert_int_equal(setenv("STANDIN_NVML", words, 1), 0);
    hd_gpu_list_init(&list);
    return hd_nvml_read(library, &list);
}

static void assert_says(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("\"%s\" does not say \"%s\"", text, words);
}

/* ---- NVML ---- */

static void a_gpu_tells_all_that_it_knows(void **state)
{
    const struct hd_gpu *g = &list.gpus[0];

    (void)state;
    assert_int_equal(ask(NVML_whole, ""), HD_OK);
    assert_int_equal(list.count, 1);
    assert_string_equal(list.driver, "580.65.06");
    assert_int_equal(list.driver_cuda, 13000);
    assert_string_equal(g->name, "Stand-in H100");
    assert_string_equal(g->uuid, "GPU-00000000-0000-0000-0000-000000000000");
    assert_string_equal(g->bus, "0000:10:00.0");
    assert_int_equal(g->memory_bytes, INT64_C(80) << 30);
    assert_int_equal(g->used_bytes, INT64_C(2) << 30);
    assert_int_equal(g->capability, 90);
    assert_int_equal(g->temperature_c, 41);
    assert_true(g->pcie_generation == 1 && g->pcie_generation_max == 5);
    assert_true(g->pcie_width == 16 && g->pcie_width_max == 16);
    assert_true(g->ecc == 1 && g->ecc_corrected == 0 && g->ecc_uncorrected == 0);
    assert_true(g->rows_remapped == 0 && g->remap_pending == 0 && g->remap_failed == 0);
    assert_true(g->mig == 0 && g->compute_mode == 0);
    assert_int_equal(g->xid, -1); /* NVML does not say */
    assert_string_equal(g->problem, "");
    /* 4 links, the last one down; 0 and 1 end at one switch, 2 at another */
    assert_true(g->nvlinks == 4 && g->nvlinks_up == 3 && g->peer_count == 2);
    assert_string_equal(g->peers[0].bus, "0000:a0:00.0");
    assert_true(g->peers[0].links == 2 && g->peers[1].links == 1);
}

static void none_one_and_eight_are_counted(void **state)
{
    (void)state;
    assert_int_equal(ask(NVML_whole, "gpus=0"), HD_OK);
    assert_int_equal(list.count, 0);
    assert_int_equal(ask(NVML_whole, "gpus=8"), HD_OK);
    assert_int_equal(list.count, 8);
    assert_string_equal(list.gpus[7].name, "Stand-in H800");
    assert_non_null(hd_gpu_find(&list, "GPU-00000000-0000-0000-0000-000000000003"));
    assert_null(hd_gpu_find(&list, "GPU-00000000-0000-0000-0000-000000000009"));
}

/* Its neighbours are in the list as if nothing was wrong. */
static void a_gpu_that_fails_is_in_the_list_with_its_problem(void **state)
{
    (void)state;
    assert_int_equal(ask(NVML_whole, "gpus=3 lost=1"), HD_OK);
    assert_int_equal(list.count, 3);
    assert_says(list.gpus[1].problem, "error 15 (GPU is lost); it fell off the bus");
    assert_int_equal(list.gpus[1].memory_bytes, -1);
    assert_string_equal(list.gpus[0].problem, "");
    assert_string_equal(list.gpus[2].problem, "");
    assert_int_equal(ask(NVML_whole, "gpus=2 mute=0"), HD_OK);
    assert_string_equal(list.gpus[0].name, "GPU 0");
    assert_says(list.gpus[0].problem, "asked for its handle");
    assert_string_equal(list.gpus[1].name, "Stand-in H200");
}

static void what_a_gpu_does_not_know_is_no_problem(void **state)
{
    const struct hd_gpu *g = &list.gpus[0];

    (void)state;
    assert_int_equal(ask(NVML_whole, "deaf=0"), HD_OK);
    assert_string_equal(g->problem, "");
    assert_int_equal(g->memory_bytes, INT64_C(80) << 30);
    assert_true(g->temperature_c == -1 && g->ecc == -1 && g->nvlinks == -1 && g->mig == -1);
    assert_int_equal(ask(NVML_whole, "shared=0"), HD_OK); /* memory is the machine's */
    assert_string_equal(g->problem, "");
    assert_true(g->memory_bytes == -1 && g->used_bytes == -1 && g->capability == 90);
    assert_int_equal(ask(NVML_old, ""), HD_OK); /* a library without those functions */
    assert_string_equal(g->problem, "");
    assert_int_equal(g->temperature_c, 41);
    assert_true(g->pcie_width == -1 && g->ecc_uncorrected == -1 && g->nvlinks_up == -1);
}

/* Not allowed in a container, no such function any more, no data, deprecated, who knows. */
static void what_a_gpu_does_not_tell_is_no_problem_unless_it_is_lost(void **state)
{
    static const char *const harmless[] = {"rare=4", "rare=13", "rare=22", "rare=26", "rare=999"};
    const struct hd_gpu *g = &list.gpus[0];

    (void)state;
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) {
        assert_int_equal(ask(NVML_whole, harmless[i]), HD_OK);
        assert_string_equal(g->problem, "");
        assert_int_equal(g->memory_bytes, INT64_C(80) << 30);
        assert_true(g->temperature_c == -1 && g->ecc == -1 && g->mig == -1);
    }
    assert_int_equal(ask(NVML_whole, "rare=15"), HD_OK);
    assert_says(g->problem, "asked for its temperature: error 15 (GPU is lost); it fell off");
    assert_int_equal(ask(NVML_whole, "rare=16"), HD_OK);
    assert_says(g->problem, "asked for its temperature: error 16 (Stand-in error); nvidia-smi -r");
}

static void a_driver_that_does_not_work_says_why(void **state)
{
    (void)state;
    assert_int_equal(ask("libnvidia-ml.so.none", ""), HD_UNSUPPORTED);
    assert_string_equal(hd_err_message(), "no NVIDIA driver: libnvidia-ml.so.none is not there");
    assert_int_equal(ask("/proc/self/status", ""), HD_UNSUPPORTED);
    assert_says(hd_err_message(), "cannot load /proc/self/status");
    assert_int_equal(ask(NVML_no_count, ""), HD_UNSUPPORTED);
    assert_says(hd_err_message(), "has no nvmlDeviceGetCount_v2");
    assert_int_equal(ask(NVML_whole, "init=9"), HD_UNSUPPORTED);
    assert_says(hd_err_message(), "error 9 (Stand-in error); the kernel's module is not loaded");
    assert_int_equal(ask(NVML_whole, "init=18"), HD_UNSUPPORTED);
    assert_says(hd_err_message(), "newer or older than the kernel's module");
    assert_int_equal(ask(NVML_whole, "count=999"), HD_UNSUPPORTED);
    assert_says(hd_err_message(), "the number of GPUs: error 999");
}

/* ---- the kernel's log ---- */

static enum hd_status read_log(const char *text)
{
    const char *tmp = getenv("TMPDIR");
    char path[256];
    enum hd_status st;

    (void)snprintf(path, sizeof path, "%s/kmsg-%d", tmp ? tmp : "/tmp", (int)getpid());
    assert_int_equal(hd_file_write_atomic(path, text, strlen(text), 0600), HD_OK);
    st = hd_xid_read(path, &list);
    assert_int_equal(unlink(path), 0);
    return st;
}

static void the_newest_xid_of_each_gpu_is_found(void **state)
{
    (void)state;
    assert_int_equal(ask(NVML_whole, "gpus=3"), HD_OK);
    assert_int_equal(
        read_log("6,1,10,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n"
                 "4,2,11,-;NVRM: Xid (PCI:0000:10:00): 13, pid=77, name=a, Graphics Exception\n"
                 "4,3,12,-;NVRM: Xid (PCI:0000:12:00): 31, pid=78, MMU Fault\n"
                 "4,4,13,-;NVRM: Xid (PCI:0000:10:00): 79, GPU has fallen off the bus.\n"
                 "4,5,14,-;NVRM: Xid (PCI:0000:99:00): 48, of a GPU that is not here\n"
                 "4,6,15,-;NVRM: Xid (PCI:0000:11:00) without a number\n"
                 "4,7,16,-;NVRM: Xid (PCI:00"),
        HD_OK);
    assert_true(list.gpus[0].xid == 79 && list.gpus[0].xid_count == 2);
    assert_true(list.gpus[0].xid_fatal == 79 && list.gpus[0].xid_fatal_at == 4); /* its record */
    assert_true(list.gpus[2].xid_fatal == 0 && list.gpus[2].xid_fatal_at == 0);
    assert_true(list.gpus[1].xid == 0 && list.gpus[1].xid_count == 0);
    assert_true(list.gpus[2].xid == 31 && list.gpus[2].xid_count == 1);
    assert_true(hd_xid_explain(79).hardware);
    assert_false(hd_xid_explain(31).hardware);
    assert_true(hd_xid_explain(123456).hardware); /* nobody knows: look */
}

/* Not being allowed to look is not the same as having seen nothing. */
static void without_a_log_nothing_is_known_of_xids(void **state)
{
    (void)state;
    assert_int_equal(ask(NVML_whole, ""), HD_OK);
    assert_int_equal(hd_xid_read("/nowhere/kmsg", &list), HD_IO);
    assert_int_equal(list.gpus[0].xid, -1);
}

/* ---- judging, and the way to another process ---- */

static void judge(const char *words, bool seen, const char *expected)
{
    assert_int_equal(ask(NVML_whole, words), HD_OK);
    hd_gpu_judge(&list.gpus[0], seen);
    if (*expected)
        assert_says(list.gpus[0].problem, expected);
    else
        assert_string_equal(list.gpus[0].problem, "");
}

static void what_no_rank_can_use_has_a_problem(void **state)
{
    (void)state;
    judge("", true, "");
    judge("", false, "the CUDA runtime does not see it");
    judge("mig=0", true, "MIG is on");
    judge("mig=0", true, "nvidia-smi -i 0000:10:00.0 -mig 0");
    judge("mode=0", true, "compute mode prohibits");
    judge("old=0", true, "compute capability 7.0 is older than 8.0");
    judge("lost=0", true, "it fell off the bus"); /* the first story stays */
    judge("ecc=0 pending=0 narrow=0", true, "");  /* it computes, heddled --doctor worries */
}

static void a_list_reads_back_as_it_was(void **state)
{
    struct hd_gpu_list *back = calloc(1, sizeof *back);
    struct hd_text json = {0};

    (void)state;
    assert_non_null(back);
    assert_int_equal(ask(NVML_whole, "gpus=8 lost=3 ecc=5"), HD_OK);
    (void)snprintf(list.plugin_problem, sizeof list.plugin_problem, "a \"quoted\"\nstory");
    list.plugin_abi = 3;
    hd_gpu_list_write(&list, &json);
    assert_false(json.failed);
    if (hd_gpu_list_read(json.data, json.len_bytes, back))
        fail_msg("%s", hd_err_message());
    assert_memory_equal(back, &list, sizeof list);
    /* a part of it is not a list, and says so */
    assert_int_equal(hd_gpu_list_read(json.data, json.len_bytes / 2, back), HD_CORRUPT);
    assert_int_equal(hd_gpu_list_read("{}", 2, back), HD_CORRUPT);
    assert_int_equal(hd_gpu_list_read("[1]", 3, back), HD_CORRUPT);
    hd_text_free(&json);
    free(back);
}

static void assert_clean(const char *text, const char *expected)
{
    char copy[64];

    (void)snprintf(copy, sizeof copy, "%s", text);
    hd_gpu_clean(copy);
    assert_string_equal(copy, expected);
}

static void names_are_fit_for_tables_and_messages(void **state)
{
    char json[512], name[128];

    (void)state;
    assert_clean("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3");
    assert_clean("G\xc3\xa9"
                 "ant \xe2\x84\xa2",
                 "G\xc3\xa9"
                 "ant \xe2\x84\xa2");
    assert_clean("a\x1b[2Jb\n\x7f", "a?[2Jb??");
    assert_clean("a\xff\xc3", "a??"); /* no character, and a half one */
    assert_clean("a\xc2\x9b"
                 "2J",
                 "a??2J"); /* U+009B begins a command to a terminal */
    /* 94 letters and two characters of 2 bytes are 98 bytes; 95 fit, which cuts the first of them
     */
    memset(name, 'x', 94);
    (void)snprintf(name + 94, sizeof name - 94, "\xc3\xa9\xc3\xa9");
    (void)snprintf(json, sizeof json,
                   "{\"driver\":\"\",\"nvml_problem\":\"\",\"plugin_problem\":\"\","
                   "\"log_problem\":\"\",\"gpus\":[{\"name\":\"%s\",\"uuid\":\"GPU-\\u001b\","
                   "\"bus\":\"\",\"peers\":[],\"problem\":\"\"}]}",
                   name);
    if (hd_gpu_list_read(json, strlen(json), &list))
        fail_msg("%s", hd_err_message());
    name[94] = '\0';
    assert_string_equal(list.gpus[0].name, name);
    assert_string_equal(list.gpus[0].uuid, "GPU-?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpu_tells_all_that_it_knows),
        cmocka_unit_test(none_one_and_eight_are_counted),
        cmocka_unit_test(a_gpu_that_fails_is_in_the_list_with_its_problem),
        cmocka_unit_test(what_a_gpu_does_not_know_is_no_problem),
        cmocka_unit_test(what_a_gpu_does_not_tell_is_no_problem_unless_it_is_lost),
        cmocka_unit_test(a_driver_that_does_not_work_says_why),
        cmocka_unit_test(the_newest_xid_of_each_gpu_is_found),
        cmocka_unit_test(without_a_log_nothing_is_known_of_xids),
        cmocka_unit_test(what_no_rank_can_use_has_a_problem),
        cmocka_unit_test(a_list_reads_back_as_it_was),
        cmocka_unit_test(names_are_fit_for_tables_and_messages),
    };
    return cmocka_run_group_tests_name("gpu", tests, NULL, NULL);
}
