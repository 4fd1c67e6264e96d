/* parquet_page: the entries of one column of a row group, page by page. */
#include <stdlib.h>
#include <string.h>

#ifdef HEDDLE_HAVE_ZLIB
#include <zlib.h>
#endif

#include "parquet.h"
#include "thrift.h"
#include "unpack.h"

enum { PAGE_DATA, PAGE_INDEX, PAGE_DICTIONARY, PAGE_DATA_V2 };
enum { /* encodings, numbers of the format */
       PLAIN = 0,
       PLAIN_DICTIONARY = 2,
       RLE = 3,
       BIT_PACKED = 4,
       DELTA_BINARY = 5,
       DELTA_LENGTH = 6,
       DELTA_BYTES = 7,
       RLE_DICTIONARY = 8,
       BYTE_STREAM_SPLIT = 9
};

static enum hd_status damaged_page(void)
{
    return hd_err(HD_INVALID, "a page is damaged; write the file again");
}

/* ---- numbers of few bits ---- */

/* Reads `width` bits, 0 to 64, from bit `bit` on, counted from `base`; bits behind `end` are 0. */
static uint64_t read_bits(const unsigned char *base, const unsigned char *end, uint64_t bit,
                          int width)
{
    const uint64_t first = bit / 8, room = (uint64_t)(end - base);
    const int shift = (int)(bit % 8);
    uint64_t value = 0, top = 0;

    if (!width)
        return 0;
    if (first + 8 <= room) {
        memcpy(&value, base + first, 8);
        top = first + 8 < room ? base[first + 8] : 0;
    } else {
        for (uint64_t i = first; i < room; i++)
            value |= (uint64_t)base[i] << (8 * (i - first));
    }
    value >>= shift;
    if (shift)
        value |= top << (64 - shift);
    return width == 64 ? value : value & ((UINT64_C(1) << width) - 1);
}

static int width_of(uint32_t max)
{
    int width = 0;

    for (; max; max >>= 1)
        width++;
    return width;
}

static void hybrid_begin(struct parquet_hybrid *h, const unsigned char *at,
                         const unsigned char *end, int width)
{
    *h = (struct parquet_hybrid){.at = at, .end = end, .width = width};
}

/* Reads the head of the next run. */
static void hybrid_run(struct parquet_hybrid *h)
{
    struct thrift t = {.at = h->at, .end = h->end};
    const uint64_t head = thrift_varint(&t);
    const size_t bytes = ((size_t)h->width + 7) / 8;
    uint64_t size;

    if (t.failed) {
        h->failed = true;
        return;
    }
    h->at = t.at;
    h->packed = head & 1;
    h->left = head >> 1;
    if (h->packed) {
        h->run = h->at;
        h->bit = 0;
        if (h->left > UINT32_MAX) {
            h->failed = true;
            return;
        }
        size = h->left * (uint64_t)h->width;
        h->left *= 8;
        if (size > (uint64_t)(h->end - h->at)) { /* writers may leave out the last bytes */
            size = (uint64_t)(h->end - h->at);
            h->left = h->width ? size * 8 / (uint64_t)h->width : 0;
        }
        h->at += size;
    } else if (bytes > (size_t)(h->end - h->at)) {
        h->failed = true;
    } else {
        h->value = (uint32_t)read_bits(h->at, h->end, 0, (int)bytes * 8);
        h->at += bytes;
    }
}

static uint32_t hybrid_next(struct parquet_hybrid *h)
{
    while (!h->left && !h->failed)
        hybrid_run(h);
    if (h->failed)
        return 0;
    h->left--;
    if (!h->packed)
        return h->value;
    h->bit += (uint64_t)h->width;
    return (uint32_t)read_bits(h->run, h->end, h->bit - (uint64_t)h->width, h->width);
}

/* ---- DELTA_BINARY_PACKED ---- */

static uint64_t unzigzag(uint64_t v)
{
    return v >> 1 ^ -(v & 1);
}

