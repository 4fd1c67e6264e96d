/* What the doctor makes of a node's GPUs. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/agent/doctor.h"
#include "daemon/gpu/xid.h"

enum { HOT_C = 88, VENDOR_NVIDIA = 0x10de, CLASS_DISPLAY = 0x03 };

/* ---- the bus ---- */

static long read_number(int dir_fd, const char *device, const char *name)
{
    char path[320], text[32];
    ssize_t n;
    int fd;

    (void)snprintf(path, sizeof path, "%s/%s", device, name);
    fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    n = read(fd, text, sizeof text - 1);
    (void)close(fd);
    text[n > 0 ? n : 0] = '\0';
    return n > 0 ? strtol(text, NULL, 16) : -1;
}

int doctor_count_on_bus(const char *devices)
{
    DIR *dir = opendir(devices);
    const struct dirent *entry;
    int count = 0;

    if (!dir)
        return -1;
    while ((entry = readdir(dir)))
        count += entry->d_name[0] != '.' &&
                 read_number(dirfd(dir), entry->d_name, "vendor") == VENDOR_NVIDIA &&
                 read_number(dirfd(dir), entry->d_name, "class") >> 16 == CLASS_DISPLAY;
    (void)closedir(dir);
    return count;
}

/* ---- one GPU ---- */

struct patient {
    struct doctor *doctor;
    const struct hd_gpu *gpu;
    char area[16];
    int before; /* problems before it was looked at */
};

#define WRONG(p, hint, ...) doctor_add((p)->doctor, DOCTOR_PROBLEM, (p)->area, hint, __VA_ARGS__)

static void look_at_memory(struct patient *p)
{
    const struct hd_gpu *g = p->gpu;

    if (g->ecc_uncorrected > 0)
        WRONG(p, "drain the node and reset the GPU (nvidia-smi -r); replace it if they come back",
              "%lld memory errors that could not be corrected since the driver was loaded",
              (long long)g->ecc_uncorrected);
    if (g->remap_failed == 1)
        WRONG(p, "replace the GPU",
              "a row of its memory could not be remapped: no spares are left");
    else if (g->remap_pending == 1)
        WRONG(p, "drain the node and reset the GPU (nvidia-smi -r)",
              "a row of its memory waits to be remapped");
}

static void look_at_links(struct patient *p)
{
    const struct hd_gpu *g = p->gpu;

    if (g->pcie_width > 0 && g->pcie_width < g->pcie_width_max)
        WRONG(p, "reseat the card or its riser; look into the BIOS how the slot's lanes are shared",
              "PCIe has %lld of %lld lanes", (long long)g->pcie_width,
              (long long)g->pcie_width_max);
    if (g->nvlinks_up > 0 && g->nvlinks_up < g->nvlinks) /* none at all: no bridge, no switch */
        WRONG(p, "nvidia-smi nvlink -s names them; reset the GPU, check bridges and switches",
              "%lld of %lld NVLinks are down", (long long)(g->nvlinks - g->nvlinks_up),
              (long long)g->nvlinks);
}

static void look_at_xid(struct patient *p)
{
    const struct hd_xid_meaning meaning = hd_xid_explain(p->gpu->xid);

    if (p->gpu->xid <= 0)
        return;
    if (meaning.hardware)
        WRONG(p, "see dmesg; it stays in the kernel's log until a reboot",
              "the newest of %lld errors in the kernel's log is Xid %lld: %s",
              (long long)p->gpu->xid_count, (long long)p->gpu->xid, meaning.text);
    else
        doctor_add(p->doctor, DOCTOR_NOTE, p->area, "",
                   "the newest of %lld errors in the kernel's log is Xid %lld: %s",
                   (long long)p->gpu->xid_count, (long long)p->gpu->xid, meaning.text);
}

