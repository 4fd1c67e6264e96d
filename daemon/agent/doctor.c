#include "daemon/agent/doctor.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/proc.h"
#include "daemon/agent/address.h"
#include "daemon/devices/ask.h"
#include "daemon/devices/devices.h"
#include "daemon/devices/network.h"
#include "rpc/address.h"
#include "rpc/find.h"
#include "rpc/rpc.h"

enum { PCI_VENDOR_NVIDIA = 0x10de, PCI_CLASS_DISPLAY = 0x03 };
enum { FILES_NEEDED = 512, PROBE_BYTES = 64 << 20, SMALL_FILE_MAX = 4096, CONNECT_MS = 5000 };
#define LOCKED_NEEDED  ((rlim_t)1 << 30) /* bytes of locked memory for the adapters of a few ranks */
#define NCCL_SHM_BYTES (INT64_C(256) << 20) /* /dev/shm space for communicators of a few GPUs */

static const char *const level_names[] = {"ok", "note", "problem"};

struct doctor_findings *doctor_new(void)
{
    return calloc(1, sizeof(struct doctor_findings));
}

void doctor_add(struct doctor_findings *doctor, enum doctor_level level, const char *area,
                const char *hint, const char *fmt, ...)
{
    struct doctor_finding *f = &doctor->findings[doctor->count];
    va_list ap;

    doctor->problems += level == DOCTOR_PROBLEM;
    if (doctor->count == DOCTOR_FINDINGS_MAX) /* the finding is counted, but not stored */
        return;
    doctor->count++;
    f->level = level;
    (void)snprintf(f->area, sizeof f->area, "%s", area);
    (void)snprintf(f->hint, sizeof f->hint, "%s", hint);
    va_start(ap, fmt);
    (void)vsnprintf(f->text, sizeof f->text, fmt, ap);
    va_end(ap);
}

/* ---- programs ---- */

static void check_programs(struct doctor_findings *doctor, const struct doctor_options *options)
{
    struct hd_processor cpu;

    if (access(options->supervisor, X_OK) < 0)
        doctor_add(doctor, DOCTOR_PROBLEM, "programs", "install it beside heddled", "%s: %s",
                   options->supervisor, strerror(errno));
    if (hd_ask_processor(options->worker, hd_devices_cores(), &cpu))
        doctor_add(doctor, DOCTOR_PROBLEM, "programs",
                   "install it beside heddled, of the same build, or name it with --worker", "%s",
                   hd_err_message());
    else
        doctor_add(doctor, DOCTOR_OK, "cpu", "", "%d usable cores, %s, %s, bf16 %s; %s",
                   hd_devices_cores(), cpu.isa, cpu.library,
                   cpu.bf16 ? "native" : "slower than fp32",
                   cpu.gloo ? "ranks may work with those of other nodes (gloo)"
                            : "built without gloo: jobs stay on this node");
}

/* ---- GPUs ---- */

/* Returns the hexadecimal number in a file of a PCI device; -1: the file cannot be read. */
static long read_number(const char *devices, const char *device, const char *name)
{
    char path[PATH_MAX], text[64];

    (void)snprintf(path, sizeof path, "%s/%s/%s", devices, device, name);
    return hd_proc_line(path, text, sizeof text) ? strtol(text, NULL, 16) : -1;
}

int doctor_count_on_bus(const char *devices)
{
    DIR *dir = opendir(devices);
    const struct dirent *entry;
    int count = 0;

    while (dir && (entry = readdir(dir)))
        count += entry->d_name[0] != '.' &&
                 read_number(devices, entry->d_name, "vendor") == PCI_VENDOR_NVIDIA &&
                 read_number(devices, entry->d_name, "class") >> 16 == PCI_CLASS_DISPLAY;
    if (dir)
        (void)closedir(dir);
    return count;
}

