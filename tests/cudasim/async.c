/* async: emulates what Hopper GPUs do beside their threads: barriers in shared memory that count
 * arrivals and bytes (mbarrier), copies of boxes of a tensor (TMA, cp.async.bulk.tensor), registers that
 * warps pass to each other (setmaxnreg), stores that need a fence before wgmma reads them; and two ways
 * to wait that other GPUs have, too: barriers with a number (bar.sync), and turns of blocks. PTX ISA 8.0, 9.7.12.15 and 9.7.8.24.
 *
 * A box is poison from its instruction until it is copied. In forward order that is when no thread
 * can run, the latest moment that a device may choose; in reverse order at the next chance; in random
 * order at any. A wait for a phase that never ends is a deadlock, which the engine reports.
 */
#include <stdlib.h>
#include <string.h>

#include <cuda.h>
#include <cudasim_hopper.h>

#include "tests/cudasim/internal.h"

enum { ARRIVALS_MAX = (1 << 20) - 1, REGISTERS_ALL = 65536 };

/* ---- mbarrier ---- */

void hd_cudasim_mbarrier_init(uint64_t *barrier, unsigned arrivals, struct hd_cudasim_site site)
{
    struct hd_sim_engine *e = hd_sim_engine();
    struct hd_sim_mbarrier *b = &e->mbarriers[e->mbarrier_count];

    hd_cudasim_check_aligned(barrier, sizeof *barrier, site);
    if (!hd_sim_is_shared(e, barrier, sizeof *barrier))
        hd_cudasim_fail(site, "an mbarrier at %p, which is not in a shared array", (void *)barrier);
    if (arrivals < 1 || arrivals > ARRIVALS_MAX)
        hd_cudasim_fail(site, "an mbarrier for %u arrivals; it takes 1 to %d", arrivals,
                        ARRIVALS_MAX);
    for (unsigned i = 0; i < e->mbarrier_count; i++)
        if (e->mbarriers[i].word == barrier)
            hd_cudasim_fail(site, "an mbarrier is initialised twice");
    if (e->mbarrier_count == HD_SIM_MBARRIERS_MAX)
        hd_cudasim_fail(site, "a block has more than %d mbarriers", HD_SIM_MBARRIERS_MAX);
    *b = (struct hd_sim_mbarrier){.word = barrier, .arrivals = arrivals, .pending = arrivals};
    *barrier = HD_SIM_MBARRIER_TAG | e->mbarrier_count++;
}

void hd_cudasim_mbarrier_fence(void)
{
    struct hd_sim_engine *e = hd_sim_engine();

    for (unsigned i = 0; i < e->mbarrier_count; i++)
        e->mbarriers[i].is_fenced = true;
}

static struct hd_sim_mbarrier *barrier_of(struct hd_sim_engine *e, const uint64_t *word,
                                          struct hd_cudasim_site site)
{
    enum { INDEX = 256 };

    hd_cudasim_check_aligned(word, sizeof *word, site);
    if (!hd_sim_is_shared(e, word, sizeof *word))
        hd_cudasim_fail(site, "an mbarrier at %p, which is not in a shared array",
                        (const void *)word);
    if (*word - *word % INDEX != HD_SIM_MBARRIER_TAG || *word % INDEX >= e->mbarrier_count ||
        e->mbarriers[*word % INDEX].word != word)
        hd_cudasim_fail(site, "the mbarrier at %p was not initialised, or was overwritten",
                        (const void *)word);
    return &e->mbarriers[*word % INDEX];
}

/* Ends the phase if nothing is missing, and lets the threads that wait look again. */
static void settle(struct hd_sim_engine *e, struct hd_sim_mbarrier *b)
{
    if (b->pending || b->bytes)
        return;
    b->phase++;
    b->pending = b->arrivals;
    for (unsigned i = 0; i < e->thread_count; i++)
        if (e->threads[i].state == HD_SIM_AT_MBARRIER && e->threads[i].mbarrier == b)
            e->threads[i].state = HD_SIM_READY;
}

