#include "data/packing.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/pieces.h"
#include "base/random.h"
#include "base/text.h"
#include "data/data_internal.h"
#include "records/kind.h"

struct hd_packing {
    struct hd_packing_facts facts;
    struct hd_packed *packed; /* [conversations], ordered by window */
    int64_t *window_first;    /* [windows + 1] index in `packed` of each window's first
                                 conversation */
};

/* ---- a set of small numbers, with the next member at or behind one ---- */

enum { LEVELS = 5 }; /* 64^4 = HD_DATA_CONTEXT_MAX, and one level more for that number itself */

struct capacity_set {
    /* bit sets in 64-bit words: bit n of level k + 1 is set if word n of level k is not 0 */
    uint64_t *level[LEVELS];
};

static enum hd_status capacity_set_init(struct capacity_set *s, int64_t size)
{
    for (int k = 0; k < LEVELS; k++) {
        size = size / 64 + 1;
        s->level[k] = calloc((size_t)size, sizeof *s->level[k]);
        if (!s->level[k])
            return hd_err(HD_NO_MEMORY, "no memory to pack conversations");
    }
    return HD_OK;
}

static void capacity_set_done(struct capacity_set *s)
{
    for (int k = 0; k < LEVELS; k++)
        free(s->level[k]);
}

static void capacity_set_add(struct capacity_set *s, int64_t n)
{
    for (int k = 0; k < LEVELS; k++, n /= 64)
        s->level[k][n / 64] |= UINT64_C(1) << n % 64;
}

static void capacity_set_remove(struct capacity_set *s, int64_t n)
{
    for (int k = 0; k < LEVELS; k++, n /= 64) {
        s->level[k][n / 64] &= ~(UINT64_C(1) << n % 64);
        if (s->level[k][n / 64])
            return;
    }
}

/* Returns the set's smallest member >= n; -1: none. */
static int64_t capacity_set_next(const struct capacity_set *s, int64_t n)
{
    for (int k = 0; k < LEVELS; k++) {
        const uint64_t word =
            n % 64 ? s->level[k][n / 64] >> n % 64 << n % 64 : s->level[k][n / 64];

        if (word) {
            n = n / 64 * 64 + __builtin_ctzll(word);
            while (k--)
                n = n * 64 + __builtin_ctzll(s->level[k][n]);
            return n;
        }
        n = n / 64 + 1;
    }
    return -1;
}

/* ---- the conversations of the range ---- */

struct packing_work {
    const struct hd_corpus *corpus;
    enum hd_too_long too_long;
    struct hd_packing_facts *facts;
    struct hd_packed *found; /* [facts->conversations], in the order of the corpus */
    int64_t capacity;
    bool *counts; /* [context + 1] whether each token counts for the loss */
    bool failed;
};

/* Returns the number of tokens that remain of a conversation longer than the context; 0: it is left
 * out. */
static int64_t kept_of(struct packing_work *w, struct hd_conversation_place place)
{
    const int64_t S = w->facts->context;
    int64_t end = S;

    /* a shortened answer of a pair would be another answer, so no pair is shortened */
    if (w->too_long != HD_TOO_LONG_CUT || place.chosen)
        return 0;
    hd_corpus_read_counts(w->corpus, place.first, S + 1, w->counts);
    while (end > 0 && !(w->counts[end - 1] && !w->counts[end]))
        end--;
    if (!end && w->counts[0]) /* no answer ends in the window, but one begins with the first
                                 token */
        return S;
    return end;
}

int64_t hd_conversation_targets(const struct hd_corpus *corpus, int64_t first, int64_t count)
{
    enum { PIECE = HD_PIECE(1024, 7) };
    bool counts[PIECE];
    int64_t sum = 0;

    for (int64_t at = 1; at < count; at += PIECE) {
        const int64_t n = count - at < PIECE ? count - at : PIECE;

        hd_corpus_read_counts(corpus, first + at, n, counts);
        for (int64_t i = 0; i < n; i++)
            sum += counts[i];
    }
    return sum;
}

/* Returns the number of targets of both answers of a pair; 0 if one of them has none, unless one is
 * enough. Counts unpaired answers in `facts`. */
static int64_t pair_targets(const struct hd_corpus *corpus, struct hd_conversation_place p,
                            struct hd_packing_facts *facts)
{
    const int64_t chosen = hd_conversation_targets(corpus, p.first, p.chosen);
    const int64_t rejected =
        hd_conversation_targets(corpus, p.first + p.chosen, p.count - p.chosen);

    if (p.unpaired) {
        facts->desirable += chosen > 0;
        facts->undesirable += rejected > 0;
        return chosen + rejected;
    }
    return chosen && rejected ? chosen + rejected : 0;
}

