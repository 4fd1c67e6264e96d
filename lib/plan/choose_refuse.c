/* choose_refuse: makes the error message of a request that has no layout: the broken rule, and the
 * values that are possible. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/quant.h"
#include "base/text.h"
#include "plan/choose_internal.h"

enum { MICRO_BATCH_MAX = 1 << 20 }; /* limit of parallel.micro_batch in job files */

/* Returns the axes of a model replica as text for messages: "parallel.tp x parallel.cp", with pp if there are
 * stages. */
static const char *replica_keys(const struct hd_plan_request *w)
{
    return w->sizes.pp > 1 ? "parallel.tp x parallel.cp x parallel.pp"
                           : "parallel.tp x parallel.cp";
}

/* Returns the words for hd_plan_batch_unit in messages. */
static const char *batch_words(const struct hd_plan_request *w)
{
    return w->batch_divisor ? "the greatest common divisor of train.batch_schedule"
                            : "train.global_batch";
}

/* Returns whether a layout exists on this number of devices. */
static bool is_possible_count(const void *about, int64_t value)
{
    struct hd_layout_sizes sizes;

    return hd_plan_size(about, (int32_t)value, &sizes) == HD_PLAN_FITS;
}

/* A request in which one size is replaced by other values to find possible ones. */
struct trial {
    struct hd_plan_request request;
    size_t offset; /* offset of the size in struct hd_layout_sizes */
    int32_t devices_min, devices_max;
    int64_t whole; /* number that every value of the size must divide; 0: unknown */
    /* the rule that is broken, and the sizes that break it; HD_PLAN_FITS: unknown */
    enum hd_plan_obstacle why;
    struct hd_layout_sizes sizes;
};

static bool makes_it_fit(const void *about, int64_t value)
{
    struct trial t = *(const struct trial *)about;

    if (t.whole && value && t.whole % value)
        return false;
    *(int64_t *)((char *)&t.request.sizes + t.offset) = value;
    return hd_plan_most(&t.request, t.devices_min, t.devices_max) > 0;
}

/* The rules about one size, whose possible values their messages list. */
static const struct {
    enum hd_plan_obstacle name;
    size_t offset; /* offset of the size in struct hd_layout_sizes */
} rules[] = {
#define R(name, size, ...) {HD_PLAN_##name, offsetof(struct hd_layout_sizes, size)},
#define N(...)
#include "plan/choose_rules.def"
};
enum { RULES = sizeof rules / sizeof rules[0] };

/* Returns whether a value obeys the rules about the size: those up to the broken one or, if that does not depend
 * on the number of devices, all that do not. */
static bool obeys(const void *about, int64_t value)
{
    struct trial t = *(const struct trial *)about;
    const enum hd_plan_obstacle last = t.why < HD_PLAN_TOO_MANY ? HD_PLAN_TOO_MANY : t.why;

    *(int64_t *)((char *)&t.sizes + t.offset) = value;
    for (size_t i = 0; i < RULES; i++)
        if (rules[i].offset == t.offset && rules[i].name <= last &&
            choose_breaks(&t.request, &t.sizes, t.devices_max, rules[i].name))
            return false;
    return true;
}

/* Lists the values of the size that the broken rule is about with which a layout exists. If there is none,
 * because another size is wrong as well: the values that obey the rule; 1 always does. */
static void list_values(struct trial *t, char list[HD_TEXT_LIST_MAX])
{
    const struct hd_plan_request *w = &t->request;
    const int64_t *requested;
    int64_t most;
    size_t k = 0;

    while (k < RULES && rules[k].name != t->why)
        k++;
    if (k == RULES)
        return;
    t->offset = rules[k].offset;
    t->whole = t->offset == offsetof(struct hd_layout_sizes, ep) ? w->experts
               : t->offset == offsetof(struct hd_layout_sizes, zero_shard)
                   ? t->sizes.dp * t->sizes.cp
               : t->why == HD_PLAN_MICRO_BATCH ? hd_plan_batch_unit(w) / t->sizes.dp
               : t->why == HD_PLAN_ORDER       ? w->global_batch / t->sizes.dp
                                               : 0;
    most = t->whole ? t->whole : t->devices_max;
    most = most < MICRO_BATCH_MAX ? most : MICRO_BATCH_MAX;
    requested = (const int64_t *)(const void *)((const char *)&w->sizes + t->offset);
    hd_text_list_near(makes_it_fit, t, most, *requested, list);
    if (!*list)
        hd_text_list_near(obeys, t, most, *requested, list);
}

