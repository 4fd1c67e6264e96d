/* fp8: the scale of a tensor, its codes, products of codes, and the history of maxima. A product
 * decodes its factors to bf16, which represents every fp8 value exactly, and multiplies those. */
#include "base/fp8.h"

#include "kernels/costs/costs.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

enum { PARTS = HD_AMAX_PARTS, GRAIN = 64 * 1024, CODES = 256 };

static float largest(const float *values, int64_t count)
{
    float amax = 0;

    for (int64_t i = 0; i < count; i++)
        amax = values[i] > amax ? values[i] : amax;
    return amax;
}

/* ---- amax ---- */

static float largest_element(const uint16_t *inp, int64_t begin, int64_t end)
{
    float amax = 0;

    for (int64_t i = begin; i < end; i++)
        amax = hd_fp8_larger(amax, hd_bf16_to_f32(inp[i]));
    return amax;
}

static void amax_parts(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_fp8_amax_args *a = args;

    (void)thread;
    for (int64_t p = begin; p < end; p++)
        a->amax[p] = largest_element(a->inp, p * a->N / PARTS, (p + 1) * a->N / PARTS);
}

enum hd_status KERNEL(fp8_amax)(struct hd_backend *cpu, const struct hd_fp8_amax_args *args)
{
    const float history = args->history ? largest(args->history, args->history_len) : 0;

    if (history > 0) {
        memset(args->amax, 0, PARTS * sizeof *args->amax);
        args->amax[0] = history;
        return HD_OK;
    }
    hd_cpu_parallel(cpu, PARTS, hd_cpu_row_grain(args->N / PARTS * 4), amax_parts, args);
    return HD_OK;
}

/* ---- encode ---- */

struct fp8_encoding {
    const struct hd_fp8_encode_args *args;
    float power;
    float *seen; /* [PARTS] largest magnitude of each part of the tensor */
};

INLINE void encode_rows(const struct hd_fp8_encode_args *a, float power, int64_t begin, int64_t end,
                        enum hd_fp8 format)
{
    const uint16_t *inp = a->inp;

    for (int64_t r = begin; r < end; r++)
        for (int64_t c = 0; c < a->C; c++) {
            const uint8_t code = hd_fp8_encode(hd_bf16_to_f32(inp[r * a->C + c]), power, format);

            if (a->code)
                a->code[r * a->C + c] = code;
            if (a->transposed)
                a->transposed[c * a->R + r] = code;
        }
}

static void encode_parts(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct fp8_encoding *w = args;
    const struct hd_fp8_encode_args *a = w->args;

    (void)thread;
    for (int64_t p = begin; p < end; p++) {
        const int64_t first = p * a->R / PARTS, last = (p + 1) * a->R / PARTS;

        w->seen[p] = largest_element(a->inp, first * a->C, last * a->C);
        if (a->format == HD_E4M3)
            encode_rows(a, w->power, first, last, HD_E4M3);
        else
            encode_rows(a, w->power, first, last, HD_E5M2);
    }
}

enum hd_status KERNEL(fp8_encode)(struct hd_backend *cpu, const struct hd_fp8_encode_args *args)
{
    const int e = hd_fp8_exponent(largest(args->amax, PARTS), args->format);
    float seen[PARTS] = {0};
    const struct fp8_encoding work = {args, hd_fp8_power(e), seen};

    *args->factor = hd_fp8_power(-e);
    hd_cpu_parallel(cpu, PARTS, hd_cpu_row_grain(args->R * args->C / PARTS * 4), encode_parts,
                    &work);
    if (args->seen)
        *args->seen = hd_fp8_larger(*args->seen, largest(seen, PARTS));
    return HD_OK;
}

enum hd_status KERNEL(encode_result)(struct hd_backend *cpu,
                                     const struct hd_fp8_encode_args *encode, const float *history,
                                     int64_t history_len)
{
    struct hd_fp8_encode_args args = *encode;
    float amax[PARTS];
    const enum hd_status st =
        KERNEL(fp8_amax)(cpu, &(struct hd_fp8_amax_args){.amax = amax,
                                                         .inp = args.inp,
                                                         .history = history,
                                                         .N = args.R * args.C,
                                                         .history_len = history_len});

    args.amax = amax;
    return st ? st : KERNEL(fp8_encode)(cpu, &args);
}

/* ---- products ---- */

struct fp8_decoding {
    uint16_t values[CODES]; /* bf16 value of each code */
    const uint8_t *codes;
    uint16_t *out;
};

static void decode_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct fp8_decoding *d = args;

    (void)thread;
    for (int64_t i = begin; i < end; i++)
        d->out[i] = d->values[d->codes[i]];
}

static void decode(const struct hd_backend *cpu, const uint8_t *codes, int64_t count,
                   enum hd_fp8 format, float factor, void *ret_values)
{
    struct fp8_decoding d = {.codes = codes, .out = ret_values};

    for (int code = 0; code < CODES; code++)
        d.values[code] = hd_f32_to_bf16(hd_fp8_value((uint8_t)code, format) * factor);
    hd_cpu_parallel(cpu, count, GRAIN, decode_pieces, &d);
}

enum hd_status KERNEL(fp8_gemm)(struct hd_backend *cpu, const struct hd_fp8_gemm_args *args)
{
    const struct hd_costs_fp8_layout l = hd_costs_lay_out_fp8(args, &cpu->traits);
    const struct hd_gemm_args product = hd_costs_fp8_product(args, &cpu->traits);
    const enum hd_status st = hd_costs_fp8_check(args);

    if (st)
        return st;
    decode(cpu, args->a, args->M * args->K, args->a_format, *args->a_factor,
           (char *)args->scratch + l.a);
    decode(cpu, args->b, args->N * args->K, args->b_format, *args->b_factor,
           (char *)args->scratch + l.b);
    return KERNEL(gemm)(cpu, &product);
}

/* ---- history ---- */

enum hd_status KERNEL(fp8_history)(struct hd_backend *cpu, const struct hd_fp8_history_args *args)
{
    const size_t older = (size_t)(args->history_len - 1) * sizeof *args->history;

    (void)cpu;
    for (int64_t i = 0; i < args->N && !args->block->skip_update; i++) {
        float *history = args->history + i * args->history_len;

        memmove(history + 1, history, older);
        history[0] = args->seen[i];
    }
    return HD_OK;
}
