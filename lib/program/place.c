/* place: gives every store a region and an offset, so that memory is known before anything runs.
 *
 * A store's region depends on the programs that use it:
 *
 *   F and then B or W, or a batch field of training  ->  saved, one slot per micro-batch in flight
 *   B and then W                                     ->  deferred, one slot per postponed W
 *   one program                                      ->  work, shared by all
 *   this chunk and another one                       ->  stage I/O, one slot each
 *
 * Saved and deferred stores do not share memory. In work, stores whose lifetimes do not overlap
 * share memory: the largest is placed first, each at the lowest offset that is free for its whole
 * lifetime. A store that a collective accesses lives until a compute node has waited for it.
 */
#include <stdlib.h>
#include <string.h>

#include "program/emit.h"

/* Lifetime of a store in one program, as indices of the program's first and last node that use
 * it. */
struct life {
    int store, first, last; /* id of the store; indices of the first and last node that use it;
                               first -1: not used */
};

int64_t hd_work_begin(int64_t bytes)
{
    return hd_round_up(bytes, HD_SCRATCH_ALIGN);
}

static bool is_placed_by_programs(const struct hd_store *s)
{
    return s->kind == HD_STORE_TEMPORARY || s->kind == HD_STORE_BATCH ||
           s->kind == HD_STORE_OUTPUT || s->kind == HD_STORE_GRAD_BUCKET ||
           s->kind == HD_STORE_GATHERED || s->kind == HD_STORE_WIRE;
}

static int64_t *half(struct hd_extent *extent, bool registered)
{
    return registered ? &extent->registered_bytes : &extent->private_bytes;
}

/* Places the store at the end of the region, in memory that no other store uses. */
static void append(struct hd_chunk *chunk, struct hd_store *s, enum hd_region region)
{
    int64_t *end = half(&chunk->extent[region], s->registered);

    s->region = region;
    s->offset = *end;
    *end += hd_tensor_align(s->size_bytes);
}

/* ---- scratch ---- */

/* Returns the bytes of scratch that a node needs, and sets *ret_operand to the index of its scratch
 * operand; -1: none. The size depends on which pointers of the arguments are NULL, so the others
 * get a dummy address. */
static int64_t scratch_bytes(struct hd_emit *e, const struct hd_node *node, int *ret_operand)
{
    const struct hd_kernel_info *info = hd_kernel_get_info(node->kernel);

    *ret_operand = -1;
    for (int k = 0; k < info->operand_count; k++) {
        void *dummy = node->operands[k].store ? (void *)HD_TENSOR_ALIGN : NULL;

        memcpy((char *)node->args + info->operands[k].offset, &dummy, sizeof dummy);
        if (info->operands[k].access == HD_SCRATCH)
            *ret_operand = k;
    }
    if (*ret_operand < 0)
        return 0;
    return hd_kernel_scratch_bytes(node->kernel, node->args, &e->options->traits);
}

static void take_scratch(struct hd_emit *e, struct hd_operand *ret_operand, int64_t bytes)
{
    *ret_operand = hd_emit_temp(e, "scratch", HD_U8, bytes, 0);
    ret_operand->store->align = HD_SCRATCH_ALIGN;
}

static void give_scratch(struct hd_emit *e)
{
    for (int c = 0; c < HD_CALL_COUNT; c++)
        for (int i = 0; i < e->lists[c].count; i++) {
            struct hd_node *node = e->lists[c].nodes[i];
            int64_t bytes;
            int k;

            if (node->is_comm)
                continue;
            bytes = scratch_bytes(e, node, &k);
            if (bytes > 0)
                take_scratch(e, &node->operands[k], bytes);
        }
}

/* ---- lifetimes ---- */

/* Returns the index of the first compute node that waits for the collective at index `from`, or for
 * a later one on its stream; if no node does, the index behind the program's last node. Both indices
 * of such waits rise along the list, so the search goes on at *next, where it ended for the
 * collective before on this stream; 0: at the begin. */
