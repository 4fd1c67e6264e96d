/* tensor: emulates ldmatrix, mma.sync and cp.async, with the layouts of the PTX ISA, and the
 * arithmetic of tensor cores.
 *
 * NVIDIA does not document that arithmetic; it was measured (Fasi, Higham, Mikaitis, Pranesh 2021,
 * "Numerical behavior of NVIDIA tensor cores", PeerJ CS 7:e330; Khattak, Mikaitis 2025, "Accurate
 * models of NVIDIA tensor cores"). One operation adds the exact products of a few factors to one
 * fp32 number: it aligns all of them to the largest exponent, drops the bits below a few extra
 * bits, adds, and drops what fp32 has no bits for. Nothing is rounded to nearest. Emulated is the
 * least accurate GPU that the plug-in supports, the A100: 8 products of bf16 or f16, or 4 of tf32,
 * per operation, and one extra bit. (An H100 adds 16 or 8, with two extra bits.)
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "tests/cudasim/internal.h"

void hd_sim_whole_warp(unsigned mask, struct hd_sim_thread **lanes)
{
    for (unsigned lane = 0; lane < HD_CUDASIM_WARP; lane++)
        if (lanes[lane] && mask != (unsigned)HD_SIM_ALL_LANES)
            hd_cudasim_fail(lanes[lane]->site, "%s in a warp of which only lanes 0x%08x live",
                            hd_sim_op_name(lanes[lane]->op), mask);
}

void hd_cudasim_check_aligned(const void *address, size_t align, struct hd_cudasim_site site)
{
    if ((uintptr_t)address % align)
        hd_cudasim_fail(site, "misaligned address %p: this access needs a multiple of %zu", address,
                        align);
}

/* ---- ldmatrix: `count` matrices of 8 x 8 elements of 2 bytes; lanes 8m .. 8m+7 pass the addresses
 * of the rows of matrix m ---- */

struct ldmatrix {
    const void *row;
    uint32_t *ret_rows;
    int count;
    bool transposed;
};

static void perform_ldmatrix(struct hd_sim_thread **lanes, unsigned mask)
{
    const struct ldmatrix *first;
    uint16_t matrix[8][8];

    hd_sim_whole_warp(mask, lanes);
    first = lanes[0]->part;
    for (unsigned m = 0; m < (unsigned)first->count; m++) {
        for (unsigned row = 0; row < 8; row++)
            memcpy(matrix[row], ((const struct ldmatrix *)lanes[8 * m + row]->part)->row,
                   sizeof matrix[row]);
        for (unsigned lane = 0; lane < HD_CUDASIM_WARP; lane++) {
            const unsigned g = lane / 4, t = lane % 4 * 2;
            const uint32_t low = first->transposed ? matrix[t][g] : matrix[g][t];
            const uint32_t high = first->transposed ? matrix[t + 1][g] : matrix[g][t + 1];

            ((const struct ldmatrix *)lanes[lane]->part)->ret_rows[m] = high << 16 | low;
        }
    }
}

void hd_cudasim_ldmatrix(uint32_t *ret_rows, int count, bool transposed, const void *row,
                         struct hd_cudasim_site site)
{
    struct hd_sim_engine *e = hd_sim_engine();
    struct ldmatrix part = {row, ret_rows, count, transposed};

    if (hd_cudasim_lane() < 8 * (unsigned)count) { /* the other lanes' addresses are not used */
        hd_cudasim_check_aligned(row, 16, site);
        if (!hd_sim_is_shared(e, row, 16))
            hd_cudasim_fail(site, "ldmatrix of %p, which is not 16 bytes of a shared array", row);
    }
    hd_sim_collect(HD_SIM_LDMATRIX, (unsigned)HD_SIM_ALL_LANES, &part, perform_ldmatrix, site);
}

/* ---- Arithmetic ---- */

/* Drops the bits of x that fp32 has no room for. */
static float truncated(double x)
{
    uint64_t bits;

    if (!(fabs(x) >= 0x1p-126)) /* subnormal in fp32, or NaN */
        return (float)(trunc(x * 0x1p149) * 0x1p-149);
    memcpy(&bits, &x, sizeof bits);
    bits &= ~((UINT64_C(1) << 29) - 1); /* double has 52 bits after the point, fp32 23 */
    memcpy(&x, &bits, sizeof x);
    return (float)x;
}

/* 127 more than the exponent of x; a subnormal number has that of the smallest normal one. */
static int biased_exponent(float x)
{
    uint32_t bits;
    int field;

    memcpy(&bits, &x, sizeof bits);
    field = (int)(bits >> 23 & 0xff);
    return field ? field : 1;
}

static double power_of_two(int exponent) /* of a normal double */
{
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double power;

    memcpy(&power, &bits, sizeof power);
    return power;
}

