/* compile: runs the passes in their order, and looks up stores and names of chunks. */
#include "program/emit.h"

enum hd_status hd_emit_finish(struct hd_emit *e, struct hd_chunk **ret_chunk)
{
    struct hd_chunk *chunk = hd_arena_alloc(e->arena, sizeof *chunk);

    if (!chunk)
        return hd_err(HD_NO_MEMORY, "no memory to compile a program");
    if (!e->error.status)
        hd_pass_stream(e);
    if (!e->error.status)
        hd_pass_place(e, chunk);
    if (e->error.status)
        return hd_err_restore(&e->error);

    chunk->registry = e->registry;
    chunk->shape = e->rec->shape;
    chunk->traits = e->options->traits;
    for (int g = 0; g < HD_GROUP_COUNT; g++)
        chunk->group_size[g] = hd_mesh_find_group(e->options->mesh, (enum hd_group_name)g, 0).size;
    chunk->stores = e->stores;
    chunk->store_count = e->store_count;
    for (int c = 0; c < HD_CALL_COUNT; c++)
        chunk->program[c] =
            (struct hd_program){(enum hd_call)c, e->lists[c].nodes, e->lists[c].count};
    *ret_chunk = chunk;
    return HD_OK;
}

enum hd_status hd_compile(struct hd_rec *rec, const struct hd_compile_options *options,
                          struct hd_chunk **ret_chunk)
{
    enum hd_status st = hd_rec_status(rec);
    struct hd_emit *e;

    if (!st)
        st = hd_pass_precision(rec, &options->precision);
    if (st)
        return st;
    e = hd_pass_derive(rec, options);
    if (!e)
        return hd_err(HD_NO_MEMORY, "no memory to compile a program");
    if (!options->no_fuse && !e->error.status)
        hd_pass_fuse(e);
    if (!e->error.status)
        hd_pass_shard(e);
    if (!e->error.status)
        hd_pass_gather(e);
    return hd_emit_finish(e, ret_chunk);
}

const struct hd_store *hd_chunk_find_batch(const struct hd_chunk *chunk, enum hd_batch_field field)
{
    for (int i = 0; i < chunk->store_count; i++)
        if (chunk->stores[i]->kind == HD_STORE_BATCH && chunk->stores[i]->field == field)
            return chunk->stores[i];
    return NULL;
}

const struct hd_store *hd_chunk_find_kind(const struct hd_chunk *chunk, enum hd_store_kind kind)
{
    for (int i = 0; i < chunk->store_count; i++)
        if (chunk->stores[i]->kind == kind)
            return chunk->stores[i];
    return NULL;
}

const struct hd_store *hd_chunk_find_stage_io(const struct hd_chunk *chunk,
                                              enum hd_stage_io stage_io)
{
    for (int i = 0; i < chunk->store_count; i++)
        if (chunk->stores[i]->kind == HD_STORE_STAGE_IO && chunk->stores[i]->stage_io == stage_io)
            return chunk->stores[i];
    return NULL;
}

const char *hd_region_name(enum hd_region region)
{
    static const char *const names[] = {"state", "kept", "deferred", "work", "boundary"};

    return names[region];
}

const char *hd_stream_text(enum hd_stream_name stream)
{
    return stream == HD_STREAM_COMPUTE ? "compute" : hd_comm_stream_text(hd_stream_comm(stream));
}

enum hd_comm_stream_name hd_stream_comm(enum hd_stream_name stream)
{
    return (enum hd_comm_stream_name)((int)stream - HD_STREAM_COMPUTE - 1);
}
