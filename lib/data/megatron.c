/* megatron: parses the index of Megatron's MMapIndexedDataset. Its tables are read in place in the
 * mapped file and take no other memory. */
#include <inttypes.h>
#include <string.h>

#include "data/token_file.h"
#include "data/token_file_internal.h"

static const unsigned char magic[9] = "MMIDIDX\0";

enum { HEAD_BYTES = 9 + 8 + 1 + 8 + 8, VERSION_COUNTS = 2 };

static enum hd_status type_of(int code, enum hd_token_type *ret_type)
{
    static const struct {
        int code;
        enum hd_token_type type;
    } types[] = {{1, HD_TOKEN_U8},
                 {3, HD_TOKEN_I16},
                 {4, HD_TOKEN_I32},
                 {5, HD_TOKEN_I64},
                 {8, HD_TOKEN_U16}};

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].code == code) {
            *ret_type = types[i].type;
            return HD_OK;
        }
    return hd_err(
        HD_UNSUPPORTED,
        "the index has elements of type %d; token ids are 1 (uint8), 3 (int16), 4 (int32), "
        "5 (int64) or 8 (uint16)",
        code);
}

/* Checks that the sequences in the index are contiguous and end with the .bin file. */
static enum hd_status check_sequences(const struct hd_token_view *v, const unsigned char *lengths,
                                      int64_t size_bytes)
{
    const int64_t width = hd_token_type_bytes(v->type);
    int64_t at = 0;

    for (int64_t i = 0; i < v->sequence_count; i++) {
        const int64_t length = hd_load_i32(lengths + 4 * i),
                      pointer = hd_load_i64(v->pointers + 8 * i);

        if (length < 0 || pointer != at || length > (size_bytes - at) / width)
            return hd_err(HD_INVALID,
                          "the index puts sequence %" PRId64 " of %" PRId64
                          " tokens at byte %" PRId64 ", after %" PRId64 " of the %" PRId64
                          " bytes of the .bin file; the two do "
                          "not belong together",
                          i, length, pointer, at, size_bytes);
        at += length * width;
    }
    if (at != size_bytes)
        return hd_err(HD_INVALID,
                      "the index describes %" PRId64 " bytes, the .bin file has %" PRId64
                      "; the two do not belong together",
                      at, size_bytes);
    return HD_OK;
}

/* Checks the document index, in which a document is a range of sequences: it must begin with 0,
 * ascend, and end with the number of sequences. */
static enum hd_status check_documents(const struct hd_token_view *v)
{
    int64_t before = 0;

    for (int64_t i = 0; i <= v->document_count; i++) {
        const int64_t sequence = hd_load_i64(v->documents + 8 * i);

        if (sequence < before || sequence > v->sequence_count || (i == 0 && sequence != 0) ||
            (i == v->document_count && sequence != v->sequence_count))
            return hd_err(HD_INVALID,
                          "entry %" PRId64 " of the document index is %" PRId64 "; it must ascend "
                          "from 0 to the %" PRId64 " sequences",
                          i, sequence, v->sequence_count);
        before = sequence;
    }
    return HD_OK;
}

enum hd_status hd_token_view_megatron(const void *bytes, int64_t size_bytes, const void *index,
                                      int64_t index_bytes, struct hd_token_view *ret_view)
{
    struct hd_token_view v = {.kind = "megatron", .tokens = bytes};
    const unsigned char *p = index;
    int64_t expected, entries, version;
    enum hd_status st;

    if (index_bytes < HEAD_BYTES || memcmp(p, magic, sizeof magic) != 0)
        return hd_err(HD_INVALID, "the .idx file beside it is not an index of Megatron: it does "
                                  "not begin with MMIDIDX");
    version = hd_load_i64(p + 9);
    if (version != 1 && version != VERSION_COUNTS)
        return hd_err(HD_UNSUPPORTED,
                      "version %" PRId64 " of Megatron's index; version 1 is read, and Heddle's 2",
                      version);
    st = type_of(p[17], &v.type);
    if (st)
        return st;
    v.sequence_count = hd_load_i64(p + 18);
    entries = hd_load_i64(p + 26);
    if (v.sequence_count < 0 || v.sequence_count > index_bytes / 12 || entries < 1 ||
        entries > index_bytes / 8)
        return hd_err(HD_INVALID,
                      "the index of %" PRId64 " bytes claims %" PRId64 " sequences and %" PRId64
                      " entries of documents; it was truncated",
                      index_bytes, v.sequence_count, entries);
    expected = HEAD_BYTES + 12 * v.sequence_count + 8 * entries;
    v.count = size_bytes / hd_token_type_bytes(v.type);
    if (version == VERSION_COUNTS) {
        v.kind = "conversations";
        v.counts = p + expected;
        expected += (v.count + 7) / 8;
    }
    if (index_bytes != expected && (version != 1 || index_bytes != expected + v.sequence_count))
        return hd_err(HD_INVALID, "the index has %" PRId64 " bytes, its tables take %" PRId64,
                      index_bytes, expected);
    v.document_count = entries - 1;
    v.pointers = p + HEAD_BYTES + 4 * v.sequence_count;
    v.documents = v.pointers + 8 * v.sequence_count;
    st = check_sequences(&v, p + HEAD_BYTES, size_bytes);
    if (!st)
        st = check_documents(&v);
    if (!st)
        *ret_view = v;
    return st;
}

int64_t hd_token_document_start(const struct hd_token_view *v, int64_t d)
{
    const int64_t sequence = hd_load_i64(v->documents + 8 * d);

    if (sequence >= v->sequence_count)
        return v->count;
    return hd_load_i64(v->pointers + 8 * sequence) / hd_token_type_bytes(v->type);
}

int64_t hd_token_next_document(const struct hd_token_view *v, int64_t place)
{
    int64_t lo = 0, hi = v->document_count; /* the first start > place is in [lo, hi] */

    if (!v->documents)
        return v->count;
    while (lo < hi) {
        const int64_t middle = lo + (hi - lo) / 2;

        if (hd_token_document_start(v, middle) > place)
            hi = middle;
        else
            lo = middle + 1;
    }
    return hd_token_document_start(v, lo);
}
