#include "plan/search.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

/* ---- candidates ---- */

enum decided { /* what a candidate's bound is of */
               RANK_FAMILY,
               RANK_BLOCKS,
               RANK_SCHEDULE, /* has a schedule; the bound is of its blocks */
               RANK_WALKED,   /* its programs were walked, without ZeRO */
               RANK_VARIANT,  /* has a stage of ZeRO, too */
               RANK_PRICED
};

/* A layout, as far as the search has decided it. Small: there may be a million. */
struct candidate {
    double bound_s;
    int32_t pp, tp, cp, ep, micro_batch;
    int32_t virtual_stages, zero_shard; /* of a variant; 0: auto */
    int8_t recompute, schedule, zero;   /* indices into the lists below */
    int8_t rank;
    const struct hd_pieces *blocks; /* RANK_BLOCKS and later */
    uint64_t habit;                 /* of equal bounds the smaller one is first */
};

static const char *const recomputes[] = {"none", "selective", "full"};
/* gpipe is as fast as 1f1b and keeps more, so it is never searched, only pinned */
static const char *const schedules[] = {"none", "1f1b", "interleaved", "zb-h1", "zb-v"};
enum { NO_SCHEDULE, ONE_F_ONE_B, INTERLEAVED, ZB_H1, ZB_V, PINNED_SCHEDULE };
enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, PINNED_RECOMPUTE };
enum { VIRTUAL_STAGES_MAX = 8 };
/* Of what a layout of one sequence keeps per token, at least this share is kept by all others. */
static const double kept_share = 0.9;

/* What was compiled, or ordered, for one candidate serves all others that agree in these numbers.
 */
enum { KEY_NUMBERS = 10, MEMO_SLOTS = 1 << 16 };
struct memo {
    struct memo_entry {
        int32_t key[KEY_NUMBERS];
        void *value; /* NULL: it cannot be laid out */
        bool known;
    } * slots; /* [MEMO_SLOTS] */
    int count;
};

/* The cut of the model, and the orders of a step; of many micro-batches those of two shorter steps
 * (walk_steps). */
struct ordered {
    struct hd_layout_shared shared, shorter;
    double repeats; /* of what the longer of the two has more; 0: `shared` is the whole step */
};

struct layout_search {
    const struct hd_search_asked *asked;
    struct hd_arena *arena; /* of the result */
    struct hd_arena kept;   /* of memos */
    struct hd_model_config config;
    struct candidate *heap;
    int64_t count, room;
    struct memo blocks, pieces, orders;
    int64_t block_parameters; /* of one block, whole */
    int64_t variants;         /* legal layouts that step 3 has seen */
    struct hd_search *found;
    enum hd_status st;
    enum hd_status refused; /* why a candidate could not be laid out; the first */
    char why[HD_ERR_MAX];
};

/* Keeps the story of a layout that cannot be laid out, in case none can. */
static void note_refusal(struct layout_search *s, enum hd_status st)
{
    if (st == HD_NO_MEMORY)
        s->st = st;
    if (s->refused || !st)
        return;
    s->refused = st;
    (void)snprintf(s->why, sizeof s->why, "%s", hd_err_message());
}

/* The entry of a key; known: it was looked up before. NULL: no memory, or the table is full. */
static struct memo_entry *look_up(struct layout_search *s, struct memo *m,
                                  const int32_t key[KEY_NUMBERS])
{
    const size_t bytes = KEY_NUMBERS * sizeof *key;
    uint64_t at = hd_hash_bytes(key, bytes) % MEMO_SLOTS;

    if (!m->slots)
        m->slots = hd_arena_array(&s->kept, MEMO_SLOTS, sizeof *m->slots);
    if (!m->slots || m->count == MEMO_SLOTS / 2) {
        s->st = hd_err(HD_NO_MEMORY, "no memory to search layouts; pin some of them");
        return NULL;
    }
    while (m->slots[at].known && memcmp(m->slots[at].key, key, bytes) != 0)
        at = (at + 1) % MEMO_SLOTS;
    return &m->slots[at];
}

