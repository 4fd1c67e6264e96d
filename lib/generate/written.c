#include "generate/written.h"

#include <string.h>

/* Returns the first offset, from byte `from` of w->bytes on, at which a whole stop text begins;
 * w->bytes.len_bytes: none. */
static size_t find_stop(const struct hd_written *w, size_t from)
{
    size_t found = w->bytes.len_bytes;

    for (int i = 0; i < w->stop_count; i++) {
        const char *at = memmem(w->bytes.data + from, w->bytes.len_bytes - from, w->stops[i],
                                strlen(w->stops[i]));

        if (at && (size_t)(at - w->bytes.data) < found)
            found = (size_t)(at - w->bytes.data);
    }
    return found;
}

/* Returns true if the bytes of w->bytes from offset `at` to the end are the beginning of a stop
 * text. */
static bool may_stop(const struct hd_written *w, size_t at)
{
    const size_t left = w->bytes.len_bytes - at;

    for (int i = 0; i < w->stop_count; i++)
        if (left < strlen(w->stops[i]) && memcmp(w->bytes.data + at, w->stops[i], left) == 0)
            return true;
    return false;
}

/* Returns the number of bytes of a UTF-8 character with this first byte; 0: no character begins
 * with this byte. */
static size_t character_bytes(unsigned char first)
{
    return first < 0x80    ? 1
           : first < 0xc2  ? 0
           : first < 0xe0  ? 2
           : first < 0xf0  ? 3
           : first <= 0xf4 ? 4
                           : 0;
}

/* Returns the offset of the last UTF-8 character if it may be incomplete, else `count`. */
static size_t whole_characters(const char *bytes, size_t count)
{
    for (size_t back = 1; back <= 3 && back <= count; back++) {
        const unsigned char c = (unsigned char)bytes[count - back];

        if ((c & 0xc0) != 0x80)
            return character_bytes(c) > back ? count - back : count;
    }
    return count;
}

enum hd_status hd_written_add(struct hd_written *w, const struct hd_tokenizer *tokenizer,
                              int32_t id)
{
    enum hd_status st;
    size_t stop, safe;

    if (w->stopped)
        return HD_OK;
    st = hd_tokenizer_decode_next(tokenizer, id, &w->bytes);
    if (!st && w->bytes.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a text");
    if (st || !w->bytes.data)
        return st;
    stop = find_stop(w, w->safe); /* safe bytes cannot be part of a stop text */
    if (stop < w->bytes.len_bytes) {
        w->bytes.len_bytes = stop;
        w->bytes.data[stop] = '\0';
        w->stopped = true;
        hd_written_end(w);
        return HD_OK;
    }
    for (safe = w->safe; safe < w->bytes.len_bytes && !may_stop(w, safe);)
        safe++;
    safe = whole_characters(w->bytes.data, safe);
    w->safe = safe > w->safe ? safe : w->safe;
    return HD_OK;
}

void hd_written_end(struct hd_written *w)
{
    w->safe = w->bytes.len_bytes;
}

void hd_written_free(struct hd_written *w)
{
    hd_text_free(&w->bytes);
}

/* Returns the number of bytes, at the begin of an invalid UTF-8 sequence, that one U+FFFD replaces:
 * the longest beginning of a character, else one byte (Unicode 15, 3.9, "U+FFFD Substitution of
 * Maximal Subparts"), as other decoders do. */
static size_t broken_bytes(const unsigned char *bytes, size_t count)
{
    const size_t whole = character_bytes(bytes[0]);
    const unsigned char least = bytes[0] == 0xe0 ? 0xa0 : bytes[0] == 0xf0 ? 0x90 : 0x80;
    const unsigned char most = bytes[0] == 0xed ? 0x9f : bytes[0] == 0xf4 ? 0x8f : 0xbf;
    size_t n = 1;

    if (whole < 2 || count < 2 || bytes[1] < least || bytes[1] > most)
        return 1;
    for (n = 2; n < whole && n < count && (bytes[n] & 0xc0) == 0x80;)
        n++;
    return n;
}

void hd_written_to_utf8(const char *bytes, size_t count, struct hd_text *ret_text)
{
    for (size_t at = 0, n; at < count; at += n) {
        n = character_bytes((unsigned char)bytes[at]);
        if (n && at + n <= count && hd_text_is_utf8(bytes + at, n)) {
            hd_text_add_bytes(ret_text, bytes + at, n);
            continue;
        }
        hd_text_add_bytes(ret_text, "\xef\xbf\xbd", 3);
        n = broken_bytes((const unsigned char *)bytes + at, count - at);
    }
}