void hd_cudasim_mbarrier_arrive(uint64_t *barrier, int64_t bytes, struct hd_cudasim_site site)
{
    struct hd_sim_engine *e = hd_sim_engine();
    struct hd_sim_mbarrier *b = barrier_of(e, barrier, site);

    if (!b->pending)
        hd_cudasim_fail(site, "an arrival at an mbarrier that has all of its %u in this phase",
                        b->arrivals);
    b->bytes += bytes > 0 ? bytes : 0;
    if (b->bytes > ARRIVALS_MAX)
        hd_cudasim_fail(site, "an mbarrier expects %lld bytes; it counts up to %d",
                        (long long)b->bytes, ARRIVALS_MAX);
    b->pending--;
    settle(e, b);
    hd_cudasim_preempt();
}

void hd_cudasim_mbarrier_wait(uint64_t *barrier, unsigned parity, struct hd_cudasim_site site)
{
    struct hd_sim_engine *e = hd_sim_engine();
    struct hd_sim_thread *t = e->running;
    const struct hd_sim_mbarrier *b = barrier_of(e, barrier, site);
    const uint64_t began = b->phase;

    if (parity > 1)
        hd_cudasim_fail(site, "a wait for a phase of parity %u; parities are 0 and 1", parity);
    while (b->phase % 2 == parity) {
        if (b->phase > began)
            hd_cudasim_fail(site,
                            "two phases of an mbarrier ended while thread %u waited for one: it "
                            "would wait on",
                            t->index);
        t->mbarrier = b;
        t->parity = parity;
        t->site = site;
        t->state = HD_SIM_AT_MBARRIER;
        hd_sim_wait(e, t);
    }
}

/* ---- Boxes ---- */

/* The emulator's meaning of the 128 bytes of a CUtensorMap. */
struct map {
    uint64_t magic;
    unsigned char *base;
    uint64_t sizes[HD_SIM_RANK_MAX];       /* elements */
    uint64_t strides[HD_SIM_RANK_MAX - 1]; /* bytes, of dimensions 1 and up */
    uint32_t box[HD_SIM_RANK_MAX];
    uint8_t rank, element_bytes, swizzled;
};
_Static_assert(sizeof(struct map) <= sizeof(CUtensorMap), "it fits");
#define MAP_MAGIC UINT64_C(0x74656e736f726d70)
enum { BOX_SIDE_MAX = 256, SWIZZLE_BYTES = 128, SWIZZLE_ROWS = 8, CHUNK_BYTES = 16 };