/* Notes what was found for the key of an entry that was not known. */
static void note(struct memo *m, struct memo_entry *e, const int32_t key[KEY_NUMBERS], void *value)
{
    memcpy(e->key, key, sizeof e->key);
    e->known = true;
    e->value = value;
    m->count++;
}

static bool is_before(const struct candidate *a, const struct candidate *b)
{
    if (a->bound_s != b->bound_s)
        return a->bound_s < b->bound_s;
    if (a->rank != b->rank)
        return a->rank > b->rank; /* finish what is as good as anything */
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

/* ---- sizes ---- */

static void set_word(char word[HD_JOB_WORD_MAX], const char *text)
{
    (void)snprintf(word, HD_JOB_WORD_MAX, "%s", text);
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
    if (c->recompute < PINNED_RECOMPUTE)
        set_word(r.sizes.recompute, recomputes[c->recompute]);
    if (c->rank >= RANK_SCHEDULE) {
        if (c->schedule < PINNED_SCHEDULE)
            set_word(r.sizes.schedule, schedules[c->schedule]);
        r.sizes.virtual_stages = c->virtual_stages;
    }
    if (c->rank >= RANK_VARIANT) {
        r.sizes.zero = c->zero;
        r.sizes.zero_shard = c->zero_shard;
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

static struct hd_job job_of(const struct layout_search *s, const struct hd_layout_sizes *sizes)
{
    struct hd_job job = *s->asked->spec;

    job.layout = *sizes;
    return job;
}

/* ---- step 1: families ---- */

/* The rate at which any product runs at best. */
static double best_rate(const struct layout_search *s)
{
    const struct hd_rates *r = &s->asked->cluster->rates;

    const double half = r->half_flops > r->single_flops ? r->half_flops : r->single_flops;

    return r->fp8_flops > half ? r->fp8_flops : half;
}

static double tokens(const struct layout_search *s)
{
    return (double)s->asked->spec->global_batch * (double)s->asked->spec->context;
}

static double ideal_seconds(const struct layout_search *s)
{
    return hd_model_flops_per_token(&s->config) * tokens(s) / (s->asked->devices * best_rate(s));
}

/* Simple layouts first: pp, tp, cp, recompute, large micro-batches, then ZeRO and the schedule. */
static uint64_t habit_of(const struct candidate *c)
{
    return ((((((((uint64_t)c->recompute << 10 | (uint64_t)(c->cp & 1023)) << 10) |
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

    c->rank = RANK_FAMILY;
    c->blocks = NULL;
    if (!size(s, c, &sizes))
        return;
    c->micro_batch = (int32_t)sizes.micro_batch;
    c->bound_s = ideal_seconds(s);
    c->habit = habit_of(c);
    s->found->families++;
    push(s, c);
}

static void try_recomputes(struct layout_search *s, struct candidate *c)
{
    if (strcmp(s->asked->request->sizes.recompute, "auto") != 0) {
        c->recompute = PINNED_RECOMPUTE;
        try_family(s, c);
        return;
    }
    for (c->recompute = 0; c->recompute < PINNED_RECOMPUTE; c->recompute++)
        try_family(s, c);
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

/* Calls `each` with every divisor of what is left of the devices, or with what the job pins. */
static void try_axis(struct layout_search *s, struct candidate *c, int64_t pinned, int64_t most,
                     int32_t *axis, void (*each)(struct layout_search *, struct candidate *))
{
    const int64_t left = s->asked->devices / ((int64_t)c->pp * c->tp * c->cp);

    for (int64_t n = 1; !s->st && n <= left && n <= most; n++) {
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
    const int64_t most = s->asked->request->context / HD_SEARCH_ROWS_MIN;

    try_axis(s, c, pinned, pinned ? pinned : most > 1 ? most : 1, &c->cp, try_experts);
}

static void try_pp(struct layout_search *s, struct candidate *c)
{
    try_axis(s, c, s->asked->request->sizes.pp, s->asked->request->layers + 2, &c->pp, try_cp);
}

static void try_all(struct layout_search *s)
{
    struct candidate c = {.pp = 1, .tp = 1, .cp = 1};

    try_axis(s, &c, s->asked->request->sizes.tp, s->asked->request->heads, &c.tp, try_pp);
}

/* ---- step 2: blocks ---- */

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to;
}

/* Seconds of F, B and W of a block in one micro-batch. */
static double block_seconds(const struct hd_pieces *p)
{
    double plain = 0, windowed = 0;

    for (int call = 0; call < HD_PIECE_CALLS; call++) {
        plain += p->piece[HD_PIECE_BLOCK].time[call][0].run;
        windowed += p->windowed.time[call][0].run;
    }
    return p->has_windowed && windowed < plain ? windowed : plain;
}

static double forward_seconds(const struct hd_pieces *p)
{
    const double plain = p->piece[HD_PIECE_BLOCK].time[HD_PIECE_F][0].run,
                 windowed = p->windowed.time[HD_PIECE_F][0].run;

    return p->has_windowed && windowed < plain ? windowed : plain;
}

/* A step runs at least all micro-batches on the stage with the most blocks; its last stage begins
 * when the first micro-batch has come through the others, and in schedules without W apart its
 * gradients must go back through them. */
static double bound_of(const struct layout_search *s, const struct hd_pieces *p,
                       const struct candidate *c)
{
    const int64_t L = s->config.L;
    const int64_t dp = s->asked->devices / ((int64_t)c->pp * c->tp * c->cp);
    const double M = (double)(s->asked->spec->global_batch / (dp * c->micro_batch));
    const double each = block_seconds(p), there = forward_seconds(p);
    const double most = (double)round_up(L, c->pp), others = (double)L - most;
    double bound = M * most * each;

    if (c->rank < RANK_SCHEDULE || c->schedule == ZB_V || others <= 0)
        return bound;
    if (c->schedule == ONE_F_ONE_B)
        return bound + others * each;
    if (c->schedule == INTERLEAVED)
        return bound + others * each / c->virtual_stages;
    return c->schedule == ZB_H1 ? bound + others * there : bound;
}

/* ---- memory, at least ---- */

/* Bytes of a device per parameter of a rank's share, if `shards` ranks share what ZeRO names
 * (registry.h). */
static double state_bytes(const struct layout_search *s, const struct hd_layout_sizes *z,
                          double shards)
{
    const bool wide = strcmp(z->precision, "fp32") == 0;
    const bool away =
        strcmp(z->offload, "optimizer") == 0 && s->asked->cluster->traits.memory_bytes;
    const double moments = away ? 0 : strcmp(s->asked->spec->moments, "8bit") == 0 ? 2 : 8;
    const double master = wide || !away ? 4 : 0, copy = wide ? 0 : 2, gradient = 4;

    switch (z->zero) {
    case 1:
        return gradient + (wide ? master : copy) + (moments + (wide ? 0 : master)) / shards;
    case 2:
        return (wide ? master : copy) + (gradient + moments + (wide ? 0 : master)) / shards;
    case 3:
        return (master + copy + gradient + moments) / shards;
    default:
        return master + copy + gradient + moments;
    }
}

/* (chunk, micro-batch) that a stage keeps at most, in chunks (pipeline.h), by the stage. */
static double kept_chunks(const struct candidate *c, int64_t M, int32_t stage)
{
    const int64_t P = c->pp, V = c->virtual_stages;
    int64_t most = P - stage;

    if (c->schedule == INTERLEAVED)
        most = 2 * (P - 1 - stage) + (V - 1) * P + 1;
    else if (c->schedule == ZB_H1)
        most = P - stage; /* at least as many as 1f1b */
    else if (c->schedule == ZB_V)
        most = P; /* at least half of 2 P */
    else if (c->schedule == PINNED_SCHEDULE)
        most = 1;
    if (c->schedule == INTERLEAVED && most > V * M)
        most = V * M;
    else if (c->schedule != INTERLEAVED && most > M)
        most = M;
    return (double)most;
}

/* Bytes that the rank of stage 0 takes at least. */
static struct hd_search_rejected least_memory(const struct layout_search *s,
                                              const struct candidate *c,
                                              const struct hd_layout_sizes *z)
{
    const struct hd_pieces *p = c->blocks;
    const struct hd_piece *block = &p->piece[HD_PIECE_BLOCK];
    const double replicas = (double)(z->dp * z->cp);
    const double shards = z->zero_shard ? (double)z->zero_shard : replicas;
    const double layers = (double)s->config.L / (double)z->pp; /* some stage has as many */
    const double split = (double)z->tp * (s->config.router.E ? (double)z->ep : 1);
    const double parameters = layers * (double)s->block_parameters / split;
    const int64_t M = hd_layout_micro_batches(z, s->asked->spec->global_batch);
    const double per_chunk = layers / (double)(z->virtual_stages ? z->virtual_stages : 1);
    const double window = p->has_windowed && p->windowed.kept_bytes < block->kept_bytes ? 0 : 1;
    const double kept = kept_chunks(c, M, 0) * per_chunk * (double)block->kept_bytes * window;
    const double state = parameters * state_bytes(s, z, shards);
    const double all = state + kept + (double)s->asked->cluster->traits.process_bytes;

    return (struct hd_search_rejected){
        .sizes = *z, .step_s = c->bound_s, .needed_bytes = (int64_t)all, .activations = kept / all};
}

/* Notes a layout that does not fit; they come in the order of their bounds. */
static void reject(struct layout_search *s, const struct hd_search_rejected *r)
{
    struct hd_search *f = s->found;

    if (f->rejected_count < HD_SEARCH_REJECTED_MAX && !f->plan_count)
        f->rejected[f->rejected_count++] = *r;
    if (!f->least.needed_bytes || r->needed_bytes < f->least.needed_bytes)
        f->least = *r;
}

static bool could_fit(struct layout_search *s, const struct candidate *c,
                      const struct hd_layout_sizes *sizes)
{
    struct hd_search_rejected least;

    if (!s->asked->memory_bytes)
        return true;
    least = least_memory(s, c, sizes);
    if (least.needed_bytes <= s->asked->memory_bytes)
        return true;
    reject(s, &least);
    return false;
}

/* ---- step 2 ---- */

/* The pieces of this job; NULL: it cannot be laid out, or there is no memory. */
static struct hd_pieces *build_pieces(struct layout_search *s, const struct hd_job *job,
                                      bool blocks_only)
{
    struct hd_pieces *pieces = hd_arena_alloc(&s->kept, sizeof *pieces);
    const enum hd_status st = pieces ? hd_pieces_build(job, s->asked->cluster, blocks_only, pieces)
                                     : hd_err(HD_NO_MEMORY, "no memory to search layouts");

    note_refusal(s, st);
    return st ? NULL : pieces;
}

/* The job with as few replicas as its experts need, and without ZeRO: programs depend on neither.
 */
static struct hd_job without_replicas(const struct hd_job *job)
{
    struct hd_job alone = *job;

    alone.dp = job->ep > job->cp ? job->ep / job->cp : 1;
    if (alone.dp * alone.cp % alone.ep)
        alone.dp = alone.ep;
    alone.zero = 0;
    alone.zero_shard = 0;
    return alone;
}

/* The blocks of a family, without ZeRO. They depend neither on the stages nor on the replicas. */
static const struct hd_pieces *blocks_of(struct layout_search *s, const struct candidate *c,
                                         const struct hd_layout_sizes *sizes)
{
    const int32_t key[KEY_NUMBERS] = {c->tp, c->cp, c->ep, c->micro_batch, c->recompute};
    struct memo_entry *e = look_up(s, &s->blocks, key);
    struct hd_job job = job_of(s, sizes);

    if (!e || e->known)
        return e ? e->value : NULL;
    job = without_replicas(&job);
    job.pp = 1;
    (void)snprintf(job.stages, sizeof job.stages, "auto");
    s->found->blocks++;
    note(&s->blocks, e, key, build_pieces(s, &job, true));
    return e->value;
}

/* The blocks of the family's reference: without cp and ep, with one sequence. What it keeps for
 * backward is proportional to its tokens, so it bounds what the family keeps. */
static const struct hd_pieces *reference_of(struct layout_search *s, const struct candidate *c,
                                            const struct hd_layout_sizes *sizes)
{
    struct candidate r = *c;
    struct hd_layout_sizes of = *sizes;

    r.cp = r.ep = r.micro_batch = of.cp = of.ep = of.micro_batch = 1;
    return blocks_of(s, &r, &of);
}

/* All that the search would choose is pinned: the family is the only one, and has one variant. */
static bool is_pinned(const struct layout_search *s)
{
    return s->found->families == 1 && s->variants == 1;
}

/* Whether the family could fit with the best ZeRO and any schedule, as far as is known before it is
 * compiled. */
static bool family_could_fit(struct layout_search *s, const struct candidate *c,
                             const struct hd_layout_sizes *sizes)
{
    const bool searched = strcmp(s->asked->request->sizes.schedule, "auto") == 0;
    struct candidate least = *c;
    struct hd_layout_sizes z = *sizes;
    struct hd_pieces scaled;
    const struct hd_pieces *reference;

    if (!s->asked->memory_bytes || s->config.router.E || s->found->families == 1)
        return true;
    reference = reference_of(s, c, sizes);
    if (!reference || s->st)
        return true;
    scaled = *reference;
    scaled.piece[HD_PIECE_BLOCK].kept_bytes =
        (int64_t)(kept_share * (double)reference->piece[HD_PIECE_BLOCK].kept_bytes *
                  c->micro_batch / c->cp);
    least.blocks = &scaled;
    least.schedule = c->pp == 1 ? NO_SCHEDULE : searched ? ZB_V : PINNED_SCHEDULE;
    least.virtual_stages = c->pp > 1 && searched ? 2 : 1;
    if (s->asked->request->sizes.zero < 0 && z.dp * z.cp > 1)
        z.zero = 3;
    z.virtual_stages = least.virtual_stages;
    return could_fit(s, &least, &z);
}

static void refine_family(struct layout_search *s, struct candidate *c)
{
    struct hd_layout_sizes sizes;
    double bound;

    if (!size(s, c, &sizes) || !family_could_fit(s, c, &sizes))
        return;
    c->blocks = blocks_of(s, c, &sizes);
    if (!c->blocks)
        return; /* cannot be laid out */
    c->rank = RANK_BLOCKS;
    bound = bound_of(s, c->blocks, c);
    c->bound_s = bound > c->bound_s ? bound : c->bound_s;
    push(s, c);
}

/* ---- step 3: variants ---- */

/* An update reads gradient, master and moments, and writes master and moments: at least so many
 * bytes per parameter, whatever their encodings. */
enum { UPDATE_BYTES = 16 };
/* What stage 3 adds up from pieces may be this share of the programs without ZeRO (price_test). */
static const double gathered_share = 0.97;

/* Seconds of a step of the variant, at least. */
static double variant_bound(const struct layout_search *s, const struct candidate *c,
                            const struct hd_layout_sizes *z)
{
    const double ranks = (double)(z->dp * z->cp);
    const double shards = !z->zero ? 1 : z->zero_shard ? (double)z->zero_shard : ranks;
    const bool away = strcmp(z->offload, "optimizer") == 0;
    const double split = (double)z->tp * (s->config.router.E ? (double)z->ep * ranks : 1);
    const double parameters =
        (double)s->config.L / (double)z->pp * (double)s->block_parameters / split / shards;
    const double update =
        away ? 0 : parameters * UPDATE_BYTES / s->asked->cluster->rates.memory_bytes_per_s;

    return c->bound_s * (z->zero == 3 ? gathered_share : 1) + update;
}

static void try_variant(struct layout_search *s, struct candidate *c)
{
    struct hd_layout_sizes sizes;

    c->rank = RANK_VARIANT;
    if (!size(s, c, &sizes))
        return;
    s->variants++;
    if (!could_fit(s, c, &sizes))
        return;
    c->bound_s = variant_bound(s, c, &sizes);
    c->habit = habit_of(c);
    push(s, c);
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
            break; /* pinned, or shared with nobody: the same as 0 */
        try_variant(s, &c);
        for (int64_t shard = 2; c.zero && !wish->zero_shard && shard < ranks; shard++)
            if (ranks % shard == 0) {
                struct candidate hybrid = *of;

                hybrid.zero = c.zero;
                hybrid.zero_shard = (int32_t)shard;
                try_variant(s, &hybrid);
            }
    }
}

static void try_schedule(struct layout_search *s, const struct candidate *of, int8_t schedule,
                         int32_t virtual_stages)
{
    struct candidate c = *of;
    struct hd_layout_sizes sizes;
    double bound;

    c.rank = RANK_SCHEDULE;
    c.schedule = schedule;
    c.virtual_stages = virtual_stages;
    if (!size(s, &c, &sizes))
        return;
    if (s->asked->request->sizes.zero < 0 && sizes.dp * sizes.cp > 1)
        sizes.zero = 3; /* takes least */
    if (s->found->families > 1 && !could_fit(s, &c, &sizes))
        return;
    bound = bound_of(s, c.blocks, &c);
    c.bound_s = bound > c.bound_s ? bound : c.bound_s;
    c.habit = habit_of(&c);
    push(s, &c);
}

static void refine_blocks(struct layout_search *s, const struct candidate *c)
{
    const struct hd_layout_sizes *wish = &s->asked->request->sizes;
    const int32_t given = (int32_t)wish->virtual_stages;

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
    }
    for (int32_t v = 2; v <= VIRTUAL_STAGES_MAX; v++)
        if (!given || given == v)
            try_schedule(s, c, INTERLEAVED, v);
    if (!given || given == 2)
        try_schedule(s, c, ZB_V, 2);
}

/* ---- pricing ---- */

/* Micro-batches beyond this many per stage repeat what came before (walk_steps). */
enum { WALKED_PER_STAGE = 5 };

static enum hd_status order_of(const struct hd_job *job, int64_t micro_batches,
                               struct hd_arena *arena, struct hd_layout_shared *ret_shared)
{
    struct hd_job some = *job;

    some.global_batch = job->dp * job->micro_batch * micro_batches;
    some.validate_batches = 1; /* the order of a validation is not needed */
    return hd_layout_order(&some, arena, ret_shared);
}

/* Orders a step. Schedules are periodic once the pipeline is full: P more micro-batches take the
 * same time again. So a step of many is priced by two of fewer, M' and M' - P, which leave the same
 * remainder. An order from a file is walked whole. */
static enum hd_status order_step(const struct hd_job *job, struct hd_arena *arena,
                                 struct ordered *ret_ordered)
{
    const int64_t M = job->global_batch / (job->dp * job->micro_batch), P = job->pp;
    int64_t walked = M;
    enum hd_status st;

    if (!job->schedule_order && M > (WALKED_PER_STAGE + 1) * P)
        walked = WALKED_PER_STAGE * P + M % P;
    st = order_of(job, walked, arena, &ret_ordered->shared);
    if (!st && walked < M)
        st = order_of(job, walked - P, arena, &ret_ordered->shorter);
    ret_ordered->repeats = (double)(M - walked) / (double)P;
    return st;
}

static enum hd_status walk_one(const struct hd_search_asked *asked,
                               const struct hd_model_config *config, const struct hd_job *job,
                               const struct hd_pieces *pieces,
                               const struct hd_layout_shared *shared, struct hd_price *ret_price)
{
    const struct hd_price_layout layout = {.pipeline = shared->pipeline,
                                           .units = shared->units,
                                           .order = &shared->order,
                                           .config = config,
                                           .ranks_per_stage = job->dp * job->cp * job->tp};
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_price_step(pieces, &layout, asked->cluster, &arena, ret_price);
    hd_arena_done(&arena);
    return st;
}

/* ret_price: the whole step. */
static enum hd_status walk_steps(const struct hd_search_asked *asked,
                                 const struct hd_model_config *config, const struct hd_job *job,
                                 const struct hd_pieces *pieces, const struct ordered *o,
                                 struct hd_price *ret_price)
{
    struct hd_price shorter, more;
    enum hd_status st = walk_one(asked, config, job, pieces, &o->shared, ret_price);

    if (!st && o->repeats > 0) {
        st = walk_one(asked, config, job, pieces, &o->shorter, &shorter);
        more = *ret_price;
        hd_price_add(&more, -1, &shorter);
        hd_price_add(ret_price, o->repeats, &more);
    }
    if (!st)
        hd_price_rate(ret_price, config, asked->spec, asked->devices, asked->peak_flops);
    return st;
}

/* The pieces of a variant: schedules differ only in whether W is apart, and whether there are
 * stages. */
static const struct hd_pieces *pieces_of(struct layout_search *s, const struct candidate *c,
                                         const struct hd_job *job)
{
    const int32_t key[KEY_NUMBERS] = {c->tp,
                                      c->cp,
                                      c->ep,
                                      c->micro_batch,
                                      c->recompute,
                                      (int32_t)job->dp,
                                      (int32_t)job->zero,
                                      (int32_t)job->zero_shard,
                                      c->pp > 1,
                                      c->schedule == PINNED_SCHEDULE || c->schedule == ZB_H1 ||
                                          c->schedule == ZB_V};
    struct memo_entry *e = look_up(s, &s->pieces, key);

    if (e && !e->known)
        note(&s->pieces, e, key, build_pieces(s, job, false));
    return e ? e->value : NULL;
}

static const struct ordered *ordered_of(struct layout_search *s, const struct candidate *c,
                                        const struct hd_job *job)
{
    const int32_t key[KEY_NUMBERS] = {c->pp, c->schedule, c->virtual_stages,
                                      (int32_t)(job->global_batch / (job->dp * job->micro_batch))};
    struct memo_entry *e = look_up(s, &s->orders, key);
    struct ordered *o;
    enum hd_status st;

    if (!e || e->known)
        return e ? e->value : NULL;
    o = hd_arena_alloc(&s->kept, sizeof *o);
    st = o ? order_step(job, &s->kept, o) : hd_err(HD_NO_MEMORY, "no memory to search layouts");
    if (st == HD_NO_MEMORY)
        s->st = st;
    note(&s->orders, e, key, st ? NULL : o);
    return e->value;
}

/* Walks the programs of all stages without ZeRO, update and sums of gradients: a bound for every
 * variant with this schedule. */
static void refine_schedule(struct layout_search *s, struct candidate *c)
{
    const struct hd_pieces *pieces;
    const struct ordered *ordered;
    struct hd_layout_sizes sizes;
    struct hd_price p;
    struct hd_job job, alone;

    if (!size(s, c, &sizes))
        return;
    job = job_of(s, &sizes);
    alone = without_replicas(&job);
    ordered = ordered_of(s, c, &job);
    pieces = ordered ? pieces_of(s, c, &alone) : NULL;
    if (!pieces || walk_steps(s->asked, &s->config, &job, pieces, ordered, &p))
        return; /* cannot be laid out */
    s->found->walked++;
    c->rank = RANK_WALKED;
    c->bound_s = p.programs_s > c->bound_s ? p.programs_s : c->bound_s;
    push(s, c);
}

static void refine_variant(struct layout_search *s, struct candidate *c)
{
    const struct hd_pieces *pieces;
    const struct ordered *ordered;
    struct hd_layout_sizes sizes;
    struct hd_price p;
    struct hd_job job;

    if (!size(s, c, &sizes))
        return;
    job = job_of(s, &sizes);
    ordered = ordered_of(s, c, &job);
    pieces = ordered ? pieces_of(s, c, &job) : NULL;
    if (!pieces || walk_steps(s->asked, &s->config, &job, pieces, ordered, &p))
        return; /* cannot be laid out */
    s->found->priced++;
    c->rank = RANK_PRICED;
    c->bound_s = p.step_s;
    push(s, c);
}

static enum hd_status price(const struct hd_search_asked *asked,
                            const struct hd_model_config *config, const struct hd_job *job,
                            struct hd_price *ret_price)
{
    struct ordered ordered;
    struct hd_pieces pieces;
    struct hd_arena arena;
    enum hd_status st = hd_pieces_build(job, asked->cluster, false, &pieces);

    if (st)
        return st;
    hd_arena_init(&arena, 0);
    st = order_step(job, &arena, &ordered);
    if (!st)
        st = walk_steps(asked, config, job, &pieces, &ordered, ret_price);
    hd_arena_done(&arena);
    return st;
}

/* ---- step 4: laid out ---- */

static int64_t needed(const struct hd_plan *plan, const struct hd_traits *traits,
                      const struct hd_plan_class **ret_most)
{
    int64_t most = 0;

    for (int32_t i = 0; i < plan->class_count; i++) {
        const struct hd_plan_class *c = &plan->classes[i];
        const int64_t bytes =
            hd_traits_is_cuda(traits) ? c->device_bytes : hd_memory_total(&c->memory);

        if (bytes > most) {
            most = bytes;
            *ret_most = c;
        }
    }
    return most;
}

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
        st = price(asked, &config, &ret_plan->job, &ret_plan->price);
    if (!st)
        st = hd_plan_build(&ret_plan->job, &traits, arena, &ret_plan->plan);
    if (st)
        return st;
    ret_plan->needed_bytes = needed(&ret_plan->plan, &traits, &most);
    ret_plan->fits = !asked->memory_bytes || ret_plan->needed_bytes <= asked->memory_bytes;
    return HD_OK;
}

static void reject_plan(struct layout_search *s, const struct hd_search_plan *p)
{
    const struct hd_plan_class *most = NULL;
    const int64_t bytes = needed(&p->plan, &s->asked->cluster->traits, &most);
    const struct hd_search_rejected r = {
        .sizes = p->job.layout,
        .step_s = p->price.step_s,
        .stage = most->stage,
        .needed_bytes = bytes,
        .activations = (double)(most->memory.kept + most->memory.deferred) / (double)bytes};

    reject(s, &r);
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
    note_refusal(s, st);
    if (st)
        return;
    if (p->fits)
        s->found->plan_count++;
    else
        reject_plan(s, p);
}

/* ---- the search ---- */

static void refine(struct layout_search *s, struct candidate *c)
{
    switch (c->rank) {
    case RANK_FAMILY:
        refine_family(s, c);
        break;
    case RANK_BLOCKS:
        refine_blocks(s, c);
        break;
    case RANK_SCHEDULE:
        refine_schedule(s, c);
        break;
    case RANK_WALKED:
        try_zeros(s, c);
        break;
    case RANK_VARIANT:
        refine_variant(s, c);
        break;
    default:
        lay_out(s, c);
    }
}

/* Parameters of a block, whole. */
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
        if (registry.params[i].unit == HD_UNIT_FIRST_BLOCK)
            s->block_parameters += registry.params[i].count;
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
        struct candidate c = pop(&s);

        refine(&s, &c);
    }
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