/* Reads the head; at most `most` numbers may follow. */
static void delta_begin(struct parquet_delta *d, const unsigned char *at, const unsigned char *end,
                        uint64_t most)
{
    struct thrift t = {.at = at, .end = end};

    *d = (struct parquet_delta){.end = end};
    d->block = thrift_varint(&t);
    d->minis = thrift_varint(&t);
    d->left = thrift_varint(&t);
    d->value = unzigzag(thrift_varint(&t));
    d->at = t.at;
    d->failed = t.failed || !d->minis || d->minis > 512 || d->block > 1 << 20 ||
                d->block % d->minis || d->block / d->minis % 8 || d->left > most;
    d->mini = d->minis;
}

static void delta_block(struct parquet_delta *d)
{
    struct thrift t = {.at = d->at, .end = d->end};

    d->least = unzigzag(thrift_varint(&t));
    d->widths = t.at;
    d->failed = t.failed || d->minis > (uint64_t)(d->end - t.at);
    d->at = d->failed ? d->end : t.at + d->minis;
    d->mini = 0;
}

/* Moves to the next miniblock, in the next block if this one has no more. Those behind the page's
 * last number have no bytes. */
static void delta_mini(struct parquet_delta *d)
{
    uint64_t bytes;

    if (d->mini == d->minis)
        delta_block(d);
    if (d->failed)
        return;
    d->in_mini = d->block / d->minis;
    bytes = d->in_mini / 8 * d->widths[d->mini];
    d->failed = d->widths[d->mini] > 64 || bytes > (uint64_t)(d->end - d->at) || !d->in_mini;
    d->bit = 0;
    d->at += d->failed ? 0 : bytes;
    d->mini++;
}

static uint64_t delta_next(struct parquet_delta *d)
{
    const unsigned char *run;
    uint64_t bytes;
    int width;

    if (!d->left || d->failed) {
        d->failed = true;
        return 0;
    }
    d->left--;
    if (!d->began) {
        d->began = true;
        return d->value;
    }
    if (!d->in_mini)
        delta_mini(d);
    if (d->failed)
        return 0;
    width = d->widths[d->mini - 1];
    bytes = d->block / d->minis / 8 * (uint64_t)width;
    run = d->at - bytes;
    d->value += d->least + read_bits(run, d->at, d->bit, width);
    d->bit += (uint64_t)width;
    d->in_mini--;
    return d->value;
}

/* Returns where the numbers end; they stay unread. NULL: they are damaged. */
static const unsigned char *delta_end(struct parquet_delta d)
{
    while (d.left && !d.failed)
        (void)delta_next(&d);
    return d.failed ? NULL : d.at;
}

/* ---- pages ---- */

struct parquet_page {
    int kind, encoding, def_encoding, rep_encoding;
    int64_t bytes, packed_bytes; /* size of the body, unpacked and in the file */
    int64_t values;
    int64_t def_bytes, rep_bytes; /* size of the levels of a page of version 2 */
    bool is_packed;
    bool has_crc;
    uint32_t crc;
    const unsigned char *body;
};

/* Reads the head of a data page, version 1 or 2, or of a dictionary. */
static void read_page_kind(struct thrift *t, struct parquet_page *p, bool v2)
{
    struct thrift_field f = {.id = 0};

    while (thrift_next(t, &f)) {
        if (f.id == 1)
            p->values = thrift_int(t, f);
        else if (f.id == (v2 ? 4 : 2))
            p->encoding = (int)thrift_int(t, f);
        else if (f.id == 3 && !v2 && p->kind == PAGE_DATA)
            p->def_encoding = (int)thrift_int(t, f);
        else if (f.id == 4 && p->kind == PAGE_DATA)
            p->rep_encoding = (int)thrift_int(t, f);
        else if (f.id == 5 && v2)
            p->def_bytes = thrift_int(t, f);
        else if (f.id == 6 && v2)
            p->rep_bytes = thrift_int(t, f);
        else if (f.id == 7 && v2)
            p->is_packed = thrift_bool(t, f);
        else
            thrift_skip(t, f);
    }
}

static enum hd_status check_crc(const struct parquet_page *p)
{
#ifdef HEDDLE_HAVE_ZLIB
    if (p->has_crc && (uint32_t)crc32(0, p->body, (uInt)p->packed_bytes) != p->crc)
        return hd_err(HD_INVALID, "a page is damaged: its checksum differs; write the file again");
#else
    (void)p;
#endif
    return HD_OK;
}

