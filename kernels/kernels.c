#include "kernels/kernels.h"

#include "base/random.h"
#include "base/text.h"
#include "kernels/stream.h"

/* Compiles if the operands of a row are the pointers of its struct, all of them and first in it: NULL
 * initialises no number, and 1 no pointer. */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wint-conversion"
#pragma GCC diagnostic ignored "-Wmissing-braces"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#define OPERAND(...) NULL,
#define K(kernel, operations, operands)                                   \
    _Static_assert(sizeof(struct {                                        \
                       struct hd_##kernel##_args args;                    \
                       long rest; /* behind a struct of pointers alone */ \
                   }){operands 1},                                        \
                   "the row of " #kernel " has the pointers of its struct");
#include "kernels/kernels.def"
#pragma GCC diagnostic pop

/* One info row per kernel, in which `args` names the kernel's struct: offsetof in the operand list
 * needs one name in all rows. (The only typedef of a struct in Heddle.) */
#define ACCESS_READ                          HD_READ, 0
#define ACCESS_WRITE                         HD_WRITE, 0
#define ACCESS_UPDATE                        HD_READ_WRITE, 0
#define ACCESS_ADD                           HD_WRITE, offsetof(args, accumulate)
#define ACCESS_SCRATCH                       HD_SCRATCH, 0
#define OPERAND(access, absent, member, ...) {#member, offsetof(args, member), ACCESS_##access},
#define K(kernel, operations, list)                                                              \
    static const struct hd_kernel_info *info_##kernel(void)                                      \
    {                                                                                            \
        typedef struct hd_##kernel##_args args;                                                  \
        static const struct hd_kernel_operand operands[] = {list};                               \
        static const struct hd_kernel_info info = {                                              \
            #kernel, sizeof(args), sizeof operands / sizeof operands[0], operands};              \
                                                                                                 \
        _Static_assert(sizeof operands / sizeof operands[0] <= HD_KERNEL_OPERANDS_MAX, #kernel); \
        return &info;                                                                            \
    }
#include "kernels/kernels.def"

const struct hd_kernel_info *hd_kernel_get_info(enum hd_kernel kernel)
{
    static const struct hd_kernel_info *(*const rows[])(void) = {
#define K(name, ...) info_##name,
#include "kernels/kernels.def"
    };
    return rows[kernel]();
}

uint64_t hd_kernel_list_hash(void)
{
    uint64_t hash = HD_KERNEL_ABI;

    for (int k = 0; k < HD_KERNEL_COUNT; k++) {
        const struct hd_kernel_info *info = hd_kernel_get_info((enum hd_kernel)k);

        hash = hd_random_key(hash, hd_random_hash(info->name) + info->args_size_bytes);
        for (int i = 0; i < info->operand_count; i++)
            hash = hd_random_key(hash, hd_random_hash(info->operands[i].name) ^
                                           (info->operands[i].offset << 8) ^
                                           (uint64_t)info->operands[i].access);
    }
    return hash;
}

uint64_t hd_dropout_key(uint64_t seed, int64_t layer, int64_t site)
{
    return hd_random_key(hd_random_key(seed, (uint64_t)layer), (uint64_t)site);
}

enum hd_status hd_backend_check(const struct hd_backend_table *table)
{
    if (table->abi != HD_KERNEL_ABI || table->table_bytes != sizeof *table)
        return hd_err(
            HD_UNSUPPORTED,
            "the backend '%s' has kernel ABI %u and a table of %u bytes, this build has %u and "
            "%zu bytes; build both from one source",
            table->name, table->abi, table->table_bytes, HD_KERNEL_ABI, sizeof *table);
    if (table->kernel_list_hash != hd_kernel_list_hash())
        return hd_err(HD_UNSUPPORTED,
                      "the backend '%s' was built from another list of kernels (hash %016llx, this "
                      "build has %016llx); build both from one source",
                      table->name, (unsigned long long)table->kernel_list_hash,
                      (unsigned long long)hd_kernel_list_hash());
    return HD_OK;
}

enum hd_status hd_launch(struct hd_stream *stream, enum hd_kernel kernel, const void *args)
{
    return stream->table->launch(stream, kernel, args);
}
