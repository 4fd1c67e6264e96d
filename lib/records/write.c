/* write: JSON text of the records of containers that have none. */
#include <inttypes.h>
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

/* Writes the escape of a byte to `ret`; returns its length. */
static size_t write_escape(unsigned char byte, char ret[6])
{
    static const char digits[] = "0123456789abcdef";
    const char *name = byte == '\n' ? "n" : byte == '\t' ? "t" : byte == '\r' ? "r" : NULL;

    ret[0] = '\\';
    if (name || byte == '"' || byte == '\\') {
        ret[1] = name ? *name : (char)byte;
        return 2;
    }
    memcpy(ret + 1, "u00", 3);
    ret[4] = digits[byte >> 4];
    ret[5] = digits[byte & 15];
    return 6;
}

void records_add_string(struct hd_text *out, const char *bytes, size_t count)
{
    char buffer[1024];
    size_t n = 1;

    buffer[0] = '"';
    while (count) {
        const size_t plain = count_plain(bytes, count);

        if (n + plain + 8 >
            sizeof buffer) { /* writes what is gathered, and long pieces as they are */
            hd_text_add_bytes(out, buffer, n);
            n = 0;
        }
        if (plain + 8 > sizeof buffer)
            hd_text_add_bytes(out, bytes, plain);
        else
            memcpy(buffer + n, bytes, plain);
        n += plain + 8 > sizeof buffer ? 0 : plain;
        bytes += plain;
        count -= plain;
        if (count) {
            n += write_escape((unsigned char)*bytes++, buffer + n);
            count--;
        }
    }
    buffer[n++] = '"';
    hd_text_add_bytes(out, buffer, n);
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