/* Reads the head of the page at column->at, and moves behind the page. */
static enum hd_status read_page(struct parquet_column *c, struct parquet_page *p)
{
    const struct parquet_footer *footer = c->footer;
    struct thrift_field f = {.id = 0};
    struct thrift t;

    *p = (struct parquet_page){
        .kind = -1, .def_encoding = RLE, .rep_encoding = RLE, .is_packed = true};
    if (c->at < 4 || c->at >= footer->end)
        return damaged_page();
    t = (struct thrift){.at = footer->file + c->at, .end = footer->file + footer->end};
    while (thrift_next(&t, &f)) {
        if (f.id == 1)
            p->kind = (int)thrift_int(&t, f);
        else if (f.id == 2)
            p->bytes = thrift_int(&t, f);
        else if (f.id == 3)
            p->packed_bytes = thrift_int(&t, f);
        else if (f.id == 4)
            p->crc = (uint32_t)thrift_int(&t, f);
        else if ((f.id == 5 || f.id == 7 || f.id == 8) && f.type == THRIFT_STRUCT)
            read_page_kind(&t, p, f.id == 8);
        else
            thrift_skip(&t, f);
        p->has_crc |= f.id == 4;
    }
    p->body = t.at;
    if (t.failed || p->bytes < 0 || p->bytes > INT32_MAX || p->packed_bytes < 0 ||
        p->packed_bytes > t.end - t.at || p->values < 0 || p->values > INT32_MAX)
        return damaged_page();
    if (records_use_read(c->use, p->body + p->packed_bytes - (footer->file + c->at)))
        return HD_INVALID;
    c->at = p->body + p->packed_bytes - footer->file;
    return check_crc(p);
}

static enum hd_status codec_of(int number, enum records_codec *ret_codec)
{
    static const char *const names[] = {"", "", "", "LZO", "Brotli", "LZ4 as of Hadoop"};

    *ret_codec = number == 1   ? RECORDS_SNAPPY
                 : number == 2 ? RECORDS_DEFLATE
                 : number == 7 ? RECORDS_LZ4
                               : RECORDS_ZSTANDARD;
    if (number == 1 || number == 2 || number == 6 || number == 7)
        return HD_OK;
    return hd_err(HD_INVALID,
                  "it is compressed by %s, which is not read; write the file with compression zstd",
                  number >= 3 && number <= 5 ? names[number] : "an unknown codec");
}

/* Sets *ret_at to bytes [from, packed_bytes) of the page's body, unpacked. *ret_owned: memory to
 * free; NULL: they lie in the file. */
static enum hd_status unpack_page(const struct parquet_column *c, const struct parquet_page *p,
                                  int64_t from, unsigned char **ret_owned,
                                  const unsigned char **ret_at, size_t *ret_bytes)
{
    const int64_t wanted = p->bytes - from;
    enum records_codec codec;
    enum hd_status st;

    *ret_owned = NULL;
    *ret_at = p->body + from;
    *ret_bytes = (size_t)(p->packed_bytes - from);
    if (wanted < 0 || from > p->packed_bytes)
        return damaged_page();
    if (!c->chunk.codec || !p->is_packed)
        return p->bytes == p->packed_bytes ? HD_OK : damaged_page();
    if (!*ret_bytes && !wanted) /* writers may leave an empty part unpacked */
        return HD_OK;
    st = codec_of(c->chunk.codec, &codec);
    if (!st)
        st = records_use_packed(c->use, p->packed_bytes, wanted);
    if (!st)
        st = records_unpack(codec, *ret_at, *ret_bytes, (size_t)wanted, ret_owned);
    *ret_at = *ret_owned;
    *ret_bytes = (size_t)wanted;
    return st;
}

/* Returns the bytes of a value of a number's type; 0: values have no fixed size. */
static size_t size_of(int type)
{
    return type == PARQUET_INT32 || type == PARQUET_FLOAT    ? 4
           : type == PARQUET_INT64 || type == PARQUET_DOUBLE ? 8
                                                             : 0;
}

