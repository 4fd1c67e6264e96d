/* engine: runs a grid: blocks one after the other, the threads of a block as fibers in turn.
 *
 * A thread runs until it waits (barrier, warp operation) or ends. The scheduler visits all threads
 * in rounds, in the order that tests set. If a round finds no thread ready, either all have ended,
 * or there is a deadlock, which is reported.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cudasim/internal.h"

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
enum { STACK_BYTES = 512 * 1024 };
#else
enum { STACK_BYTES = 128 * 1024 };
#endif

/* Arrays begin 128 bytes behind a bound of 1024, as a device promises no more than 128. */
enum { GUARD_BYTES = 128, GUARD = 0xcb, SWIZZLE_PERIOD = 1024 };

__thread struct hd_cudasim_thread *hd_cudasim_self;
static __thread struct hd_sim_engine *engine;

/* ---- Settings ---- */

static atomic_int order_set = -1;
static atomic_uint_least64_t order_seed, launches;

void hd_cudasim_order(enum hd_cudasim_order order, uint64_t seed)
{
    atomic_store(&order_seed, seed);
    atomic_store(&order_set, (int)order);
}

static enum hd_cudasim_order order_now(void)
{
    const char *wish;

    if (atomic_load(&order_set) < 0) {
        wish = getenv("HD_CUDASIM_ORDER");
        if (wish && !strncmp(wish, "random", 6))
            hd_cudasim_order(HD_CUDASIM_RANDOM, wish[6] == ':' ? strtoull(wish + 7, NULL, 0) : 1);
        else if (wish && !strcmp(wish, "reverse"))
            hd_cudasim_order(HD_CUDASIM_REVERSE, 0);
        else
            hd_cudasim_order(HD_CUDASIM_FORWARD, 0);
    }
    return (enum hd_cudasim_order)atomic_load(&order_set);
}

uint64_t hd_cudasim_launches(void)
{
    return atomic_load(&launches);
}

uint64_t hd_sim_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* ---- Reports ---- */

static void print_where(void)
{
    const struct hd_cudasim_thread *t = hd_cudasim_self;

    if (!engine || !engine->kernel)
        return;
    if (!t) {
        fprintf(stderr, "cudasim: in kernel %s\n", engine->kernel);
        return;
    }
    fprintf(
        stderr,
        "cudasim: in kernel %s, block (%u,%u,%u) of (%u,%u,%u), thread (%u,%u,%u) of (%u,%u,%u)\n",
        engine->kernel, t->block.x, t->block.y, t->block.z, t->grid_dim.x, t->grid_dim.y,
        t->grid_dim.z, t->thread.x, t->thread.y, t->thread.z, t->block_dim.x, t->block_dim.y,
        t->block_dim.z);
}

#ifdef WITH_ASAN
/* Called by UndefinedBehaviorSanitizer, which does not call AddressSanitizer's death callback. */
__attribute__((visibility("default"))) void __ubsan_on_report(void);
void __ubsan_on_report(void)
{
    print_where();
}
#endif

void hd_cudasim_fail(struct hd_cudasim_site site, const char *fmt, ...)
{
    va_list list;

    fflush(stdout);
    print_where();
    fprintf(stderr, "cudasim: ");
    if (site.file)
        fprintf(stderr, "%s:%d: ", site.file, site.line);
    va_start(list, fmt);
    vfprintf(stderr, fmt, list);
    va_end(list);
    fputc('\n', stderr);
    abort();
}

/* ---- An engine per OS thread ---- */

static pthread_key_t engine_key;
static pthread_once_t engine_once = PTHREAD_ONCE_INIT;

static void free_engine(void *value)
{
    struct hd_sim_engine *e = value;

    for (unsigned i = 0; i < e->ready_count; i++) {
        hd_fiber_done(&e->threads[i].fiber);
        free(e->threads[i].copies);
    }
    hd_sim_async_free(e);
    hd_sim_wgmma_free(e);
    free(e->threads);
    free(e);
    engine = NULL;
}

static void make_key(void)
{
    (void)pthread_key_create(&engine_key, free_engine);
#ifdef WITH_ASAN
    __sanitizer_set_death_callback(print_where);
#endif
}

struct hd_sim_engine *hd_sim_engine(void)
{
    if (!engine || !engine->running)
        hd_cudasim_fail((struct hd_cudasim_site){0}, "device code was called by the host");
    return engine;
}