static int released_at(const struct hd_node_list *list, int from, int *next)
{
    for (; *next < list->count; (*next)++) {
        const struct hd_node *node = list->nodes[*next];

        for (int w = 0; node->stream == HD_STREAM_COMPUTE && w < node->wait_count; w++)
            if (node->waits[w] >= from &&
                list->nodes[node->waits[w]]->stream == list->nodes[from]->stream)
                return *next;
    }
    return list->count;
}

/* Extends the life of each store that the node at index `at` uses to index `last`. */
static void extend_lives(const struct hd_node *node, int at, int last, struct life *lives)
{
    const int count = hd_node_operand_count(node);

    for (int k = 0; k < count; k++) {
        struct life *life = node->operands[k].store ? &lives[node->operands[k].store->id] : NULL;

        if (life && life->first < 0)
            life->first = at;
        if (life && last > life->last)
            life->last = last;
    }
}

static void find_lives(const struct hd_emit *e, enum hd_call call, struct life *lives)
{
    const struct hd_node_list *list = &e->lists[call];
    int next[HD_STREAM_COUNT] = {0};

    for (int s = 0; s < e->store_count; s++)
        lives[s] = (struct life){s, -1, -1};
    for (int i = 0; i < list->count; i++) {
        const struct hd_node *node = list->nodes[i];

        extend_lives(node, i, node->is_comm ? released_at(list, i, &next[node->stream]) : i, lives);
    }
    for (int s = 0; s < e->store_count; s++) {
        enum hd_store_kind kind = e->stores[s]->kind;

        if (lives[s].first >= 0 && kind == HD_STORE_BATCH)
            lives[s].first = 0; /* the host writes it before the program runs */
        if (lives[s].first >= 0 && kind == HD_STORE_OUTPUT)
            lives[s].last = list->count; /* the host reads it after the program ran */
    }
}

/* Returns whether a program uses store s. lives: lives of the stores in it; NULL: the chunk has no
 * such program. */
static bool lives_in(const struct life *lives, int s)
{
    return lives && lives[s].first >= 0;
}

static enum hd_region region_of(const struct hd_emit *e, struct life *const lives[HD_CALL_COUNT],
                                int s)
{
    bool f = lives_in(lives[HD_CALL_F], s), b = lives_in(lives[HD_CALL_B], s),
         w = lives_in(lives[HD_CALL_W], s);
    enum hd_store_kind kind = e->stores[s]->kind;

    if (e->rec->shape.mode == HD_RECORD_TRAIN && ((f && (b || w)) || kind == HD_STORE_BATCH))
        return HD_REGION_SAVED;
    return b && w ? HD_REGION_DEFERRED : HD_REGION_WORK;
}

/* ---- work ---- */

struct work_item {
    struct life life;
    int64_t size_bytes, offset, align;
    bool registered;
};

static int larger_first(const void *a, const void *b)
{
    const struct work_item *x = a, *y = b;

    if (x->size_bytes != y->size_bytes)
        return x->size_bytes < y->size_bytes ? 1 : -1;
    return x->life.store - y->life.store; /* qsort is not stable, so items of equal size are ordered
                                             by store */
}

static bool overlap(const struct work_item *a, const struct work_item *b)
{
    return a->registered == b->registered && a->life.first <= b->life.last &&
           b->life.first <= a->life.last;
}

/* Index of placed items by lifetime. A call's list is cut into spans of nodes; each span lists the
 * items that live in it, by offset, except items that live long, which are few and kept in a
 * separate list. An item of a program of ten thousand is thus compared only with items whose
 * lifetimes are near its own. */
enum { SPAN_NODES = 64, LONG_SPANS = 4 };

struct placed {
    const struct work_item **items; /* [count] by offset */
    int count;
};

struct work_index {
    struct placed *spans, long_lived; /* [span_count] */
    int span_count;
};

static int first_span(const struct work_item *item)
{
    return item->life.first / SPAN_NODES;
}

static int last_span(const struct work_item *item)
{
    return item->life.last / SPAN_NODES;
}

static bool lives_long(const struct work_item *item)
{
    return last_span(item) - first_span(item) >= LONG_SPANS;
}

static bool index_items(struct hd_emit *e, const struct work_item *items, int count,
                        struct work_index *ret)
{
    const struct work_item **capacity;
    size_t entries = 0;
    int spans = 0;

