/* Goal: facts about GPUs reach heddled: the answer of `heddle-worker gpus` on its way through JSON,
 * and fatal errors in the kernel's log. No GPU is needed. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "daemon/devices/gpu.h"
#include "daemon/devices/xid.h"
#include "tests/program/test.h"

static struct hd_gpu_list list; /* large; one test at a time uses it */

/* GPUs GPU-0 and on, at 0000:10:00.0 and on, as the CUDA runtime spells bus addresses. */
static void have(int count)
{
    memset(&list, 0, sizeof list);
    for (int i = 0; i < count; i++) {
        struct hd_gpu *gpu = &list.gpus[list.count++];

        (void)snprintf(gpu->uuid, sizeof gpu->uuid, "GPU-%d", i);
        (void)snprintf(gpu->bus, sizeof gpu->bus, "0000:%02X:00.0", 0x3a + i);
        gpu->memory_bytes = 1000 + i;
    }
}

static void a_list_reads_back_as_it_was_written(void **state)
{
    struct hd_gpu_list *back = calloc(1, sizeof *back);
    struct hd_text json = {0};

    assert_non_null(back);
    have(8);
    (void)snprintf(list.problem, sizeof list.problem, "a \"quoted\" problem");
    (void)snprintf(list.log_problem, sizeof list.log_problem, "denied");
    (void)snprintf(list.gpus[3].problem, sizeof list.gpus[3].problem, "too old");
    (void)snprintf(list.gpus[4].fault, sizeof list.gpus[4].fault, "Xid 79");
    list.gpus[4].fault_at = -1;
    hd_gpu_list_write(&list, &json);
    if (hd_gpu_list_read(json.data, json.len_bytes, back))
        fail_msg("%s", hd_err_message());
    assert_memory_equal(back, &list, sizeof list);
    /* a part of it is not a list */
    assert_int_equal(hd_gpu_list_read(json.data, json.len_bytes / 2, back), HD_CORRUPT);
    assert_int_equal(hd_gpu_list_read("{}", 2, back), HD_CORRUPT);
    hd_text_free(&json);
    free(back);
}

static void assert_says(int gpu, const char *words)
{
    if (!strstr(list.gpus[gpu].problem, words))
        fail_msg("GPU %d: \"%s\" does not say \"%s\"", gpu, list.gpus[gpu].problem, words);
}

/* Goal: what a broken driver says of one GPU takes no other GPU from the node. */
static void absurd_figures_withdraw_their_gpu_alone(void **state)
{
    static const char text[] =
        "{\"problem\":\"\",\"log_problem\":\"\",\"libraries\":\"\",\"inventory\":\"far\",\"gpus\":["
        "{\"uuid\":\"GPU-0\",\"name\":\"\",\"bus\":\"\",\"problem\":\"\",\"fault\":\"\",\"memory_"
        "bytes\":80,"
        "\"fault_at\":0}]}";
    struct hd_text json = {0};

    have(8);
    list.gpus[1].memory_bytes = 0;
    list.gpus[2].memory_bytes = -1; /* SIZE_MAX */
    list.gpus[3].memory_bytes = INT64_MAX;
    list.gpus[4].uuid[0] = '\0';
    (void)snprintf(list.gpus[5].uuid, sizeof list.gpus[5].uuid, "GPU-3");
    (void)snprintf(list.gpus[6].uuid, sizeof list.gpus[6].uuid, "GPU 7");
    (void)snprintf(list.gpus[7].uuid, sizeof list.gpus[7].uuid, "cpu-0");
    list.gpus[7].bus[0] = '\0';
    list.inventory.adapter_count = 3;
    list.inventory.adapters[0].bytes_per_s = NAN;
    list.inventory.adapters[1].bytes_per_s = -1;
    list.inventory.adapters[2].bytes_per_s = 1e300;
    hd_gpu_list_write(&list, &json);
    if (hd_gpu_list_read(json.data, json.len_bytes, &list))
        fail_msg("%s", hd_err_message());
    assert_string_equal(list.gpus[0].problem, "");
    assert_says(1, "0 bytes of memory");
    assert_says(2, "-1 bytes of memory");
    assert_says(3, "9223372036854775807 bytes of memory");
    assert_says(4, "no UUID");
    assert_string_equal(list.gpus[4].uuid, "PCI-0000:3E:00.0"); /* 0x3a + 4 */
    assert_says(6, "no UUID");
    assert_string_equal(list.gpus[6].uuid, "PCI-0000:40:00.0"); /* 0x3a + 6 */
    assert_says(7, "no UUID");
    assert_string_equal(list.gpus[7].uuid, "PCI-7");
    assert_says(5, "another GPU has the same UUID");
    assert_int_equal(list.gpus[3].memory_bytes, 0); /* not known */
    for (int i = 0; i < 3; i++)
        assert_true(list.inventory.adapters[i].bytes_per_s == 0);
    assert_int_equal(hd_gpu_list_read(text, sizeof text - 1, &list), HD_OK);
    assert_int_equal(list.count, 1); /* links that are no links count as not known */
    hd_text_free(&json);
}

