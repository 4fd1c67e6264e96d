#include "plan/search_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* ---- candidates ---- */

static const char *const recomputes[] = {"none", "selective", "full"};
enum { NO_RECOMPUTE, SELECTIVE, FULL, SEGMENTS, PINNED_RECOMPUTE };
/* gpipe keeps more than 1f1b, but waits less for what travels: F does not wait for B. */
static const char *const schedules[] = {"none", "1f1b", "interleaved", "zb-h1", "zb-v", "gpipe"};
enum { NO_SCHEDULE, ONE_F_ONE_B, INTERLEAVED, ZB_H1, ZB_V, GPIPE, PINNED_SCHEDULE };
static const char *const offloads[] = {"none", "optimizer"};
enum { NO_OFFLOAD, OFFLOAD_OPTIMIZER, OFFLOADS, PINNED_OFFLOAD = OFFLOADS };
enum { VIRTUAL_STAGES_MAX = 8 }; /* unless more are pinned */

static bool is_before(const struct candidate *a, const struct candidate *b)
{
    if (a->bound_s != b->bound_s)
        return a->bound_s < b->bound_s;
    if (a->decided != b->decided)
        return a->decided > b->decided; /* finish what is as good as anything */
    return a->habit < b->habit;
}

static void push(struct layout_search *s, const struct candidate *c)
{
    int64_t i = s->count;

    if (s->count == s->room) {
        const int64_t room = s->room ? 2 * s->room : 1024;
        struct candidate *heap = realloc(s->heap, (size_t)room * sizeof *heap);

        if (!heap) {
            s->st = hd_err(HD_NO_MEMORY, "no memory to search layouts");
            return;
        }
        s->heap = heap;
        s->room = room;
    }
    s->count++;
    while (i > 0 && is_before(c, &s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = *c;
}

static struct candidate pop(struct layout_search *s)
{
    const struct candidate first = s->heap[0], last = s->heap[--s->count];
    int64_t i = 0;

    for (int64_t child = 1; child < s->count; child = 2 * i + 1) {
        if (child + 1 < s->count && is_before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!is_before(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return first;
}

void search_note_refusal(struct layout_search *s, enum hd_status st)
{
    if (st == HD_NO_MEMORY)
        s->st = st;
    if (s->refused || !st)
        return;
    s->refused = st;
    (void)snprintf(s->why, sizeof s->why, "%s", hd_err_message());
}

/* ---- sizes ---- */

static void set_word(char word[HD_JOB_WORD_MAX], const char *text)
{
    (void)snprintf(word, HD_JOB_WORD_MAX, "%s", text);
}

/* A cut as parallel.stages has it. */
static void write_stages(const struct search_cut *cut, char ret_text[HD_JOB_WORD_MAX])
{
    const int32_t chunks = cut->even->shared.pipeline.chunks;
    int64_t layers[HD_PLAN_CHUNKS_MAX];

    for (int32_t c = 0; c < chunks; c++)
        layers[c] = cut->units[c].end - cut->units[c].first - (c == 0) - (c == chunks - 1);
    (void)hd_stages_write(layers, chunks, ret_text);
}

/* The request with what the candidate has decided; what the job pins is there already. */
static struct hd_plan_request request_of(const struct layout_search *s, const struct candidate *c)
{
    struct hd_plan_request r = *s->asked->request;

    r.sizes.pp = c->pp;
    r.sizes.tp = c->tp;
    r.sizes.cp = c->cp;
    r.sizes.ep = c->ep;
    r.sizes.micro_batch = c->micro_batch;
    if (c->recompute < SEGMENTS)
        set_word(r.sizes.recompute, recomputes[c->recompute]);
    if (c->recompute == SEGMENTS)
        (void)snprintf(r.sizes.recompute, sizeof r.sizes.recompute, "full:%d", (int)c->segment);
    if (c->decided >= DECIDED_SCHEDULE) {
        if (c->schedule < PINNED_SCHEDULE)
            set_word(r.sizes.schedule, schedules[c->schedule]);
        r.sizes.virtual_stages = c->virtual_stages;
    }
    if (c->own) /* never too long: there are few cuts of few chunks */
        write_stages(c->own, r.sizes.stages);
    if (c->decided >= DECIDED_VARIANT) {
        r.sizes.zero = c->zero;
        r.sizes.zero_shard = c->zero_shard;
        if (c->offload < OFFLOADS)
            set_word(r.sizes.offload, offloads[c->offload]);
    }
    return r;
}

/* The layout; false: it is not legal. A job that leaves sequence parallelism auto goes without it
 * where tp does not divide the rows. */
static bool size(const struct layout_search *s, const struct candidate *c,
                 struct hd_layout_sizes *sizes)
{
    struct hd_plan_request r = request_of(s, c);
    enum hd_plan_obstacle why = hd_plan_size(&r, s->asked->devices, sizes);

    if (why == HD_PLAN_SEQUENCE_ROWS && r.sizes.sequence < 0) {
        r.sizes.sequence = 0;
        why = hd_plan_size(&r, s->asked->devices, sizes);
    }
    if (why)
        return false;
    hd_plan_decide_device(sizes->device, s->asked->bf16_fast, s->asked->threads, sizes);
    return true;
}

struct hd_job search_job(const struct layout_search *s, const struct hd_layout_sizes *sizes)
{
    struct hd_job job = *s->asked->spec;

    job.layout = *sizes;
    return job;
}

/* ---- step 1: families ---- */

/* Simple layouts first: those without offload, then pp, tp, cp, recompute, large micro-batches,
 * then ZeRO and the schedule. */
static uint64_t habit_of(const struct candidate *c)
{
    return (uint64_t)(c->own || c->offload == OFFLOAD_OPTIMIZER) << 63 |
           ((((((((uint64_t)c->recompute << 10 | (uint64_t)(c->cp & 1023)) << 10) |
                (uint64_t)(c->pp & 1023))
               << 10) |
              (uint64_t)(c->tp & 1023))
             << 8) |
            (uint64_t)(255 - (c->micro_batch & 255)))
               << 6 |
           (uint64_t)(c->zero << 3) | (uint64_t)c->schedule;
}

static void try_family(struct layout_search *s, struct candidate *c)
{
    struct hd_layout_sizes sizes;

    c->decided = DECIDED_FAMILY;
    c->blocks = NULL;
    if (!size(s, c, &sizes))
        return;
    c->micro_batch = (int32_t)sizes.micro_batch;
    c->bound_s = search_ideal_seconds(s);
    c->habit = habit_of(c);
    s->found->families++;
    push(s, c);
}

static void try_recomputes(struct layout_search *s, struct candidate *c)
{
    int64_t segment;

    if (strcmp(s->asked->request->sizes.recompute, "auto") != 0) {
        (void)hd_recompute_read(s->asked->request->sizes.recompute, &segment);
        c->recompute = PINNED_RECOMPUTE;
        c->segment = (int16_t)segment;
        try_family(s, c);
        return;
    }
    for (c->recompute = 0; c->recompute < SEGMENTS; c->recompute++) {
        c->segment = c->recompute == FULL;
        try_family(s, c); /* full with segments follows from full: try_segments */
    }
}

static void try_micro_batches(struct layout_search *s, struct candidate *c)
{
    const struct hd_plan_request *r = s->asked->request;
    const int64_t dp = s->asked->devices / ((int64_t)c->pp * c->tp * c->cp);
    const int64_t share = r->global_batch / dp;

    if (r->sizes.micro_batch || r->sizes.order_micro_batches) {
        c->micro_batch = (int32_t)r->sizes.micro_batch;
        try_recomputes(s, c);
        return;
    }
    for (int64_t size = 1; size <= share && size <= HD_SEARCH_MICRO_BATCH_MAX; size++)
        if (share % size == 0) {
            c->micro_batch = (int32_t)size;
            try_recomputes(s, c);
        }
}

static void try_experts(struct layout_search *s, struct candidate *c)
{
    const struct hd_plan_request *r = s->asked->request;
    const int64_t ranks = s->asked->devices / ((int64_t)c->pp * c->tp);

    if (r->sizes.ep || !r->experts) {
        c->ep = (int32_t)r->sizes.ep;
        try_micro_batches(s, c);
        return;
    }
    for (int64_t ep = 1; ep <= r->experts; ep++)
        if (r->experts % ep == 0 && ranks % ep == 0) {
            c->ep = (int32_t)ep;
            try_micro_batches(s, c);
        }
}

/* Calls `each` with every divisor of what is left of the devices, from `least` to `most`, or with
 * what the job pins. */
static void try_axis(struct layout_search *s, struct candidate *c, int64_t pinned, int64_t least,
                     int64_t most, int32_t *axis,
                     void (*each)(struct layout_search *, struct candidate *))
{
    const int64_t left = s->asked->devices / ((int64_t)c->pp * c->tp * c->cp);

    for (int64_t n = pinned ? pinned : least; !s->st && n <= left && n <= most; n++) {
        if ((pinned && n != pinned) || left % n)
            continue;
        *axis = (int32_t)n;
        each(s, c);
    }
    *axis = 1;
}

static void try_cp(struct layout_search *s, struct candidate *c)
{
    const int64_t pinned = s->asked->request->sizes.cp;
    const int64_t most = s->asked->request->context / HD_PLAN_ROWS_MIN;

    try_axis(s, c, pinned, 1, pinned ? pinned : most > 1 ? most : 1, &c->cp, try_experts);
}

static void try_pp(struct layout_search *s, struct candidate *c)
{
    try_axis(s, c, s->asked->request->sizes.pp, s->pp_least, s->asked->request->layers + 2, &c->pp,
             try_cp);
}

/* What is pinned is priced all the same (hd_report_runs). */
static void try_tp(struct layout_search *s, struct candidate *c)
{
    if (s->asked->request->sizes.tp ||
        hd_cluster_keeps_tp(s->asked->cluster, s->asked->devices, c->tp))
        try_pp(s, c);
}

static void try_from(struct layout_search *s, int64_t pp_least)
{
    struct candidate c = {.pp = 1, .tp = 1, .cp = 1};

    s->pp_least = pp_least;
    try_axis(s, &c, s->asked->request->sizes.tp, 1, s->asked->request->heads, &c.tp, try_tp);
}

/* A schedule that is pinned stays: it orders several stages, and one stage has none. Only where no
 * layout has several, such as on one device, is one stage tried. */
static void try_all(struct layout_search *s)
{
    const bool named = strcmp(s->asked->request->sizes.schedule, "auto") != 0;

    if (named)
        try_from(s, 2);
    if (!s->count)
        try_from(s, 1);
}

/* A layout that is pinned, or the only one, is priced even if it does not fit. */
static bool may_reject(const struct layout_search *s)
{
    return s->asked->memory_bytes && s->found->families > 1;
}

/* The stage of ZeRO, and the place of the optimizer, that take least, of those that may be
 * searched.
 */
static void take_least_state(const struct layout_search *s, struct hd_layout_sizes *sizes)
{
    if (s->asked->request->sizes.zero < 0 && sizes->dp * sizes->cp > 1)
        sizes->zero = 3;
    if (search_may_offload(s) &&
        search_host_bytes(s, sizes) <= (double)s->asked->cluster->host_memory_bytes)
        set_word(sizes->offload, offloads[OFFLOAD_OPTIMIZER]);
}

bool search_may_offload(const struct layout_search *s)
{
    return strcmp(s->asked->request->sizes.offload, "auto") == 0 &&
           s->asked->cluster->traits.memory_bytes > 0 && s->asked->cluster->host_memory_bytes > 0;
}

/* All that the search would choose is pinned: the family is the only one, and has one variant. */
static bool is_pinned(const struct layout_search *s)
{
    return s->found->families == 1 && s->variants == 1;
}

/* What the family takes at least, before it is compiled: by its reference, without cp and ep and
 * with one sequence. What that keeps for backward is in proportion to its tokens. False: it is not
 * known, and the family may fit. */
static bool family_memory(struct layout_search *s, const struct candidate *c,
                          struct hd_layout_sizes sizes, struct hd_search_rejected *ret_least)
{
    struct candidate r = *c;
    struct hd_layout_sizes of = sizes;
    const struct hd_pieces *reference;

    if (!may_reject(s) || s->config.router.E)
        return false;
    r.cp = r.ep = r.micro_batch = of.cp = of.ep = of.micro_batch = 1;
    reference = search_blocks(s, &r, &of);
    if (!reference)
        return false;
    take_least_state(s, &sizes);
    *ret_least = search_family_memory(s, c, &sizes, reference);
    return true;
}

/* Of segments of all lengths, the one that needs least: what longer ones keep less, backward has
 * more of in work memory (segment_bytes). */
static void note_least_segment(struct layout_search *s, struct candidate *c,
                               struct hd_layout_sizes sizes, const struct candidate *plain,
                               struct hd_layout_sizes plain_sizes)
{
    const int64_t longest = c->segment, blocks = (s->config.L + c->pp - 1) / c->pp;
    struct hd_search_rejected whole, least, best = {0};
    int64_t of_block;

    if (!family_memory(s, plain, plain_sizes, &whole))
        return;
    of_block = (int64_t)(whole.activations * (double)whole.needed_bytes) / blocks;
    for (int64_t k = 2; k <= longest; k++) {
        c->segment = (int16_t)k;
        if (!size(s, c, &sizes) || !family_memory(s, c, sizes, &least))
            return;
        least.needed_bytes += ((k < blocks ? k : blocks) - 1) * of_block;
        if (!best.needed_bytes || least.needed_bytes < best.needed_bytes)
            best = least;
    }
    search_note_least(s, &best);
}

/* Full recompute of two blocks together, of three ..: families of their own, whose time is at least
 * that of single blocks, since backward makes the input of a block that continues a segment, too.
 * All have the same pieces, which are compiled if one of them may fit. The longest segments keep
 * least; the others that do not fit are too many to note. */
static void try_segments(struct layout_search *s, const struct candidate *of)
{
    const int64_t longest =
        s->config.L < HD_RECOMPUTE_UNITS_MAX ? s->config.L : HD_RECOMPUTE_UNITS_MAX;
    struct candidate c = *of, plain = *of;
    struct hd_search_rejected least;
    struct hd_layout_sizes sizes, plain_sizes;
    double bound;

    plain.recompute = NO_RECOMPUTE;
    plain.segment = 0;
    c.recompute = SEGMENTS;
    c.decided = DECIDED_BLOCKS;
    c.segment = (int16_t)longest;
    if (longest < 2 || !size(s, &c, &sizes) || !size(s, &plain, &plain_sizes))
        return;
    if (family_memory(s, &c, sizes, &least) && least.needed_bytes > s->asked->memory_bytes) {
        note_least_segment(s, &c, sizes, &plain, plain_sizes);
        return;
    }
    c.plain = search_blocks(s, &plain, &plain_sizes);
    c.blocks = search_blocks(s, &c, &sizes);
    if (!c.blocks)
        return;
    bound = search_blocks_bound(s, &c);
    c.bound_s = bound > c.bound_s ? bound : c.bound_s;
    for (int64_t k = 2; !s->st && k <= longest; k++) {
        c.segment = (int16_t)k;
        if (family_memory(s, &c, sizes, &least) && least.needed_bytes > s->asked->memory_bytes)
            continue;
        c.habit = habit_of(&c);
        push(s, &c);
    }
}

static void refine_family(struct layout_search *s, struct candidate *c)
{
    struct hd_search_rejected least;
    struct hd_layout_sizes sizes;
    double bound;

    if (!size(s, c, &sizes))
        return;
    if (family_memory(s, c, sizes, &least) && !search_could_fit(s, least)) {
        if (c->recompute == FULL) /* segments of several blocks keep less */
            try_segments(s, c);
        return;
    }
    c->blocks = search_blocks(s, c, &sizes);
    if (!c->blocks)
        return; /* cannot be laid out */
    c->decided = DECIDED_BLOCKS;
    bound = search_blocks_bound(s, c);
    c->bound_s = bound > c->bound_s ? bound : c->bound_s;
    push(s, c);
}

/* ---- steps 3 and 4: schedules, and stages of ZeRO ---- */

static void try_variant(struct layout_search *s, struct candidate *c)
{
    const struct hd_pieces *pieces;
    const struct ordered *ordered;
    struct hd_layout_sizes sizes;

    c->decided = DECIDED_VARIANT;
    if (!size(s, c, &sizes))
        return;
    s->variants += !c->own && c->offload != OFFLOAD_OPTIMIZER;
    ordered = search_ordered(s, c, &sizes);
    pieces = ordered ? search_pieces(s, c, &sizes, true) : NULL; /* as they were walked */
    if (!pieces || (s->asked->memory_bytes &&
                    !search_could_fit(s, search_least_memory(s, c, &sizes, ordered, pieces))))
        return;
    c->bound_s = search_variant_bound(s, c, &sizes);
    c->habit = habit_of(c);
    push(s, c);
}

/* The optimizer on the device and on its host, or where the job says. */
static void try_offloads(struct layout_search *s, struct candidate *c)
{
    const bool any = search_may_offload(s);

    for (int8_t offload = 0; offload < (any ? OFFLOADS : 1); offload++) {
        struct candidate one = *c;

        one.offload = any ? offload : PINNED_OFFLOAD;
        try_variant(s, &one);
    }
}

/* Every stage of ZeRO, shared by all replicas or by blocks of them. */
static void try_zeros(struct layout_search *s, const struct candidate *of)
{
    const struct hd_layout_sizes *wish = &s->asked->request->sizes;
    const int64_t ranks = s->asked->devices / ((int64_t)of->pp * of->tp);

    for (int8_t zero = 0; !s->st && zero <= 3; zero++) {
        struct candidate c = *of;

        c.zero = wish->zero >= 0 ? (int8_t)wish->zero : zero;
        c.zero_shard = (int32_t)wish->zero_shard;
        if (zero > 0 && (wish->zero >= 0 || ranks == 1))
            break; /* pinned; or a single replica, for which all stages are the same */
        try_offloads(s, &c);
        for (int64_t shard = 2; c.zero && !wish->zero_shard && shard < ranks; shard++)
            if (ranks % shard == 0) {
                struct candidate hybrid = *of;

                hybrid.zero = c.zero;
                hybrid.zero_shard = (int32_t)shard;
                try_offloads(s, &hybrid);
            }
    }
}

static void try_schedule(struct layout_search *s, const struct candidate *of, int8_t schedule,
                         int32_t virtual_stages)
{
    struct candidate c = *of;
    const struct ordered *ordered;
    struct hd_layout_sizes sizes;
    double bound;

    c.decided = DECIDED_SCHEDULE;
    c.schedule = schedule;
    c.virtual_stages = virtual_stages;
    if (!size(s, &c, &sizes))
        return;
    take_least_state(s, &sizes);
    ordered = search_ordered(s, &c, &sizes);
    if (!ordered)
        return;
    if (!c.own && search_has_cuts(s, ordered->shared.pipeline.chunks)) { /* also if the even cut
                                                                            does not fit */
        struct candidate cuts = c;

        cuts.decided = DECIDED_CUTS;
        cuts.habit = habit_of(&cuts);
        push(s, &cuts);
    }
    if (may_reject(s) &&
        !search_could_fit(s, search_least_memory(s, &c, &sizes, ordered, c.blocks)))
        return;
    bound = search_schedule_bound(s, &c, ordered);
    c.bound_s = bound > c.bound_s ? bound : c.bound_s;
    c.habit = habit_of(&c);
    push(s, &c);
}

/* One cut of those that a candidate stands for. */
static void try_cut(struct layout_search *s, const struct search_cut *cut, void *context)
{
    struct candidate c = *(const struct candidate *)context;

    c.own = cut;
    try_schedule(s, &c, c.schedule, c.virtual_stages);
}

static void refine_cuts(struct layout_search *s, const struct candidate *c)
{
    const struct ordered *even;
    struct hd_layout_sizes sizes;
    struct candidate of = *c;

    of.decided = DECIDED_SCHEDULE;
    if (!size(s, &of, &sizes))
        return;
    even = search_ordered(s, &of, &sizes);
    if (even)
        search_each_cut(s, even, try_cut, &of);
}

static void refine_blocks(struct layout_search *s, const struct candidate *c)
{
    const struct hd_layout_sizes *wish = &s->asked->request->sizes;
    const int32_t given = (int32_t)wish->virtual_stages;

    if (c->recompute == FULL)
        try_segments(s, c);
    if (strcmp(wish->schedule, "auto") != 0) {
        try_schedule(s, c, PINNED_SCHEDULE, given);
        return;
    }
    if (c->pp == 1) {
        try_schedule(s, c, NO_SCHEDULE, given);
        return;
    }
    if (given <= 1) {
        try_schedule(s, c, ONE_F_ONE_B, 1);
        try_schedule(s, c, ZB_H1, 1);
        try_schedule(s, c, GPIPE, 1);
    }
    if (given > 1)
        try_schedule(s, c, INTERLEAVED, given);
    for (int32_t v = 2; !given && v <= VIRTUAL_STAGES_MAX; v++)
        try_schedule(s, c, INTERLEAVED, v);
    if (!given || given == 2)
        try_schedule(s, c, ZB_V, 2);
}

/* Prices the candidate; alone: its programs, without replicas and ZeRO. False: it cannot be laid
 * out. */
static bool walk(struct layout_search *s, const struct candidate *c, bool alone,
                 struct hd_price *ret_price)
{
    const struct hd_pieces *pieces;
    const struct ordered *ordered;
    struct hd_layout_sizes sizes;
    struct hd_job job;
    enum hd_status st;

    if (!size(s, c, &sizes))
        return false;
    job = search_job(s, &sizes);
    ordered = search_ordered(s, c, &sizes);
    pieces = ordered ? search_pieces(s, c, &sizes, alone) : NULL;
    if (!pieces)
        return false;
    st = search_walk(s->asked, &s->model, &job, pieces, ordered, ret_price);
    search_note_refusal(s, st);
    return !st;
}

/* The walk of all programs, without update and sums of gradients, bounds every variant with this
 * schedule. */
static void refine_schedule(struct layout_search *s, struct candidate *c)
{
    struct hd_price p;

    if (!walk(s, c, true, &p))
        return;
    s->found->walked++;
    c->decided = DECIDED_WALKED;
    c->bound_s = p.programs_s > c->bound_s ? p.programs_s : c->bound_s;
    push(s, c);
}

static void refine_variant(struct layout_search *s, struct candidate *c)
{
    struct hd_price p;

    if (!walk(s, c, false, &p))
        return;
    s->found->priced++;
    c->decided = DECIDED_PRICED;
    c->bound_s = p.step_s;
    push(s, c);
}

/* ---- step 5: laid out ---- */

enum hd_status hd_search_price(const struct hd_search_asked *asked,
                               const struct hd_layout_sizes *sizes, struct hd_arena *arena,
                               struct hd_search_plan *ret_plan)
{
    struct hd_traits traits = asked->cluster->traits;
    const struct hd_plan_class *most = NULL;
    struct hd_model_config config;
    enum hd_status st;

    *ret_plan = (struct hd_search_plan){.job = *asked->spec};
    ret_plan->job.layout = *sizes;
    if (!hd_traits_is_cuda(&traits))
        traits.threads = (int)sizes->threads;
    st = hd_model_config_from_job(&ret_plan->job, &config);
    if (!st)
        st = search_price(asked, &config, &ret_plan->job, &ret_plan->price);
    if (!st)
        st = hd_plan_build(&ret_plan->job, &traits, arena, &ret_plan->plan);
    if (st)
        return st;
    ret_plan->needed_bytes = search_needed(&ret_plan->plan, &traits, &most);
    ret_plan->fits = !asked->memory_bytes || ret_plan->needed_bytes <= asked->memory_bytes;
    return HD_OK;
}

static void lay_out(struct layout_search *s, const struct candidate *c)
{
    struct hd_search_plan *p = &s->found->plans[s->found->plan_count];
    struct hd_layout_sizes sizes;
    enum hd_status st;

    if (!size(s, c, &sizes))
        return;
    st = hd_search_price(s->asked, &sizes, s->arena, p);
    s->found->laid_out++;
    search_note_refusal(s, st);
    if (st || (c->offload == OFFLOAD_OPTIMIZER && !search_host_fits(s->asked->cluster, &p->plan)))
        return;
    if (p->fits)
        s->found->plan_count++;
    else
        search_reject_plan(s, p);
}

/* ---- the search ---- */

static void refine(struct layout_search *s, struct candidate *c)
{
    switch (c->decided) {
    case DECIDED_FAMILY:
        refine_family(s, c);
        break;
    case DECIDED_BLOCKS:
        refine_blocks(s, c);
        break;
    case DECIDED_CUTS:
        refine_cuts(s, c);
        break;
    case DECIDED_SCHEDULE:
        refine_schedule(s, c);
        break;
    case DECIDED_WALKED:
        try_zeros(s, c);
        break;
    case DECIDED_VARIANT:
        refine_variant(s, c);
        break;
    default:
        lay_out(s, c);
    }
}

/* Those that do not train, of each unit. */
static void count_frozen(struct layout_search *s, const struct hd_registry *r, int head)
{
    for (int u = 0; u < r->unit_count; u++) {
        const struct hd_unit *unit = &r->units[u];
        int64_t count = 0, experts = 0;

        for (int i = unit->first_param; i < unit->first_param + unit->param_count; i++)
            if (!r->params[i].trainable)
                *(r->params[i].experts ? &experts : &count) += r->params[i].count;
        if (u == HD_UNIT_EMBEDDING)
            s->first_frozen = count;
        else if (u == head)
            s->last_frozen = count;
        else {
            const bool first = u == HD_UNIT_FIRST_BLOCK;

            s->block_frozen = first || count < s->block_frozen ? count : s->block_frozen;
            s->experts_frozen = first || experts < s->experts_frozen ? experts : s->experts_frozen;
        }
    }
}

/* Parameters of a block and of both ends, whole; if a part of them trains, those that do not. */
static enum hd_status count_parameters(struct layout_search *s)
{
    struct hd_registry registry;
    struct hd_arena arena;
    struct hd_model model;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    hd_registry_init(&registry, &arena, NULL, 0);
    st = hd_model_declare(&s->config, &registry, &arena, &model);
    for (int i = 0; !st && i < registry.param_count; i++)
        s->tuned |= !registry.params[i].trainable;
    s->differ =
        s->tuned && (s->config.adapter.kind == HD_ADAPTER_NONE ||
                     *s->asked->spec->adapter_also); /* an adapter alone is in every block */
    for (int i = 0; !st && !s->tuned && i < registry.param_count; i++) {
        const struct hd_param *p = &registry.params[i];

        if (p->unit == HD_UNIT_FIRST_BLOCK && !p->wide) /* a router computes in fp32 */
            *(p->experts ? &s->block_experts : &s->block_parameters) += p->count;
        if (p->unit == HD_UNIT_EMBEDDING)
            s->first_parameters += p->count;
        if (p->unit == model.unit_head)
            s->last_parameters += p->count;
    }
    if (!st && s->tuned)
        count_frozen(s, &registry, model.unit_head);
    hd_arena_done(&arena);
    return st;
}

static enum hd_status begin(struct layout_search *s)
{
    struct hd_job job = *s->asked->spec;
    struct hd_layout_sizes sizes;
    enum hd_status st = hd_plan_decide(s->asked->request, s->asked->devices, &sizes);

    if (st) { /* not with the defaults of auto, but perhaps with other values */
        sizes = s->asked->request->sizes;
        sizes.tp = sizes.tp ? sizes.tp : 1;
    }
    hd_plan_decide_device(sizes.device, s->asked->bf16_fast, s->asked->threads, &sizes);
    job.layout = sizes;
    st = hd_model_config_from_job(&job, &s->config);
    if (!st)
        st = count_parameters(s);
    if (!st)
        st = search_model_of(&s->config, &s->kept, &s->model);
    s->found->plans = hd_arena_array(s->arena, (size_t)s->asked->top + 1, sizeof *s->found->plans);
    if (!st && hd_arena_failed(s->arena))
        st = hd_err(HD_NO_MEMORY, "no memory to search layouts");
    return st;
}

enum hd_status hd_search_layouts(const struct hd_search_asked *asked, struct hd_arena *arena,
                                 struct hd_search *ret_search)
{
    struct layout_search s = {.asked = asked, .arena = arena, .found = ret_search};
    struct hd_layout_sizes sizes;

    *ret_search = (struct hd_search){0};
    hd_arena_init(&s.kept, 0);
    s.st = begin(&s);
    if (!s.st)
        try_all(&s);
    if (!s.st && !s.count) /* says why */
        s.st = hd_plan_decide(asked->request, asked->devices, &sizes);
    while (!s.st && s.count && ret_search->plan_count < asked->top) {
        struct candidate c;

        if (asked->deadline_ns && hd_clock_now_ns() >= asked->deadline_ns)
            break;
        if (asked->tell)
            asked->tell(asked->about, ret_search);
        c = pop(&s);
        refine(&s, &c);
    }
    if (!s.st && s.count && !ret_search->plan_count)
        s.st = hd_err(HD_TIMEOUT,
                      "the search among the layouts of %d devices was ended at its "
                      "deadline, before it found one that fits",
                      asked->devices);
    if (!s.st && !ret_search->plan_count)
        search_find_least(&s);
    if (!s.st && !ret_search->plan_count && is_pinned(&s) && ret_search->least.needed_bytes) {
        s.st = hd_search_price(asked, &ret_search->least.sizes, arena, &ret_search->plans[0]);
        ret_search->plan_count = !s.st;
    }
    if (!s.st && !ret_search->plan_count && !ret_search->least.needed_bytes && s.refused)
        s.st = hd_err(s.refused, "%s", s.why);
    free(s.heap);
    hd_arena_done(&s.kept);
    return s.st;
}