static struct hd_sim_engine *open_engine(unsigned threads)
{
    struct hd_sim_engine *e = engine;

    (void)pthread_once(&engine_once, make_key);
    if (!e) {
        e = calloc(1, sizeof *e);
        if (e)
            e->threads = calloc(HD_SIM_THREADS_MAX, sizeof *e->threads);
        if (!e || !e->threads)
            hd_cudasim_fail((struct hd_cudasim_site){0}, "no memory for an engine");
        engine = e;
        (void)pthread_setspecific(engine_key, e);
        hd_fiber_here(&e->home);
    }
    for (; e->ready_count < threads; e->ready_count++)
        if (hd_fiber_init(&e->threads[e->ready_count].fiber, STACK_BYTES) < 0)
            hd_cudasim_fail((struct hd_cudasim_site){0}, "no memory for the stacks of %u threads",
                            threads);
    return e;
}

/* ---- Checks of __ldg ---- */

static void check_constant(struct hd_sim_constant *c)
{
    if (c->size_bytes && memcmp(c->bytes, c->address, c->size_bytes) != 0)
        hd_cudasim_fail(c->site, "%zu bytes at %p were read by __ldg and written in this launch",
                        c->size_bytes, c->address);
    c->size_bytes = 0;
}

/* If the slot of the hash table is taken, the older entry is checked now and replaced; the others
 * are checked when the launch ends. */
void hd_cudasim_is_constant(const void *address, size_t size_bytes, struct hd_cudasim_site site)
{
    struct hd_sim_engine *e = hd_sim_engine();
    struct hd_sim_constant *c = &e->constants[(uintptr_t)address / 4 % HD_SIM_CONSTANTS];

    e->has_constants = true;
    check_constant(c);
    *c = (struct hd_sim_constant){.address = address, .size_bytes = size_bytes, .site = site};
    memcpy(c->bytes, address, size_bytes);
}

/* ---- Threads ---- */

static void release_barrier(struct hd_sim_engine *e)
{
    const struct hd_sim_thread *first = NULL;
    int count = 0, all;

    for (unsigned i = 0; i < e->thread_count; i++) {
        const struct hd_sim_thread *t = &e->threads[i];

        if (t->state != HD_SIM_AT_BARRIER)
            continue;
        if (!first)
            first = t;
        if (t->barrier != first->barrier || t->site.line != first->site.line ||
            strcmp(t->site.file, first->site.file))
            hd_cudasim_fail(t->site,
                            "divergent barrier: thread %u waits here, thread %u at %s:%d; all "
                            "threads of a block must meet at the same __syncthreads",
                            t->index, first->index, first->site.file, first->site.line);
        count += t->predicate != 0;
    }
    all = count == (int)e->at_barrier;
    for (unsigned i = 0; i < e->thread_count; i++) {
        struct hd_sim_thread *t = &e->threads[i];

        if (t->state != HD_SIM_AT_BARRIER)
            continue;
        t->state = HD_SIM_READY;
        t->result = t->barrier == HD_CUDASIM_BARRIER_COUNT ? count
                    : t->barrier == HD_CUDASIM_BARRIER_AND ? all
                                                           : count > 0;
    }
    e->at_barrier = 0;
}

int hd_cudasim_barrier(enum hd_cudasim_barrier kind, int predicate, struct hd_cudasim_site site)
{
    struct hd_sim_engine *e = hd_sim_engine();
    struct hd_sim_thread *t = e->running;

    t->barrier = kind;
    t->predicate = predicate;
    t->site = site;
    t->state = HD_SIM_AT_BARRIER;
    e->at_barrier++;
    if (e->at_barrier == e->live)
        release_barrier(e);
    else
        hd_sim_wait(e, t);
    return t->result;
}

void hd_sim_wait(struct hd_sim_engine *e, struct hd_sim_thread *t)
{
    hd_fiber_switch(&t->fiber, &e->home);
}

void hd_cudasim_preempt(void)
{
    struct hd_sim_engine *e = hd_sim_engine();

    if (e->schedule == HD_CUDASIM_RANDOM && hd_sim_random(&e->random) % 4 == 0)
        hd_sim_wait(e, e->running); /* still ready */
}

