/* heddled --doctor: what it finds worth a word about GPUs, and how it is told. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "daemon/agent/doctor.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

/* A doctor with one GPU that works. */
static struct doctor_findings *with_gpu(void)
{
    struct doctor_findings *d = doctor_new();
    struct hd_gpu *g;

    assert_non_null(d);
    g = &d->gpus.gpus[d->gpus.count++];
    (void)snprintf(g->name, sizeof g->name, "G");
    (void)snprintf(g->uuid, sizeof g->uuid, "GPU-a");
    (void)snprintf(g->bus, sizeof g->bus, "0000:3b:00.0");
    g->memory_bytes = INT64_C(80) << 30;
    return d;
}

static const struct doctor_finding *find(const struct doctor_findings *d, enum doctor_level level,
                                         const char *area, const char *words)
{
    for (int i = 0; i < d->count; i++)
        if (d->findings[i].level == level && strcmp(d->findings[i].area, area) == 0 &&
            strstr(d->findings[i].text, words))
            return &d->findings[i];
    return NULL;
}

static void assert_finds(const struct doctor_findings *d, enum doctor_level level, const char *area,
                         const char *words)
{
    if (!find(d, level, area, words))
        fail_msg("nothing of \"%s\" in %s", words, area);
}

static void a_gpu_that_works_is_described_and_no_more(void **state)
{
    struct doctor_findings *d = with_gpu();

    doctor_check_gpus(d, 1);
    assert_true(d->problems == 0 && d->count == 2);
    assert_finds(d, DOCTOR_OK, "gpus", "CUDA lists 1; on the PCI bus are 1");
    assert_finds(d, DOCTOR_OK, "gpu 0", "G, GPU-a, 0000:3b:00.0, 80.0 GiB");
    free(d);
}

static void what_is_wrong_with_a_gpu_is_said(void **state)
{
    struct doctor_findings *d = with_gpu();
    struct hd_gpu *g = &d->gpus.gpus[0];

    (void)snprintf(g->problem, sizeof g->problem, "too old");
    (void)snprintf(g->fault, sizeof g->fault, "Xid 79: it fell off the bus");
    (void)snprintf(d->gpus.log_problem, sizeof d->gpus.log_problem, "not allowed");
    doctor_check_gpus(d, 2);
    assert_int_equal(d->problems, 2);
    assert_finds(d, DOCTOR_NOTE, "gpus", "CUDA lists 1; on the PCI bus are 2");
    assert_finds(d, DOCTOR_PROBLEM, "gpu 0", "too old");
    assert_finds(d, DOCTOR_PROBLEM, "gpu 0", "Xid 79: it fell off the bus");
    assert_finds(d, DOCTOR_NOTE, "xid", "not allowed");
    free(d);
}

/* A missing driver is wrong where there are GPUs, and right elsewhere. */
static void a_missing_driver_matters_where_a_gpu_is(void **state)
{
    struct doctor_findings *d = doctor_new();

    assert_non_null(d);
    (void)snprintf(d->gpus.problem, sizeof d->gpus.problem, "no driver");
    doctor_check_gpus(d, 0);
    assert_int_equal(d->problems, 0);
    assert_finds(d, DOCTOR_NOTE, "gpus", "the CPU is used (no driver)");
    doctor_check_gpus(d, 2);
    assert_int_equal(d->problems, 1);
    assert_finds(d, DOCTOR_PROBLEM, "gpus", "of 2 NVIDIA GPUs on the PCI bus none can be used");
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

static void adapters_that_nccl_leaves_out_are_a_problem(void **state)
{
    struct doctor_findings *d = with_gpu();
    char sys[TEMPORARY_BYTES];

    temporary_dir(sys, "sys");
    put(sys, "class/infiniband/mlx5_0/ports/1", "state", "4: ACTIVE\n");
    put(sys, "class/infiniband/mlx5_0/ports/1", "link_layer", "InfiniBand\n");
    put(sys, "class/infiniband/mlx5_0/device/net", "ib0", "");
    doctor_check_adapters(d, "127.0.0.1", sys);
    assert_finds(d, DOCTOR_PROBLEM, "adapters",
                 "the active adapters mlx5_0:1 serve other interfaces");
    put(sys, "class/infiniband/mlx5_0/device/net", "lo", "");
    doctor_check_adapters(d, "127.0.0.1", sys);
    assert_finds(d, DOCTOR_OK, "adapters", "NCCL uses mlx5_0:1 between nodes");
    assert_int_equal(hd_file_remove_tree(sys), HD_OK);
    free(d);
}

static void gpus_on_the_bus_are_counted(void **state)
{
    char dir[TEMPORARY_BYTES];

    temporary_dir(dir, "bus");
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
}

static void json_says_what_the_table_says(void **state)
{
    const struct hd_json_limits limits = {.values_max = 1000, .depth_max = 5};
    struct doctor_findings *d = doctor_new();
    struct hd_text table = {0}, json = {0};
    const struct hd_json *root, *items = NULL;
    struct hd_arena arena;
    const char *level;
    int64_t problems;

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

RUN_CASES()
