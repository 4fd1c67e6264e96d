#include "kernels/costs/costs.h"

/* Counts its factor; with a cap also 1 - 2 / (exp(2u) + 1) (5) and its product with the cap. */
int hd_costs_map_flops(struct hd_logit_map map)
{
    return map.cap > 0 ? 7 : hd_costs_scales(map.scale) ? 1 : 0;
}

/* Counts the map again, and with a cap a product with 1 - t^2. A factor alone is part of a factor of
 * the row. */
int hd_costs_map_gradient_flops(struct hd_logit_map map)
{
    return hd_costs_map_flops(map) + (map.cap > 0 ? 3 : 0);
}
