#include <stdio.h>
#include <string.h>

#include "kernels/kernels.h"

/* Format of traits as text: the hash of the kernel list, then the bytes of struct hd_traits, all in
 * hexadecimal. */
enum { HASH_DIGITS = 16, TEXT_BYTES = HASH_DIGITS + 2 * sizeof(struct hd_traits) };
_Static_assert((int)TEXT_BYTES < (int)HD_TRAITS_TEXT_MAX, "the text fits");

void hd_traits_write(const struct hd_traits *traits, char ret_text[HD_TRAITS_TEXT_MAX])
{
    const unsigned char *bytes = (const unsigned char *)traits;

    (void)snprintf(ret_text, HASH_DIGITS + 1, "%016llx", (unsigned long long)hd_kernel_list_hash());
    for (size_t i = 0; i < sizeof *traits; i++)
        (void)snprintf(ret_text + HASH_DIGITS + 2 * i, 3, "%02x", bytes[i]);
}

static int digit(char c)
{
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c) : NULL;

    return at ? (int)(at - digits) : -1;
}

enum hd_status hd_traits_read(const char *text, struct hd_traits *ret_traits)
{
    unsigned char bytes[sizeof *ret_traits];
    char hash[HASH_DIGITS + 1];

    (void)snprintf(hash, sizeof hash, "%016llx", (unsigned long long)hd_kernel_list_hash());
    if (strlen(text) != TEXT_BYTES || memcmp(text, hash, HASH_DIGITS) != 0)
        return hd_err(HD_INVALID, "the description of the device comes from another build of "
                                  "Heddle; install the same version of all programs");
    for (size_t i = 0; i < sizeof bytes; i++) {
        const char *two = text + HASH_DIGITS + 2 * i;

        if (digit(two[0]) < 0 || digit(two[1]) < 0)
            return hd_err(HD_INVALID, "the description of the device is damaged: it has characters "
                                      "other than 0-9 and a-f");
        bytes[i] = (unsigned char)(digit(two[0]) << 4 | digit(two[1]));
    }
    memcpy(ret_traits, bytes, sizeof bytes);
    return HD_OK;
}
