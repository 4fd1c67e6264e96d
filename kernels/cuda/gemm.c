/* gemm: GEMM by cuBLASLt, with bias, residual and epilogue (GELU or its derivative).
 * gemm_library.h lists the files.
 *
 * The workspace is the op's scratch, so launches on several streams never share one.
 *
 * A GEMM that the library refuses (dtypes, leading dimensions or addresses that none of its kernels
 * supports) is computed by own code (gemm_own.cu). If only the epilogue or the residual is
 * refused, the library computes the plain GEMM, and GELU or the sum is a separate launch, as in a
 * program without fusion. A GEMM whose algorithms were all refused at a launch is handled likewise.
 *
 * An encoded b is decoded to scratch (decode.cu), a slab of columns at a time; the product of a
 * slab is a plain one.
 *
 * fp8 products (fp8_gemm) use the library, too, but have no own code: what the library refuses is
 * an error, found by prepare before the first step. The library has only the layout in which both
 * factors have the depth in their rows, which is ours; their scales are device pointers, and part
 * of the description like a bias. Sums with fewer bits (FAST_ACCUM) stay off.
 */
#include <string.h>

#include "kernels/costs/costs.h"
#include "kernels/cuda/gemm_library.h"

static int32_t align_of(const void *address)
{
    const uintptr_t bits = (uintptr_t)address | HD_CUDA_GEMM_ALIGN_MAX;

    return (int32_t)(bits & -bits);
}

/* Returns the leading dimension of a matrix for the library. If the matrix has one row, its leading
 * dimension has no meaning and is replaced, so that it does not lead to another cache entry or to a
 * shape that the library refuses. */
static int64_t distance(int64_t ld, int64_t rows, int64_t columns)
{
    return rows == 1 ? columns : ld;
}

/* Returns the library's auxiliary matrix: GELU's input, written by forward and read by backward. */
static const void *aux_of(const struct hd_gemm_args *args)
{
    return args->epilogue == HD_EPILOGUE_GELU_BACKWARD ? args->gelu_inp : args->pre;
}

static struct cuda_addresses addresses_of(const struct hd_gemm_args *args)
{
    return (struct cuda_addresses){.bias = args->bias, .aux = aux_of(args)};
}

static void gemm_shape_of(const struct hd_gemm_args *args, struct cuda_shape *ret_shape)
{
    struct cuda_shape *s = ret_shape;

    memset(s, 0, sizeof *s);
    s->M = args->M;
    s->N = args->N;
    s->K = args->K;
    s->lda = args->trans_a ? distance(args->lda, args->K, args->M)
                           : distance(args->lda, args->M, args->K);
    s->ldb = args->trans_b ? distance(args->ldb, args->N, args->K)
                           : distance(args->ldb, args->K, args->N);
    s->ldc = distance(args->ldc, args->M, args->N);
    s->trans_a = args->trans_a;
    s->trans_b = args->trans_b;
    s->accumulate = args->accumulate;
    s->epilogue = (int32_t)args->epilogue;
    s->ab_dtype = (int32_t)args->ab_dtype;
    s->c_dtype = (int32_t)args->c_dtype;
    s->align_a = align_of(args->a);
    s->align_b = align_of(args->b);
    s->align_c = align_of(args->c);
    s->align_bias = args->bias ? align_of(args->bias) : 0;
    s->align_aux = aux_of(args) ? align_of(aux_of(args)) : 0;
    s->align_add = args->add ? align_of(args->add) : 0;
}

static enum hd_status find_product(const struct hd_backend *cuda, const struct hd_gemm_args *args,
                                   struct cuda_product **ret_product)
{
    const struct cuda_addresses at = addresses_of(args);
    struct cuda_shape shape;

    gemm_shape_of(args, &shape);
    return hd_cuda_product_find(cuda, &shape, &at, ret_product);
}

static enum hd_status check_gemm(const struct hd_backend *cuda, const struct hd_gemm_args *args)
{
    const enum hd_dtype ab = args->ab_dtype, c = args->c_dtype;