static void check_gpu(struct doctor_findings *doctor, int index)
{
    const struct hd_gpu *gpu = &doctor->gpus.gpus[index];
    char area[16], memory[32];

    (void)snprintf(area, sizeof area, "gpu %d", index);
    hd_text_format_bytes(gpu->memory_bytes, memory);
    doctor_add(doctor, DOCTOR_OK, area, "", "%s, %s, %s, %s", gpu->name, gpu->uuid, gpu->bus,
               memory);
    if (gpu->problem[0])
        doctor_add(doctor, DOCTOR_PROBLEM, area, "jobs get other GPUs until it works", "%s",
                   gpu->problem);
    if (gpu->fault[0])
        doctor_add(doctor, DOCTOR_PROBLEM, area,
                   "a heddled that was running then gives it no jobs; after the repair send SIGHUP "
                   "to heddled",
                   "the kernel's log has %s", gpu->fault);
}

void doctor_check_gpus(struct doctor_findings *doctor, int on_the_bus)
{
    const struct hd_gpu_list *gpus = &doctor->gpus;

    if (gpus->problem[0] && on_the_bus)
        doctor_add(doctor, DOCTOR_PROBLEM, "gpus",
                   "install NVIDIA's driver and Heddle's lib/libheddle_cuda.so, pass the GPUs into "
                   "this container (docker --gpus all); a driver that hangs needs a reboot",
                   "of %d NVIDIA GPUs on the PCI bus none can be used: %s", on_the_bus,
                   gpus->problem);
    else if (gpus->problem[0])
        doctor_add(doctor, DOCTOR_NOTE, "gpus", "", "none on the PCI bus; the CPU is used (%s)",
                   gpus->problem);
    else
        doctor_add(doctor, gpus->count < on_the_bus ? DOCTOR_NOTE : DOCTOR_OK, "gpus",
                   gpus->count < on_the_bus ? "if there should be more: see nvidia-smi and dmesg"
                                            : "",
                   "CUDA lists %d; on the PCI bus are %d", (int)gpus->count, on_the_bus);
    if (hd_devices_visible() && (on_the_bus || gpus->count))
        doctor_add(doctor, DOCTOR_NOTE, "gpus",
                   "unset it for heddled, and choose GPUs by --devices",
                   "CUDA_VISIBLE_DEVICES=%.200s is set here: CUDA lists no other GPUs",
                   hd_devices_visible());
    if (gpus->log_problem[0])
        doctor_add(doctor, DOCTOR_NOTE, "xid",
                   "have heddled.service open /dev/kmsg (StandardInput), or run heddled with "
                   "CAP_SYSLOG",
                   "a GPU with a fatal error is not withdrawn: %s", gpus->log_problem);
    for (int i = 0; i < gpus->count; i++)
        check_gpu(doctor, i);
}

/* Lists the GPUs with heddle-worker in a child process, so that a hanging driver becomes a finding.
 */
static void ask_gpus(const char *worker, struct hd_gpu_list *ret_gpus)
{
    struct hd_worker_run ask = {.pid = 0};
    enum hd_status st = hd_ask_gpus_begin(&ask, worker);

    if (!st)
        st = hd_ask_wait(&ask);
    if (!st)
        st = hd_ask_gpus_read(&ask, ret_gpus);
    if (st) {
        ret_gpus->count = 0;
        (void)snprintf(ret_gpus->problem, sizeof ret_gpus->problem, "%s", hd_err_message());
    }
    hd_ask_end(&ask);
}

/* ---- the system ---- */

