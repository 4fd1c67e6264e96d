/* write: JSON text of the records of containers that have none. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
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

/* First bytes of the line that is written for a row which cannot be used; its reason follows. JSON
 * never begins with these bytes. */
#define REFUSED "\1\2"

void records_add_refused(struct hd_text *out, const char *reason)
{
    hd_text_add(out, REFUSED "%s\n", reason);
}

enum hd_status hd_records_check_row(const char *line, size_t bytes)
{
    if (bytes < sizeof REFUSED || memcmp(line, REFUSED, sizeof REFUSED - 1) != 0)
        return HD_OK;
    return hd_err(HD_INVALID, "%.*s", (int)bytes - (int)(sizeof REFUSED - 1),
                  line + sizeof REFUSED - 1);
}

void records_add_int(struct hd_text *out, int64_t value)
{
    hd_text_add(out, "%" PRId64, value);
}

void records_add_unsigned(struct hd_text *out, uint64_t value)
{
    hd_text_add(out, "%" PRIu64, value);
}

void records_add_real(struct hd_text *out, double value)
{
    struct hd_json_writer w = {.out = out};

    hd_json_add_real(&w, NULL, value);
}

void records_add_json(struct hd_text *out, const char *bytes, size_t count)
{
    const size_t first = out->len_bytes;

    hd_text_add_bytes(out, bytes, count);
    for (size_t i = first; i < out->len_bytes; i++)
        if (out->data[i] == '\n' || out->data[i] == '\r')
            out->data[i] = ' ';
}