    if ((ab != HD_F32 && ab != HD_BF16 && ab != HD_F16) ||
        (c != HD_F32 && c != HD_BF16 && c != HD_F16))
        return hd_err(HD_UNSUPPORTED,
                      "gemm: the cuda backend multiplies f32, bf16 and f16, not %s "
                      "into %s",
                      hd_dtype_name(ab), hd_dtype_name(c));
    return hd_costs_gemm_is_gated(args) && hd_gemm_takes_epilogue(args, &cuda->traits)
               ? HD_OK
               : hd_costs_gemm_check(args);
}

/* Splits a GEMM into *ret_part, which the library computes in one call, and the rest. If the
 * library refuses the epilogue or the residual, the part is the plain GEMM, but only if rows have no
 * gaps, because activation_forward and add need flat tensors. */
static enum hd_status find_way(const struct hd_backend *cuda, const struct hd_gemm_args *args,
                               struct hd_gemm_args *ret_part, struct cuda_product **ret_product)
{
    enum hd_status st;

    *ret_part = *args;
    st = find_product(cuda, ret_part, ret_product);
    if (st || (*ret_product)->supported || (!args->epilogue && !args->add) ||
        distance(args->ldc, args->M, args->N) != args->N)
        return st;
    ret_part->add = NULL;
    ret_part->epilogue = HD_EPILOGUE_NONE;
    ret_part->pre = NULL;
    ret_part->gelu_inp = NULL;
    if (args->pre)
        ret_part->c = args->pre;
    return find_product(cuda, ret_part, ret_product);
}

/* Prepares the products of the slabs of an encoded b: the first, and the last, which may be
 * narrower. */
static enum hd_status prepare_slabs(struct hd_backend *cuda, const struct hd_gemm_args *args)
{
    const int64_t columns = hd_costs_gemm_slabs(args).columns;
    const struct hd_gemm_args first = hd_costs_gemm_slab(args, 0);
    const struct hd_gemm_args last = hd_costs_gemm_slab(args, (args->N - 1) / columns * columns);
    const enum hd_status st = hd_cuda_gemm_prepare(cuda, &first);

    return st || last.N == first.N ? st : hd_cuda_gemm_prepare(cuda, &last);
}

enum hd_status hd_cuda_gemm_prepare(struct hd_backend *cuda, const struct hd_gemm_args *args)
{
    struct cuda_addresses at;
    struct hd_gemm_args part;
    struct cuda_product *p;
    enum hd_status st = HD_OK;

    if (args->M > 0 && args->N > 0 && hd_costs_gemm_is_encoded(args))
        return prepare_slabs(cuda, args);
    if (args->M <= 0 || args->N <= 0 || hd_costs_gemm_is_own(args, &cuda->traits))
        return HD_OK;
    /* repeat if every algorithm was refused: the library then computes another part */
    do {
        st = find_way(cuda, args, &part, &p);
        if (st || !p->supported)
            return st;
        at = addresses_of(&part);
        st = hd_cuda_product_tune(cuda, p, &part, &at);
    } while (!st && !p->supported);
    return st;
}

enum hd_status hd_cuda_gemm_supported(const struct hd_backend *cuda,
                                      const struct hd_gemm_args *args, bool *ret_supported)
{
    struct hd_gemm_args part = *args;
    struct cuda_product *p = NULL;
    enum hd_status st = check_gemm(cuda, args);

    if (!st && hd_costs_gemm_is_encoded(args)) {
        part = hd_costs_gemm_slab(args, 0);
        return hd_cuda_gemm_supported(cuda, &part, ret_supported);
    }
    if (!st && args->M > 0 && args->N > 0 && !hd_costs_gemm_is_own(args, &cuda->traits))
        st = find_way(cuda, args, &part, &p);
    if (!st)
        *ret_supported =
            p && p->supported && part.epilogue == args->epilogue && part.add == args->add;
    return st;
}

/* Launches the library's part of a GEMM. Sets *ret_refused, with HD_OK, if the library refused each
 * of its algorithms and nothing was launched. */
