#include "data/tokenizer.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- ids ---- */

static enum hd_status make_room(struct hd_id_list *list, size_t more)
{
    size_t room = list->room ? list->room : 256;
    int32_t *ids;

    if (more <= list->room - list->count)
        return HD_OK;
    while (room - list->count < more)
        room *= 2;
    ids = realloc(list->ids, room * sizeof *ids);
    if (!ids)
        return hd_err(HD_NO_MEMORY, "no memory for %zu token ids", room);
    list->ids = ids;
    list->room = room;
    return HD_OK;
}

void hd_id_list_free(struct hd_id_list *list)
{
    free(list->ids);
    *list = (struct hd_id_list){0};
}

/* ---- bytes: the id of a byte is its value ---- */

struct hd_tokenizer {
    char name[8];
};

struct hd_encoder {
    const struct hd_tokenizer *tokenizer;
};

enum hd_status hd_tokenizer_open(const char *name, struct hd_tokenizer **ret_tokenizer)
{
    struct hd_tokenizer *t;

    if (strcmp(name, "bytes") != 0)
        return hd_err(HD_UNSUPPORTED, "data.tokenizer: there is no tokenizer '%s'; there is: bytes",
                      name);
    t = calloc(1, sizeof *t);
    if (!t)
        return hd_err(HD_NO_MEMORY, "no memory for a tokenizer");
    memcpy(t->name, "bytes", sizeof "bytes");
    *ret_tokenizer = t;
    return HD_OK;
}

void hd_tokenizer_close(struct hd_tokenizer *tokenizer)
{
    free(tokenizer);
}

const char *hd_tokenizer_name(const struct hd_tokenizer *tokenizer)
{
    return tokenizer->name;
}

int32_t hd_tokenizer_vocab(const struct hd_tokenizer *tokenizer)
{
    (void)tokenizer;
    return 256;
}

int32_t hd_tokenizer_end_of_text(const struct hd_tokenizer *tokenizer)
{
    (void)tokenizer;
    return -1;
}

int32_t hd_tokenizer_find(const struct hd_tokenizer *tokenizer, const char *content)
{
    (void)tokenizer;
    (void)content;
    return -1;
}

const char *hd_tokenizer_content(const struct hd_tokenizer *tokenizer, int32_t id)
{
    (void)tokenizer;
    (void)id;
    return NULL;
}

enum hd_status hd_tokenizer_decode(const struct hd_tokenizer *tokenizer, const int32_t *ids,
                                   size_t count, struct hd_text *ret_bytes)
{
    (void)tokenizer;
    for (size_t i = 0; i < count; i++) {
        unsigned char byte = (unsigned char)ids[i];

        if (ids[i] < 0 || ids[i] > 255)
            return hd_err(HD_INVALID, "token id %d is outside 0 to 255", (int)ids[i]);
        hd_text_add_bytes(ret_bytes, &byte, 1);
    }
    return ret_bytes->failed ? hd_err(HD_NO_MEMORY, "no memory for the decoded text") : HD_OK;
}

enum hd_status hd_encoder_new(const struct hd_tokenizer *tokenizer, struct hd_encoder **ret_encoder)
{
    struct hd_encoder *e = calloc(1, sizeof *e);

    if (!e)
        return hd_err(HD_NO_MEMORY, "no memory for an encoder");
    e->tokenizer = tokenizer;
    *ret_encoder = e;
    return HD_OK;
}

void hd_encoder_free(struct hd_encoder *encoder)
{
    free(encoder);
}

enum hd_status hd_encoder_add(struct hd_encoder *encoder, const void *text, size_t text_bytes,
                              struct hd_id_list *list)
{
    const unsigned char *bytes = text;
    enum hd_status st = make_room(list, text_bytes);

    (void)encoder;
    for (size_t i = 0; !st && i < text_bytes; i++)
        list->ids[list->count++] = bytes[i];
    return st;
}