static void check_memory(struct doctor_findings *doctor)
{
    const int64_t all = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    int fd = memfd_create("heddle-doctor", MFD_CLOEXEC);
    char text[32];
    void *p = MAP_FAILED;

    hd_text_format_bytes(all, text);
    if (fd >= 0 && ftruncate(fd, PROBE_BYTES) == 0)
        p = mmap(NULL, PROBE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        doctor_add(doctor, DOCTOR_PROBLEM, "memory",
                   "ranks share memory through memfd_create; allow it (seccomp, ulimit -v)",
                   "shared memory cannot be made: %s", strerror(errno));
    else
        doctor_add(doctor, DOCTOR_OK, "memory", "", "%s; ranks can share memory", text);
    if (p != MAP_FAILED)
        (void)munmap(p, PROBE_BYTES);
    if (fd >= 0)
        (void)close(fd);
}

static void check_huge_pages(struct doctor_findings *doctor)
{
    static const char path[] = "/sys/kernel/mm/transparent_hugepage/enabled";
    struct hd_text text = {0};

    if (hd_file_read(path, SMALL_FILE_MAX, &text))
        doctor_add(doctor, DOCTOR_NOTE, "huge pages", "", "this kernel has none");
    else if (strstr(text.data, "[never]"))
        doctor_add(doctor, DOCTOR_NOTE, "huge pages",
                   "echo madvise > /sys/kernel/mm/"
                   "transparent_hugepage/enabled",
                   "they are switched off; CPU ranks are slower");
    else
        doctor_add(doctor, DOCTOR_OK, "huge pages", "", "%s",
                   strstr(text.data, "[always]") ? "always" : "where a rank asks for them");
    hd_text_free(&text);
}

/* Checks the size of /dev/shm, where NCCL puts the buffers for GPUs of one node. */
static void check_shm(struct doctor_findings *doctor)
{
    struct statvfs fs;
    char text[32];
    int64_t left;

    if (doctor->gpus.count < 2)
        return;
    if (statvfs("/dev/shm", &fs) < 0) {
        doctor_add(doctor, DOCTOR_PROBLEM, "/dev/shm", "mount a tmpfs there",
                   "GPUs of this node exchange through it: %s", strerror(errno));
        return;
    }
    left = (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
    hd_text_format_bytes(left, text);
    if (left < NCCL_SHM_BYTES)
        doctor_add(doctor, DOCTOR_PROBLEM, "/dev/shm", "make it larger (docker: --shm-size=1g)",
                   "%s are free; NCCL may need more", text);
    else
        doctor_add(doctor, DOCTOR_OK, "/dev/shm", "", "%s free", text);
}

static void check_gpu_libraries(struct doctor_findings *doctor)
{
    if (!doctor->gpus.count)
        return;
    if (doctor->gpus.libraries[0])
        doctor_add(doctor, DOCTOR_OK, "nccl", "", "GPUs compute with %s", doctor->gpus.libraries);
    else
        doctor_add(doctor, DOCTOR_NOTE, "nccl",
                   "install libnccl2, or set HEDDLE_NCCL to the path of libnccl.so.2",
                   "it was not found; a job on several GPUs needs it");
    if (doctor->gpus.cudnn[0])
        doctor_add(doctor, DOCTOR_OK, "cudnn", "",
                   "attention can be by cuDNN %s (HEDDLE_CUDA_ATTENTION=cudnn)",
                   doctor->gpus.cudnn);
}

/* InfiniBand and RoCE adapters move memory that is locked: with little NCCL fails to connect. */
static void check_locked_memory(struct doctor_findings *doctor)
{
    struct rlimit locked;
    char text[32];

    if (!doctor->gpus.count || !hd_file_exists("/sys/class/infiniband") ||
        getrlimit(RLIMIT_MEMLOCK, &locked) < 0 || locked.rlim_cur >= LOCKED_NEEDED)
        return;
    hd_text_format_bytes((int64_t)locked.rlim_cur, text);
    doctor_add(doctor, DOCTOR_PROBLEM, "memlock",
               "raise it: LimitMEMLOCK=infinity, ulimit -l unlimited, docker: --ulimit memlock=-1",
               "only %s of memory may be locked; NCCL registers its buffers with the adapters of "
               "/sys/class/infiniband",
               text);
}

static void check_limits(struct doctor_findings *doctor)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_max < FILES_NEEDED)
        doctor_add(doctor, DOCTOR_PROBLEM, "files",
                   "raise it: ulimit -Hn, LimitNOFILE=", "at most %llu may be open, %d are needed",
                   (unsigned long long)files.rlim_max, FILES_NEEDED);
}