float hd_sim_tensor_add(float c, const float *a, const float *b, int64_t count)
{
    enum { FRACTION_BITS = 23 + 1, BIAS = 127 };
    double terms[HD_SIM_TENSOR_TERMS + 1], sum = c;
    int largest = c != 0 ? biased_exponent(c) + BIAS : 0; /* as of a product: biased twice */
    int64_t aligned = 0;

    terms[0] = c;
    for (int64_t i = 0; i < count; i++) {
        const double product = (double)a[i] * (double)b[i];

        terms[i + 1] = product;
        sum += product;
        if (product != 0) {
            const int exponent = biased_exponent(a[i]) + biased_exponent(b[i]);

            largest = exponent > largest ? exponent : largest;
        }
    }
    if (!isfinite(sum))
        return (float)sum;
    for (int64_t i = 0; i <= count; i++) /* the conversion drops the fraction */
        aligned += (int64_t)(terms[i] * power_of_two(FRACTION_BITS - (largest - 2 * BIAS)));
    return truncated((double)aligned * power_of_two(largest - 2 * BIAS - FRACTION_BITS));
}

/* ---- mma.m16n8k16: d[16,8] += a[16,16] b[16,8] ---- */

struct mma {
    float *d;
    const uint32_t *a, *b;
    bool is_bf16;
};

static float half_of(uint32_t word, unsigned upper, bool is_bf16)
{
    const uint16_t bits = (uint16_t)(word >> (16 * upper));

    return is_bf16 ? hd_bf16_to_f32(bits) : hd_f16_to_f32(bits);
}

static void perform_mma(struct hd_sim_thread **lanes, unsigned mask)
{
    float a[16][16], b[8][16]; /* b[column][row] */

    hd_sim_whole_warp(mask, lanes);
    for (unsigned lane = 0; lane < HD_CUDASIM_WARP; lane++) {
        const struct mma *part = lanes[lane]->part;
        const unsigned g = lane / 4, t = lane % 4 * 2;

        for (unsigned i = 0; i < 8; i++) /* register i / 2, half i % 2 */
            a[g + 8 * (i / 2 % 2)][t + i % 2 + 8 * (i / 4)] =
                half_of(part->a[i / 2], i % 2, part->is_bf16);
        for (unsigned i = 0; i < 4; i++)
            b[g][t + i % 2 + 8 * (i / 2)] = half_of(part->b[i / 2], i % 2, part->is_bf16);
    }
    for (unsigned lane = 0; lane < HD_CUDASIM_WARP; lane++) {
        const struct mma *part = lanes[lane]->part;
        const unsigned g = lane / 4, t = lane % 4 * 2;

        for (unsigned i = 0; i < 4; i++) {
            const unsigned row = g + 8 * (i / 2), column = t + i % 2;

            for (unsigned k = 0; k < 16; k += HD_SIM_TENSOR_TERMS)
                part->d[i] =
                    hd_sim_tensor_add(part->d[i], &a[row][k], &b[column][k], HD_SIM_TENSOR_TERMS);
        }
    }
}

void hd_cudasim_mma(float d[4], const uint32_t a[4], const uint32_t b[2], bool is_bf16,
                    struct hd_cudasim_site site)
{
    struct mma part = {d, a, b, is_bf16};

    hd_sim_collect(HD_SIM_MMA, (unsigned)HD_SIM_ALL_LANES, &part, perform_mma, site);
}

/* ---- cp.async: shared memory has poison until the wait, then the bytes ---- */

void hd_cudasim_copy(void *shared, const void *global, bool valid, struct hd_cudasim_site site)
{
    struct hd_sim_engine *e = hd_sim_engine();
    struct hd_sim_thread *t = e->running;
    struct hd_sim_copy *copy;

    hd_cudasim_check_aligned(shared, 16, site);
    if (!hd_sim_is_shared(e, shared, 16))
        hd_cudasim_fail(site, "cp.async to %p, which is not 16 bytes of a shared array", shared);
    if (valid)
        hd_cudasim_check_aligned(global, 16, site);
    if (t->copy_count == t->copy_room) {
        t->copy_room = t->copy_room ? 2 * t->copy_room : 16;
        t->copies = realloc(t->copies, t->copy_room * sizeof *t->copies);
        if (!t->copies)
            hd_cudasim_fail(site, "no memory for copies in flight");
    }
    copy = &t->copies[t->copy_count++];
    *copy = (struct hd_sim_copy){.shared = shared, .group = t->group};
    if (valid)
        memcpy(copy->bytes, global, sizeof copy->bytes);
    memset(shared, HD_SIM_POISON, sizeof copy->bytes);
}

void hd_cudasim_copy_commit(void)
{
    hd_sim_engine()->running->group++;
}

void hd_cudasim_copy_wait(int groups)
{
    struct hd_sim_thread *t = hd_sim_engine()->running;
    size_t kept = 0;

    /* complete all but the newest `groups` committed groups; uncommitted copies stay in flight */
    for (size_t i = 0; i < t->copy_count; i++) {
        if (t->copies[i].group + (unsigned)groups < t->group)
            memcpy(t->copies[i].shared, t->copies[i].bytes, sizeof t->copies[i].bytes);
        else
            t->copies[kept++] = t->copies[i];
    }
    t->copy_count = kept;
}
