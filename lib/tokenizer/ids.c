/* ids: growing lists of token ids. */
#include <stdlib.h>

#include "tokenizer/tokenizer.h"

enum hd_status hd_id_list_reserve(struct hd_id_list *list, size_t more)
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
