#include "data/fingerprint.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digits.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/token_file.h"

/* Returns the offset in the file, bytes, of place number `i`. The first place begins the file, the
 * last one ends it, and those of a small file are adjacent. The product cannot overflow: no file
 * has 2^55 bytes. */
static int64_t offset_of(int64_t i, int64_t places, int64_t size_bytes)
{
    const int64_t last = size_bytes - HD_FINGERPRINT_PLACE_BYTES;

    if (size_bytes <= places * HD_FINGERPRINT_PLACE_BYTES)
        return i * HD_FINGERPRINT_PLACE_BYTES;
    return places == 1 ? 0 : last * i / (places - 1);
}

/* Adds the file's size, and its bytes at the places, to the hash. */
static enum hd_status add_places(int fd, int64_t size_bytes, int64_t places, struct hd_hash *hash)
{
    unsigned char bytes[HD_FINGERPRINT_PLACE_BYTES];
    enum hd_status st = HD_OK;

    hd_hash_add(hash, &size_bytes, sizeof size_bytes);
    for (int64_t i = 0; !st && i < places; i++) {
        const int64_t at = offset_of(i, places, size_bytes), left = size_bytes - at;
        const size_t n = left < (int64_t)sizeof bytes ? (size_t)left : sizeof bytes;

        if (left <= 0)
            break;
        st = hd_file_pread_all(fd, bytes, n, at);
        hd_hash_add(hash, bytes, st ? 0 : n);
    }
    return st;
}

static enum hd_status hash_file(const char *path, int64_t places, struct hd_hash *hash)
{
    struct stat info;
    int fd;
    enum hd_status st = hd_file_open_regular("the data file ", path, &fd);

    if (st)
        return st;
    if (fstat(fd, &info) < 0)
        st = hd_err(HD_IO, "cannot examine it: %s", strerror(errno));
    else
        st = add_places(fd, info.st_size, places, hash);
    (void)close(fd);
    return st ? hd_err_prefix(st, "%s", path) : HD_OK;
}

/* Adds Megatron's index, which holds the document boundaries, to the hash. An llm.c file has
 * none. */
static enum hd_status add_index(const char *path, int64_t places, struct hd_hash *hash)
{
    struct hd_text index = {0};
    enum hd_status st = hd_token_index_name(path, &index);

    if (!st && *index.data && hd_file_exists(index.data))
        st = hash_file(index.data, places, hash);
    hd_text_free(&index);
    return st;
}

enum hd_status hd_fingerprint(const char *path, int64_t places,
                              char ret_text[HD_FINGERPRINT_TEXT_MAX])
{
    char digits[HD_HASH_TEXT_MAX];
    struct hd_hash hash;
    enum hd_status st;

    hd_hash_begin(&hash);
    st = hash_file(path, places, &hash);
    if (!st)
        st = add_index(path, places, &hash);
    if (st)
        return st;
    hd_hash_format(hd_hash_value(&hash), digits);
    (void)snprintf(ret_text, HD_FINGERPRINT_TEXT_MAX, "%lld:%s", (long long)places, digits);
    return HD_OK;
}

/* Returns the number of places that the text of a fingerprint begins with; 0: the text is no
 * fingerprint. */
static int64_t places_of(const char *text)
{
    const size_t length = strcspn(text, ":");
    char number[HD_FINGERPRINT_TEXT_MAX];
    int64_t places;

    (void)snprintf(number, sizeof number, "%.*s", (int)length, text);
    if (!text[length] || hd_text_to_int64(number, 1, HD_FINGERPRINT_PLACES_MAX, &places))
        return 0;
    text += length + 1;
    return strlen(text) == HD_HASH_TEXT_MAX - 1 &&
                   strspn(text, HD_HEX_DIGITS) == HD_HASH_TEXT_MAX - 1
               ? places
               : 0;
}

bool hd_fingerprint_is_form(const char *text)
{
    return places_of(text) > 0;
}

enum hd_status hd_fingerprint_check(const char *path, const char *recorded)
{
    const int64_t places = recorded && *recorded ? places_of(recorded) : 0;
    char is[HD_FINGERPRINT_TEXT_MAX];
    enum hd_status st;

    if (!recorded || !*recorded)
        return HD_OK;
    if (!places)
        return hd_err(HD_CORRUPT, "the fingerprint '%s' of %s has no form that this program knows",
                      recorded, path);
    st = hd_fingerprint(path, places, is);
    if (st || strcmp(is, recorded) == 0)
        return st;
    return hd_err(HD_INVALID,
                  "%s is another file than when the job was submitted: it has as many bytes, but "
                  "its fingerprint is %s, was %s; restore it, or submit the job again",
                  path, is, recorded);
}
