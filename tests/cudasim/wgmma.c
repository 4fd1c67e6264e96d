/* wgmma: emulates products of warp groups (PTX ISA 8.0, 9.7.14: wgmma.mma_async): 64 x N sums in the
 * registers of 4 warps, the left factor in shared memory or in registers, the right one in shared
 * memory, both by descriptors with the 128-byte swizzle.
 *
 * A product is computed at its instruction, but its sums are poison until the warp has waited for its
 * group, and at the wait shared memory must still be what it was: so a stage that is overwritten too
 * early, sums that are read or written too early and a missing wait are all detected. A group must
 * begin with wgmma_fence, and the 4 warps of a warp group must all have issued the same products. The
 * device allows a little more: the fence may be left out where no register was touched since.
 */
#include <stdlib.h>
#include <string.h>

#include <cudasim_hopper.h>

#include "base/dtype.h"
#include "tests/cudasim/internal.h"

enum { ROWS = 16, DEPTH = 16, COLUMNS_MAX = 256, WARPS_OF_A_GROUP = 4, WINDOW = 1 << 18 };

/* Factors of a warp: elements of 2 bytes. */
struct factors {
    uint16_t a[ROWS][DEPTH], b[COLUMNS_MAX][DEPTH];
};

struct hd_sim_product {
    struct hd_cudasim_wgmma what; /* of lane 0 */
    struct hd_cudasim_site site;
    unsigned group;
    struct factors factors;
};

/* ---- Descriptors ---- */

uint32_t hd_cudasim_shared_window(const void *shared, struct hd_cudasim_site site)
{
    struct hd_sim_engine *e = hd_sim_engine();
    const unsigned char *at = shared;
    size_t base = 0;

    /* arrays follow one another, each as far behind a bound of 1024 bytes as it is in memory */
    for (unsigned i = 0; i < e->shared_count; i++) {
        const struct hd_sim_shared *s = &e->shared[i];

        if (at >= s->base && at < s->base + s->size_bytes)
            return (uint32_t)(base + (uintptr_t)s->base % 1024 + (size_t)(at - s->base));
        base += (s->size_bytes + 2 * 1024 - 1) / 1024 * 1024;
    }
    hd_cudasim_fail(site, "a descriptor of %p, which is not in a shared array", shared);
}

static const unsigned char *from_window(struct hd_sim_engine *e, size_t window,
                                        struct hd_cudasim_site site)
{
    size_t base = 0;

    for (unsigned i = 0; i < e->shared_count; i++) {
        const struct hd_sim_shared *s = &e->shared[i];
        const size_t first = base + (uintptr_t)s->base % 1024;

        if (window >= first && window + sizeof(uint16_t) <= first + s->size_bytes)
            return s->base + (window - first);
        base += (s->size_bytes + 2 * 1024 - 1) / 1024 * 1024;
    }
    hd_cudasim_fail(site, "wgmma reads shared memory at %zu, which is in no array", window);
}

/* An element of a factor: `place` along M or N, `depth` along K. With K contiguous, rows of 128 bytes
 * follow one another, and 8 of them the next 8 at the stride of the descriptor. With M or N
 * contiguous, rows of 128 bytes have 64 elements of one depth, 8 depths follow one another, the next 8
 * are at the stride, and the next 64 elements at the leading offset. */
static uint16_t element(struct hd_sim_engine *e, uint64_t descriptor, bool transposed,
                        unsigned place, unsigned depth, struct hd_cudasim_site site)
{
    const size_t start = (size_t)(descriptor & 0x3fff) << 4;
    const size_t leading = (size_t)(descriptor >> 16 & 0x3fff) << 4;
    const size_t stride = (size_t)(descriptor >> 32 & 0x3fff) << 4;
    uint16_t bits;
    size_t at;

    if (transposed)
        at = start + place / 64 * leading + place % 64 * 2 + depth / 8 * stride + depth % 8 * 128;
    else
        at = start + place / 8 * stride + place % 8 * 128 + (size_t)depth * 2;
    at ^= at / 128 % 8 * 16;
    memcpy(&bits, from_window(e, at, site), sizeof bits);
    return bits;
}

