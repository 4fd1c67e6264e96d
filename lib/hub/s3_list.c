/* s3_list: lists of objects. */
#include <string.h>

#include "base/digits.h"
#include "s3_internal.h"

/* Decodes a key of encoding-type=url in place. */
static void decode_url(char *text)
{
    char *to = text;

    for (; *text; text++) {
        if (*text == '%' && hd_hex_digit(text[1]) >= 0 && hd_hex_digit(text[2]) >= 0) {
            *to++ = (char)(hd_hex_digit(text[1]) << 4 | hd_hex_digit(text[2]));
            text += 2;
        } else {
            *to++ = *text == '+' ? ' ' : *text;
        }
    }
    *to = '\0';
}

enum hd_status s3_list_add(struct s3_list *list, const char *key, const char *etag,
                           int64_t size_bytes, struct hd_arena *arena)
{
    struct s3_object *items =
        hd_arena_grow(arena, list->items, list->count, &list->room, sizeof *items);

    if (!items)
        return hd_err(HD_NO_MEMORY, "no memory for a list of objects");
    if (list->count == HUB_FILES_MAX)
        return hd_err(HD_LIMIT, "more than %d objects; name a folder with fewer", HUB_FILES_MAX);
    list->items = items;
    list->items[list->count++] = (struct s3_object){.key = hd_arena_strdup(arena, key),
                                                    .etag = hd_arena_strdup(arena, etag),
                                                    .size_bytes = size_bytes};
    return hd_arena_failed(arena) ? hd_err(HD_NO_MEMORY, "no memory for a list of objects") : HD_OK;
}

/* Copies an ETag without its quotes. */
static void strip_quotes(struct hd_text *etag)
{
    size_t n = 0;

    for (size_t i = 0; i < etag->len_bytes; i++)
        if (etag->data[i] != '"')
            etag->data[n++] = etag->data[i];
    if (etag->data)
        etag->data[n] = '\0';
    etag->len_bytes = n;
}

/* Returns whether a text of a store may be part of a header or of a line of a file. */
static bool is_plain(const char *text)
{
    while (*text && (unsigned char)*text >= 0x20 && *text != 0x7f)
        text++;
    return !*text;
}

static enum hd_status add_page(struct s3_list *list, const struct hd_text *page, bool encoded,
                               const char *prefix, struct hd_arena *arena)
{
    const char *end = page->data + page->len_bytes, *at = page->data, *begin, *last;
    struct hd_text key = {0}, etag = {0}, size = {0};
    enum hd_status st = HD_OK;

    for (; !st && s3_find_element(at, end, "Contents", &begin, &last); at = last) {
        int64_t bytes = -1;

        if (!s3_find_text(begin, last, "Key", &key) || !s3_find_text(begin, last, "ETag", &etag) ||
            !s3_find_text(begin, last, "Size", &size) || key.failed || etag.failed || size.failed ||
            hd_text_to_int64(size.data, 0, INT64_MAX, &bytes)) {
            st = hd_err(HD_CORRUPT,
                        "the store sends a list in which an object has no Key, ETag or Size");
            break;
        }
        strip_quotes(&etag);
        if (encoded)
            decode_url(key.data);
        /* copy and removal must not touch objects outside of the prefix */
        if (!hd_text_starts(key.data, prefix))
            st =
                hd_err(HD_CORRUPT, "the store lists an object that does not begin with %s", prefix);
        else if (!is_plain(key.data) || !is_plain(etag.data) ||
                 etag.len_bytes >= sizeof((struct hub_answer *)0)->etag)
            st = hd_err(
                HD_CORRUPT,
                "the store lists an object below %s whose key or ETag has control characters",
                prefix);
        else if (*key.data && !hd_text_ends(key.data, "/"))
            st = s3_list_add(list, key.data, etag.data, bytes, arena);
    }
    hd_text_free(&key);
    hd_text_free(&etag);
    hd_text_free(&size);
    return st;
}

enum hd_status s3_list_objects(struct hd_s3 *s3, struct hub_client *client, const char *bucket,
                               const char *prefix, struct hd_arena *arena, struct s3_list *list)
{
    struct hd_text page = {0}, token = {0}, text = {0};
    enum hd_status st = HD_OK;
    bool more = true;

    for (int pages = 0; !st && more; pages++) {
        struct s3_call call = {.bucket = bucket, .key = "", .reply = &page};
        struct hub_answer answer;
        const char *end;

        if (token.len_bytes)
            call.query[call.query_count++] = (struct s3_pair){"continuation-token", token.data};
        call.query[call.query_count++] = (struct s3_pair){"encoding-type", "url"};
        call.query[call.query_count++] = (struct s3_pair){"list-type", "2"};
        call.query[call.query_count++] = (struct s3_pair){"prefix", prefix};
        hd_text_clear(&page);
        st = s3_send(s3, client, &call, &answer);
        if (st)
            break;
        hd_text_add(&page, "%s", "");
        end = page.data + page.len_bytes;
        if (page.failed || !strstr(page.data, "<ListBucketResult")) {
            st = hd_err(HD_CORRUPT, "%s does not answer as an object store does: no list of %s",
                        answer.host, bucket);
            break;
        }
        st = add_page(list, &page, s3_find_text(page.data, end, "EncodingType", &text), prefix,
                      arena);
        if (!st && pages == HUB_FILES_MAX) /* even pages without an object end sometime */
            st = hd_err(HD_CORRUPT, "%s does not end its list of %s", answer.host, bucket);
        more = s3_find_text(page.data, end, "IsTruncated", &text) && text.data &&
               strcmp(text.data, "true") == 0;
        if (!st && more &&
            (!s3_find_text(page.data, end, "NextContinuationToken", &token) || !token.len_bytes))
            st = hd_err(HD_CORRUPT, "%s ends a list of %s in its middle", answer.host, bucket);
    }
    hd_text_free(&page);
    hd_text_free(&token);
    hd_text_free(&text);
    return st;
}