static void add_to_packing(void *context, struct hd_conversation_place place)
{
    struct packing_work *w = context;
    struct hd_packing_facts *f = w->facts;
    int64_t kept = place.count, targets;

    f->longest = place.count > f->longest ? place.count : f->longest;
    if (place.count > f->context) {
        if (!f->too_long++)
            f->first_long = place;
        kept = kept_of(w, place);
        f->cut += kept > 0;
        f->dropped += !kept;
    }
    f->pairs |= place.chosen > 0;
    if (place.chosen)
        targets = kept ? pair_targets(w->corpus, place, f) : 0;
    else
        targets = hd_conversation_targets(w->corpus, place.first, kept);
    if (kept && !targets)
        f->silent++;
    if (!targets || w->failed)
        return;
    if (f->conversations == w->capacity) {
        const int64_t capacity = w->capacity ? 2 * w->capacity : 1024;
        struct hd_packed *found = realloc(w->found, (size_t)capacity * sizeof *found);

        w->failed = !found;
        if (!found)
            return;
        w->found = found;
        w->capacity = capacity;
    }
    w->found[f->conversations++] =
        (struct hd_packed){place.first, (int32_t)kept, (int32_t)place.chosen};
    f->tokens += kept;
    f->targets += targets;
}

/* Returns HD_INVALID with a message on the conversations that are too long. */
static enum hd_status refuse_long(const struct hd_packing_facts *f)
{
    const struct hd_conversation_place *p = &f->first_long;
    struct hd_text where = {0};
    const char *unit = "";
    int64_t line = 0;
    enum hd_status st;

    if (!p->has_gaps && hd_data_has_records(p->path) &&
        !hd_jsonl_find_line(p->path, p->document, &unit, &line))
        hd_text_add(&where, "%s:%s%" PRId64, p->path, unit, line);
    else
        hd_text_add(&where, "number %" PRId64 " of %s", p->document + 1, p->path);
    st =
        hd_err(HD_INVALID,
               "%" PRId64 " %s%s longer than model.context = %" PRId64
               " tokens; the first is %s, with %" PRId64 " tokens%s, the longest has %" PRId64
               ": raise model.context, or write data.too_long: drop%s",
               f->too_long, p->chosen ? "pair" : "conversation", f->too_long == 1 ? " is" : "s are",
               f->context, where.failed ? p->path : where.data, p->count,
               p->chosen ? " in both answers" : "", f->longest, p->chosen ? "" : ", or cut");
    hd_text_free(&where);
    return st;
}

static enum hd_status find_lengths(struct hd_data_range range, struct packing_work *w)
{
    const struct hd_packing_facts *f = w->facts;

    w->counts = malloc((size_t)f->context + 1);
    if (!w->counts)
        return hd_err(HD_NO_MEMORY, "no memory to pack conversations");
    if (range.count > 0)
        hd_data_range_each(range, add_to_packing, w);
    if (w->failed)
        return hd_err(HD_NO_MEMORY, "no memory for the lengths of %" PRId64 " conversations",
                      f->conversations);
    if (f->too_long && w->too_long == HD_TOO_LONG_ERROR)
        return refuse_long(f);
    if (!f->conversations)
        return hd_err(HD_INVALID,
                      "no conversation is left: %" PRId64
                      " are longer than model.context = %" PRId64 " tokens, and %" PRId64
                      " have no token that counts",
                      f->dropped, f->context, f->silent);
    if (f->conversations > INT32_MAX)
        return hd_err(HD_LIMIT, "more than %d conversations in one source", INT32_MAX);
    return HD_OK;
}

/* ---- best fit ---- */

struct fitting {
    int32_t *order;     /* [conversations] indices, longest conversation first */
    int32_t *window_of; /* [conversations] index of its window */
    int32_t *head;      /* [context + 1] newest window with that many free rows; -1: none */
    int32_t *next;      /* [windows] next older window with as many free rows; -1: none */
    int32_t *capacity;  /* [windows] [windows] free rows of each window */
    struct capacity_set capacities;
    int32_t windows;
};

static void fitting_done(struct fitting *f)
{
    free(f->order);
    free(f->window_of);
    free(f->head);
    free(f->next);
    free(f->capacity);
    capacity_set_done(&f->capacities);
}

static enum hd_status fitting_init(struct fitting *f, int64_t conversations, int64_t context)
{
    const size_t n = (size_t)conversations;

    f->order = calloc(n, sizeof *f->order);
    f->window_of = calloc(n, sizeof *f->window_of);
    f->head = malloc(((size_t)context + 1) * sizeof *f->head);
    f->next = calloc(n, sizeof *f->next);
    f->capacity = calloc(n, sizeof *f->capacity);
    if (!f->order || !f->window_of || !f->head || !f->next || !f->capacity)
        return hd_err(HD_NO_MEMORY, "no memory to pack %zu conversations", n);
    memset(f->head, 0xFF, ((size_t)context + 1) * sizeof *f->head);
    return capacity_set_init(&f->capacities, context);
}

/* Sorts the conversations by length (counting sort), equal lengths in the order of a permutation
 * keyed by the seed. */