/* ---- folders and the network ---- */

/* Checks that heddled can write a folder; if the folder does not exist, checks its nearest existing
 * parent, because heddled creates it. */
static void check_folder(struct doctor_findings *doctor, const char *area, const char *given,
                         bool needed)
{
    char path[PATH_MAX];
    struct statvfs fs;
    char text[32];

    if (!given)
        return;
    (void)snprintf(path, sizeof path, "%s", given);
    while (!needed && !hd_file_exists(path) && strrchr(path, '/') > path)
        *strrchr(path, '/') = '\0';
    if (!strchr(path, '/') && !hd_file_exists(path))
        (void)snprintf(path, sizeof path, ".");
    if (access(path, R_OK | W_OK | X_OK) < 0 || statvfs(path, &fs) < 0) {
        doctor_add(doctor, DOCTOR_PROBLEM, area,
                   needed ? "mount it at the same path as on the controller's machine, writable"
                          : "give a folder that this user may write",
                   "%s: %s", path, strerror(errno));
        return;
    }
    hd_text_format_bytes((int64_t)fs.f_bavail * (int64_t)fs.f_frsize, text);
    doctor_add(doctor, DOCTOR_OK, area, "", "%s, %s free", given, text);
}

static enum hd_status try_to_connect(const char *text)
{
    struct hd_rpc_address address;
    struct sockaddr_storage peer;
    socklen_t size = sizeof(struct sockaddr_un);
    enum hd_status st = hd_rpc_parse_address(text, &address);
    const struct timeval limit = {.tv_sec = CONNECT_MS / 1000};
    int fd;

