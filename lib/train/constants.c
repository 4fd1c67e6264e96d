/* constants: writes the tables of a chunk, such as those of positions, where the rank has them. */
#include <stdlib.h>

#include "program/run.h"
#include "train/staging.h"

static enum hd_status write_constant(const struct hd_staging *staging, const struct hd_store *s,
                                     void *tensor)
{
    void *values;
    enum hd_status st;

    if (!staging->device) {
        hd_constant_fill(s, tensor);
        return HD_OK;
    }
    values = malloc((size_t)s->size_bytes);
    if (!values)
        return hd_err(HD_NO_MEMORY, "no memory for the table %s", s->name);
    hd_constant_fill(s, values);
    st = hd_staging_write(staging, tensor, values, s->size_bytes);
    free(values);
    return st;
}

enum hd_status hd_staging_write_constants(const struct hd_staging *staging,
                                          const struct hd_chunk *chunk, char *chunk_state)
{
    const struct hd_bases bases = {.chunk_state = chunk_state};
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < chunk->store_count; i++)
        if (chunk->stores[i]->kind == HD_STORE_CONSTANT)
            st = write_constant(staging, chunk->stores[i],
                                hd_store_address(&bases, chunk->stores[i]));
    return st;
}