static enum hd_status sort(struct fitting *f, const struct hd_packed *found, int64_t count,
                           int64_t context, uint64_t seed)
{
    const uint64_t key = hd_random_key(seed, hd_random_hash("packing"));
    int64_t *first = calloc((size_t)context + 2, sizeof *first);

    if (!first)
        return hd_err(HD_NO_MEMORY, "no memory to sort %" PRId64 " conversations", count);
    for (int64_t i = 0; i < count; i++) /* conversations of n tokens follow all longer ones */
        first[context - found[i].count + 1]++;
    for (int64_t n = 1; n <= context + 1; n++)
        first[n] += first[n - 1];
    for (int64_t i = 0; i < count; i++) {
        const int64_t d = (int64_t)hd_random_permute(key, (uint64_t)count, (uint64_t)i);

        f->order[first[context - found[d].count]++] = (int32_t)d;
    }
    free(first);
    return HD_OK;
}

static void put_window(struct fitting *f, int32_t window, int32_t capacity)
{
    f->capacity[window] = capacity;
    f->next[window] = f->head[capacity];
    if (f->head[capacity] < 0)
        capacity_set_add(&f->capacities, capacity);
    f->head[capacity] = window;
}

/* Returns the window with the fewest free rows, at least `wanted`, and removes it from its list; if
 * there is none, returns a new window. */
static int32_t take_window(struct fitting *f, int32_t wanted, int64_t context)
{
    const int64_t capacity = capacity_set_next(&f->capacities, wanted);
    int32_t window;

    if (capacity < 0) {
        window = f->windows++;
        f->capacity[window] = (int32_t)context;
        return window;
    }
    window = f->head[capacity];
    f->head[capacity] = f->next[window];
    if (f->head[capacity] < 0)
        capacity_set_remove(&f->capacities, capacity);
    return window;
}

static void fit(struct fitting *f, const struct hd_packed *found, int64_t count, int64_t context)
{
    for (int64_t i = 0; i < count; i++) {
        const int32_t d = f->order[i], window = take_window(f, found[d].count, context);

        f->window_of[d] = window;
        put_window(f, window, f->capacity[window] - found[d].count);
    }
}

/* Numbers the windows by their first conversation, and lists the conversations of each. */
static enum hd_status list(struct fitting *f, const struct hd_packed *found, struct hd_packing *p)
{
    const int64_t count = p->facts.conversations;
    int32_t *number = f->capacity, named = 0; /* [windows] new number; reuses the array */

    p->facts.windows = f->windows;
    p->packed = calloc((size_t)count, sizeof *p->packed);
    p->window_first = calloc((size_t)f->windows + 2, sizeof *p->window_first);
    if (!p->packed || !p->window_first)
        return hd_err(HD_NO_MEMORY, "no memory for %" PRId64 " packed conversations", count);
    memset(number, 0xFF, (size_t)f->windows * sizeof *number);
    for (int64_t d = 0; d < count; d++) {
        int32_t *mine = &number[f->window_of[d]];

        if (*mine < 0)
            *mine = named++;
        f->window_of[d] = *mine;
        p->window_first[*mine + 2]++;
    }
    for (int32_t w = 2; w <= f->windows; w++)
        p->window_first[w] += p->window_first[w - 1];
    for (int64_t d = 0; d < count; d++)
        p->packed[p->window_first[f->window_of[d] + 1]++] = found[d];
    return HD_OK;
}

enum hd_status hd_packing_new(struct hd_data_range range, int64_t context,
                              enum hd_too_long too_long, uint64_t seed,
                              struct hd_packing **ret_packing)
{
    struct hd_packing *p = calloc(1, sizeof *p);
    struct packing_work work = {.corpus = range.corpus, .too_long = too_long};
    struct fitting f = {.windows = 0};
    enum hd_status st = p ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to pack conversations");

    if (!st && (context < 1 || context > HD_DATA_CONTEXT_MAX))
        st = hd_err(HD_INVALID, "a context of %" PRId64 " tokens; it must be 1 to %d", context,
                    HD_DATA_CONTEXT_MAX);
    if (!st) {
        p->facts.context = context;
        work.facts = &p->facts;
        st = find_lengths(range, &work);
    }
    if (!st)
        st = fitting_init(&f, p->facts.conversations, context);
    if (!st)
        st = sort(&f, work.found, p->facts.conversations, context, seed);
    if (!st) {
        fit(&f, work.found, p->facts.conversations, context);
        st = list(&f, work.found, p);
    }
    for (int64_t w = 0; !st && p->facts.desirable + p->facts.undesirable && w < f.windows; w++)
        p->facts.lone += p->window_first[w + 1] - p->window_first[w] == 1;
    fitting_done(&f);
    free(work.found);
    free(work.counts);
    if (st)
        hd_packing_free(p);
    else
        *ret_packing = p;
    return st;
}

void hd_packing_free(struct hd_packing *packing)
{
    if (!packing)
        return;
    free(packing->packed);
    free(packing->window_first);
    free(packing);
}

const struct hd_packing_facts *hd_packing_get_facts(const struct hd_packing *packing)
{
    return &packing->facts;
}

int64_t hd_packing_window(const struct hd_packing *packing, int64_t window,
                          const struct hd_packed **ret_packed)
{
    const int64_t first = packing->window_first[window];

    *ret_packed = packing->packed + first;
    return packing->window_first[window + 1] - first;
}