static void check_descriptor(uint64_t descriptor, bool transposed, struct hd_cudasim_site site)
{
    enum { SWIZZLE_128 = 1 };
    const unsigned start = (unsigned)(descriptor & 0x3fff);

    if (descriptor >> 62 != SWIZZLE_128 || (descriptor >> 49 & 7) != 0)
        hd_cudasim_fail(site,
                        "descriptor 0x%016llx: the emulator knows the 128-byte swizzle with "
                        "base offset 0 alone",
                        (unsigned long long)descriptor);
    /* a step along K of a swizzled row moves the start within its first 128 bytes */
    if (transposed ? start % 64 != 0 : start % 64 >= 8)
        hd_cudasim_fail(site,
                        "descriptor 0x%016llx: the tile does not begin at a bound of 1024 bytes",
                        (unsigned long long)descriptor);
}

static void read_factors(struct hd_sim_engine *e, const struct hd_cudasim_wgmma *p, unsigned warp,
                         struct factors *ret, struct hd_cudasim_site site)
{
    for (unsigned k = 0; k < DEPTH; k++) {
        for (unsigned row = 0; !p->a && row < ROWS; row++)
            ret->a[row][k] = element(e, p->a_descriptor, p->transposed_a,
                                     warp % WARPS_OF_A_GROUP * ROWS + row, k, site);
        for (unsigned column = 0; column < (unsigned)p->columns; column++)
            ret->b[column][k] = element(e, p->b_descriptor, p->transposed_b, column, k, site);
    }
}

/* ---- Sums of a thread that are not there yet ---- */

static struct hd_sim_sums *sums_of(struct hd_sim_thread *t, float *d)
{
    for (unsigned i = 0; i < t->sums_count; i++)
        if (t->sums[i].d == d)
            return &t->sums[i];
    return NULL;
}

static bool is_poison(const float *d, int count)
{
    const unsigned char *bytes = (const unsigned char *)d;

    for (size_t i = 0; i < (size_t)count * sizeof *d; i++)
        if (bytes[i] != HD_SIM_POISON)
            return false;
    return true;
}

static struct hd_sim_sums *take_sums(struct hd_sim_thread *t, const struct hd_cudasim_wgmma *p)
{
    const int count = p->columns / 2;
    struct hd_sim_sums *s = sums_of(t, p->d);

    if (!s) {
        if (t->sums_count == HD_SIM_SUMS_MAX)
            hd_cudasim_fail(t->site, "more than %d products of wgmma are under way",
                            HD_SIM_SUMS_MAX);
        s = &t->sums[t->sums_count++];
        s->d = p->d;
        memcpy(s->values, p->d, (size_t)count * sizeof *p->d);
    } else if (s->count != count || !is_poison(p->d, count)) {
        hd_cudasim_fail(t->site, "sums of wgmma were written, or took another shape, before "
                                 "wgmma_wait");
    }
    s->count = count;
    memset(p->d, HD_SIM_POISON, (size_t)count * sizeof *p->d);
    return s;
}

/* ---- The instruction ---- */

static float value_of(uint16_t bits, bool is_bf16)
{
    return is_bf16 ? hd_bf16_to_f32(bits) : hd_f16_to_f32(bits);
}

/* Compares with what another warp of the warp group issued at the same place. */
static void compare_warps(struct hd_sim_engine *e, struct hd_sim_warp *w, unsigned warp,
                          const struct hd_cudasim_wgmma *p, struct hd_cudasim_site site)
{
    struct hd_sim_warp_group *g = &e->warp_groups[warp / WARPS_OF_A_GROUP];
    struct hd_sim_issued mine = {.a = p->a ? 0 : p->a_descriptor,
                                 .b = p->b_descriptor,
                                 .line = site.line,
                                 .columns = p->columns};

    if ((warp / WARPS_OF_A_GROUP + 1) * WARPS_OF_A_GROUP * HD_CUDASIM_WARP > e->thread_count)
        hd_cudasim_fail(site, "wgmma by a warp group of which the block has not all 4 warps");
    if (w->issued == g->count) {
        if (g->count == g->room) {
            g->room = g->room ? 2 * g->room : 256;
            g->issued = realloc(g->issued, g->room * sizeof *g->issued);
            if (!g->issued)
                hd_cudasim_fail(site, "no memory for the products of a warp group");
        }
        g->issued[g->count++] = mine;
    } else if (memcmp(&g->issued[w->issued], &mine, sizeof mine) != 0) {
        hd_cudasim_fail(site,
                        "product %u of warp %u is another than that of its warp group at line "
                        "%d",
                        w->issued, warp, g->issued[w->issued].line);
    }
    w->issued++;
}

/* Memory of one product beside its operands. It is too large for a fiber's stack, and for the memory of
 * threads that a loaded plug-in may have. */