    for (int i = 0; i < count; i++)
        spans = last_span(&items[i]) >= spans ? last_span(&items[i]) + 1 : spans;
    *ret = (struct work_index){.spans =
                                   hd_arena_array(e->arena, (size_t)spans + 1, sizeof *ret->spans),
                               .span_count = spans};
    for (int i = 0; i < count && ret->spans; i++) {
        if (lives_long(&items[i])) {
            ret->long_lived.count++;
            entries++;
            continue;
        }
        for (int s = first_span(&items[i]); s <= last_span(&items[i]); s++, entries++)
            ret->spans[s].count++;
    }
    capacity = ret->spans ? hd_arena_array(e->arena, entries + 1, sizeof *capacity) : NULL;
    if (!capacity)
        return false;
    ret->long_lived.items = capacity;
    capacity += ret->long_lived.count;
    ret->long_lived.count = 0;
    for (int s = 0; s < spans; s++) {
        ret->spans[s].items = capacity;
        capacity += ret->spans[s].count;
        ret->spans[s].count = 0;
    }
    return true;
}

static void insert_by_offset(struct placed *p, const struct work_item *item)
{
    int i = p->count++;

    for (; i > 0 && p->items[i - 1]->offset > item->offset; i--)
        p->items[i] = p->items[i - 1];
    p->items[i] = item;
}

static void add_placed(struct work_index *index, const struct work_item *item)
{
    if (lives_long(item)) {
        insert_by_offset(&index->long_lived, item);
        return;
    }
    for (int s = first_span(item); s <= last_span(item); s++)
        insert_by_offset(&index->spans[s], item);
}

/* Returns the lowest offset that is free for the item's whole lifetime, by merging the lists of its
 * spans and of the long-lived items by offset. next: [span_count + 1], scratch. */
static int64_t lowest_free(const struct work_index *index, const struct work_item *item, int *next)
{
    const int first = first_span(item), lists = last_span(item) - first + 2;
    int64_t at = 0;

    memset(next, 0, (size_t)lists * sizeof *next);
    for (;;) {
        const struct work_item *lowest = NULL;
        int from = 0;

        for (int k = 0; k < lists; k++) {
            const struct placed *p = k ? &index->spans[first + k - 1] : &index->long_lived;

            while (next[k] < p->count && !overlap(p->items[next[k]], item))
                next[k]++;
            if (next[k] < p->count && (!lowest || p->items[next[k]]->offset < lowest->offset)) {
                lowest = p->items[next[k]];
                from = k;
            }
        }
        if (!lowest || lowest->offset >= at + item->size_bytes)
            return at;
        next[from]++;
        if (lowest->offset + lowest->size_bytes > at)
            at = hd_round_up(lowest->offset + lowest->size_bytes, item->align);
    }
}

static bool is_in_work(const struct hd_emit *e, const struct life *lives, int s)
{
    return is_placed_by_programs(e->stores[s]) && lives[s].first >= 0 &&
           e->stores[s]->region == HD_REGION_WORK;
}

static void place_work(struct hd_emit *e, struct hd_chunk *chunk, const struct life *lives)
{
    struct work_item *items = hd_arena_array(e->arena, (size_t)e->store_count + 1, sizeof *items);
    struct work_index index;
    int count = 0, *next;

    for (int s = 0; items && s < e->store_count; s++)
        if (is_in_work(e, lives, s))
            items[count++] = (struct work_item){
                .life = lives[s],
                .size_bytes = hd_tensor_align(e->stores[s]->size_bytes),
                .align = e->stores[s]->align ? e->stores[s]->align : HD_TENSOR_ALIGN,
                .registered = e->stores[s]->registered};
    if (!items || !index_items(e, items, count, &index) ||
        !(next = hd_arena_array(e->arena, (size_t)index.span_count + 2, sizeof *next))) {
        hd_emit_fail(e, hd_err(HD_NO_MEMORY, "no memory to place a program"));
        return;
    }
    qsort(items, (size_t)count, sizeof *items, larger_first);
    for (int i = 0; i < count; i++) {
        int64_t *end = half(&chunk->extent[HD_REGION_WORK], items[i].registered);

        items[i].offset = lowest_free(&index, &items[i], next);
        add_placed(&index, &items[i]);
        e->stores[items[i].life.store]->offset = items[i].offset;
        if (items[i].offset + items[i].size_bytes > *end)
            *end = items[i].offset + items[i].size_bytes;
    }
}

