/* digits: bytes as text, in hexadecimal digits or in base64 (RFC 4648).
 *
 * Used by: everything.   Uses: random.   Threads: any.
 */
#ifndef HD_BASE_DIGITS_H
#define HD_BASE_DIGITS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define HD_HEX_DIGITS "0123456789abcdef" /* the digits that Heddle writes */

/* Returns the value of a hexadecimal digit, small or capital; -1: the character is none. */
static inline int hd_hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Writes 2 * count digits and a NUL. */
void hd_hex_format(const void *bytes, size_t count, char *ret_text);

enum { HD_HEX_ID_MAX = 33 };
/* Makes a random id of 32 digits. */
enum hd_status hd_hex_make_id(char ret_id[HD_HEX_ID_MAX]);

/* Writes the base64 of bytes, with padding: 4 characters for each 3 bytes begun, and a NUL. */
void hd_base64_format(const void *bytes, size_t count, char *ret_text);
/* Decodes base64 with padding to at most 3 * strlen(text) / 4 bytes. Returns their number; -1: the
 * text is no base64. */
int64_t hd_base64_parse(const char *text, unsigned char *ret_bytes);

#endif