/* Makes the error message of a layout with more pipeline chunks than the model has units. s: the
 * requested sizes, or those that were tried (pp of two stages). If virtual_stages and pp are too
 * large only together, names the one that can be changed alone. */
static enum hd_status refuse_chunks(const struct hd_plan_request *w,
                                    const struct hd_layout_sizes *s, int32_t min, int32_t max)
{
    const int64_t most = choose_most_chunks(w);
    const struct trial any = {.request = *w, .devices_min = min, .devices_max = max};
    struct trial pp = any, each = any;
    bool of_stage = !w->sizes.pp;
    char list[HD_TEXT_LIST_MAX] = "";

    pp.offset = offsetof(struct hd_layout_sizes, pp);
    each.offset = offsetof(struct hd_layout_sizes, virtual_stages);
    if (!of_stage)
        hd_text_list_near(makes_it_fit, &pp, most / s->virtual_stages, s->pp, list);
    if (!*list && w->sizes.virtual_stages) {
        hd_text_list_near(makes_it_fit, &each, most / s->pp, s->virtual_stages, list);
        of_stage |= *list != '\0';
    }
    if (!*list) /* no value of this size alone gives a layout: other sizes are wrong as well */
        (void)snprintf(list, sizeof list, "so few that their product is at most %lld",
                       (long long)most);
    return hd_err(HD_INVALID,
                  "parallel.%s: %lld stages x %lld virtual_stages are more chunks than the %lld "
                  "units of the model (embedding, %lld layers, head); use %s",
                  of_stage ? "virtual_stages" : "pp", (long long)s->pp,
                  (long long)s->virtual_stages, (long long)most, (long long)w->layers, list);
}

/* Returns whether the search may choose a size of the replica (tp, cp or pp). */
static bool is_open(const struct hd_plan_request *w)
{
    return w->searched && !(w->sizes.tp && w->sizes.pp && w->sizes.cp);
}

/* Returns whether the obstacle exists only with pp 1 or tp 1, so that a search that tries other
 * values may have none. */
static bool is_of_one(const struct hd_plan_request *w, enum hd_plan_obstacle why)
{
    return w->searched && ((why && why <= HD_PLAN_STAGES && !w->sizes.pp) ||
                           (why == HD_PLAN_SEQUENCE_ALONE && !w->sizes.tp));
}

/* Makes the error message of a request with `searched`: the first size given by the job that alone
 * prevents a layout, with its possible values. HD_OK: no single size does. */
static enum hd_status refuse_given(const struct hd_plan_request *w, int32_t devices)
{
    const struct {
        size_t offset;
        const char *key;
        int64_t whole; /* number that every possible value of the size divides */
    } sizes[] = {
        {offsetof(struct hd_layout_sizes, micro_batch), "micro_batch", hd_plan_batch_unit(w)},
        {offsetof(struct hd_layout_sizes, zero_shard), "zero_shard", devices},
        {offsetof(struct hd_layout_sizes, dp), "dp", devices},
        {offsetof(struct hd_layout_sizes, pp), "pp", devices},
        {offsetof(struct hd_layout_sizes, cp), "cp", devices},
        {offsetof(struct hd_layout_sizes, tp), "tp", devices},
        {offsetof(struct hd_layout_sizes, ep), "ep", w->experts},
    };

    for (size_t i = 0; is_open(w) && i < sizeof sizes / sizeof sizes[0]; i++) {
        struct trial t = {.request = *w,
                          .offset = sizes[i].offset,
                          .devices_min = devices,
                          .devices_max = devices,
                          .whole = sizes[i].whole};
        const int64_t given = *(const int64_t *)((const char *)&w->sizes + t.offset);
        char list[HD_TEXT_LIST_MAX];

        if (given < 1 || sizes[i].whole < 1 || !makes_it_fit(&t, 0))
            continue;
        hd_text_list_near(makes_it_fit, &t, sizes[i].whole, given, list);
        return hd_err(HD_INVALID,
                      "parallel.%s: %lld is in no layout of this model and batch on "
                      "resources.devices = %d; use %s",
                      sizes[i].key, (long long)given, devices, *list ? list : "auto");
    }
    return HD_OK;
}

