/* rank_peers: finds ranks that are slower than their peers; rank 0 reports them. */
#include <stdio.h>
#include <string.h>

#include "worker/rank_internal.h"

enum rank_peers_limits { NAMED_MAX = 4 };

enum hd_status rank_watch_peers(struct rank *r)
{
    const struct hd_mesh *mesh = &hd_trainer_rank_program(r->trainer)->mesh;
    int *stage_of;
    enum hd_status st;

    if (r->rank != 0 || r->world == 1)
        return HD_OK;
    stage_of = hd_arena_array(&r->arena, (size_t)r->world, sizeof *stage_of);
    if (!stage_of)
        return hd_err(HD_NO_MEMORY, "no memory for the stages of the ranks");
    for (int32_t i = 0; i < (int32_t)r->world; i++)
        stage_of[i] = hd_mesh_coord_of(mesh, i).pp;
    st = hd_stragglers_new((int)r->world, stage_of, &r->stragglers);
    return st;
}

/* Counts the ranks that waited longest for rank `rank` in the newest step that the ranks
 * reported. */
static int count_waiting(const struct rank *r, const struct hd_reported_step *reported, int rank)
{
    int count = 0;

    for (int64_t i = 0; i < r->world; i++)
        count += reported->awaited[i] == rank;
    return count;
}

static void describe_straggler(const struct rank *r, const struct hd_reported_step *reported,
                               int rank, char *ret_text, size_t size_bytes)
{
    const struct hd_straggler s = hd_stragglers_get(r->stragglers, rank);
    const int waiting = count_waiting(r, reported, rank);
    char spans[48] = "";

    if (s.steps > 1)
        (void)snprintf(spans, sizeof spans, " spans of %.0f steps", s.steps);
    (void)snprintf(
        ret_text, size_bytes,
        "rank %d is a straggler: it is busy for %.1f ms of a step, the ranks that do the "
        "same work for %.1f ms; it was late by a tenth of the step or more in %d of "
        "%d%s, and %d rank%s waited longest for it",
        rank, s.busy_ms, s.others_ms, s.late, s.of, s.steps > 1 ? spans : " steps", waiting,
        waiting == 1 ? "" : "s");
}

/* Reports all stragglers, as a text that `heddle show` prints for a running job. */
static void tell_all(struct rank *r, const struct hd_reported_step *reported)
{
    char text[HD_LINK_TEXT_MAX] = "", one[320];
    int count = 0;
    size_t n = 0;

    for (int i = 0; i < r->world && n < sizeof text; i++) {
        if (!hd_stragglers_get(r->stragglers, i).is || count++ >= NAMED_MAX)
            continue;
        describe_straggler(r, reported, i, one, sizeof one);
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n ? "; " : "", one);
    }
    if (count > NAMED_MAX && n < sizeof text)
        (void)snprintf(text + n, sizeof text - n, "; and %d more", count - NAMED_MAX);
    hd_link_report_stragglers(r->link, text);
}

void rank_look_at_peers(struct rank *r, const struct hd_step_result *s)
{
    char text[320];

    if (!r->stragglers || !s->reported.present ||
        !hd_stragglers_add(r->stragglers, s->reported.busy_ms, s->reported.step_ms))
        return;
    for (int i = 0; i < r->world; i++) {
        const struct hd_straggler one = hd_stragglers_get(r->stragglers, i);

        if (!one.changed)
            continue;
        if (one.is)
            describe_straggler(r, &s->reported, i, text, sizeof text);
        else
            (void)snprintf(text, sizeof text, "rank %d is no straggler any more", i);
        rank_say_about(r, one.is ? HD_LINK_LEVEL_STRAGGLER : HD_LINK_LEVEL_INFO, i, text);
    }
    tell_all(r, &s->reported);
}
