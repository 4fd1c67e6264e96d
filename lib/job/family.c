/* family: finds rows of families.def, and the rules that pick layers. */
#include "job/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/words.h"

#define F(word, ...) {.name = #word, __VA_ARGS__},
const struct hd_family hd_families[] = {
#include "job/families.def"
};
#undef F
const size_t hd_family_count = sizeof hd_families / sizeof hd_families[0];
enum { FAMILY_MAX = sizeof hd_families / sizeof hd_families[0] };

const struct hd_family *hd_family_named(const char *name)
{
    for (size_t i = 0; i < hd_family_count; i++)
        if (strcmp(hd_families[i].name, name) == 0)
            return &hd_families[i];
    return NULL;
}

const struct hd_family *hd_family_of_type(const char *type)
{
    for (size_t i = 0; i < hd_family_count; i++)
        if (hd_families[i].also && hd_words_have(hd_families[i].also, type))
            return &hd_families[i];
    return hd_family_named(type);
}

void hd_family_list(char ret_text[HD_FAMILY_LIST_MAX])
{
    size_t n = 0;

    for (size_t i = 0; i < hd_family_count && n < HD_FAMILY_LIST_MAX; i++)
        n += (size_t)snprintf(ret_text + n, HD_FAMILY_LIST_MAX - n, "%s%s",
                              i == 0                     ? ""
                              : i + 1 == hd_family_count ? " or "
                                                         : ", ",
                              hd_families[i].name);
}

const char *hd_family_nearest(const char *name)
{
    const char *names[FAMILY_MAX];

    for (size_t i = 0; i < hd_family_count; i++)
        names[i] = hd_families[i].name;
    return hd_text_nearest(name, names, hd_family_count);
}

/* ---- rules that pick layers ---- */

enum { RUNS_MAX = sizeof(((struct hd_layers *)0)->runs) / sizeof(int16_t), RUN_MAX = 1024 };

static enum hd_status refuse(const char *text)
{
    return hd_err(HD_INVALID,
                  "'%s' is no rule for layers; write all, none, or counts such as 5:1 (five "
                  "layers with, one without, repeated), at most %d counts up to %d",
                  text, (int)RUNS_MAX, (int)RUN_MAX);
}

enum hd_status hd_layers_parse(const char *text, struct hd_layers *ret_layers)
{
    struct hd_layers layers = {0};
    const char *at = text;

    if (strcmp(text, "none") == 0)
        layers = (struct hd_layers){.count = 2, .period = 1, .runs = {0, 1}};
    *ret_layers = layers;
    if (!*text || strcmp(text, "none") == 0 || strcmp(text, "all") == 0)
        return HD_OK;
    layers.count = layers.period = 0;
    for (;;) {
        char *end;
        const long run = strtol(at, &end, 10);

        if (*at < '0' || *at > '9' || run > RUN_MAX || layers.count == RUNS_MAX ||
            (*end && *end != ':') || (layers.count && run == 0))
            return refuse(text);
        layers.runs[layers.count++] = (int16_t)run;
        layers.period += (int)run;
        if (!*end)
            break;
        at = end + 1;
    }
    if (layers.count < 2 || !layers.period)
        return refuse(text);
    *ret_layers = layers;
    return HD_OK;
}

bool hd_layers_has(const struct hd_layers *layers, int64_t layer)
{
    int64_t left = layers->count ? layer % layers->period : 0;

    if (!layers->count)
        return true;
    for (int i = 0; i < layers->count; i++) {
        if (left < layers->runs[i])
            return i % 2 == 0;
        left -= layers->runs[i];
    }
    return false;
}

int64_t hd_layers_left(const char *text, int64_t count)
{
    struct hd_layers layers;
    int64_t left = 0;

    if (hd_layers_parse(text, &layers))
        return 0;
    for (int64_t layer = 0; layer < count; layer++)
        left += !hd_layers_has(&layers, layer);
    return left;
}

int64_t hd_layers_count(const char *text, int64_t layer_count)
{
    struct hd_layers layers = {0};
    int64_t count = 0;

    (void)hd_layers_parse(text, &layers);
    for (int64_t i = 0; i < layer_count; i++)
        count += hd_layers_has(&layers, i);
    return count;
}

/* Returns the length of the shortest period of the list, which need not divide its length. */
static int64_t period_of(const bool *picked, int64_t count)
{
    for (int64_t period = 1; period < count; period++) {
        int64_t i = period;

        while (i < count && picked[i] == picked[i - period])
            i++;
        if (i == count)
            return period;
    }
    return count;
}

enum hd_status hd_layers_format(const bool *picked, int64_t count,
                                char ret_text[HD_LAYERS_TEXT_MAX])
{
    const int64_t period = period_of(picked, count);
    bool with = true;
    size_t n = 0;
    int runs = 0;

    if (period == 1 || count == 0) {
        (void)snprintf(ret_text, HD_LAYERS_TEXT_MAX, "%s", count && !picked[0] ? "none" : "all");
        return HD_OK;
    }
    for (int64_t i = 0; i < period; with = !with) {
        const int64_t first = i;

        while (i < period && picked[i] == with)
            i++;
        n += (size_t)snprintf(ret_text + n, HD_LAYERS_TEXT_MAX - n, "%s%lld", runs++ ? ":" : "",
                              (long long)(i - first));
        if (n >= HD_LAYERS_TEXT_MAX || runs > RUNS_MAX)
            return hd_err(HD_LIMIT, "the layers follow no rule that repeats");
    }
    return HD_OK;
}