    if (!st && address.is_unix) {
        struct sockaddr_un *un = (struct sockaddr_un *)(void *)&peer;

        *un = (struct sockaddr_un){.sun_family = AF_UNIX};
        (void)snprintf(un->sun_path, sizeof un->sun_path, "%s", address.path);
    } else if (!st) {
        st = hd_rpc_resolve(&address, &peer, &size);
    }
    if (st)
        return st;
    fd = socket(peer.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        /* SO_SNDTIMEO also limits connect */
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (fd < 0 || connect(fd, (struct sockaddr *)&peer, size) < 0)
        st = hd_err(HD_UNAVAILABLE, "cannot connect to %s: %s", text, strerror(errno));
    if (fd >= 0)
        (void)close(fd);
    return st;
}

static void check_controller(struct doctor_findings *doctor, const char *given)
{
    struct hd_text address = {0};
    const bool named = given || getenv(HD_RPC_CONTROLLER_ENV);
    enum hd_status st = hd_rpc_find_controller(given, &address);

    if (!st)
        st = try_to_connect(address.data);
    if (!st)
        doctor_add(doctor, DOCTOR_OK, "controller", "", "answers at %s", address.data);
    else
        doctor_add(doctor, named ? DOCTOR_PROBLEM : DOCTOR_NOTE, "controller",
                   named ? "start heddle-controller there, open its port, or name another with "
                           "--controller"
                         : "",
                   "%s", hd_err_message());
    hd_text_free(&address);
}

static void check_data_address(struct doctor_findings *doctor, const char *given)
{
    if (given && agent_address_check(given))
        doctor_add(doctor, DOCTOR_PROBLEM, "data address", "ip addr shows this machine's",
                   "--data-address %s", hd_err_message());
    else if (given)
        doctor_add(doctor, DOCTOR_OK, "data address", "",
                   "ranks can listen at %s, on ports that the system chooses", given);
}

/* Adapters of which the data address is on none are the commonest reason for a slow cluster: NCCL uses
 * sockets, and nothing fails. */
void doctor_check_adapters(struct doctor_findings *doctor, const char *data_address,
                           const char *sys)
{
    struct hd_network network;

    if (!doctor->gpus.count || !data_address || hd_network_find(data_address, sys, &network))
        return;
    if (hd_network_count_left_out(&network))
        doctor_add(
            doctor, DOCTOR_PROBLEM, "adapters",
            "if they are the fast network, give a --data-address on it, or set NCCL_IB_HCA for "
            "heddled",
            "NCCL will use sockets on %s between nodes: the active adapters %.300s serve other "
            "interfaces than that of %s",
            network.interface, network.left_out, data_address);
    else if (network.adapters[0])
        doctor_add(doctor, DOCTOR_OK, "adapters", "", "NCCL uses %.300s between nodes",
                   network.adapters);
}

/* ---- all ---- */

static void check_grpc(struct doctor_findings *doctor)
{
    const char *weakness = hd_rpc_library_weakness(NULL);
    char name[HD_RPC_LIBRARY_MAX];

    hd_rpc_library_name(NULL, name);
    doctor_add(doctor, weakness ? DOCTOR_NOTE : DOCTOR_OK, "grpc",
               weakness ? "build Heddle with gRPC 1.57 or newer, if you can" : "", "%s%s%s", name,
               weakness ? ": " : "", weakness ? weakness : "");
}

void doctor_check(struct doctor_findings *doctor, const struct doctor_options *options)
{
    check_programs(doctor, options);
    check_grpc(doctor);
    ask_gpus(options->worker, &doctor->gpus);
    doctor_check_gpus(doctor, doctor_count_on_bus("/sys/bus/pci/devices"));
    check_memory(doctor);
    check_huge_pages(doctor);
    check_shm(doctor);
    check_gpu_libraries(doctor);
    check_limits(doctor);
    check_locked_memory(doctor);
    check_folder(doctor, "state dir", options->state_dir, false);
    check_folder(doctor, "jobs dir", options->jobs_dir, true);
    check_controller(doctor, options->controller);
    check_data_address(doctor, options->data_address);
    doctor_check_adapters(doctor, options->data_address, "/sys");
}

static void print_json(const struct doctor_findings *doctor, struct hd_text *text)
{
    struct hd_json_writer w = {.out = text};

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "api_version", "heddle/v1");
    hd_json_add_string(&w, "kind", "Doctor");
    hd_json_add_int64(&w, "problems", doctor->problems);
    hd_json_begin(&w, "items", '[');
    for (int i = 0; i < doctor->count; i++) {
        const struct doctor_finding *f = &doctor->findings[i];

        hd_json_add_line(&w);
        hd_json_begin(&w, NULL, '{');
        hd_json_add_string(&w, "area", f->area);
        hd_json_add_string(&w, "level", level_names[f->level]);
        hd_json_add_string(&w, "text", f->text);
        if (f->hint[0])
            hd_json_add_string(&w, "hint", f->hint);
        hd_json_end(&w, '}');
    }
    hd_json_end(&w, ']');
    hd_json_end(&w, '}');
    hd_text_add(text, "\n");
}

void doctor_print(const struct doctor_findings *doctor, bool json, struct hd_text *ret_text)
{
    if (json) {
        print_json(doctor, ret_text);
        return;
    }
    for (int i = 0; i < doctor->count; i++) {
        const struct doctor_finding *f = &doctor->findings[i];

        hd_text_add(ret_text, "%-12s  %-7s  %s\n", f->area, level_names[f->level], f->text);
        if (f->hint[0])
            hd_text_add(ret_text, "%-12s  %-7s  -> %s\n", "", "", f->hint);
    }
    if (doctor->problems)
        hd_text_add(ret_text, "%d problem%s\n", doctor->problems, doctor->problems == 1 ? "" : "s");
    else
        hd_text_add(ret_text, "nothing is wrong\n");
}
