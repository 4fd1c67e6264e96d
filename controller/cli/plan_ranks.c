/* plan_ranks: shows the device of each rank of the chosen plan. */
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "controller/cli/plan_layouts.h"
#include "plan/rank_map.h"

enum { MAP_RANKS_SHOWN_MAX = 128 };

void plan_ranks_people(const struct hd_report *l, const struct hd_search_plan *p,
                       struct hd_text *out)
{
    const int32_t per_node = (int32_t)l->cluster->devices_per_node, tp = (int32_t)p->job.tp;
    int32_t *map = hd_report_map(l, p);

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
