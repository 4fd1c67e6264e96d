/* adapter_base: checks whether an adapter belongs to a model. */
#include <string.h>

#include "base/arena.h"
#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "hf/hf.h"

static enum hd_status compare(const struct hd_ckpt *ckpt, const char *dir, const char *base,
                              struct hd_arena *arena)
{
    struct hd_job job;
    char is[HD_HASH_TEXT_MAX];
    uint64_t identity = 0;
    enum hd_status st = hd_stored_job_of(ckpt, arena, &job);

    if (!st && *job.init_identity)
        st = hd_source_identity(base, &identity);
    if (st || !*job.init_identity)
        return st;
    hd_hash_format(identity, is);
    if (strcmp(is, job.init_identity) == 0)
        return HD_OK;
    return hd_err(HD_INVALID,
                  "%s is the adapter of another model than %s: it trained beside %s; take that, or "
                  "export the adapter, which then names no model (heddle checkpoint export "
                  "--adapter)",
                  dir, base, job.init_from);
}

enum hd_status hd_adapter_check_base(const char *dir, const char *base)
{
    struct hd_ckpt *ckpt = NULL;
    struct hd_arena arena;
    enum hd_status st;

    if (!hd_source_is_checkpoint(dir))
        return HD_OK;
    st = hd_ckpt_open(dir, &ckpt);
    if (st)
        return st;
    hd_arena_init(&arena, 0);
    st = compare(ckpt, dir, base, &arena);
    hd_arena_done(&arena);
    hd_ckpt_close(ckpt);
    return st;
}