static enum hd_status multiply(struct hd_cuda_stream *stream, struct cuda_product *p,
                               const struct hd_gemm_args *args, const struct cuda_addresses *at,
                               bool *ret_refused)
{
    cublasStatus_t failed = hd_cuda_product_place(p, at);

    while (!failed && p->supported) {
        const int candidate = p->choice;

        failed = hd_cuda_product_launch(stream->cuda, p, candidate, args, stream->handle);
        if (!failed)
            break;
        if (hd_cuda_product_is_refused(failed)) {
            hd_cuda_product_refuse(stream->cuda, p, candidate, args, failed);
            failed = CUBLAS_STATUS_SUCCESS;
        }
    }
    if (failed)
        return hd_err(HD_INTERNAL,
                      "gemm: cuBLASLt failed to multiply [%lld,%lld] x [%lld,%lld]: %s",
                      (long long)args->M, (long long)args->K, (long long)args->K,
                      (long long)args->N, cublasLtGetStatusString(failed));
    *ret_refused = !p->supported;
    return HD_OK;
}

/* Launches GELU, or its derivative, on the GEMM's result at `inp`. */
static enum hd_status pass_gelu(struct hd_cuda_stream *stream, const struct hd_gemm_args *args,
                                const void *inp)
{
    const struct hd_activation_forward_args forward = {.out = args->c,
                                                       .inp = inp,
                                                       .N = args->M * args->N,
                                                       .act = HD_ACT_GELU_TANH,
                                                       .dtype = args->c_dtype};
    const struct hd_activation_backward_args backward = {.dinp = args->c,
                                                         .dout = inp,
                                                         .inp = args->gelu_inp,
                                                         .N = args->M * args->N,
                                                         .act = HD_ACT_GELU_TANH,
                                                         .dtype = args->c_dtype};

    return args->epilogue == HD_EPILOGUE_GELU ? hd_cuda_activation_forward(stream, &forward)
                                              : hd_cuda_activation_backward(stream, &backward);
}

/* Launches the operations of the GEMM `args` that are not in `part`. */
static enum hd_status finish(struct hd_cuda_stream *stream, const struct hd_gemm_args *args,
                             const struct hd_gemm_args *part)
{
    const struct hd_add_args residual = {.out = args->c,
                                         .a = args->add,
                                         .b = args->c,
                                         .N = args->M * args->N,
                                         .dtype = args->c_dtype};

    if (part->epilogue != args->epilogue)
        return pass_gelu(stream, args, part->c);
    return part->add != args->add ? hd_cuda_add(stream, &residual) : HD_OK;
}

static enum hd_status multiply_codes(struct hd_cuda_stream *stream, const struct hd_gemm_args *args)
{
    const int64_t columns = hd_costs_gemm_slabs(args).columns;
    enum hd_status st = HD_OK;

    for (int64_t at = 0; !st && at < args->N; at += columns) {
        const struct hd_gemm_args part = hd_costs_gemm_slab(args, at);

        st = hd_cuda_decode(stream, &args->b_codes, args->b, args->trans_b ? at : 0,
                            args->trans_b ? part.N : args->K, args->trans_b ? 0 : at,
                            args->trans_b ? args->K : part.N, args->scratch, args->ab_dtype);
        if (!st)
            st = hd_cuda_gemm(stream, &part);
    }
    return st;
}

enum hd_status hd_cuda_gemm(struct hd_cuda_stream *stream, const struct hd_gemm_args *args)
{
    struct hd_gemm_args part;
    struct cuda_addresses at;
    struct cuda_product *p;
    bool refused = false;
    enum hd_status st = check_gemm(stream->cuda, args);

    if (st || args->M <= 0 || args->N <= 0)
        return st;
#if defined(HD_HOPPER) || defined(HD_CUDASIM)
    if (hd_costs_gemm_is_gated(args))
        return hd_cuda_gemm_glu(stream, args);
#endif
    if (hd_costs_gemm_is_encoded(args) && args->K > 0)
        return multiply_codes(stream, args);
    if (hd_costs_gemm_is_own(args, &stream->cuda->traits))
        return hd_cuda_gemm_own(stream, args);
    st = find_way(stream->cuda, args, &part, &p);
    if (st)
        return st;
    if (!p->supported)
        return hd_cuda_gemm_own(stream, args);
    at = addresses_of(&part);
    st = multiply(stream, p, &part, &at, &refused);
    if (refused) /* the refusal is stored in p, so find_way now returns another part */
        return hd_cuda_gemm(stream, args);
    return st ? st : finish(stream, args, &part);
}

