/* heddled --doctor: what it finds worth a word about GPUs, and how it is told. */
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
#include "base/json.h"
#include "daemon/agent/doctor.h"

/* A doctor with one GPU in good health. */
static struct doctor *with_gpu(void)
{
    struct doctor *d = doctor_new();
    struct hd_gpu *g;

    assert_non_null(d);
    g = &d->gpus.gpus[d->gpus.count++];
    hd_gpu_init(g);
    (void)snprintf(g->name, sizeof g->name, "G");
    (void)snprintf(g->uuid, sizeof g->uuid, "GPU-a");
    (void)snprintf(g->bus, sizeof g->bus, "0000:3b:00.0");
    (void)snprintf(d->gpus.driver, sizeof d->gpus.driver, "580.1");
    d->gpus.driver_cuda = 13000;
    d->gpus.plugin_abi = 3;
    g->memory_bytes = INT64_C(80) << 30;
    g->temperature_c = 60;
    g->pcie_generation = 1; /* idle */
    g->pcie_generation_max = 5;
    g->pcie_width = g->pcie_width_max = 16;
    g->nvlinks = g->nvlinks_up = 18;
    g->ecc = 1;
    g->ecc_uncorrected = g->remap_pending = g->remap_failed = g->xid = g->xid_count = 0;
    return d;
}

static const struct doctor_finding *find(const struct doctor *d, enum doctor_level level,
                                         const char *area, const char *words)
{
    for (int i = 0; i < d->count; i++)
        if (d->findings[i].level == level && strcmp(d->findings[i].area, area) == 0 &&
            strstr(d->findings[i].text, words))
            return &d->findings[i];
    return NULL;
}

static void assert_finds(const struct doctor *d, enum doctor_level level, const char *area,
                         const char *words)
{
    if (!find(d, level, area, words))
        fail_msg("nothing of \"%s\" in %s", words, area);
}

static void a_healthy_gpu_is_described_and_no_more(void **state)
{
    struct doctor *d = with_gpu();

    (void)state;
    doctor_look_at_gpus(d, 1);
    assert_int_equal(d->problems, 0);
    assert_finds(d, DOCTOR_OK, "bus", "1 NVIDIA GPU on");
    assert_finds(d, DOCTOR_OK, "driver", "580.1, for CUDA up to 13.0");
    assert_finds(d, DOCTOR_OK, "plug-in", "ABI 3");
    assert_finds(d, DOCTOR_OK, "gpu 0",
                 "G, GPU-a, 0000:3b:00.0, 80.0 GiB, 60 C, PCIe 1 of 5 x16, NVLink 18 of 18, "
                 "ECC on, no Xid");
    free(d);
}

/* One change each, from good health to one problem with a hint. */
static void each_ailment_is_one_problem_with_a_hint(void **state)
{
    static const struct {
        size_t member;
        int64_t value;
        const char *words;
    } ailments[] = {
#define AILMENT(name, value, words) {offsetof(struct hd_gpu, name), value, words}
        AILMENT(ecc_uncorrected, 2, "2 memory errors that could not be corrected"),
        AILMENT(remap_pending, 1, "waits to be remapped"),
        AILMENT(remap_failed, 1, "no spares are left"),
        AILMENT(pcie_width, 4, "4 of 16 lanes"),
        AILMENT(nvlinks_up, 16, "2 of 18 NVLinks are down"),
        AILMENT(xid, 79, "Xid 79: it fell off the bus"),
        AILMENT(temperature_c, 91, "91 C"),
    };

    (void)state;
    for (size_t i = 0; i < sizeof ailments / sizeof *ailments; i++) {
        struct doctor *d = with_gpu();

        *(int64_t *)(void *)((char *)&d->gpus.gpus[0] + ailments[i].member) = ailments[i].value;
        doctor_look_at_gpus(d, 1);
        assert_int_equal(d->problems, 1);
        assert_finds(d, DOCTOR_PROBLEM, "gpu 0", ailments[i].words);
        assert_true(find(d, DOCTOR_PROBLEM, "gpu 0", ailments[i].words)->hint[0]);
        free(d);
    }
}

/* A program's fault, links that no bridge joins, and what is not known: nobody is to be alarmed. */
static void what_is_not_the_gpus_fault_is_no_problem(void **state)
{
    struct doctor *d = with_gpu();
    struct hd_gpu *g = &d->gpus.gpus[0];

    (void)state;
    g->xid = 31;
    g->xid_count = 4;
    g->nvlinks_up = 0;
    doctor_look_at_gpus(d, 1);
    assert_int_equal(d->problems, 0);
    assert_finds(d, DOCTOR_NOTE, "gpu 0", "the newest of 4 errors in the kernel's log is Xid 31");
    free(d);
    d = with_gpu();
    g = &d->gpus.gpus[0];
#define X(name) g->name = -1;
    HD_GPU_NUMBERS(X)
#undef X
    (void)snprintf(d->gpus.nvml_problem, sizeof d->gpus.nvml_problem, "no NVML");
    (void)snprintf(d->gpus.log_problem, sizeof d->gpus.log_problem, "not allowed");
    doctor_look_at_gpus(d, -1);
    assert_int_equal(d->problems, 0);
    assert_finds(d, DOCTOR_NOTE, "driver", "no NVML; temperature, errors and links");
    assert_finds(d, DOCTOR_NOTE, "xid", "not allowed");
    assert_finds(d, DOCTOR_OK, "gpu 0", "G, GPU-a, 0000:3b:00.0");
    free(d);
}

