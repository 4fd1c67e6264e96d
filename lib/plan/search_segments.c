/* search_segments: full recompute in segments of two blocks, of three .. up to the whole model.
 *
 * Their time is at least that of single blocks, since backward also recomputes the input of each
 * block that continues a segment; longer segments save less memory. So a candidate with full
 * recompute of single blocks represents all of them until it is costed, and they are tried one by
 * one only if it is among the fastest. */
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

/* Returns the layer profiles of the candidate's blocks without recompute, which tell the bytes that
 * backward recomputes of a segment; NULL: unknown. */
static const struct hd_layer_profiles *plain_blocks(struct layout_search *s,
                                                    const struct candidate *c)
{
    struct candidate plain = *c;
    struct hd_layout_sizes sizes;

    plain.recompute = NO_RECOMPUTE;
    plain.segment = 0;
    plain.decided = DECIDED_BLOCKS;
    plain.own = NULL;
    return search_size(s, &plain, &sizes) ? search_blocks(s, &plain, &sizes) : NULL;
}

/* ---- memory ---- */

/* Records as rejected, among segments of all lengths, those of the family that need least memory:
 * longer segments save less, but their backward needs more work memory (search_bounds.c). */
static void note_least_of_family(struct layout_search *s, const struct candidate *family)
{
    const int64_t blocks = (s->config.L + family->pp - 1) / family->pp;
    struct candidate plain = *family;
    struct hd_search_rejected whole, least, best = {0};
    struct hd_layout_sizes sizes;
    int64_t of_block;

    plain.recompute = NO_RECOMPUTE;
    plain.segment = 0;
    if (!search_size(s, &plain, &sizes) || !search_bound_family(s, &plain, sizes, &whole))
        return;
    of_block = (int64_t)(whole.activations * (double)whole.needed_bytes) / blocks;
    for (int64_t k = 2; k <= longest_segment(s); k++) {
        const struct candidate c = in_segments(family, k);

        if (!search_size(s, &c, &sizes) || !search_bound_family(s, &c, sizes, &least))
            return;
        least.needed_bytes += ((k < blocks ? k : blocks) - 1) * of_block;
        if (!best.needed_bytes || least.needed_bytes < best.needed_bytes)
            best = least;
    }
    search_note_least(s, &best);
}

bool search_segments_may_fit_family(struct layout_search *s, const struct candidate *family)
{
    const struct candidate c = in_segments(family, longest_segment(s));
    struct hd_search_rejected least;
    struct hd_layout_sizes sizes;

    if (!search_has_segments(s, family) || !search_size(s, &c, &sizes))
        return false;
    if (search_bound_family(s, &c, sizes, &least) && least.needed_bytes > s->asked->memory_bytes) {
        note_least_of_family(s, family);
        return false;
    }
    return true;
}

/* Finds the length of segments that needs least memory, and adds that layout, which does not fit, to
 * s->lowest. */
static void note_least_segments(struct layout_search *s, const struct candidate *of,
                                const struct ordered *ordered,
                                const struct hd_layer_profiles *profiles,
                                const struct hd_layout_sizes *of_sizes)
{
    const struct hd_layer_profiles *plain = plain_blocks(s, of);
    struct hd_search_rejected least, best = {0};

    for (int64_t k = 2; k <= longest_segment(s); k++) {
        struct candidate c = in_segments(of, k);
        struct hd_layout_sizes sizes;

        c.plain = plain;
        if (!search_size(s, &c, &sizes))
            continue;
        sizes.zero = of_sizes->zero;
        sizes.offload = of_sizes->offload;
        least = search_least_memory(s, &c, &sizes, ordered, profiles);
        if (!best.needed_bytes || least.needed_bytes < best.needed_bytes)
            best = least;
    }
    if (best.needed_bytes)
        search_note_least(s, &best);
}

bool search_segments_may_fit(struct layout_search *s, const struct candidate *c,
                             const struct hd_layout_sizes *z, const struct ordered *ordered,
                             const struct hd_layer_profiles *profiles)
{
    struct candidate longest = *c;
    struct hd_search_rejected least;

    /* a segment as long as any chunk, without the work memory of its backward */
    longest.segment = INT16_MAX;
    longest.plain = NULL;
    least = search_least_memory(s, &longest, z, ordered, profiles);
    if (least.needed_bytes <= s->asked->memory_bytes)
        return true;
    if (s->lowest_count < SEARCH_LOWEST_MAX ||
        least.needed_bytes < s->lowest[SEARCH_LOWEST_MAX - 1].needed_bytes)
        note_least_segments(s, c, ordered, profiles, z);
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
    const struct hd_layer_profiles *plain = plain_blocks(s, of);
    int count = 0;

    for (int64_t k = 1; !s->st && k <= longest; k++) {
        struct candidate c = in_segments(of, k);
        const struct hd_layer_profiles *profiles;
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
        profiles = search_profiles(s, &c, &sizes, true);
        if (!profiles ||
            (s->asked->memory_bytes &&
             !search_could_fit(s, search_least_memory(s, &c, &sizes, ordered, profiles))))
            continue;
        c.tie_break = search_tie_break(&c);
        search_push(s, &c);
    }
}
