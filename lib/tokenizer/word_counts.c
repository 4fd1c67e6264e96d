#include "tokenizer/word_counts.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

enum { FIRST_ROWS = 1 << 12, FIRST_BYTES = 1 << 16 };

/* ---- the table ---- */

static struct hd_word_count *find_row(const struct hd_word_counts *c, const unsigned char *word,
                                      uint32_t len_bytes, uint64_t hash)
{
    uint64_t i = hash & c->mask;

    for (; c->rows[i].count; i = (i + 1) & c->mask)
        if (c->rows[i].hash == hash && c->rows[i].len_bytes == len_bytes &&
            memcmp(c->bytes + c->rows[i].at, word, len_bytes) == 0)
            break;
    return &c->rows[i];
}

static void insert_row(struct hd_word_counts *c, const struct hd_word_count *row)
{
    uint64_t i = row->hash & c->mask;

    while (c->rows[i].count)
        i = (i + 1) & c->mask;
    c->rows[i] = *row;
}

/* Replaces the table by one with `row_count` rows, a power of two. */
static enum hd_status resize(struct hd_word_counts *c, uint64_t row_count)
{
    struct hd_word_count *old = c->rows;
    const uint64_t old_count = old ? c->mask + 1 : 0;

    c->rows = calloc(row_count, sizeof *c->rows);
    if (!c->rows) {
        c->rows = old;
        return hd_err(HD_NO_MEMORY, "no memory to count the words of the text");
    }
    c->mask = row_count - 1;
    for (uint64_t i = 0; i < old_count; i++)
        if (old[i].count)
            insert_row(c, &old[i]);
    free(old);
    return HD_OK;
}

static int compare_places(const void *left, const void *right)
{
    const struct hd_word_count *a = left, *b = right;

    return a->at < b->at ? -1 : a->at > b->at;
}

/* Sorts the words to the front of the table, by place, and returns how many there are. They are no
 * hash table until they are inserted again. */
static uint64_t pack_rows(struct hd_word_counts *c)
{
    uint64_t n = 0;

    for (uint64_t i = 0; i <= c->mask; i++)
        if (c->rows[i].count)
            c->rows[n++] = c->rows[i];
    memset(c->rows + n, 0, (c->mask + 1 - n) * sizeof *c->rows);
    qsort(c->rows, n, sizeof *c->rows, compare_places);
    return n;
}

/* Drops all words that occur at most `most` times, and moves the others together. */
static enum hd_status drop_rare(struct hd_word_counts *c, int64_t most)
{
    const uint64_t n = pack_rows(c);
    struct hd_word_count *kept = calloc(n + 1, sizeof *kept);
    uint64_t kept_count = 0;

    if (!kept)
        return hd_err(HD_NO_MEMORY, "no memory to count the words of the text");
    c->len_bytes = 0;
    for (uint64_t i = 0; i < n; i++) {
        struct hd_word_count row = c->rows[i];

        if (row.count <= most) {
            c->forgotten += row.count;
            continue;
        }
        memmove(c->bytes + c->len_bytes, c->bytes + row.at, row.len_bytes);
        row.at = c->len_bytes;
        c->len_bytes += row.len_bytes;
        kept[kept_count++] = row;
    }
    memset(c->rows, 0, (c->mask + 1) * sizeof *c->rows);
    for (uint64_t i = 0; i < kept_count; i++)
        insert_row(c, &kept[i]);
    c->used = (int64_t)kept_count;
    free(kept);
    return HD_OK;
}

/* Returns the bytes that the table needs for `rows` rows and `bytes` bytes of words. */
static uint64_t footprint(uint64_t rows, uint64_t bytes)
{
    return rows * sizeof(struct hd_word_count) + bytes;
}

/* Forgets rare words until at most half of the table and of the words' bytes is used. */
static enum hd_status forget_rare(struct hd_word_counts *c)
{
    enum hd_status st = HD_OK;

    for (int64_t most = 1; !st && c->used &&
                           ((uint64_t)c->used > c->mask / 4 ||
                            footprint(c->mask + 1, 2 * c->len_bytes) > c->bytes_max);
         most *= 2)
        st = drop_rare(c, most);
    return st;
}

/* Ensures that the table has a free row, and space for a word of `len_bytes` bytes. */
static enum hd_status reserve_word(struct hd_word_counts *c, uint32_t len_bytes)
{
    const uint64_t rows = c->rows ? c->mask + 1 : 0;
    const bool grows = 2 * (uint64_t)(c->used + 1) > rows;
    const uint64_t next = !grows ? rows : rows ? 2 * rows : FIRST_ROWS;
    uint64_t capacity = c->capacity_bytes ? c->capacity_bytes : FIRST_BYTES;
    unsigned char *bytes;
    enum hd_status st = HD_OK;

    if (c->bytes_max && c->used && footprint(next, c->len_bytes + len_bytes) > c->bytes_max)
        st = forget_rare(c);
    else if (grows)
        st = resize(c, next);
    while (capacity < c->len_bytes + len_bytes)
        capacity *= 2;
    if (st || capacity == c->capacity_bytes)
        return st;
    bytes = realloc(c->bytes, capacity);
    if (!bytes)
        return hd_err(HD_NO_MEMORY, "no memory to count the words of the text");
    c->bytes = bytes;
    c->capacity_bytes = capacity;
    return HD_OK;
}

/* ---- words ---- */

static enum hd_status count_word(struct hd_word_counts *c, const int32_t *ids, size_t n)
{
    struct hd_word_count *row;
    unsigned char *word;
    uint64_t hash;
    enum hd_status st;

    if (n > INT32_MAX)
        return hd_err(HD_LIMIT, "a word of %zu bytes; at most %d", n, INT32_MAX);
    st = reserve_word(c, (uint32_t)n);
    if (st)
        return st;
    word = c->bytes + c->len_bytes; /* stays there if it is new */
    for (size_t i = 0; i < n; i++)
        word[i] = (unsigned char)ids[i];
    hash = hd_hash_bytes(word, n);
    row = find_row(c, word, (uint32_t)n, hash);
    if (!row->count) {
        *row = (struct hd_word_count){.hash = hash, .at = c->len_bytes, .len_bytes = (uint32_t)n};
        c->len_bytes += n;
        c->used++;
    }
    row->count++;
    return HD_OK;
}

enum hd_status hd_word_counts_add(struct hd_word_counts *counts, const int32_t *ids, size_t count)
{
    enum hd_status st = HD_OK;
    size_t from = 0;

    for (size_t i = 0; !st && i < count; i++)
        if (ids[i] == HD_WORD_END) {
            st = i > from ? count_word(counts, ids + from, i - from) : HD_OK;
            from = i + 1;
        }
    return st;
}

void hd_word_counts_free(struct hd_word_counts *counts)
{
    free(counts->rows);
    free(counts->bytes);
    *counts = (struct hd_word_counts){.rows = NULL};
}
