/* choices: the text of a file of choices, which says for each product which of the library's
 * algorithms was the fastest.
 *
 *     heddle choices 1
 *     GPU-8c1f.. sm_90 CUDA 13.0 driver 13.0 580.65.06 cuBLASLt-13.1.0
 *     00c5d1a9e3f70b24 8 3                 product, number of offers, the one that was chosen
 *     ..
 *     end 6a09e667f3bcc908                 XXH64 of all bytes before this line
 *
 * A choice is a number in the library's list of offers, not an algorithm: whatever a file says,
 * only what the library offers is launched.
 *
 * Used by: gemm_time.c, tests.   Uses: base.   Threads: none of its own.
 */
#ifndef HD_KERNELS_CUDA_CHOICES_H
#define HD_KERNELS_CUDA_CHOICES_H

#include "base/text.h"
#include "kernels/kernels.h"

enum {
    HD_CUDA_CHOICES_MAX = 4096,       /* in a file */
    HD_CUDA_CHOICES_DEVICE_MAX = 256, /* length of the second line, with NUL */
    HD_CUDA_CHOICES_BYTES_MAX = 256 << 10
};

/* The choices of the file's text. HD_CONFLICT: it is for another device, driver or library than
 * `device`; HD_CORRUPT: it is damaged; the messages say what is wrong in which line. ret_choices
 * has room for HD_CUDA_CHOICES_MAX. */
enum hd_status hd_cuda_choices_parse(const char *text, size_t size_bytes, const char *device,
                                     struct hd_choice *ret_choices, int *ret_count);

void hd_cuda_choices_format(const struct hd_choice *choices, int count, const char *device,
                            struct hd_text *ret_text);

/* The choice for a product, or NULL. */
const struct hd_choice *hd_cuda_choices_find(const struct hd_choice *choices, int count,
                                             uint64_t product);

#endif