/* Where there are GPUs, a missing driver or plug-in is wrong; elsewhere it is as it should be. */
static void a_missing_driver_matters_where_a_gpu_is(void **state)
{
    struct doctor *d = doctor_new();

    (void)state;
    assert_non_null(d);
    (void)snprintf(d->gpus.nvml_problem, sizeof d->gpus.nvml_problem, "no driver");
    (void)snprintf(d->gpus.plugin_problem, sizeof d->gpus.plugin_problem, "no plug-in");
    doctor_look_at_gpus(d, 0);
    assert_int_equal(d->problems, 0);
    assert_finds(d, DOCTOR_NOTE, "driver", "no driver; the CPU serves");
    d->count = 0;
    doctor_look_at_gpus(d, 2);
    assert_int_equal(d->problems, 2);
    assert_finds(d, DOCTOR_PROBLEM, "driver", "no driver");
    assert_finds(d, DOCTOR_PROBLEM, "plug-in", "no plug-in");
    free(d);
}

static void put(const char *dir, const char *device, const char *name, const char *text)
{
    char path[512];

    (void)snprintf(path, sizeof path, "%s/%s", dir, device);
    assert_int_equal(hd_file_make_dirs(path, 0700), HD_OK);
    (void)snprintf(path, sizeof path, "%s/%s/%s", dir, device, name);
    assert_int_equal(hd_file_write_atomic(path, text, strlen(text), 0600), HD_OK);
}

static void gpus_on_the_bus_are_counted(void **state)
{
    const char *tmp = getenv("TMPDIR");
    char dir[256];

    (void)state;
    (void)snprintf(dir, sizeof dir, "%s/bus-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    assert_int_equal(doctor_count_on_bus(dir), 0);
    put(dir, "0000:3b:00.0", "vendor", "0x10de\n"); /* a data-centre GPU: 3D controller */
    put(dir, "0000:3b:00.0", "class", "0x030200\n");
    put(dir, "0000:01:00.0", "vendor", "0x10de\n"); /* one with a monitor */
    put(dir, "0000:01:00.0", "class", "0x030000\n");
    put(dir, "0000:01:00.1", "vendor", "0x10de\n"); /* its sound */
    put(dir, "0000:01:00.1", "class", "0x040300\n");
    put(dir, "0000:02:00.0", "vendor", "0x1002\n"); /* another maker's GPU */
    put(dir, "0000:02:00.0", "class", "0x030000\n");
    assert_int_equal(doctor_count_on_bus(dir), 2);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
    assert_int_equal(doctor_count_on_bus(dir), -1);
}

static void json_says_what_the_table_says(void **state)
{
    const struct hd_json_limits limits = {.values_max = 1000, .depth_max = 5};
    struct doctor *d = doctor_new();
    struct hd_text table = {0}, json = {0};
    const struct hd_json *root, *items = NULL;
    struct hd_arena arena;
    const char *level;
    int64_t problems;

    (void)state;
    assert_non_null(d);
    doctor_add(d, DOCTOR_OK, "here", "", "%d things", 3);
    doctor_add(d, DOCTOR_PROBLEM, "there", "mend it", "a \"quoted\" thing");
    doctor_print(d, false, &table);
    assert_string_equal(table.data, "here          ok       3 things\n"
                                    "there         problem  a \"quoted\" thing\n"
                                    "                       -> mend it\n"
                                    "1 problem\n");
    doctor_print(d, true, &json);
    hd_arena_init(&arena, 0);
    assert_int_equal(hd_json_parse(&arena, json.data, json.len_bytes, &limits, &root), HD_OK);
    assert_int_equal(hd_json_need_int64(root, "problems", 0, 9, &problems), HD_OK);
    assert_int_equal(problems, 1);
    assert_int_equal(hd_json_need(root, "items", HD_JSON_ARRAY, &items), HD_OK);
    assert_int_equal(items->count, 2);
    assert_int_equal(hd_json_need_string(items->first->next, "level", &level), HD_OK);
    assert_string_equal(level, "problem");
    assert_null(hd_json_member(items->first, "hint"));
    hd_arena_done(&arena);
    hd_text_free(&table);
    hd_text_free(&json);
    free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_healthy_gpu_is_described_and_no_more),
        cmocka_unit_test(each_ailment_is_one_problem_with_a_hint),
        cmocka_unit_test(what_is_not_the_gpus_fault_is_no_problem),
        cmocka_unit_test(a_missing_driver_matters_where_a_gpu_is),
        cmocka_unit_test(gpus_on_the_bus_are_counted),
        cmocka_unit_test(json_says_what_the_table_says),
    };
    return cmocka_run_group_tests_name("doctor", tests, NULL, NULL);
}
