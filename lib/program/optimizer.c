#include "program/optimizer.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const struct hd_rule_traits rules[HD_RULE_COUNT] = {
    [HD_RULE_ADAMW] =
        {"adamw", 2, {"adamw.m.", "adamw.v."}, {HD_MAP_SIGNED, HD_MAP_UNSIGNED}, false},
    [HD_RULE_LION] = {"lion", 1, {"lion.m.", NULL}, {HD_MAP_SIGNED, HD_MAP_SIGNED}, false},
    [HD_RULE_MUON] = {"muon", 1, {"muon.m.", NULL}, {HD_MAP_SIGNED, HD_MAP_SIGNED}, true},
};

const struct hd_rule_traits *hd_rule_row(enum hd_rule rule)
{
    assert(rule >= 0 && rule < HD_RULE_COUNT);
    return &rules[rule];
}

enum hd_rule hd_rule_named(const char *name)
{
    for (int i = 0; i < HD_RULE_COUNT; i++)
        if (strcmp(rules[i].name, name) == 0)
            return (enum hd_rule)i;
    return HD_RULE_ADAMW;
}

float hd_optimizer_scale(const struct hd_optimizer *optimizer, int64_t out, int64_t in)
{
    if (optimizer->scale == HD_SCALE_KELLER)
        return (float)sqrt(out > in ? (double)out / (double)in : 1);
    return (float)(0.2 * sqrt((double)(out > in ? out : in)));
}

void hd_rule_update_costs(enum hd_rule rule, int64_t N, int64_t moment_bytes, enum hd_dtype copy,
                          struct hd_costs *costs)
{
    const struct hd_adamw_args adamw = {.N = N, .moment_bytes = moment_bytes, .copy_dtype = copy};
    const struct hd_lion_args lion = {.N = N, .moment_bytes = moment_bytes, .copy_dtype = copy};

    if (rule == HD_RULE_LION)
        hd_kernel_cost_add(costs, HD_K_lion, &lion);
    else
        hd_kernel_cost_add(costs, HD_K_adamw, &adamw);
}
