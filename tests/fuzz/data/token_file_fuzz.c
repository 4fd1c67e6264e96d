/* Hostile token files. What a reader accepts is read from end to end, and its documents walked
 * through, without leaving the bytes; what it refuses has a story.
 *
 * An input is one byte that says which format, and for Megatron two more for the size of the .bin
 * file that the index is to fit (its tokens are zeros), then the file. */
#include <stdlib.h>
#include <string.h>

#include "data/token_file.h"
#include "tests/fuzz/driver.h"

enum { NPY, LLMC, MEGATRON, FORMATS, READ_MAX = 256 };

static void walk(const struct hd_token_view *v)
{
    int32_t ids[READ_MAX];
    int64_t place = 0;

    require(v->count >= 0);
    for (int64_t first = 0; first < v->count; first += READ_MAX) {
        const int64_t n = v->count - first < READ_MAX ? v->count - first : READ_MAX;

        (void)hd_token_read(v, first, n, ids);
        for (int64_t i = 0; i < n; i++) {
            const int64_t id = hd_token_at(v, first + i);

            require(ids[i] == (id < 0 || id > INT32_MAX ? -1 : id));
            require(v->counts || hd_token_counts(v, first + i));
        }
    }
    while (place < v->count) {
        const int64_t next = hd_token_next_document(v, place);

        require(next > place && next <= v->count);
        place = next;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    static const unsigned char zeros[1 << 16];
    struct hd_token_view view;
    enum hd_status st;

    if (size_bytes < 3)
        return 0;
    if (bytes[0] % FORMATS == NPY)
        st = hd_token_view_npy(bytes + 1, (int64_t)size_bytes - 1, &view);
    else if (bytes[0] % FORMATS == LLMC)
        st = hd_token_view_llmc(bytes + 1, (int64_t)size_bytes - 1, &view);
    else
        st = hd_token_view_megatron(zeros, bytes[1] | bytes[2] << 8, bytes + 3,
                                    (int64_t)size_bytes - 3, &view);
    if (!st)
        walk(&view);
    else
        require((st == HD_INVALID || st == HD_UNSUPPORTED) && *hd_err_message());
    return 0;
}

static size_t put(uint8_t *out, size_t at, uint64_t value, int count)
{
    for (int i = 0; i < count; i++)
        out[at++] = (uint8_t)(value >> 8 * i);
    return at;
}

/* Sequences of 2, 1, 0 and 3 16-bit tokens, three documents; of version 2 with a bit for each. */
static size_t megatron_seed(uint8_t *out, uint64_t version)
{
    static const uint64_t lengths[] = {2, 1, 0, 3}, pointers[] = {0, 4, 6, 6},
                          documents[] = {0, 2, 3, 4};
    size_t n = put(out, 0, MEGATRON, 1);

    n = put(out, n, 12, 2);
    memcpy(out + n, "MMIDIDX\0", 9);
    n = put(out, n + 9, version, 8);
    n = put(out, n, 8, 1);
    n = put(out, n, 4, 8);
    n = put(out, n, 4, 8);
    for (int i = 0; i < 4; i++)
        n = put(out, n, lengths[i], 4);
    for (int i = 0; i < 4; i++)
        n = put(out, n, pointers[i], 8);
    for (int i = 0; i < 4; i++)
        n = put(out, n, documents[i], 8);
    return version == 2 ? put(out, n, 0x2A, 1) : n;
}

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    static const char header[] = "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }\n";
    size_t n = 0;

    if (index > 4 || max_bytes < 2048)
        return 0;
    if (index == 2 || index == 4)
        return megatron_seed(ret_bytes, index / 2);
    if (index == 1) {
        n = put(ret_bytes, put(ret_bytes, put(ret_bytes, 0, LLMC, 1), 20240801, 4), 7, 4);
        memset(ret_bytes + n, 0, 1024 - 8);
        ret_bytes[n] = 3;
        return put(ret_bytes, put(ret_bytes, n + 1024 - 8, 0x0002000000000001, 8), 70000, 4);
    }
    n = put(ret_bytes, 0, NPY, 1);
    memcpy(ret_bytes + n, "\x93NUMPY", 6);
    n = put(ret_bytes, put(ret_bytes, n + 6, index ? 2 : 1, 2), strlen(header), index ? 4 : 2);
    memcpy(ret_bytes + n, header, strlen(header));
    return put(ret_bytes, n + strlen(header), 0x000300020001, 6);
}