/* Makes the error message of a broken rule, which no number of devices from min to `devices` obeys. */
static enum hd_status refuse(const struct hd_plan_request *w, enum hd_plan_obstacle why,
                             int32_t min, int32_t devices)
{
    struct trial t = {
        .request = *w, .why = why, .sizes = w->sizes, .devices_min = min, .devices_max = devices};
    const struct hd_layout_sizes *s = &t.sizes;
    const char *keys = replica_keys(w), *batch = batch_words(w),
               *axes = w->sizes.pp > 1 ? "tp x cp x pp" : "tp x cp";
    const int64_t replica = choose_replica(w), unit = hd_plan_batch_unit(w);
    int64_t whole = 0;
    char list[HD_TEXT_LIST_MAX] = "", instead[HD_TEXT_LIST_MAX + 64];

    if (why <= HD_PLAN_STAGES && w->searched && !w->sizes.pp) {
        /* several stages were tried as well, and the rule that two break explains more */
        struct hd_layout_sizes two = w->sizes;
        enum hd_plan_obstacle broken;

        two.pp = 2;
        choose_axes(&two);
        broken = choose_first_broken(w, &two, devices, HD_PLAN_CHUNKS, HD_PLAN_STAGES);
        if (broken) {
            t.sizes = two;
            t.why = why = broken;
        }
    }
    choose_axes(&t.sizes);
    if (why > HD_PLAN_DEVICES && devices >= replica) {
        t.sizes.dp = devices / replica;
        whole = w->global_batch / t.sizes.dp;
    }
    list_values(&t, list);
    if (why == HD_PLAN_DEVICES || why == HD_PLAN_BATCH)
        hd_text_list_near(is_possible_count, w, choose_most_ranks(w), devices, list);
    if (*list)
        (void)snprintf(instead, sizeof instead, "use %s", list);
    else
        (void)snprintf(instead, sizeof instead, "make %s a multiple of %lld", batch,
                       (long long)(s->dp * choose_or_one(w->sizes.micro_batch)));
    switch (why) {
#define NUMBER(number) (long long)(number)
#define SAY(...)       hd_err(HD_INVALID, __VA_ARGS__)
#define N(name, broken, message) \
    case HD_PLAN_##name:         \
        return message;
#define R(name, size, broken, message) N(name, broken, message)
#include "plan/choose_rules.def"
    case HD_PLAN_FITS:
        break;
    }
    return HD_OK;
}

/* Makes the error message of a request that has no layout on any number of devices from min to
 * max. */
static enum hd_status refuse_range(const struct hd_plan_request *w, int32_t min, int32_t max)
{
    const int64_t replica = choose_replica(w);
    const int64_t wanted = w->sizes.dp * replica;

    if (w->sizes.dp && (wanted < min || wanted > max))
        return refuse(w, HD_PLAN_DP, min, wanted < min ? min : max);
    if (max / replica * replica < min)
        return hd_err(HD_INVALID,
                      "resources.devices: no number from %d to %d is a multiple of %s = %lld; "
                      "change one of them",
                      min, max, replica_keys(w), (long long)replica);
    return hd_err(HD_INVALID,
                  "resources.devices: no number from %d to %d shares %s = %lld evenly%s%s; change "
                  "one of them",
                  min, max, batch_words(w), (long long)hd_plan_batch_unit(w),
                  w->sizes.micro_batch ? " in whole micro-batches" : "",
                  w->sizes.zero_shard ? " among whole blocks of parallel.zero_shard"
                  : w->sizes.ep > 1   ? " among whole blocks of parallel.ep"
                                      : "");
}

enum hd_status hd_plan_check(const struct hd_plan_request *request, int32_t devices_min,
                             int32_t devices_max)
{
    const int32_t connected = choose_most_ranks(request);
    const int32_t most = devices_max < connected ? devices_max : connected;
    struct hd_layout_sizes sizes;
    enum hd_plan_obstacle why;

    if (hd_plan_most(request, devices_min, devices_max))
        return HD_OK;
    why = hd_plan_size(request, most, &sizes);
    if (is_of_one(request, why) && devices_min == devices_max && refuse_given(request, most))
        return HD_INVALID;
    if (why && why < HD_PLAN_TOO_MANY)
        return refuse(request, why, devices_min, most);
    if (devices_min > connected)
        return refuse(request, HD_PLAN_TOO_MANY, devices_min, devices_min);
    if (devices_min == devices_max && why != HD_PLAN_ORDER && refuse_given(request, most))
        return HD_INVALID;
    if (devices_min != devices_max)
        return refuse_range(request, devices_min, most);
    return refuse(request, why, most, most);
}
