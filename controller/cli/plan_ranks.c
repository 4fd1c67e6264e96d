/* plan_ranks: which device each rank of the chosen plan has. */
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "controller/cli/plan_layouts.h"
#include "plan/rank_map.h"

enum { RANKS_SHOWN_MAX = 65536, MAP_RANKS_SHOWN_MAX = 128 };

/* The device of each rank on its node: [devices], of the caller; NULL: no memory, or the links of a
 * node make no difference. */
static int32_t *find_map(const struct plan_layouts *l, const struct hd_search_plan *p)
{
    int32_t *map = l->cluster->links ? calloc((size_t)l->devices, sizeof *map) : NULL;

    if (map && hd_rank_map_of_job(l->cluster, &p->job, map)) {
        free(map);
        return NULL;
    }
    return map;
}

void plan_ranks_json(const struct plan_layouts *l, const struct hd_search_plan *p,
                     struct hd_json_writer *w)
{
    int32_t *map = find_map(l, p);

    hd_json_begin(w, "ranks", '[');
    for (int32_t rank = 0; rank < l->devices && rank < RANKS_SHOWN_MAX; rank++) {
        hd_json_begin(w, NULL, '[');
        hd_json_add_int64(w, NULL, rank / l->cluster->devices_per_node);
        hd_json_add_int64(w, NULL, map ? map[rank] : rank % l->cluster->devices_per_node);
        hd_json_end(w, ']');
    }
    hd_json_end(w, ']');
    free(map);
}

void plan_ranks_people(const struct plan_layouts *l, const struct hd_search_plan *p,
                       struct hd_text *out)
{
    const int32_t per_node = (int32_t)l->cluster->devices_per_node, tp = (int32_t)p->job.tp;
    int32_t *map = find_map(l, p);

    if (!map)
        return;
    hd_text_add(out, "\ndevices of ranks (the devices of a node are not alike)\nnode  ranks    "
                     "devices, by tp groups\n");
    for (int32_t first = 0, end; first < l->devices && first < MAP_RANKS_SHOWN_MAX; first = end) {
        char ranks[32];

        end = first + per_node < l->devices ? first + per_node : l->devices;
        (void)snprintf(ranks, sizeof ranks, "%d-%d", (int)first, (int)end - 1);
        hd_text_add(out, "%-4d  %-9s", (int)(first / per_node), ranks);
        for (int32_t r = first; r < end; r++)
            hd_text_add(out, "%s%d", r == first ? "" : r % tp == 0 ? ", " : " ", (int)map[r]);
        hd_text_add(out, "\n");
    }
    if (l->devices > MAP_RANKS_SHOWN_MAX)
        hd_text_add(out, "-o json has all %d ranks\n", (int)l->devices);
    free(map);
}
