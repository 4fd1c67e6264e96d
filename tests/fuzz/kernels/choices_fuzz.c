/* Files of timed choices at random: what is accepted are choices that can be used, and they are
 * written as they were read. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/choices.h"
#include "tests/fuzz/driver.h"

static const char device[] = "GPU-1 sm_90 CUDA 13.0 driver 13.0 cuBLASLt-13.1.0";

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    static struct hd_choice choices[HD_CUDA_CHOICES_MAX];
    char *text = malloc(size_bytes + 1); /* of its own size: a read beyond it is seen */
    struct hd_text again = {0};
    int count = -1;
    enum hd_status st;

    require(text != NULL);
    memcpy(text, bytes, size_bytes);
    st = hd_cuda_choices_parse(text, size_bytes, device, choices, &count);
    require(count >= 0 && count <= HD_CUDA_CHOICES_MAX);
    require(st == HD_OK || st == HD_CONFLICT || st == HD_CORRUPT);
    if (st) {
        require(hd_text_is_utf8(hd_err_message(), strlen(hd_err_message())));
    } else {
        for (int i = 0; i < count; i++)
            require(choices[i].chosen >= 0 && choices[i].chosen < choices[i].offered);
        hd_cuda_choices_format(choices, count, device, &again);
        require(!again.failed && again.len_bytes == size_bytes &&
                memcmp(again.data, text, size_bytes) == 0);
    }
    hd_text_free(&again);
    free(text);
    return 0;
}

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    const struct hd_choice some[] = {{0x123456789abcdefu, 8, 3}, {1, 2, 0}, {UINT64_MAX, 3, 2}};
    struct hd_text text = {0};
    size_t size;

    if (index > 3)
        return 0;
    hd_cuda_choices_format(some, (int)index, device, &text);
    size = text.len_bytes < max_bytes ? text.len_bytes : max_bytes;
    memcpy(ret_bytes, text.data, size);
    hd_text_free(&text);
    return size;
}
