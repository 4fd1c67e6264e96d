/* stored_job: the job that a checkpoint has in its manifest. */
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "hf/hf.h"

enum hd_status hd_stored_job_of(const struct hd_ckpt *ckpt, struct hd_arena *arena,
                                struct hd_job *ret_job)
{
    const char *config = hd_ckpt_get_manifest(ckpt)->config;
    const enum hd_status st = hd_job_read(config, strlen(config), arena, ret_job);

    return st ? hd_err_prefix(st, "%s: the job stored in it", hd_ckpt_dir(ckpt)) : HD_OK;
}

enum hd_status hd_stored_job_in(const char *dir, struct hd_arena *arena, struct hd_job *ret_job)
{
    struct hd_ckpt *ckpt = NULL;
    enum hd_status st = hd_ckpt_open(dir, &ckpt);

    if (!st)
        st = hd_stored_job_of(ckpt, arena, ret_job);
    hd_ckpt_close(ckpt);
    return st;
}