static bool take_string(const unsigned char **at, const unsigned char *end,
                        struct parquet_bytes *ret_bytes)
{
    uint32_t n;

    if (end - *at < 4)
        return false;
    memcpy(&n, *at, 4);
    *at += 4;
    if (n > (size_t)(end - *at))
        return false;
    *ret_bytes = (struct parquet_bytes){*at, n};
    *at += n;
    return true;
}

/* Finds the strings of a dictionary. */
static enum hd_status index_words(struct parquet_column *c, int64_t count)
{
    const unsigned char *at = c->dictionary_at, *end = at + c->dictionary_bytes;

    if ((uint64_t)count > c->dictionary_bytes / 4)
        return damaged_page();
    c->words = malloc((size_t)count * sizeof *c->words + 1);
    if (!c->words)
        return hd_err(HD_NO_MEMORY, "no memory for a dictionary of %lld strings", (long long)count);
    for (c->word_count = 0; c->word_count < (size_t)count; c->word_count++)
        if (!take_string(&at, end, &c->words[c->word_count]))
            return damaged_page();
    return HD_OK;
}

static enum hd_status read_dictionary(struct parquet_column *c, const struct parquet_page *p)
{
    enum hd_status st;

    if (c->dictionary_at)
        return damaged_page(); /* a chunk has one */
    st = unpack_page(c, p, 0, &c->dictionary, &c->dictionary_at, &c->dictionary_bytes);
    if (!st && c->element->type == PARQUET_BYTES)
        st = index_words(c, p->values);
    return st;
}

/* Begins the levels of one kind in a page of version 1: their size, and the numbers. */
static enum hd_status begin_levels(struct parquet_hybrid *h, int max, int encoding,
                                   const unsigned char **at, const unsigned char *end)
{
    uint32_t n;

    hybrid_begin(h, *at, *at, 0);
    if (!max)
        return HD_OK;
    if (encoding != RLE)
        return hd_err(HD_INVALID, "its levels are encoded as before 2014; write the file again");
    if (end - *at < 4)
        return damaged_page();
    memcpy(&n, *at, 4);
    *at += 4;
    if (n > (size_t)(end - *at))
        return damaged_page();
    hybrid_begin(h, *at, *at + n, width_of((uint32_t)max));
    *at += n;
    return HD_OK;
}

/* Begins the values of a page, which are behind the levels. */
static enum hd_status begin_values(struct parquet_column *c, const struct parquet_page *p)
{
    const uint64_t most = (uint64_t)p->values;
    const int type = c->element->type;
    const size_t size = size_of(type);
    uint32_t n;

    c->encoding = p->encoding == PLAIN_DICTIONARY ? RLE_DICTIONARY : p->encoding;
    c->bit = 0;
    if (c->values == c->values_end) { /* every entry is null */
        c->encoding = PLAIN;
        return HD_OK;
    }
    if (c->encoding == RLE_DICTIONARY) {
        if (!c->dictionary_at || *c->values > 32 || type == PARQUET_BOOLEAN)
            return damaged_page();
        hybrid_begin(&c->codes, c->values + 1, c->values_end, *c->values);
        return HD_OK;
    }
    if (c->encoding == RLE && type == PARQUET_BOOLEAN) {
        if (c->values_end - c->values < 4)
            return damaged_page();
        memcpy(&n, c->values, 4);
        c->values += 4;
        if (n > (size_t)(c->values_end - c->values))
            return damaged_page();
        hybrid_begin(&c->codes, c->values, c->values + n, 1);
        return HD_OK;
    }
    if (c->encoding == PLAIN)
        return HD_OK;
    if (c->encoding == DELTA_BINARY && (type == PARQUET_INT32 || type == PARQUET_INT64)) {
        delta_begin(&c->deltas, c->values, c->values_end, most);
        return HD_OK;
    }
    if (c->encoding == BYTE_STREAM_SPLIT && size) {
        c->split_count = (uint64_t)(c->values_end - c->values) / size;
        c->split_index = 0;
        return HD_OK;
    }
    if ((c->encoding == DELTA_LENGTH || c->encoding == DELTA_BYTES) && type == PARQUET_BYTES) {
        if (c->encoding == DELTA_BYTES) {
            delta_begin(&c->prefixes, c->values, c->values_end, most);
            c->values = delta_end(c->prefixes);
            hd_text_clear(&c->last);
        }
        if (c->values)
            delta_begin(&c->deltas, c->values, c->values_end, most);
        c->values = c->values ? delta_end(c->deltas) : NULL;
        return c->values ? HD_OK : damaged_page();
    }
    return hd_err(HD_INVALID,
                  "its values are in encoding %d, which is not read; write the file with pyarrow's "
                  "defaults",
                  p->encoding);
}