struct hd_sim_wgmma_room {
    float a[ROWS][DEPTH], b[COLUMNS_MAX][DEPTH];
    struct factors now;
};

static struct hd_sim_wgmma_room *room_of(struct hd_sim_engine *e, struct hd_cudasim_site site)
{
    if (!e->wgmma_room)
        e->wgmma_room = calloc(1, sizeof *e->wgmma_room);
    if (!e->wgmma_room)
        hd_cudasim_fail(site, "no memory for a product of a warp group");
    return e->wgmma_room;
}

static void perform_wgmma(struct hd_sim_thread **lanes, unsigned mask)
{
    struct hd_sim_engine *e = hd_sim_engine();
    struct hd_sim_wgmma_room *room;
    const struct hd_cudasim_wgmma *p;
    struct hd_cudasim_site site;
    struct hd_sim_product *product;
    struct hd_sim_warp *w;

    hd_sim_whole_warp(mask, lanes);
    p = lanes[0]->part;
    site = lanes[0]->site;
    room = room_of(e, site);
    w = &e->warps[lanes[0]->warp];
    if (!w->is_fenced)
        hd_cudasim_fail(site, "a group of wgmma begins without wgmma_fence");
    compare_warps(e, w, lanes[0]->warp, p, site);
    if (!p->a)
        check_descriptor(p->a_descriptor, p->transposed_a, site);
    check_descriptor(p->b_descriptor, p->transposed_b, site);
    if (w->product_count == w->product_room) {
        w->product_room = w->product_room ? 2 * w->product_room : 16;
        w->products = realloc(w->products, w->product_room * sizeof *w->products);
        if (!w->products)
            hd_cudasim_fail(site, "no memory for products under way");
    }
    product = &w->products[w->product_count++];
    product->what = *p;
    product->site = site;
    product->group = w->group;
    read_factors(e, p, lanes[0]->warp, &product->factors, site);
    for (unsigned lane = 0; lane < HD_CUDASIM_WARP; lane++) {
        const struct hd_cudasim_wgmma *part = lanes[lane]->part;
        const unsigned g = lane / 4, t = lane % 4 * 2;

        if (part->b_descriptor != p->b_descriptor || part->a_descriptor != p->a_descriptor)
            hd_cudasim_fail(site, "lane %u names another descriptor than lane 0", lane);
        for (unsigned i = 0; p->a && i < 8; i++) /* register i / 2, half i % 2 */
            product->factors.a[g + 8 * (i / 2 % 2)][t + i % 2 + 8 * (i / 4)] =
                (uint16_t)(part->a[i / 2] >> (16 * (i % 2)));
    }
    for (unsigned k = 0; k < DEPTH; k++) {
        for (unsigned row = 0; row < ROWS; row++)
            room->a[row][k] = value_of(product->factors.a[row][k], p->is_bf16);
        for (int column = 0; column < p->columns; column++)
            room->b[column][k] = value_of(product->factors.b[column][k], p->is_bf16);
    }
    for (unsigned lane = 0; lane < HD_CUDASIM_WARP; lane++) {
        struct hd_sim_sums *s = take_sums(lanes[lane], lanes[lane]->part);

        s->group = w->group;
        for (int i = 0; i < s->count; i++) {
            const unsigned row = lane / 4 + 8 * ((unsigned)i / 2 % 2);
            const unsigned column = 8 * ((unsigned)i / 4) + lane % 4 * 2 + (unsigned)i % 2;
            float sum = p->adds ? s->values[i] : 0;

            for (unsigned k = 0; k < DEPTH; k += HD_SIM_TENSOR_TERMS)
                sum = hd_sim_tensor_add(sum, &room->a[row][k], &room->b[column][k],
                                        HD_SIM_TENSOR_TERMS);
            s->values[i] = sum;
        }
    }
}

void hd_cudasim_wgmma(const struct hd_cudasim_wgmma *product, struct hd_cudasim_site site)
{
    struct hd_cudasim_wgmma part = *product;

    hd_sim_collect(HD_SIM_WGMMA, (unsigned)HD_SIM_ALL_LANES, &part, perform_wgmma, site);
}

/* ---- Fences, groups, waits ---- */

static void perform_fence(struct hd_sim_thread **lanes, unsigned mask)
{
    hd_sim_whole_warp(mask, lanes);
    hd_sim_engine()->warps[lanes[0]->warp].is_fenced = true;
}

void hd_cudasim_wgmma_fence(struct hd_cudasim_site site)
{
    hd_sim_collect(HD_SIM_WGMMA_FENCE, (unsigned)HD_SIM_ALL_LANES, NULL, perform_fence, site);
}

