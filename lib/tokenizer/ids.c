#include <stdlib.h>

#include "tokenizer/tokenizer.h"

enum hd_status hd_id_list_reserve(struct hd_id_list *list, size_t more)
{
    size_t capacity = list->capacity ? list->capacity : 256;
    int32_t *ids;

    if (more <= list->capacity - list->count)
        return HD_OK;
    while (capacity - list->count < more)
        capacity *= 2;
    ids = realloc(list->ids, capacity * sizeof *ids);
    if (!ids)
        return hd_err(HD_NO_MEMORY, "no memory for %zu token ids", capacity);
    list->ids = ids;
    list->capacity = capacity;
    return HD_OK;
}

void hd_id_list_free(struct hd_id_list *list)
{
    free(list->ids);
    *list = (struct hd_id_list){0};
}