/* Sets the size of the work region without assigning offsets to its stores: to the most bytes that
 * are live at the same time in this program, a lower bound for every placement. */
static void sum_work(struct hd_emit *e, struct hd_chunk *chunk, enum hd_call call,
                     const struct life *lives)
{
    const int count = e->lists[call].count + 2; /* a store's lifetime may end behind the last
                                                   node */
    int64_t *more[2] = {hd_arena_array(e->arena, (size_t)count, sizeof **more),
                        hd_arena_array(e->arena, (size_t)count, sizeof **more)};

    if (!more[0] || !more[1]) {
        hd_emit_fail(e, hd_err(HD_NO_MEMORY, "no memory to place a program"));
        return;
    }
    for (int s = 0; s < e->store_count; s++)
        if (is_in_work(e, lives, s)) {
            int64_t *changes = more[e->stores[s]->registered];

            changes[lives[s].first] += hd_tensor_align(e->stores[s]->size_bytes);
            changes[lives[s].last + 1] -= hd_tensor_align(e->stores[s]->size_bytes);
        }
    for (int registered = 0; registered < 2; registered++) {
        int64_t *most = half(&chunk->extent[HD_REGION_WORK], registered), alive = 0;

        for (int i = 0; i < count; i++) {
            alive += more[registered][i];
            *most = alive > *most ? alive : *most;
        }
    }
}

/* ---- state ---- */

/* Places a stage-I/O store at the begin of its own slot; the region's extent is the largest
 * slot. */
static void place_stage_io(struct hd_chunk *chunk, struct hd_store *s)
{
    int64_t *slot = half(&chunk->extent[HD_REGION_STAGE_IO], true);

    s->region = HD_REGION_STAGE_IO;
    s->offset = 0;
    if (hd_tensor_align(s->size_bytes) > *slot)
        *slot = hd_tensor_align(s->size_bytes);
}

static void place_state(struct hd_emit *e, struct hd_chunk *chunk, struct hd_store *s)
{
    const struct hd_registry *r = e->registry;

    s->region = HD_REGION_STATE;
    if (s->kind == HD_STORE_BUCKET)
        s->offset = r->buckets[s->bucket].offset[s->state];
    else if (s->kind == HD_STORE_GLOBAL)
        s->offset = r->global_offset[s->global];
    else
        append(chunk, s, HD_REGION_STATE);
}

void hd_pass_place(struct hd_emit *e, struct hd_chunk *chunk)
{
    struct life *lives[HD_CALL_COUNT] = {NULL};

    give_scratch(e);
    for (int c = 0; c < HD_CALL_COUNT; c++) {
        if (!e->lists[c].count)
            continue;
        lives[c] = hd_arena_array(e->arena, (size_t)e->store_count + 1, sizeof **lives);
        if (!lives[c]) {
            hd_emit_fail(e, hd_err(HD_NO_MEMORY, "no memory to place a program"));
            return;
        }
        find_lives(e, (enum hd_call)c, lives[c]);
    }
    for (int i = 0; i < e->store_count; i++) {
        struct hd_store *s = e->stores[i];

        if (s->kind == HD_STORE_STAGE_IO) {
            place_stage_io(chunk, s);
            continue;
        }
        if (!is_placed_by_programs(s)) {
            place_state(e, chunk, s);
            continue;
        }
        s->region = region_of(e, lives, i);
        if (s->region != HD_REGION_WORK)
            append(chunk, s, s->region);
    }
    for (int c = 0; c < HD_CALL_COUNT; c++)
        if (lives[c] && e->options->unplaced)
            sum_work(e, chunk, (enum hd_call)c, lives[c]);
        else if (lives[c])
            place_work(e, chunk, lives[c]);
}
