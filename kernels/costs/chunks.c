/* chunks: division of rows into chunks; used by the other files of this folder. */
#include "kernels/costs/costs.h"

static struct hd_costs_chunks chunks_of(int64_t R, int64_t rows_min, int64_t count_max)
{
    struct hd_costs_chunks chunks;

    chunks.rows = (R + count_max - 1) / count_max;
    if (chunks.rows < rows_min)
        chunks.rows = rows_min;
    chunks.count = (R + chunks.rows - 1) / chunks.rows;
    return chunks;
}

struct hd_costs_chunks hd_costs_row_chunks(int64_t R)
{
    return chunks_of(R, 64, 64);
}

struct hd_costs_chunks hd_costs_device_row_chunks(int64_t R)
{
    return chunks_of(R, 32, 256);
}

int64_t hd_row_sums_count(const struct hd_traits *traits, int64_t R)
{
    return hd_costs_row_chunks_on(traits, R).count;
}

int64_t hd_costs_partial_bytes(const struct hd_traits *traits, int64_t R, int64_t N)
{
    return hd_costs_row_chunks_on(traits, R).count * N * (int64_t)sizeof(float);
}

struct hd_costs_chunks hd_costs_row_chunks_on(const struct hd_traits *traits, int64_t R)
{
    return hd_traits_is_cuda(traits) ? hd_costs_device_row_chunks(R) : hd_costs_row_chunks(R);
}
