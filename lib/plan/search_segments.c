/* search_segments: full recompute in segments of two blocks, of three .. up to the whole model.
 *
 * Their time is at least that of single blocks, since backward also recomputes the input of each
 * block that continues a segment; longer segments save less memory. So a candidate with full
 * recompute of single blocks represents all of them until it is costed, and they are tried one by
 * one only if it is among the fastest. */
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "plan/search_internal.h"

static int64_t longest_segment(const struct layout_search *s)
{
    return s->config.L < HD_RECOMPUTE_UNITS_MAX ? s->config.L : HD_RECOMPUTE_UNITS_MAX;
}

bool search_has_segments(const struct layout_search *s, const struct candidate *c)
{
    return c->recompute == FULL && longest_segment(s) >= 2;
}

/* Returns the candidate with segments of this many blocks. */
static struct candidate in_segments(const struct candidate *of, int64_t blocks)
{
    struct candidate c = *of;

    c.recompute = SEGMENTS;
    c.segment = (int16_t)blocks;
    c.only_segments = false;
    return c;
}

struct candidate search_without_recompute(const struct candidate *of)
{
    struct candidate c = *of;

    c.recompute = NO_RECOMPUTE;
    c.segment = 0;
    return c;
}

const struct search_sizes *search_plain_sizes(struct layout_search *s, const struct candidate *c)
{
    const struct profiled *blocks;
    struct candidate plain = search_without_recompute(c);
    struct hd_layout_sizes sizes;

    if (c->plain)
        return c->plain;
    plain.decided = DECIDED_BLOCKS;
    plain.own = NULL;
    blocks = search_size(s, &plain, &sizes) ? search_blocks(s, &plain, &sizes) : NULL;
    return blocks ? &blocks->sizes : NULL;
}

/* ---- memory ---- */

/* Finds the length of segments that needs least memory, and adds that layout, which does not fit, to
 * s->lowest. */
static void note_least_segments(struct layout_search *s, const struct candidate *of,
                                const struct ordered *ordered, const struct search_sizes *bytes,
                                const struct hd_layout_sizes *of_sizes)
{
    const struct search_sizes *plain = search_plain_sizes(s, of);
    struct hd_search_rejected least, best = {0};

    for (int64_t k = 2; k <= longest_segment(s); k++) {
        struct candidate c = in_segments(of, k);
        struct hd_layout_sizes sizes;

        c.plain = plain;
        if (!search_size(s, &c, &sizes))
            continue;
        sizes.zero = of_sizes->zero;
        sizes.offload = of_sizes->offload;
        least = search_least_memory(s, &c, &sizes, ordered, bytes, INFINITY);
        if (!best.needed_bytes || least.needed_bytes < best.needed_bytes)
            best = least;
    }
    if (best.needed_bytes)
        search_note_least(s, &best);
}

bool search_segments_may_fit(struct layout_search *s, const struct candidate *c,
                             const struct hd_layout_sizes *z, const struct ordered *ordered,
                             const struct search_sizes *bytes)
{
    struct candidate longest = *c;
    struct hd_search_rejected least;

    /* a segment as long as any chunk, without the work memory of its backward */
    longest.segment = INT16_MAX;
    longest.plain = NULL;
    least = search_least_memory(s, &longest, z, ordered, bytes, INFINITY);
    if (least.needed_bytes <= s->asked->memory_bytes)
        return true;
    if (s->lowest_count < SEARCH_LOWEST_MAX ||
        least.needed_bytes < s->lowest[SEARCH_LOWEST_MAX - 1].needed_bytes)
        note_least_segments(s, c, ordered, bytes, z);
    return false;
}

/* ---- one by one ---- */

/* Returns a hash of which blocks continue a segment; segments of two lengths with the same are the
 * same programs. */
static uint64_t borders_of(const struct ordered *ordered, int64_t segment)
{
    bool continues[HD_RECOMPUTE_UNITS_MAX + 2];
    size_t count = 0;

    for (int32_t c = 0; c < ordered->step.pipeline.chunks; c++)
        for (int unit = ordered->step.units[c].first; unit < ordered->step.units[c].end; unit++)
            continues[count++] = hd_layer_profile_continues(ordered->step.units[c], unit, segment);
    return hd_hash_bytes(continues, count * sizeof *continues);
}

void search_expand_segments(struct layout_search *s, const struct candidate *of)
{
    uint64_t known[HD_RECOMPUTE_UNITS_MAX];
    const int64_t longest = longest_segment(s);
    const struct search_sizes *plain = search_plain_sizes(s, of);
    int count = 0;

    for (int64_t k = 1; !s->st && k <= longest; k++) {
        struct candidate c = in_segments(of, k);
        const struct profiled *profiled;
        const struct ordered *ordered;
        struct hd_layout_sizes sizes;
        int same = 0;

        c.decided = DECIDED_VARIANT;
        c.plain = plain;
        if (!search_size(s, &c, &sizes))
            continue;
        ordered = search_ordered(s, &c, &sizes);
        if (!ordered)
            return;
        known[count] = borders_of(ordered, k);
        while (known[same] != known[count])
            same++;
        if (same < count) /* a shorter segment gave equal borders */
            continue;
        count++;
        if (k == 1) /* `of` itself */
            continue;
        profiled = search_profiles(s, &c, &sizes, true);
        if (!profiled || (s->asked->memory_bytes &&
                          !search_could_fit(s, search_least_memory(s, &c, &sizes, ordered,
                                                                   &profiled->sizes, INFINITY))))
            continue;
        c.tie_break = search_tie_break(&c);
        search_push(s, &c);
    }
}
