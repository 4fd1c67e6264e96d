/* plugin_file: what can be known of libheddle_cuda.so without a GPU: what it is linked against,
 * what it says where there is no driver, and what the assembler reported of its kernels. */
#include <elf.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "kernels/plugin.h"
#include "tests/program/test.h"

/* ---- Its sections ---- */

struct image {
    char *bytes;
    size_t size_bytes;
};

static struct image read_image(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct image image = {0};
    long size;

    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    size = ftell(file);
    assert_true(size > (long)sizeof(Elf64_Ehdr));
    image.size_bytes = (size_t)size;
    image.bytes = malloc(image.size_bytes);
    assert_non_null(image.bytes);
    rewind(file);
    assert_true(fread(image.bytes, 1, image.size_bytes, file) == image.size_bytes);
    (void)fclose(file);
    return image;
}

static const Elf64_Shdr *find_section(const struct image *image, uint32_t type)
{
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)image->bytes;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(image->bytes + header->e_shoff);

    for (int i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_type == type)
            return &sections[i];
    fail_msg("the file has no section of type %u", type);
    return NULL;
}

static const char *text_of(const struct image *image, const Elf64_Shdr *section)
{
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)image->bytes;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(image->bytes + header->e_shoff);

    return image->bytes + sections[section->sh_link].sh_offset;
}

static int count_needed(const struct image *image, const char *begin)
{
    const Elf64_Shdr *section = find_section(image, SHT_DYNAMIC);
    const Elf64_Dyn *all = (const Elf64_Dyn *)(image->bytes + section->sh_offset);
    int count = 0;

    for (size_t i = 0; i < section->sh_size / sizeof *all; i++)
        if (all[i].d_tag == DT_NEEDED) {
            const char *name = text_of(image, section) + all[i].d_un.d_val;

            count += strncmp(name, begin, strlen(begin)) == 0;
        }
    return count;
}

/* Goal: it loads where there is no driver, and where no CUDA runtime is. Method: the names it
 * needs: cuBLASLt's is there (so names are read at all), the driver's and the runtime's are not. */
static void neither_the_driver_nor_the_runtime_is_needed(void **state)
{
    struct image image = read_image(CUDA_PLUGIN);

    assert_int_equal(count_needed(&image, "libcublasLt.so"), 1);
    assert_int_equal(count_needed(&image, "libcuda.so"), 0);
    assert_int_equal(count_needed(&image, "libnvidia-ml.so"), 0);
    assert_int_equal(count_needed(&image, "libcudart.so"), 0);
    free(image.bytes);
}

/* Goal: nothing of it meets a symbol of another program. Method: what it defines for others. */
static void only_the_getters_are_exported(void **state)
{
    struct image image = read_image(CUDA_PLUGIN);
    const Elf64_Shdr *section = find_section(&image, SHT_DYNSYM);
    const Elf64_Sym *all = (const Elf64_Sym *)(image.bytes + section->sh_offset);
    int getters = 0;

    for (size_t i = 0; i < section->sh_size / sizeof *all; i++) {
        const char *name = text_of(&image, section) + all[i].st_name;

        if (all[i].st_shndx == SHN_UNDEF)
            continue;
        if (strncmp(name, "hd_cuda_plugin", strlen("hd_cuda_plugin")) != 0)
            fail_msg("%s is visible to others", name);
        getters++;
    }
    assert_true(getters >= 2);
    free(image.bytes);
}

/* ---- Where it is loaded ---- */

/* Goal: a machine without a driver learns it in one line and goes on; one with a GPU gets the
 * table. Either is a result; which one is right is what the system says. */
static void it_loads_and_says_what_is_missing(void **state)
{
    const bool has_driver = access("/dev/nvidiactl", F_OK) == 0;
    const struct hd_backend_table *table = NULL;
    enum hd_status st;

    assert_int_equal(setenv(HD_PLUGIN_ENV, CUDA_PLUGIN, 1), 0);
    st = hd_plugin_cuda(&table);
    if (has_driver && !st) {
        assert_string_equal(table->name, "cuda");
        assert_non_null(table->device);
        return;
    }
    assert_int_equal(st, HD_UNSUPPORTED);
    assert_null(table);
    assert_null(strchr(hd_err_message(), '\n'));
    if (!has_driver)
        assert_non_null(strstr(hd_err_message(), "driver"));
}

/* ---- What the assembler reported ---- */

/* Kernels that most of a step's time is in: a part of the mangled name, the threads of a block, the
 * blocks that a multiprocessor is to have at once by its registers, and the bytes that may spill.
 */
