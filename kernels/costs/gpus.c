/* gpus: properties of GPU models, for planning on machines without such a GPU. Rates and sizes are
 * from NVIDIA's public data sheets (rates without sparsity); memory is what nvidia-smi reports on
 * such boards. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "kernels/kernels.h"

enum {
    PAGE_BYTES = 2 * 1024 * 1024,         /* bytes: the driver maps device memory in pages of this
                                             size */
    GEMM_BUDGET_BYTES = 32 * 1024 * 1024, /* bytes of scratch: enough for every algorithm of
                                             cuBLASLt on Hopper */
    HEAD_ROWS = 4096 /* rows per chunk of the head (ops_head.c): at 600 TFLOP/s and 3 TB/s the head
                        takes 7% more time than its products alone */
};

void hd_traits_of_gpu(int multiprocessors, int capability, int64_t memory_bytes, bool library,
                      struct hd_traits *ret_traits)
{
    struct hd_traits *t = ret_traits;

    memset(t, 0, sizeof *t);
    (void)snprintf(t->backend, sizeof t->backend, "cuda");
    (void)snprintf(t->isa, sizeof t->isa, "sm_%d", capability);
    (void)snprintf(t->library, sizeof t->library, library ? "cuBLASLt" : "own");
    t->threads = 1;
    t->vector_bytes = 16;
    t->page_bytes = PAGE_BYTES;
    t->gemm_scratch_bytes = library ? GEMM_BUDGET_BYTES : 0;
    t->bf16_fast = capability >= 80;
    t->multiprocessors = multiprocessors;
    t->capability = capability;
    t->memory_bytes = memory_bytes;
    t->process_bytes = HD_GPU_PROCESS_BYTES;
    t->communicator_bytes = HD_GPU_COMMUNICATOR_BYTES;
    t->head_rows = HEAD_ROWS;
}

/* ---- kinds ---- */

/* Rates of products without sparsity, sums in fp32. Sources: NVIDIA's data sheets of each product;
 * for cards of workstations and consumers the appendices of its white papers on GA102, Ada and RTX
 * Blackwell.
 *
 * Compared with tables that quote those sheets: fp8 of L4 (485 with sparsity), L40 (724), L40S
 * (1,466), H100 and H200 SXM (3,958), B200 (9,000) and GB200 (10,000). Not confirmed by a second
 * source: fp8 of H100 NVL, H200 NVL, H100 PCIe, GH200, H20 and H800 (NVIDIA has no public sheet of
 * the last two), and all figures of the cards from RTX 3090 to V100.
 *
 * P100 and V100 are only for plans, to compare with published runs: the kernels need compute
 * capability 8.0. They have no bf16: `half` is fp16, on the P100 without tensor cores. */
