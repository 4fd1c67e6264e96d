/* s3_name: names of objects. */
#include <ctype.h>
#include <string.h>

#include "base/file.h"
#include "s3_internal.h"

#define SCHEME "s3://"

bool hd_s3_is_name(const char *text)
{
    return hd_text_starts(text, SCHEME);
}

static bool bucket_is_possible(const char *text, size_t count)
{
    if (count < 3 || count >= HD_S3_BUCKET_MAX || !isalnum((unsigned char)text[0]) ||
        !isalnum((unsigned char)text[count - 1]))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("._-", text[i]))
            return false;
    return true;
}

static enum hd_status s3_refuse(const char *text, const char *why)
{
    char clean[400];

    hub_copy_clean(text, clean, sizeof clean);
    return hd_err(HD_INVALID, "%.300s: %s", clean, why);
}

enum hd_status hd_s3_parse(const char *text, struct hd_s3_name *ret_name)
{
    struct hd_s3_name name = {.key = ""};
    const char *at = text + strlen(SCHEME);
    size_t n;

    if (!hd_s3_is_name(text))
        return s3_refuse(text, "is no name of an object; write s3://BUCKET/KEY");
    n = strcspn(at, "/");
    if (!bucket_is_possible(at, n))
        return s3_refuse(text, "a bucket's name has 3 to 63 letters, digits, '-' and '.'; write "
                               "s3://BUCKET/KEY");
    memcpy(name.bucket, at, n);
    at += n;
    at += *at == '/';
    n = strlen(at);
    if (n >= HD_S3_KEY_MAX)
        return s3_refuse(text, "the key is longer than 1024 bytes");
    memcpy(name.key, at, n + 1);
    if (n && name.key[n - 1] == '/')
        name.key[n - 1] = '\0';
    if (*name.key && !hub_path_is_safe(name.key))
        return s3_refuse(text,
                         "the key has an empty part, '.' or '..', or a character that names of "
                         "files do not have");
    memcpy(name.key, at, n + 1);
    *ret_name = name;
    return HD_OK;
}

bool hd_s3_describe(const char *path, struct hd_text *out)
{
    static const char *const folders[] = {"/objects/", "/folders/"};
    bool found = false;

    for (size_t i = 0; i < sizeof folders / sizeof folders[0] && !found; i++) {
        const char *at = strstr(path, folders[i]);
        const size_t id = at ? strcspn(at + strlen(folders[i]), "/") : 0;
        struct hd_text file = {0}, source = {0};

        if (!at || id != S3_ID_MAX - 1)
            continue;
        hd_text_add(&file, "%.*s.source", (int)((size_t)(at - path) + strlen(folders[i]) + id),
                    path);
        found = !file.failed && !hd_file_read(file.data, 2 * HD_S3_KEY_MAX, &source) &&
                source.data && hd_s3_is_name(source.data);
        if (found)
            hd_text_add(out, "%.*s", (int)strcspn(source.data, "\n"), source.data);
        hd_text_free(&file);
        hd_text_free(&source);
    }
    return found;
}