static void perform_commit(struct hd_sim_thread **lanes, unsigned mask)
{
    struct hd_sim_warp *w;

    hd_sim_whole_warp(mask, lanes);
    w = &hd_sim_engine()->warps[lanes[0]->warp];
    w->group++;
    w->is_fenced = false;
}

void hd_cudasim_wgmma_commit(struct hd_cudasim_site site)
{
    hd_sim_collect(HD_SIM_WGMMA_COMMIT, (unsigned)HD_SIM_ALL_LANES, NULL, perform_commit, site);
}

static void perform_wait(struct hd_sim_thread **lanes, unsigned mask)
{
    struct hd_sim_engine *e = hd_sim_engine();
    struct factors *now;
    const unsigned groups = *(const unsigned *)lanes[0]->part;
    struct hd_sim_warp *w;
    unsigned kept = 0;

    hd_sim_whole_warp(mask, lanes);
    now = &room_of(e, lanes[0]->site)->now;
    w = &e->warps[lanes[0]->warp];
    for (unsigned i = 0; i < w->product_count; i++) {
        struct hd_sim_product *p = &w->products[i];

        if (p->group + groups >= w->group) {
            w->products[kept++] = *p;
            continue;
        }
        *now = p->factors;
        read_factors(e, &p->what, lanes[0]->warp, now, p->site);
        if (memcmp(now->a, p->factors.a, sizeof now->a) != 0 ||
            memcmp(now->b, p->factors.b, (size_t)p->what.columns * sizeof now->b[0]) != 0)
            hd_cudasim_fail(p->site,
                            "shared memory was written while this wgmma read it; the wait "
                            "is at %s:%d",
                            lanes[0]->site.file, lanes[0]->site.line);
    }
    w->product_count = kept;
    for (unsigned lane = 0; lane < HD_CUDASIM_WARP; lane++) {
        struct hd_sim_thread *t = lanes[lane];
        unsigned left = 0;

        for (unsigned i = 0; i < t->sums_count; i++) {
            struct hd_sim_sums *s = &t->sums[i];

            if (s->group + groups >= w->group) {
                if (left != i)
                    t->sums[left] = *s;
                left++;
                continue;
            }
            if (!is_poison(s->d, s->count))
                hd_cudasim_fail(t->site, "sums of wgmma were written before this wgmma_wait");
            memcpy(s->d, s->values, (size_t)s->count * sizeof *s->d);
        }
        t->sums_count = left;
    }
}

void hd_cudasim_wgmma_wait(int groups, struct hd_cudasim_site site)
{
    unsigned part = (unsigned)groups;

    hd_sim_collect(HD_SIM_WGMMA_WAIT, (unsigned)HD_SIM_ALL_LANES, &part, perform_wait, site);
}

/* ---- The block ---- */

void hd_sim_wgmma_begin(struct hd_sim_engine *e)
{
    for (unsigned i = 0; i < HD_SIM_WARPS_MAX; i++) {
        e->warps[i].product_count = e->warps[i].issued = e->warps[i].group = 0;
        e->warps[i].is_fenced = false;
        e->warp_groups[i / WARPS_OF_A_GROUP].count = 0;
    }
    for (unsigned i = 0; i < e->thread_count; i++)
        e->threads[i].sums_count = 0;
}

void hd_sim_wgmma_end(const struct hd_sim_engine *e)
{
    const unsigned warps = (e->thread_count + HD_CUDASIM_WARP - 1) / HD_CUDASIM_WARP;

    for (unsigned i = 0; i < warps; i++) {
        const struct hd_sim_warp *w = &e->warps[i];

        if (w->product_count)
            hd_cudasim_fail(w->products[0].site, "warp %u ended before this wgmma; wait for it", i);
        if (w->issued != e->warp_groups[i / WARPS_OF_A_GROUP].count)
            hd_cudasim_fail((struct hd_cudasim_site){0},
                            "warp %u issued %u of the %u products of its warp group", i, w->issued,
                            e->warp_groups[i / WARPS_OF_A_GROUP].count);
    }
}

void hd_sim_wgmma_free(struct hd_sim_engine *e)
{
    for (unsigned i = 0; i < HD_SIM_WARPS_MAX; i++)
        free(e->warps[i].products);
    for (unsigned i = 0; i < HD_SIM_WARPS_MAX / WARPS_OF_A_GROUP; i++)
        free(e->warp_groups[i].issued);
    free(e->wgmma_room);
}