static enum hd_status read_data(struct parquet_column *c, const struct parquet_page *p)
{
    const unsigned char *at = p->body, *end;
    const bool v2 = p->kind == PAGE_DATA_V2;
    size_t bytes;
    enum hd_status st = HD_OK;

    if (v2 && (p->def_bytes < 0 || p->rep_bytes < 0 || p->rep_bytes > p->packed_bytes ||
               p->def_bytes > p->packed_bytes - p->rep_bytes))
        return damaged_page();
    if (v2) { /* levels are in front of the compressed part */
        hybrid_begin(&c->reps, at, at + p->rep_bytes, width_of((uint32_t)c->rep_max));
        at += p->rep_bytes;
        hybrid_begin(&c->defs, at, at + p->def_bytes, width_of((uint32_t)c->def_max));
    }
    st = unpack_page(c, p, v2 ? p->rep_bytes + p->def_bytes : 0, &c->page, &at, &bytes);
    end = st ? NULL : at + bytes;
    if (!st && !v2)
        st = begin_levels(&c->reps, c->rep_max, p->rep_encoding, &at, end);
    if (!st && !v2)
        st = begin_levels(&c->defs, c->def_max, p->def_encoding, &at, end);
    if (st)
        return st;
    c->values = at;
    c->values_end = end;
    c->page_left = p->values;
    c->values_left -= p->values;
    return c->values_left < 0 ? damaged_page() : begin_values(c, p);
}

/* Reads pages until one has entries, or the chunk ends. */
static enum hd_status next_page(struct parquet_column *c)
{
    struct parquet_page p;
    enum hd_status st = HD_OK;

    while (!st && !c->page_left && c->values_left) {
        free(c->page);
        c->page = NULL;
        st = read_page(c, &p);
        if (!st && p.kind == PAGE_DICTIONARY)
            st = read_dictionary(c, &p);
        else if (!st && (p.kind == PAGE_DATA || p.kind == PAGE_DATA_V2))
            st = read_data(c, &p);
        else if (!st && p.kind != PAGE_INDEX)
            st = damaged_page();
    }
    return st;
}

enum hd_status parquet_begin(struct parquet_column *c, const struct parquet_chunk *chunk)
{
    parquet_end(c);
    c->chunk = *chunk;
    c->at = chunk->at;
    c->values_left = chunk->values;
    c->page_left = 0;
    if (chunk->elsewhere)
        return hd_err(HD_INVALID, "its column is in another file, which is not read; write the "
                                  "table to one file");
    if (!chunk->given || chunk->values < 0 || chunk->type != c->element->type)
        return hd_err(HD_INVALID, "the footer contradicts itself; write the file again");
    return parquet_advance(c);
}

void parquet_end(struct parquet_column *c)
{
    free(c->page);
    free(c->dictionary);
    free(c->words);
    c->page = c->dictionary = NULL;
    c->dictionary_at = NULL;
    c->words = NULL;
    c->word_count = 0;
    hd_text_free(&c->last);
}

enum hd_status parquet_advance(struct parquet_column *c)
{
    const enum hd_status st = next_page(c);

    c->has = !st && c->page_left > 0;
    if (!c->has)
        return st;
    c->page_left--;
    c->rep = c->rep_max ? (int)hybrid_next(&c->reps) : 0;
    c->def = c->def_max ? (int)hybrid_next(&c->defs) : 0;
    return c->reps.failed || c->defs.failed || c->rep > c->rep_max || c->def > c->def_max
               ? damaged_page()
               : HD_OK;
}