/* ---- fp8 ---- */

static int32_t type_of_fp8(enum hd_fp8 format)
{
    return format == HD_E4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

static const char *name_of_fp8(enum hd_fp8 format)
{
    return format == HD_E4M3 ? "E4M3" : "E5M2";
}

static struct hd_gemm_args product_of_fp8(const struct hd_fp8_gemm_args *args)
{
    struct hd_gemm_args product = hd_costs_fp8_as_gemm(args);

    product.a = args->a;
    product.b = args->b;
    product.scratch = args->scratch;
    return product;
}

static struct cuda_addresses addresses_of_fp8(const struct hd_fp8_gemm_args *args)
{
    return (struct cuda_addresses){
        .bias = args->bias, .a_factor = args->a_factor, .b_factor = args->b_factor};
}

static enum hd_status refuse_fp8(const struct hd_backend *cuda, const struct hd_fp8_gemm_args *args)
{
    return hd_err(
        HD_UNSUPPORTED,
        "fp8_gemm: %s on a GPU of capability %d.%d does not multiply [%lld,%lld] in %s by "
        "[%lld,%lld] in %s; use bf16",
        cuda->gemm ? cuda->traits.library : "own code", cuda->traits.capability / 10,
        cuda->traits.capability % 10, (long long)args->M, (long long)args->K,
        name_of_fp8(args->a_format), (long long)args->K, (long long)args->N,
        name_of_fp8(args->b_format));
}

static enum hd_status find_fp8(const struct hd_backend *cuda, const struct hd_fp8_gemm_args *args,
                               struct cuda_product **ret_product)
{
    const struct hd_gemm_args product = product_of_fp8(args);
    const struct cuda_addresses at = addresses_of_fp8(args);
    struct cuda_shape shape;
    enum hd_status st = hd_costs_fp8_check(args);

    if (st)
        return st;
    if (!cuda->gemm || cuda->traits.capability < HD_GPU_FP8_FROM)
        return refuse_fp8(cuda, args);
    gemm_shape_of(&product, &shape);
    shape.fp8_a = type_of_fp8(args->a_format);
    shape.fp8_b = type_of_fp8(args->b_format);
    st = hd_cuda_product_find(cuda, &shape, &at, ret_product);
    return !st && !(*ret_product)->supported ? refuse_fp8(cuda, args) : st;
}

enum hd_status hd_cuda_fp8_gemm_supported(const struct hd_backend *cuda,
                                          const struct hd_fp8_gemm_args *args)
{
    struct cuda_product *p;

    return find_fp8(cuda, args, &p);
}

enum hd_status hd_cuda_fp8_gemm_prepare(struct hd_backend *cuda,
                                        const struct hd_fp8_gemm_args *args)
{
    const struct hd_gemm_args product = product_of_fp8(args);
    const struct cuda_addresses at = addresses_of_fp8(args);
    struct cuda_product *p;
    enum hd_status st = find_fp8(cuda, args, &p);

    if (!st)
        st = hd_cuda_product_tune(cuda, p, &product, &at);
    return !st && !p->supported ? refuse_fp8(cuda, args) : st;
}

enum hd_status hd_cuda_fp8_gemm(struct hd_cuda_stream *stream, const struct hd_fp8_gemm_args *args)
{
    const struct hd_gemm_args product = product_of_fp8(args);
    const struct cuda_addresses at = addresses_of_fp8(args);
    struct cuda_product *p;
    bool refused = false;
    enum hd_status st = find_fp8(stream->cuda, args, &p);

    if (!st)
        st = multiply(stream, p, &product, &at, &refused);
    return !st && refused ? refuse_fp8(stream->cuda, args) : st;
}
