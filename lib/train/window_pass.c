#include "train/window_pass.h"

#include <stdlib.h>

#include "base/math.h"
#include "mesh/zigzag.h"
#include "train/trainer.h"

bool hd_window_pass_takes(const struct hd_rank_program *l, struct hd_mesh_coord coord)
{
    return coord.tp == 0 && coord.pp == hd_pipeline_stage(&l->pipeline, l->pipeline.chunks - 1);
}

/* Gives the rows of a micro-batch to the pass. */
static enum hd_status give_rows(struct hd_trainer *t, const struct hd_chunk *chunk,
                                const struct hd_bases *bases, int64_t micro_batch, void *context)
{
    const struct hd_store *store = hd_chunk_find_kind(chunk, HD_STORE_OUTPUT);
    const struct hd_rank_program *l = &t->rank_program;
    const struct hd_zigzag mine = {l->job.context, l->mesh.sizes.cp, l->coord.cp};
    const int64_t rows = hd_zigzag_rows(&mine);
    const struct hd_window_pass *p = context;
    const int64_t first = hd_batch_first_window(t, &p->windows, micro_batch);
    enum hd_status st;

    if (!store || l->coord.tp != 0)
        return HD_OK;
    st = hd_staging_read(&t->open.staging, p->values, hd_store_address(bases, store),
                         l->job.micro_batch * rows * p->columns * (int64_t)sizeof *p->values);
    for (int64_t i = 0; !st && i < l->job.micro_batch && first + i < p->count; i++) {
        if (p->prepare)
            st = p->prepare(t, p->user, first + i);
        for (int64_t r = 0; !st && r < rows; r++)
            st = p->take(p->user, first + i, hd_zigzag_position(&mine, r),
                         p->values + (i * rows + r) * p->columns);
    }
    return st;
}

enum hd_status hd_window_pass_run(struct hd_trainer *t, struct hd_window_pass *p, int64_t done,
                                  int64_t count)
{
    const struct hd_job *job = &t->rank_program.job;
    const int64_t together = t->rank_program.mesh.sizes.dp * job->micro_batch;
    const int64_t calls = (count + together - 1) / together;
    const int64_t round = t->rank_program.eval_order.micro_batches;
    enum hd_status st = HD_OK;

    p->count = count;
    p->values = calloc((size_t)(job->micro_batch * job->context * p->columns), sizeof *p->values);
    if (!p->values)
        return hd_err(HD_NO_MEMORY, "no memory for the values of a micro-batch");
    for (p->windows.first = done / together; !st && p->windows.first < calls;) {
        if (p->before)
            st = p->before(p->user, p->windows.first * together);
        if (!st)
            st = hd_execute(t, t->round, calls - p->windows.first, hd_batch_feed_windows, give_rows,
                            p);
        p->windows.first += round;
        if (!st && p->after)
            st = p->after(t, p->user, hd_min(p->windows.first * together, count));
    }
    free(p->values);
    return st;
}