static void describe(const struct hd_gpu *g, struct hd_text *text)
{
    char bytes[32];

    hd_text_add(text, "%s, %s, %s", g->name, g->uuid[0] ? g->uuid : "no UUID",
                g->bus[0] ? g->bus : "no bus address");
    if (g->memory_bytes >= 0) {
        hd_text_format_bytes(g->memory_bytes, bytes);
        hd_text_add(text, ", %s", bytes);
    }
    if (g->used_bytes >= 0) {
        hd_text_format_bytes(g->used_bytes, bytes);
        hd_text_add(text, " (%s in use)", bytes);
    }
    if (g->capability >= 0)
        hd_text_add(text, ", sm_%lld", (long long)g->capability);
    if (g->temperature_c >= 0)
        hd_text_add(text, ", %lld C", (long long)g->temperature_c);
    if (g->pcie_width > 0)
        hd_text_add(text, ", PCIe %lld of %lld x%lld", (long long)g->pcie_generation,
                    (long long)g->pcie_generation_max, (long long)g->pcie_width);
    if (g->nvlinks > 0)
        hd_text_add(text, ", NVLink %lld of %lld", (long long)g->nvlinks_up, (long long)g->nvlinks);
    for (int64_t i = 0; i < g->peer_count; i++)
        hd_text_add(text, "%s%s x%lld", i ? ", " : " (to ", g->peers[i].bus,
                    (long long)g->peers[i].links);
    hd_text_add(text, "%s", g->peer_count ? ")" : "");
    if (g->ecc >= 0)
        hd_text_add(text, ", ECC %s", g->ecc ? "on" : "off");
    if (g->ecc_corrected > 0)
        hd_text_add(text, " (%lld corrected)", (long long)g->ecc_corrected);
    if (g->rows_remapped > 0)
        hd_text_add(text, ", %lld rows remapped", (long long)g->rows_remapped);
    if (g->compute_mode == 3)
        hd_text_add(text, ", one process at a time");
    if (g->xid == 0)
        hd_text_add(text, ", no Xid");
}

static void look_at_one(struct doctor *doctor, int64_t index)
{
    const struct hd_gpu *g = &doctor->gpus.gpus[index];
    struct patient p = {.doctor = doctor, .gpu = g};
    struct hd_text text = {0};

    (void)snprintf(p.area, sizeof p.area, "gpu %d", (int)index);
    describe(g, &text);
    doctor_add(doctor, DOCTOR_OK, p.area, "", "%s", text.failed ? g->name : text.data);
    hd_text_free(&text);
    if (g->problem[0])
        WRONG(&p, "no rank can use it until then", "%s", g->problem);
    look_at_memory(&p);
    look_at_links(&p);
    look_at_xid(&p);
    if (g->temperature_c >= HOT_C)
        WRONG(&p, "check fans and air flow; it slows itself down", "it has %lld C",
              (long long)g->temperature_c);
}

/* ---- all of them ---- */

static void look_at_driver(struct doctor *doctor, bool there)
{
    const struct hd_gpu_list *gpus = &doctor->gpus;

    if (!gpus->nvml_problem[0])
        doctor_add(doctor, DOCTOR_OK, "driver", "", "%s, for CUDA up to %d.%d",
                   gpus->driver[0] ? gpus->driver : "of a version that it does not tell",
                   (int)(gpus->driver_cuda / 1000), (int)(gpus->driver_cuda % 1000 / 10));
    else if (gpus->count)
        doctor_add(doctor, DOCTOR_NOTE, "driver", "",
                   "%s; temperature, errors and links of the GPUs are not known",
                   gpus->nvml_problem);
    else if (there)
        doctor_add(doctor, DOCTOR_PROBLEM, "driver",
                   "install NVIDIA's driver, or pass it into this container (docker --gpus all)",
                   "%s", gpus->nvml_problem);
    else
        doctor_add(doctor, DOCTOR_NOTE, "driver", "", "%s; the CPU serves", gpus->nvml_problem);
}

static void look_at_plugin(struct doctor *doctor, bool there)
{
    const struct hd_gpu_list *gpus = &doctor->gpus;

    if (!gpus->plugin_problem[0])
        doctor_add(doctor, DOCTOR_OK, "plug-in", "", "works; ABI %d of the kernel table",
                   (int)gpus->plugin_abi);
    else if (there)
        doctor_add(doctor, DOCTOR_PROBLEM, "plug-in",
                   "build Heddle where nvcc is, and install lib/libheddle_cuda.so with it", "%s",
                   gpus->plugin_problem);
    else
        doctor_add(doctor, DOCTOR_NOTE, "plug-in", "", "%s", gpus->plugin_problem);
}

void doctor_look_at_gpus(struct doctor *doctor, int on_the_bus)
{
    const struct hd_gpu_list *gpus = &doctor->gpus;
    const bool there = on_the_bus > 0 || gpus->count > 0;

    if (on_the_bus > 0)
        doctor_add(doctor, DOCTOR_OK, "bus", "", "%d NVIDIA GPU%s on the PCI bus", on_the_bus,
                   on_the_bus == 1 ? "" : "s");
    else if (!there)
        doctor_add(doctor, DOCTOR_NOTE, "bus", "", "%s",
                   on_the_bus < 0 ? "the PCI bus cannot be looked at"
                                  : "no NVIDIA GPU on the PCI bus");
    look_at_driver(doctor, there);
    look_at_plugin(doctor, there);
    if (gpus->log_problem[0])
        doctor_add(doctor, DOCTOR_NOTE, "xid", "", "%s; errors of GPUs in it are not known",
                   gpus->log_problem);
    for (int64_t i = 0; i < gpus->count; i++)
        look_at_one(doctor, i);
}