static const struct hot {
    const char *name;
    int threads, blocks, spill_bytes;
} hot[] = {
    {"forward_tiled_kernelI13__nv_bfloat16Li64ELb0ELb0E", 128, 2, 0},
    {"forward_tiled_kernelI13__nv_bfloat16Li128ELb0ELb0E", 128, 2, 0},
    {"backward_keys_kernelI13__nv_bfloat16Li64ELb0E", 128, 2, 0},
    {"backward_keys_kernelI13__nv_bfloat16Li128ELb0E", 256, 1, 0},
    {"backward_queries_kernelI13__nv_bfloat16Li64ELb0E", 128, 2, 0},
    {"backward_queries_kernelI13__nv_bfloat16Li128ELb0E", 128, 2, 0},
    {"15gemm_mma_kernelI13__nv_bfloat16", 128, 5, 0},
    {"19grouped_gemm_kernelI13__nv_bfloat16Li128ELb0E", 256, 2, 0},
    {"19grouped_gemm_kernelI13__nv_bfloat16Li128ELb1E", 256, 2, 0},
    {"26grouped_gemm_weight_kernelI13__nv_bfloat16Li128E", 256, 2, 4}, /* on sm_100 */
    {"26grouped_gemm_weight_kernelI6__halfLi128E", 256, 2, 4},         /* the same code */
    {"10adamw_flatI13__nv_bfloat16Li4E", 256, 3, 0},
    {"18cross_entropy_rowsIL13cuda_map_kind0E13__nv_bfloat16Li8E", 512, 2, 0},
    {"12norm_forwardI13__nv_bfloat16Li8ELb0EL16cuda_norm_weight0EL10norm_shape0E", 128, 4, 0},
    {"13norm_backwardI13__nv_bfloat16Li8ELb0EL16cuda_norm_weight0EL10norm_shape0EL12norm_results0E",
     128, 3, 0},
    {"13norm_backwardI13__nv_bfloat16Li8ELb0EL16cuda_norm_weight0EL10norm_shape0EL12norm_results1E",
     128, 2, 0}, /* with weights */
    {"ELb1EL16cuda_norm_weight0EL10norm_shape1EL12norm_results2E", 512, 1,
     8}, /* sums beside a mean */
    {"ELb1EL16cuda_norm_weight1EL10norm_shape1EL12norm_results2E", 512, 1, 8},
    {"12distill_rowsI", 256, 4, 32}, /* around calls of log for doubles, once a row */
};
enum { HOT = sizeof hot / sizeof hot[0], REGISTERS = 65536, REGISTERS_OF_WARP = 256 };

struct reports {
    int kernels, seen[HOT];
};

static const struct hot *find_hot(const char *entry, struct reports *r)
{
    for (int i = 0; i < HOT; i++)
        if (strstr(entry, hot[i].name)) {
            r->seen[i]++;
            return &hot[i];
        }
    return NULL;
}

/* Registers are given to a warp in units of 256 (CUDA programming guide, occupancy). */
static int blocks_by(int registers, int threads)
{
    const int warp = (32 * registers + REGISTERS_OF_WARP - 1) / REGISTERS_OF_WARP;

    return REGISTERS / (warp * REGISTERS_OF_WARP) / (threads / 32);
}

static void read_report(const char *path, struct reports *r)
{
    FILE *file = fopen(path, "r");
    char line[4096], entry[4096] = "";
    const struct hot *h = NULL;

    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        const char *at;
        int stores, loads, registers;

        if ((at = strstr(line, "Compiling entry function '"))) {
            (void)sscanf(at, "Compiling entry function '%4095[^']", entry);
            h = find_hot(entry, r);
            r->kernels++;
        } else if ((at = strstr(line, "bytes stack frame, "))) {
            assert_int_equal(
                sscanf(at, "bytes stack frame, %d bytes spill stores, %d", &stores, &loads), 2);
            if (stores > (h ? h->spill_bytes : 0) || loads > (h ? h->spill_bytes : 0))
                fail_msg("%s spills %d and %d bytes", entry, stores, loads);
        } else if (h && (at = strstr(line, "Used "))) {
            assert_int_equal(sscanf(at, "Used %d registers", &registers), 1);
            if (blocks_by(registers, h->threads) < h->blocks)
                fail_msg("%s takes %d registers: a multiprocessor has %d of its blocks, not %d",
                         entry, registers, blocks_by(registers, h->threads), h->blocks);
        }
    }
    (void)fclose(file);
}

/* Goal: no kernel that holds its part of a row, its sums or its tiles in registers loses them to
 * memory, and the hot ones take no more registers than the blocks leave them that hide one
 * another's waits. Method: the reports that compile.sh left beside the objects. */
static void kernels_keep_to_their_registers(void **state)
{
    struct reports reports = {0};
    glob_t found;

    assert_int_equal(glob(CUDA_REPORTS "/*.ptxas", 0, NULL, &found), 0);
    for (size_t n = 0; n < found.gl_pathc; n++)
        read_report(found.gl_pathv[n], &reports);
    assert_true(reports.kernels > 100); /* encodings times widths of some thirty ops */
    for (int i = 0; i < HOT; i++)
        if (!reports.seen[i])
            fail_msg("no kernel is called %s", hot[i].name);
    globfree(&found);
}

RUN_CASES()
