/* write: JSON text of the records of containers that have none. */
#include <stdio.h>

#include "records_internal.h"

/* Returns how many bytes at the start of a string are written as they are. */
static size_t count_plain(const char *bytes, size_t count)
{
    size_t n = 0;

    while (n < count && (unsigned char)bytes[n] >= 0x20 && bytes[n] != '"' && bytes[n] != '\\')
        n++;
    return n;
}

void records_add_string(struct hd_text *out, const char *bytes, size_t count)
{
    hd_text_add_bytes(out, "\"", 1);
    while (count) {
        const size_t n = count_plain(bytes, count);
        char escape[8];

        if (n)
            hd_text_add_bytes(out, bytes, n);
        bytes += n;
        count -= n;
        if (!count)
            break;
        if (*bytes == '"' || *bytes == '\\' || *bytes == '\n')
            (void)snprintf(escape, sizeof escape, "\\%c", *bytes == '\n' ? 'n' : *bytes);
        else
            (void)snprintf(escape, sizeof escape, "\\u%04x", (unsigned char)*bytes);
        hd_text_add(out, "%s", escape);
        bytes++;
        count--;
    }
    hd_text_add_bytes(out, "\"", 1);
}
