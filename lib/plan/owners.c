/* owners: lists which rank computes the step of each matrix (Muon). */
#include <string.h>

#include "plan/plan.h"
#include "program/matrices.h"

static void add_stage(const struct hd_registry *r, int first_rank, struct hd_text *text)
{
    const struct hd_matrix_plan *m = r->matrices;

    for (int i = 0; i < m->round_count; i++)
        for (int64_t k = m->rounds[i].first; k < m->rounds[i].end; k++) {
            const struct hd_matrix *x = &m->matrices[k];
            const struct hd_param *p = &r->params[x->param];

            hd_text_add(text, "  %s", p->name);
            if (p->dim_count > 2)
                hd_text_add(text, "[%lld]", (long long)x->index);
            hd_text_add(text, " [%lld, %lld]: rank %d, round %d\n", (long long)x->rows,
                        (long long)x->columns, first_rank + x->owner, i + 1);
        }
}

enum hd_status hd_plan_owners(const struct hd_job *job, const struct hd_traits *traits,
                              struct hd_text *ret_text)
{
    const int stage_ranks = (int)(job->dp * job->cp * job->tp);
    struct hd_rank_program_shared shared;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st =
        hd_rank_program_prepare(job, traits, &(struct hd_rank_program_options){0}, &arena, &shared);
    for (int stage = 0; !st && stage < job->pp; stage++) {
        struct hd_registry registry;
        struct hd_model model;

        st = hd_rank_program_declare(&shared, stage * stage_ranks, &arena, &registry, &model);
        if (!st && registry.matrices)
            add_stage(&registry, stage * stage_ranks, ret_text);
    }
    hd_arena_done(&arena);
    return st;
}