/* Goal: a name goes to terminals and to the controller, which takes UTF-8 alone. Method: an escape
 * and a byte that is no character. */
static void names_become_printable_ascii(void **state)
{
    struct hd_text json = {0};

    have(1);
    (void)snprintf(list.gpus[0].name, sizeof list.gpus[0].name, "H\x1b[2J\xff");
    hd_gpu_list_write(&list, &json);
    assert_int_equal(hd_gpu_list_read(json.data, json.len_bytes, &list), HD_OK);
    assert_string_equal(list.gpus[0].name, "H?[2J?");
    hd_text_free(&json);
}

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

static void the_newest_fatal_error_of_each_gpu_is_found(void **state)
{
    have(4); /* at 3A, 3B, 3C and 3D */
    assert_int_equal(
        read_log("6,1,10,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n"
                 "4,2,11,-;NVRM: Xid (PCI:0000:3b:00): 48, pid=77, DBE\n"
                 "4,3,12,-;NVRM: Xid (PCI:0000:3b:00.0): 79, GPU has fallen off the bus.\n"
                 "4,4,13,-;NVRM: Xid (PCI:0000:3b:00): 13, pid=78, a program's fault\n"
                 "4,5,14,-;NVRM: Xid (PCI:0000:3c:00): 31, pid=78, MMU Fault\n"
                 "4,6,15,-;NVRM: Xid (PCI:0000:99:00): 48, of a GPU that is not here\n"
                 "4,7,16,-;NVRM: Xid (PCI:0000:3d:00) without a number\n"
                 "4,8,17,-;NVRM: Xid (PCI:00"),
        HD_OK);
    assert_int_equal(list.gpus[1].fault_at, 3); /* the record's number */
    assert_string_equal(list.gpus[1].fault,
                        "Xid 79: it fell off the bus; check power and seat, reboot");
    for (int i = 0; i < 4; i++)
        assert_true(i == 1 || (list.gpus[i].fault_at == 0 && !list.gpus[i].fault[0]));
}

/* heddled.service gives it: the log is standard input, and may be read as often as it is asked for.
 * That it was not opened by its name is seen by the position, which is at its end. */
static void a_log_that_is_given_is_read_from_its_beginning(void **state)
{
    static const char text[] = "4,2,11,-;NVRM: Xid (PCI:0000:3b:00): 48, pid=77, DBE\n";
    const char *tmp = getenv("TMPDIR");
    const int before = dup(STDIN_FILENO);
    char path[256];
    int fd;

    (void)snprintf(path, sizeof path, "%s/given-%d", tmp ? tmp : "/tmp", (int)getpid());
    assert_int_equal(hd_file_write_atomic(path, text, strlen(text), 0600), HD_OK);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(dup2(fd, STDIN_FILENO), STDIN_FILENO);
    for (int i = 0; i < 2; i++) {
        have(4);
        assert_int_equal(hd_xid_read(path, &list), HD_OK);
        assert_int_equal(list.gpus[1].fault_at, 2);
        assert_int_equal(lseek(STDIN_FILENO, 0, SEEK_CUR), strlen(text));
    }
    (void)close(fd);
    if (before >= 0) {
        assert_int_equal(dup2(before, STDIN_FILENO), STDIN_FILENO);
        (void)close(before);
    }
    assert_int_equal(unlink(path), 0);
}

/* A log that may not be read is not the same as one without errors. */
static void without_a_log_nothing_is_known_of_errors(void **state)
{
    have(1);
    assert_int_equal(hd_xid_read("/nowhere/kmsg", &list), HD_IO);
    assert_int_equal(list.gpus[0].fault_at, -1);
}

RUN_CASES()