/* ---- values ---- */

static const unsigned char TRUTHS[] = {0, 1};

static enum hd_status read_code(struct parquet_column *c, struct parquet_bytes *ret)
{
    const size_t size = size_of(c->element->type);
    const size_t code = hybrid_next(&c->codes);

    if (c->codes.failed)
        return damaged_page();
    if (c->words && code < c->word_count)
        *ret = c->words[code];
    else if (size && code < c->dictionary_bytes / size)
        *ret = (struct parquet_bytes){c->dictionary_at + code * size, size};
    else
        return damaged_page();
    return HD_OK;
}

static enum hd_status read_plain_value(struct parquet_column *c, struct parquet_bytes *ret)
{
    const size_t size = size_of(c->element->type);

    if (c->element->type == PARQUET_BYTES)
        return take_string(&c->values, c->values_end, ret) ? HD_OK : damaged_page();
    if (c->element->type == PARQUET_BOOLEAN) {
        if (c->bit / 8 >= (uint64_t)(c->values_end - c->values))
            return damaged_page();
        *ret = (struct parquet_bytes){TRUTHS + (c->values[c->bit / 8] >> c->bit % 8 & 1), 1};
        c->bit++;
        return HD_OK;
    }
    if (!size || size > (size_t)(c->values_end - c->values))
        return damaged_page();
    *ret = (struct parquet_bytes){c->values, size};
    c->values += size;
    return HD_OK;
}

/* Takes the next bytes of strings whose lengths are apart. */
static bool take_suffix(struct parquet_column *c, struct parquet_bytes *ret)
{
    const uint64_t n = delta_next(&c->deltas);

    if (c->deltas.failed || n > (uint64_t)(c->values_end - c->values))
        return false;
    *ret = (struct parquet_bytes){c->values, (size_t)n};
    c->values += n;
    return true;
}

static enum hd_status read_delta_bytes(struct parquet_column *c, struct parquet_bytes *ret)
{
    const uint64_t prefix = delta_next(&c->prefixes);
    struct parquet_bytes suffix;

    if (c->prefixes.failed || prefix > c->last.len_bytes || !take_suffix(c, &suffix))
        return damaged_page();
    c->last.len_bytes = (size_t)prefix;
    if (prefix + suffix.count > RECORDS_BYTES_MAX)
        return hd_err(HD_INVALID, "a string of more than " RECORDS_MAX_TEXT);
    hd_text_add_bytes(&c->last, suffix.at, suffix.count);
    if (c->last.failed)
        return hd_err(HD_NO_MEMORY, "no memory for a string");
    *ret = (struct parquet_bytes){(const unsigned char *)c->last.data, c->last.len_bytes};
    return HD_OK;
}

enum hd_status parquet_value(struct parquet_column *c, struct parquet_bytes *ret)
{
    const size_t size = size_of(c->element->type);
    uint64_t n;

    switch (c->encoding) {
    case RLE_DICTIONARY:
        return read_code(c, ret);
    case RLE:
        *ret = (struct parquet_bytes){TRUTHS + (hybrid_next(&c->codes) & 1), 1};
        return c->codes.failed ? damaged_page() : HD_OK;
    case DELTA_BINARY:
        n = delta_next(&c->deltas);
        memcpy(c->number, &n, 8);
        *ret = (struct parquet_bytes){c->number, size};
        return c->deltas.failed ? damaged_page() : HD_OK;
    case DELTA_LENGTH:
        return take_suffix(c, ret) ? HD_OK : damaged_page();
    case DELTA_BYTES:
        return read_delta_bytes(c, ret);
    case BYTE_STREAM_SPLIT:
        if (c->split_index >= c->split_count)
            return damaged_page();
        for (size_t i = 0; i < size; i++)
            c->number[i] = c->values[i * c->split_count + c->split_index];
        c->split_index++;
        *ret = (struct parquet_bytes){c->number, size};
        return HD_OK;
    default:
        return read_plain_value(c, ret);
    }
}