static const struct hd_gpu_kind kinds[] = {
    {"a10", "A10", "A10 24 GB", 72, 86, 23028, false, 600, 0, 125, 62.5, 31.2},
    {"a30", "A30", "A30 24 GB", 56, 80, 24576, false, 933, 0, 165, 82, 10.3},
    {"a100-40gb", "A100", "A100 40 GB", 108, 80, 40960, false, 1555, 0, 312, 156, 19.5},
    {"a100-80gb", "A100", "A100 80 GB", 108, 80, 81920, false, 2039, 0, 312, 156, 19.5},
    {"a800", "A800", "A800 80 GB", 108, 80, 76293, true, 2039, 0, 312, 156, 19.5},
    {"l4", "L4", "L4 24 GB", 58, 89, 23034, false, 300, 242.5, 121, 60, 30.3},
    {"l20", "L20", "L20 48 GB", 92, 89, 46068, false, 864, 239, 119.5, 59.8, 59.8},
    {"l40", "L40", "L40 48 GB", 142, 89, 45776, true, 864, 362, 181, 90.5, 90.5},
    {"l40s", "L40S", "L40S 48 GB", 142, 89, 46068, false, 864, 733, 362, 183, 91.6},
    {"h100-pcie", "H100 PCIe", "H100 PCIe 80 GB", 114, 90, 81559, false, 2000, 1513, 756, 378, 51},
    {"h100-nvl", "H100 NVL", "H100 NVL 94 GB", 132, 90, 95830, false, 3900, 1671, 835, 417.5, 60},
    {"h100", "H100", "H100 SXM 80 GB", 132, 90, 81559, false, 3350, 1979, 989.4, 494.7, 66.9},
    {"h200-nvl", "H200 NVL", "H200 NVL 141 GB", 132, 90, 134468, true, 4800, 1671, 835, 417.5, 60},
    {"h200", "H200", "H200 SXM 141 GB", 132, 90, 143771, false, 4800, 1979, 989.4, 494.7, 66.9},
    {"gh200", "GH200", "GH200 96 GB", 132, 90, 97871, false, 4000, 1979, 989.4, 494.7, 66.9},
    {"h20", "H20", "H20 96 GB", 78, 90, 97871, false, 4000, 296, 148, 74, 44},
    {"h800", "H800", "H800 80 GB", 132, 90, 76293, true, 3350, 1979, 989.4, 494.7, 66.9},
    {"b200", "B200", "B200 180 GB", 148, 100, 183359, false, 8000, 4500, 2250, 1125, 75},
    {"b300", "B300", "B300 288 GB", 148, 103, 274658, true, 8000, 4500, 2250, 1125, 75},
    {"rtx3090", "RTX 3090", "RTX 3090 24 GB", 82, 86, 24576, false, 936, 0, 71, 35.6, 35.6},
    {"rtx4090", "RTX 4090", "RTX 4090 24 GB", 128, 89, 24564, false, 1008, 330.3, 165.2, 82.6,
     82.6},
    {"rtx5090", "RTX 5090", "RTX 5090 32 GB", 170, 120, 32607, false, 1792, 419, 209.5, 104.8,
     104.8},
    {"rtx3080", "RTX 3080", "RTX 3080 10 GB", 68, 86, 10240, false, 760, 0, 59.5, 29.8, 29.8},
    {"rtx4070ti", "RTX 4070 Ti", "RTX 4070 Ti 12 GB", 60, 89, 12282, false, 504, 160.4, 80.2, 40.1,
     40.1},
    {"rtx4080", "RTX 4080", "RTX 4080 16 GB", 76, 89, 16376, false, 717, 194.9, 97.5, 48.7, 48.7},
    {"rtx5070ti", "RTX 5070 Ti", "RTX 5070 Ti 16 GB", 70, 120, 16303, false, 896, 175.8, 87.9, 43.9,
     43.9},
    {"rtx5080", "RTX 5080", "RTX 5080 16 GB", 84, 120, 16303, false, 960, 225.1, 112.6, 56.3, 56.3},
    {"rtx-pro-6000", "RTX PRO 6000 Blackwell", "RTX PRO 6000 96 GB", 188, 120, 97887, false, 1792,
     1000, 500, 250, 125},
    {"a6000", "RTX A6000", "RTX A6000 48 GB", 84, 86, 46068, false, 768, 0, 154.8, 77.4, 38.7},
    {"rtx6000-ada", "RTX 6000 Ada", "RTX 6000 Ada 48 GB", 142, 89, 46068, false, 960, 728.5, 364.2,
     182.1, 91.1},
    {"p100", "P100", "P100 16 GB", 56, 60, 16276, false, 732, 0, 18.7, 9.3, 9.3},
    {"v100", "V100", "V100 32 GB", 80, 70, 32510, false, 900, 0, 125, 15.7, 15.7},
    {"gb200", "GB200", "GB200 186 GB", 148, 100, 189471, false, 8000, 5000, 2500, 1250, 80},
};

const struct hd_gpu_kind *hd_gpu_kinds(size_t *ret_count)
{
    *ret_count = sizeof kinds / sizeof kinds[0];
    return kinds;
}

const struct hd_gpu_kind *hd_gpu_kind_find(const char *word)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].word, word) == 0)
            return &kinds[i];
    return NULL;
}

/* Returns true if `rest`, the part of a device's name behind a kind's name, makes it the name of
 * another chip: "RTX 4090 Laptop GPU" and "RTX 3090 Ti" are not "RTX 4090" and "RTX 3090". */
static bool is_variant(const char *rest)
{
    static const char *const marks[] = {" Ti", " D", " SUPER", " Laptop", " Max-Q"};

    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
        if (strncmp(rest, marks[i], strlen(marks[i])) == 0 &&
            !isalnum((unsigned char)rest[strlen(marks[i])]))
            return true;
    return false;
}

static bool has_words(const char *name, const char *words)
{
    for (const char *at = strstr(name, words); at; at = strstr(at + 1, words)) {
        const char *rest = at + strlen(words);

        if ((at == name || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)*rest) &&
            !is_variant(rest))
            return true;
    }
    return false;
}

const struct hd_gpu_kind *hd_gpu_kind_of_name(const char *name)
{
    size_t count;
    const struct hd_gpu_kind *all = hd_gpu_kinds(&count);

    for (size_t i = 0; i < count; i++)
        if (has_words(name, all[i].name))
            return &all[i];
    return NULL;
}

double hd_gpu_kind_rate(const struct hd_gpu_kind *kind, enum hd_dtype dtype, bool tf32)
{
    const bool half = dtype == HD_BF16 || dtype == HD_F16;

    if (dtype == HD_U8)
        return 1e12 * kind->fp8;
    return 1e12 * (half ? kind->half : tf32 ? kind->tf32 : kind->single);
}

void hd_gpu_kind_traits(const struct hd_gpu_kind *kind, struct hd_traits *ret_traits)
{
    hd_traits_of_gpu(kind->multiprocessors, kind->capability,
                     ((int64_t)kind->memory_mib << 20) - HD_GPU_KEPT_BYTES, true, ret_traits);
}
