/* Hostile columnar files. What is read is lines of JSON, each ended; what is refused has a story.
 * Seeds: the small files of tests/unit/records.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "records/records_internal.h"
#include "tests/fuzz/driver.h"

enum { OUTPUT_BYTES_MAX = 16 << 20 };

static void read_rows(const struct records_reader *reader, void *state)
{
    struct hd_text out = {0};
    bool there = true;
    enum hd_status st = HD_OK;

    for (int rows = 0; !st && there && rows < 100000 && out.len_bytes < OUTPUT_BYTES_MAX; rows++) {
        const size_t before = out.len_bytes;

        st = reader->next(state, &out, &there);
        require(st || !there || (out.len_bytes > before && out.data[out.len_bytes - 1] == '\n'));
        require(st || !there || out.data[before] == '{');
    }
    require(!st || hd_err_message()[0] != '\0');
    hd_text_free(&out);
    reader->close(state);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    static const struct records_columns columns = {.count = 0};
    void *state = NULL;

    if (size_bytes && bytes[0] == 'P') {
        if (!records_parquet_open("f", bytes, (int64_t)size_bytes, &columns, &state))
            read_rows(&records_parquet, state);
    } else if (!records_arrow_open("f", bytes, (int64_t)size_bytes, &columns, &state)) {
        read_rows(&records_arrow, state);
    }
    return 0;
}

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    static const char *const files[] = {"deep-snappy-v1.parquet",
                                        "deep-lz4-v2.parquet",
                                        "deep-zstd-v2.parquet",
                                        "deep-gzip-v1.parquet",
                                        "numbers-split.parquet",
                                        "numbers-v2.parquet",
                                        "text-polars.parquet",
                                        "text-duckdb-v2.parquet",
                                        "deep-delta_byte_array-v2.parquet",
                                        "deep-delta_length_byte_array-v1.parquet",
                                        "deep-lz4.arrow",
                                        "deep-zstd.arrow",
                                        "numbers.arrow",
                                        "text-views.arrow",
                                        "text-words.arrow",
                                        "fixed.arrow"};
    const char *root = getenv("HEDDLE_SOURCE_DIR");
    char path[4096];
    FILE *file;
    size_t n;

    if (index >= sizeof files / sizeof *files)
        return 0;
    (void)snprintf(path, sizeof path, "%s/tests/unit/records/files/%s", root ? root : ".",
                   files[index]);
    file = fopen(path, "rb");
    require(file != NULL);
    n = fread(ret_bytes, 1, max_bytes, file);
    (void)fclose(file);
    return n;
}