CUresult cuTensorMapEncodeTiled(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType,
                                cuuint32_t tensorRank, void *globalAddress,
                                const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
                                const cuuint32_t *boxDim, const cuuint32_t *elementStrides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill)
{
    struct map map = {.magic = MAP_MAGIC,
                      .base = globalAddress,
                      .rank = (uint8_t)tensorRank,
                      .swizzled = swizzle == CU_TENSOR_MAP_SWIZZLE_128B};

    map.element_bytes = tensorDataType == CU_TENSOR_MAP_DATA_TYPE_UINT8     ? 1
                        : tensorDataType == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4
                                                                            : 2;
    if (tensorRank < 1 || tensorRank > HD_SIM_RANK_MAX || !globalAddress ||
        (uintptr_t)globalAddress % 16 || (uintptr_t)tensorMap % 64 || interleave || oobFill ||
        (unsigned)l2Promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B)
        return CUDA_ERROR_INVALID_VALUE;
    for (cuuint32_t i = 0; i < tensorRank; i++) {
        map.sizes[i] = globalDim[i];
        map.box[i] = boxDim[i];
        if (i > 0)
            map.strides[i - 1] = globalStrides[i - 1];
        if (globalDim[i] < 1 || globalDim[i] > UINT64_C(1) << 32 || boxDim[i] < 1 ||
            boxDim[i] > BOX_SIDE_MAX || elementStrides[i] != 1 ||
            (i > 0 && (globalStrides[i - 1] % 16 || globalStrides[i - 1] >= UINT64_C(1) << 40)))
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (boxDim[0] * map.element_bytes % 16 ||
        (map.swizzled && boxDim[0] * map.element_bytes > SWIZZLE_BYTES))
        return CUDA_ERROR_INVALID_VALUE;
    memset(tensorMap, 0, sizeof *tensorMap);
    memcpy(tensorMap, &map, sizeof map);
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **funcPtr,
                                             unsigned cudaVersion, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *driverStatus)
{
    union {
        CUresult (*function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                             const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                             const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                             CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
        void *address;
    } encode = {.function = cuTensorMapEncodeTiled};
    const bool is_known = strcmp(symbol, "cuTensorMapEncodeTiled") == 0;

    if (flags != cudaEnableDefault)
        return hd_sim_set_error(cudaErrorInvalidValue);
    *funcPtr = is_known && cudaVersion >= 12000 ? encode.address : NULL;
    *driverStatus = !is_known              ? cudaDriverEntryPointSymbolNotFound
                    : cudaVersion >= 12000 ? cudaDriverEntryPointSuccess
                                           : cudaDriverEntryPointVersionNotSufficent;
    return cudaSuccess;
}

static size_t box_bytes(const struct map *map)
{
    size_t bytes = map->element_bytes;

    for (int i = 0; i < map->rank; i++)
        bytes *= map->box[i];
    return bytes;
}

static struct map map_of(const void *map)
{
    struct map copy;

    memcpy(&copy, map, sizeof copy);
    return copy;
}

static struct hd_sim_box *add_box(struct hd_sim_engine *e, void *shared, size_t bytes,
                                  uint64_t *barrier, struct hd_cudasim_site site)
{
    struct hd_sim_box *box = &e->boxes[e->box_count];

    if (e->box_count == HD_SIM_BOXES_MAX)
        hd_cudasim_fail(site, "more than %d copies are under way", HD_SIM_BOXES_MAX);
    *box = (struct hd_sim_box){
        .shared = shared, .bytes = bytes, .barrier = barrier_of(e, barrier, site), .site = site};
    if (!box->barrier->is_fenced)
        hd_cudasim_fail(site,
                        "a box names an mbarrier that was not fenced after it was initialised");
    memset(shared, HD_SIM_POISON, bytes);
    e->box_count++;
    return box;
}

void hd_cudasim_copy_box(void *shared, const void *map, uint64_t *barrier, const int *at, int rank,
                         struct hd_cudasim_site site)
{
    struct hd_sim_engine *e = hd_sim_engine();
    const struct map m = map_of(map);
    struct hd_sim_box *box;

    hd_cudasim_check_aligned(map, 64, site);
    if (m.magic != MAP_MAGIC)
        hd_cudasim_fail(site, "a box of %p, which is not an encoded tensor map", map);
    if (m.rank != rank)
        hd_cudasim_fail(site, "a box with %d coordinates of a tensor with %d dimensions", rank,
                        m.rank);
    hd_cudasim_check_aligned(shared, m.swizzled ? SWIZZLE_BYTES * SWIZZLE_ROWS : SWIZZLE_BYTES,
                             site);
    if (!hd_sim_is_shared(e, shared, box_bytes(&m)))
        hd_cudasim_fail(site, "a box of %zu bytes to %p, which are not in a shared array",
                        box_bytes(&m), shared);
    box = add_box(e, shared, box_bytes(&m), barrier, site);
    memcpy(box->map, map, sizeof box->map); /* a parameter of a thread that may end before */
    memcpy(box->at, at, (size_t)rank * sizeof *at);
}

void hd_cudasim_copy_bulk(void *shared, const void *global, size_t bytes, uint64_t *barrier,
                          struct hd_cudasim_site site)
{
    struct hd_sim_engine *e = hd_sim_engine();

    hd_cudasim_check_aligned(shared, CHUNK_BYTES, site);
    hd_cudasim_check_aligned(global, CHUNK_BYTES, site);
    if (bytes % CHUNK_BYTES || !bytes || !hd_sim_is_shared(e, shared, bytes))
        hd_cudasim_fail(site,
                        "a copy of %zu bytes to %p: not a multiple of 16 bytes in a shared array",
                        bytes, shared);
    add_box(e, shared, bytes, barrier, site)->global = global;
}

/* Copies row after row of the box; elements outside the tensor are zeros. The 16-byte chunks of a
 * swizzled row of 128 bytes are in the order chunk XOR (address / 128 % 8). */
static void copy_rows(const struct hd_sim_box *box)
{
    const struct map m = map_of(box->map);
    const size_t row_bytes = (size_t)m.box[0] * m.element_bytes;
    size_t rows = box_bytes(&m) / row_bytes;

    for (size_t row = 0; row < rows; row++) {
        unsigned char bytes[BOX_SIDE_MAX * 4] = {0}, *to = box->shared + row * row_bytes;
        const unsigned char *from = m.base;
        size_t rest = row;
        bool is_inside = true;

        for (int i = 1; i < m.rank; i++) {
            const int64_t at = box->at[i] + (int64_t)(rest % m.box[i]);

            rest /= m.box[i];
            is_inside = is_inside && at >= 0 && at < (int64_t)m.sizes[i];
            from += at * (int64_t)m.strides[i - 1];
        }
        for (unsigned c = 0; is_inside && c < m.box[0]; c++) {
            const int64_t at = box->at[0] + (int64_t)c;

            if (at >= 0 && at < (int64_t)m.sizes[0])
                memcpy(bytes + c * m.element_bytes, from + at * m.element_bytes, m.element_bytes);
        }
        for (size_t c = 0; c < row_bytes; c += CHUNK_BYTES) {
            uintptr_t address = (uintptr_t)(to + c);

            if (m.swizzled)
                address ^= address / SWIZZLE_BYTES % SWIZZLE_ROWS * CHUNK_BYTES;
            memcpy((void *)address, bytes + c, CHUNK_BYTES);
        }
    }
}

static void finish_box(struct hd_sim_engine *e, unsigned number)
{
    const struct hd_sim_box box = e->boxes[number];

    e->box_count--;
    memmove(&e->boxes[number], &e->boxes[number + 1], (e->box_count - number) * sizeof e->boxes[0]);
    if (box.global)
        memcpy(box.shared, box.global, box.bytes);
    else
        copy_rows(&box);
    box.barrier->bytes -= (int64_t)box.bytes;
    settle(e, box.barrier);
}

bool hd_sim_async_advance(struct hd_sim_engine *e, bool is_idle)
{
    bool found = false;

    for (unsigned i = 0; i < e->thread_count; i++) {
        struct hd_sim_thread *t = &e->threads[i];

        if (t->state != HD_SIM_AT_TURN || *t->turn != t->turn_value)
            continue;
        t->state = HD_SIM_READY;
        found = true;
    }
    if (found || !e->box_count)
        return found;
    if (e->schedule == HD_CUDASIM_FORWARD && !is_idle)
        return false;
    if (e->schedule == HD_CUDASIM_FORWARD)
        finish_box(e, 0);
    else if (e->schedule == HD_CUDASIM_REVERSE)
        finish_box(e, e->box_count - 1);
    else if (is_idle || hd_sim_random(&e->random) % 4 == 0)
        finish_box(e, (unsigned)(hd_sim_random(&e->random) % e->box_count));
    return true;
}

/* ---- Stores for wgmma ---- */

void hd_cudasim_proxy_store(void *shared, uint32_t value, struct hd_cudasim_site site)
{
    struct hd_sim_engine *e = hd_sim_engine();
    struct hd_sim_thread *t = e->running;

    hd_cudasim_check_aligned(shared, sizeof value, site);
    if (!hd_sim_is_shared(e, shared, sizeof value))
        hd_cudasim_fail(site, "a store for wgmma to %p, which is not in a shared array", shared);
    if (t->store_count == t->store_room) {
        t->store_room = t->store_room ? 2 * t->store_room : 16;
        t->stores = realloc(t->stores, t->store_room * sizeof *t->stores);
        if (!t->stores)
            hd_cudasim_fail(site, "no memory for stores before a fence");
    }
    t->stores[t->store_count++] = (struct hd_sim_store){shared, value};
    memset(shared, HD_SIM_POISON, sizeof value);
}

void hd_cudasim_proxy_fence(void)
{
    struct hd_sim_thread *t = hd_sim_engine()->running;

    for (size_t i = 0; i < t->store_count; i++)
        memcpy(t->stores[i].shared, &t->stores[i].value, sizeof t->stores[i].value);
    t->store_count = 0;
}

/* ---- Barriers with a number, turns ---- */

void hd_cudasim_group_barrier(unsigned number, unsigned threads, struct hd_cudasim_site site)
{
    struct hd_sim_engine *e = hd_sim_engine();
    struct hd_sim_thread *t = e->running;
    struct hd_sim_group_barrier *b = &e->group_barriers[number % HD_SIM_GROUP_BARRIERS];

    if (number >= HD_SIM_GROUP_BARRIERS || threads % HD_CUDASIM_WARP || !threads)
        hd_cudasim_fail(site,
                        "barrier %u for %u threads; numbers are below %d, threads whole warps",
                        number, threads, HD_SIM_GROUP_BARRIERS);
    if (b->waiting && b->threads != threads)
        hd_cudasim_fail(site, "barrier %u for %u threads, where others wait for %u", number,
                        threads, b->threads);
    b->threads = threads;
    t->site = site;
    t->number = number;
    if (++b->waiting < threads) {
        t->state = HD_SIM_AT_GROUP_BARRIER;
        hd_sim_wait(e, t);
        return;
    }
    b->waiting = 0;
    for (unsigned i = 0; i < e->thread_count; i++)
        if (e->threads[i].state == HD_SIM_AT_GROUP_BARRIER && e->threads[i].number == number)
            e->threads[i].state = HD_SIM_READY;
}

void hd_cudasim_turn_wait(const unsigned *turn, unsigned value, struct hd_cudasim_site site)
{
    struct hd_sim_engine *e = hd_sim_engine();
    struct hd_sim_thread *t = e->running;

    t->turn = turn;
    t->turn_value = value;
    t->site = site;
    if (*turn == value)
        return;
    t->state = HD_SIM_AT_TURN;
    hd_sim_wait(e, t);
}

void hd_cudasim_turn_pass(unsigned *turn, unsigned value, struct hd_cudasim_site site)
{
    const struct hd_sim_thread *t = hd_sim_engine()->running;

    if (t->turn != turn || t->turn_value + 1 != value || *turn + 1 != value)
        hd_cudasim_fail(site, "turn %u is passed by a thread that did not wait for the one before",
                        value);
    *turn = value;
}

/* ---- Registers ---- */

/* Every thread gets as many registers at the launch as its block leaves on a multiprocessor, as with
 * __launch_bounds__(threads, 1). */
void hd_sim_async_begin(struct hd_sim_engine *e)
{
    const unsigned each = REGISTERS_ALL / e->thread_count / 8 * 8;

    e->mbarrier_count = e->box_count = e->registers_free = 0;
    memset(e->group_barriers, 0, sizeof e->group_barriers);
    for (unsigned i = 0; i < e->thread_count; i++) {
        e->threads[i].store_count = 0;
        e->threads[i].turn = NULL;
    }
    for (unsigned i = 0; i < HD_SIM_WARPS_MAX; i++)
        e->warps[i].registers = each < 248 ? each : 248;
}

void hd_sim_async_end(const struct hd_sim_engine *e)
{
    if (e->box_count)
        hd_cudasim_fail(e->boxes[0].site,
                        "the block ended before this box was copied; wait at its mbarrier");
}

struct registers {
    unsigned count;
    bool more;
};

static void grant(struct hd_sim_engine *e)
{
    for (unsigned i = 0; i < HD_SIM_WARPS_MAX; i++) {
        struct hd_sim_warp *w = &e->warps[i];
        const unsigned missing = (w->wanted - w->registers) * HD_CUDASIM_WARP;

        if (!w->wanted || missing > e->registers_free)
            continue;
        e->registers_free -= missing;
        w->registers = w->wanted;
        w->wanted = 0;
        for (unsigned lane = 0; lane < HD_CUDASIM_WARP; lane++)
            if (e->threads[i * HD_CUDASIM_WARP + lane].state == HD_SIM_AT_REGISTERS)
                e->threads[i * HD_CUDASIM_WARP + lane].state = HD_SIM_READY;
    }
}

static void perform_registers(struct hd_sim_thread **lanes, unsigned mask)
{
    struct hd_sim_engine *e = hd_sim_engine();
    const struct registers *r;
    struct hd_sim_warp *w;

    hd_sim_whole_warp(mask, lanes);
    r = lanes[0]->part;
    w = &e->warps[lanes[0]->warp];
    if (r->count < 24 || r->count > 256 || r->count % 8)
        hd_cudasim_fail(lanes[0]->site, "setmaxnreg to %u registers; it takes 24, 32, .. 256",
                        r->count);
    if (r->more ? r->count < w->registers : r->count > w->registers)
        hd_cudasim_fail(lanes[0]->site, "setmaxnreg.%s to %u registers by a warp that has %u",
                        r->more ? "inc" : "dec", r->count, w->registers);
    if (r->more)
        w->wanted = r->count;
    else {
        e->registers_free += (w->registers - r->count) * HD_CUDASIM_WARP;
        w->registers = r->count;
    }
    grant(e);
}

void hd_cudasim_set_registers(unsigned count, bool more, struct hd_cudasim_site site)
{
    struct hd_sim_engine *e = hd_sim_engine();
    struct hd_sim_thread *t = e->running;
    struct registers part = {count, more};

    hd_sim_collect(HD_SIM_SETMAXNREG, (unsigned)HD_SIM_ALL_LANES, &part, perform_registers, site);
    while (e->warps[t->warp].wanted) {
        t->state = HD_SIM_AT_REGISTERS;
        t->site = site;
        hd_sim_wait(e, t);
    }
}

void hd_sim_async_free(struct hd_sim_engine *e)
{
    for (unsigned i = 0; i < e->ready_count; i++)
        free(e->threads[i].stores);
}

/* ---- Reports ---- */

bool hd_sim_async_waits(const struct hd_sim_thread *t)
{
    return t->state == HD_SIM_AT_MBARRIER || t->state == HD_SIM_AT_REGISTERS ||
           t->state == HD_SIM_AT_GROUP_BARRIER || t->state == HD_SIM_AT_TURN;
}

void hd_sim_async_report(struct hd_sim_engine *e, const struct hd_sim_thread *t)
{
    if (t->state == HD_SIM_AT_REGISTERS)
        hd_cudasim_fail(
            t->site,
            "deadlock: thread %u waits in setmaxnreg for %u registers; its warp has %u, "
            "and other warps gave back %u in all",
            t->index, e->warps[t->warp].wanted, e->warps[t->warp].registers, e->registers_free);
    if (t->state == HD_SIM_AT_GROUP_BARRIER)
        hd_cudasim_fail(t->site, "deadlock: thread %u waits at barrier %u, where %u of %u are",
                        t->index, t->number, e->group_barriers[t->number].waiting,
                        e->group_barriers[t->number].threads);
    if (t->state == HD_SIM_AT_TURN)
        hd_cudasim_fail(
            t->site,
            "deadlock: thread %u waits for turn %u of a counter that is %u; no block that "
            "began before this one is left",
            t->index, t->turn_value, *t->turn);
    hd_cudasim_fail(t->site,
                    "deadlock: thread %u waits at an mbarrier for the end of a phase of parity %u, "
                    "which is phase %llu; it still expects %u of %u arrivals and %lld bytes",
                    t->index, t->parity, (unsigned long long)t->mbarrier->phase,
                    t->mbarrier->pending, t->mbarrier->arrivals, (long long)t->mbarrier->bytes);
}