static void thread_main(void)
{
    struct hd_sim_engine *e = engine;
    struct hd_sim_thread *t = e->running;

    hd_fiber_entered(&t->fiber, &e->home);
    e->run(e->context);
    t->state = HD_SIM_ENDED;
    e->live--;
    hd_sim_lane_ended(e, t);
    if (e->live && e->at_barrier == e->live) /* all threads that have not ended have arrived */
        release_barrier(e);
    hd_fiber_leave(&t->fiber, &e->home);
}

/* ---- Shared memory ---- */

static struct hd_sim_shared *
add_shared(struct hd_sim_engine *e, const struct hd_cudasim_shared_site *site, size_t size_bytes)
{
    struct hd_sim_shared *s = &e->shared[e->shared_count];
    const size_t room = (size_bytes + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES;

    if (e->shared_count == HD_SIM_SHARED_SITES_MAX)
        hd_cudasim_fail((struct hd_cudasim_site){0}, "a kernel has more than %d shared arrays",
                        HD_SIM_SHARED_SITES_MAX);
    e->shared_count++;
    *s = (struct hd_sim_shared){.site = site, .size_bytes = size_bytes};
    if (posix_memalign((void **)&s->map, SWIZZLE_PERIOD, room + 2 * (size_t)GUARD_BYTES))
        hd_cudasim_fail((struct hd_cudasim_site){0}, "no memory for shared memory");
    s->base = s->map + GUARD_BYTES;
    memset(s->map, GUARD, GUARD_BYTES);
    memset(s->base + size_bytes, GUARD, room - size_bytes + GUARD_BYTES);
    memset(s->base, HD_SIM_POISON, size_bytes);
#ifdef WITH_ASAN
    __asan_poison_memory_region(s->map, GUARD_BYTES);
    __asan_poison_memory_region(s->base + size_bytes, room - size_bytes + GUARD_BYTES);
#endif
    return s;
}

void *hd_cudasim_shared(struct hd_cudasim_shared_site *site, size_t size_bytes)
{
    struct hd_sim_engine *e = hd_sim_engine();
    const struct hd_cudasim_site here = {site->file, site->line};
    size_t sum = size_bytes, all = size_bytes;

    for (unsigned i = 0; i < e->shared_count; i++) {
        if (e->shared[i].site == site)
            return e->shared[i].base;
        sum += e->shared[i].site ? e->shared[i].size_bytes : 0;
        all += e->shared[i].size_bytes;
    }
    if (sum > HD_SIM_SHARED_DEFAULT)
        hd_cudasim_fail(here, "static shared arrays have %zu bytes; the limit of a block is 48 KB",
                        sum);
    if (all > e->shared_limit)
        hd_cudasim_fail(here,
                        "static and dynamic shared memory have %zu bytes; the limit of a block of "
                        "this kernel is %zu",
                        all, e->shared_limit);
    return add_shared(e, site, size_bytes)->base;
}

void *hd_cudasim_shared_dynamic(void)
{
    return hd_sim_engine()->shared[0].base;
}

bool hd_sim_is_shared(struct hd_sim_engine *e, const void *address, size_t size_bytes)
{
    const unsigned char *at = address;

    for (unsigned i = 0; i < e->shared_count; i++) {
        const struct hd_sim_shared *s = &e->shared[i];

        if (at >= s->base && at + size_bytes <= s->base + s->size_bytes)
            return true;
    }
    return false;
}

static void poison_shared(struct hd_sim_engine *e)
{
    for (unsigned i = 0; i < e->shared_count; i++)
        memset(e->shared[i].base, HD_SIM_POISON, e->shared[i].size_bytes);
}

/* Without a sanitizer: fails if a thread stored next to a shared array. */
static void check_guards(const struct hd_sim_engine *e)
{
#ifndef WITH_ASAN
    static const struct hd_cudasim_shared_site dynamic = {"(dynamic)", "launch", 0};

    for (unsigned i = 0; i < e->shared_count; i++) {
        const struct hd_sim_shared *s = &e->shared[i];
        const struct hd_cudasim_shared_site *site = s->site ? s->site : &dynamic;

        for (int k = 0; k < GUARD_BYTES; k++)
            if (s->map[k] != GUARD || s->base[s->size_bytes + (size_t)k] != GUARD)
                hd_cudasim_fail((struct hd_cudasim_site){site->file, site->line},
                                "a thread of this block wrote outside the shared array %s of %zu "
                                "bytes; run with AddressSanitizer to find the thread",
                                site->name, s->size_bytes);
    }
#else
#endif
}

static void free_shared(struct hd_sim_engine *e)
{
    for (unsigned i = 0; i < e->shared_count; i++) {
#ifdef WITH_ASAN
        __asan_unpoison_memory_region(e->shared[i].map,
                                      (size_t)(e->shared[i].base - e->shared[i].map) +
                                          e->shared[i].size_bytes + 2 * (size_t)GUARD_BYTES);
#endif
        free(e->shared[i].map);
    }
    e->shared_count = 0;
}

/* ---- Blocks ---- */

static void report_deadlock(struct hd_sim_engine *e)
{
    const struct hd_sim_thread *stuck = NULL, *at_barrier = NULL, *alone = NULL;
    unsigned missing;

    for (unsigned i = 0; i < e->thread_count; i++) {
        const struct hd_sim_thread *t = &e->threads[i];

        if (t->state == HD_SIM_AT_WARP && !stuck)
            stuck = t;
        if (t->state == HD_SIM_AT_BARRIER && !at_barrier)
            at_barrier = t;
        if (hd_sim_async_waits(t) && (!alone || alone->state == HD_SIM_AT_GROUP_BARRIER))
            alone = t; /* at a barrier it waits for a thread that waits for something else */
    }
    if (alone) { /* what the others wait for, mostly */
        hd_cudasim_self = (struct hd_cudasim_thread *)&e->threads[alone->index].built_in;
        hd_sim_async_report(e, alone);
    }
    if (!stuck) /* cannot happen: a barrier that all live threads have reached is released */
        stuck = at_barrier;
    hd_cudasim_self = (struct hd_cudasim_thread *)&e->threads[stuck->index].built_in;
    missing = stuck->mask & e->warps[stuck->warp].live;
    for (unsigned lane = 0; lane < HD_CUDASIM_WARP; lane++) {
        const struct hd_sim_thread *t = &e->threads[stuck->warp * HD_CUDASIM_WARP + lane];

        if (missing >> lane & 1u && t->state == HD_SIM_AT_WARP && t->mask == stuck->mask)
            missing &= ~(1u << lane);
    }
    if (at_barrier)
        hd_cudasim_fail(stuck->site,
                        "deadlock: thread %u waits in %s with mask 0x%08x for lanes 0x%08x, which "
                        "never arrive; %u of %u threads wait at the barrier %s:%d",
                        stuck->index, hd_sim_op_name(stuck->op), stuck->mask, missing,
                        e->at_barrier, e->live, at_barrier->site.file, at_barrier->site.line);
    hd_cudasim_fail(
        stuck->site,
        "deadlock: thread %u waits in %s with mask 0x%08x for lanes 0x%08x, which never "
        "arrive",
        stuck->index, hd_sim_op_name(stuck->op), stuck->mask, missing);
}

/* Fills `order` with 0 .. count - 1 in the order that tests set. */
static void put_in_order(struct hd_sim_engine *e, unsigned *order, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        order[i] = e->schedule == HD_CUDASIM_REVERSE ? count - 1 - i : i;
    for (unsigned i = count; i > 1 && e->schedule == HD_CUDASIM_RANDOM; i--) {
        const unsigned j = (unsigned)(hd_sim_random(&e->random) % i), kept = order[i - 1];

        order[i - 1] = order[j];
        order[j] = kept;
    }
}

static void begin_block(struct hd_sim_engine *e, struct uint3 block, struct dim3 grid_dim,
                        struct dim3 block_dim)
{
    const unsigned n = e->thread_count;

    for (unsigned i = 0; i < HD_SIM_WARPS_MAX; i++)
        e->warps[i].live = e->warps[i].waiting = e->warps[i].wanted = 0;
    for (unsigned i = 0; i < n; i++) {
        struct hd_sim_thread *t = &e->threads[i];

        t->built_in = (struct hd_cudasim_thread){
            .thread = {i % block_dim.x, i / block_dim.x % block_dim.y,
                       i / (block_dim.x * block_dim.y)},
            .block = block,
            .block_dim = block_dim,
            .grid_dim = grid_dim,
        };
        t->state = HD_SIM_READY;
        t->index = i;
        t->lane = i % HD_CUDASIM_WARP;
        t->warp = i / HD_CUDASIM_WARP;
        t->copy_count = 0;
        t->group = 0;
        e->warps[t->warp].live |= 1u << t->lane;
        hd_fiber_prepare(&t->fiber, thread_main);
    }
    e->live = n;
    e->at_barrier = 0;
    poison_shared(e);
    hd_sim_async_begin(e);
    hd_sim_wgmma_begin(e);
}

/* Runs each ready lane of a warp once; returns true if one was ready. In random order some lanes
 * are skipped, so that others get ahead. */
static bool run_lanes(struct hd_sim_engine *e, unsigned warp)
{
    const unsigned first = warp * HD_CUDASIM_WARP, left = e->thread_count - first;
    const unsigned count = left < HD_CUDASIM_WARP ? left : (unsigned)HD_CUDASIM_WARP;
    unsigned order[HD_CUDASIM_WARP];
    bool found = false;

    put_in_order(e, order, count);
    for (unsigned i = 0; i < count; i++) {
        struct hd_sim_thread *t = &e->threads[first + order[i]];

        if (t->state != HD_SIM_READY)
            continue;
        found = true;
        if (e->schedule == HD_CUDASIM_RANDOM && hd_sim_random(&e->random) % 8 == 0)
            continue;
        e->running = t;
        hd_cudasim_self = &t->built_in;
        hd_fiber_switch(&e->home, &t->fiber);
    }
    return found;
}

/* A warp runs for as long as one of its lanes is ready, so that it gets as far ahead of other warps
 * as barriers allow; in random order the scheduler sometimes switches to another warp before. */
static void run_block(struct hd_sim_engine *e)
{
    const unsigned warps = (e->thread_count + HD_CUDASIM_WARP - 1) / HD_CUDASIM_WARP;
    unsigned order[HD_SIM_WARPS_MAX];

    while (e->live) {
        bool found = false;

        put_in_order(e, order, warps);
        for (unsigned i = 0; i < warps; i++)
            while (run_lanes(e, order[i])) {
                found = true;
                if (e->schedule == HD_CUDASIM_RANDOM && hd_sim_random(&e->random) % 4 == 0)
                    break;
            }
        if (!hd_sim_async_advance(e, !found) && !found)
            report_deadlock(e);
    }
    hd_sim_async_end(e);
    hd_sim_wgmma_end(e);
    e->running = NULL;
    check_guards(e);
    hd_cudasim_self = NULL;
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        const uint64_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

size_t hd_sim_run_grid(const char *kernel, struct dim3 grid, struct dim3 block, size_t shared_bytes,
                       size_t shared_limit, void (*run)(void *), void *context)
{
    const uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    const unsigned threads = block.x * block.y * block.z;
    struct hd_sim_engine *e = open_engine(threads);
    uint64_t step = 1, first = 0;
    size_t static_bytes = 0;

    e->kernel = kernel;
    e->run = run;
    e->context = context;
    e->thread_count = threads;
    e->schedule = order_now();
    e->random = atomic_load(&order_seed) + atomic_fetch_add(&launches, 1) * 0x632be59bd9b4e019u;
    if (e->schedule == HD_CUDASIM_RANDOM) { /* (first + i * step) % blocks visits each block once */
        first = hd_sim_random(&e->random) % blocks;
        do
            step = 1 + hd_sim_random(&e->random) % blocks;
        while (common_divisor(step, blocks) != 1);
    }
    e->shared_limit = shared_limit;
    (void)add_shared(e, NULL, shared_bytes);
    for (uint64_t i = 0; i < blocks; i++) {
        uint64_t at = e->schedule == HD_CUDASIM_REVERSE ? blocks - 1 - i : i;

        if (e->schedule == HD_CUDASIM_RANDOM)
            at = (uint64_t)(((unsigned __int128)i * step + first) % blocks);
        begin_block(e,
                    (struct uint3){(unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y),
                                   (unsigned)(at / grid.x / grid.y)},
                    grid, block);
        run_block(e);
    }
    for (int i = 0; e->has_constants && i < HD_SIM_CONSTANTS; i++)
        check_constant(&e->constants[i]);
    e->has_constants = false;
    for (unsigned i = 0; i < e->shared_count; i++)
        static_bytes += e->shared[i].site ? e->shared[i].size_bytes : 0;
    free_shared(e);
    e->kernel = NULL;
    return static_bytes;
}
