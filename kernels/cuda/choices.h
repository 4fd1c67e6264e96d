/* choices: parses and writes the file of choices, which has the fastest of the library's algorithms
 * for each product.
 *
 *     heddle choices 1
 *     GPU-8c1f.. sm_90 CUDA 13.0 driver 13.0 580.65.06 cuBLASLt-13.1.0
 *     00c5d1a9e3f70b24 8 3                 product, number of offers, index of the chosen one
 *     ..
 *     end 6a09e667f3bcc908                 XXH64 of all bytes before this line
 *
 * A choice is an index in the library's list of offers, not an algorithm: whatever a file contains,
 * only an algorithm that the library offers is launched.
 *
 * Used by: gemm_time.c, tests.   Uses: base.   Threads: none of its own.
 */
#ifndef HD_KERNELS_CUDA_CHOICES_H
#define HD_KERNELS_CUDA_CHOICES_H

#include "base/text.h"
#include "kernels/kernels.h"

enum {
    HD_CUDA_CHOICES_MAX = 4096,       /* largest number of choices in a file */
    HD_CUDA_CHOICES_DEVICE_MAX = 256, /* largest length of the second line (GPU, driver, library) in
                                         bytes, with NUL */
    HD_CUDA_CHOICES_BYTES_MAX = 256 << 10
};

/* Parses the text of a file of choices into ret_choices, which has space for HD_CUDA_CHOICES_MAX,
 * and *ret_count. HD_CONFLICT: the file is for another device, driver or library than `device`
 * says; HD_CORRUPT: the file is damaged. The messages name the fault and its line. */
enum hd_status hd_cuda_choices_parse(const char *text, size_t size_bytes, const char *device,
                                     struct hd_choice *ret_choices, int *ret_count);

void hd_cuda_choices_format(const struct hd_choice *choices, int count, const char *device,
                            struct hd_text *ret_text);

/* Returns the choice for the product with this hash; NULL: there is none. */
const struct hd_choice *hd_cuda_choices_find(const struct hd_choice *choices, int count,
                                             uint64_t product);

#endif
