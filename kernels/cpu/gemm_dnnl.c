/* gemm_dnnl: GEMM by oneDNN, and the only file that includes dnnl.h.
 *
 * It uses matmul primitives because they take scratch from the caller and are cached per shape: a
 * prepared shape costs a lookup and one execution. oneDNN still makes small allocations in an
 * execution (maps of its arguments); tests/bench/kernels_bench measures them.
 *
 * A shape is refused, and own code computes it, if oneDNN has no implementation for it, has only
 * reference loops, or needs more scratch than the limit.
 *
 * oneDNN 2.x and 3.x create descriptors differently; see make_desc(), free_desc() and
 * make_matmul().
 *
 * Threads: those that may call the backend. oneDNN uses the OpenMP threads of the calling thread.
 */
#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

enum { TENSORS_MAX = 5 }; /* tensors of a product: a, b, c, bias, scratch */

/* Key of the cache of primitives. Compared by memcmp, so it is zeroed before it is filled. */
struct shape {
    int64_t M, N, K, lda, ldb, ldc;
    int32_t trans_a, trans_b, accumulate, bias, ab_dtype, c_dtype;
};

struct product {
    struct product *next;
    struct shape shape;
    dnnl_primitive_t primitive; /* oneDNN's object for the shape; NULL: oneDNN refuses the shape */
    dnnl_exec_arg_t tensors[TENSORS_MAX];
    int tensor_count;
};

enum { BUCKETS = 64 };

struct hd_cpu_gemm_library {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int threads;
    struct product *products[BUCKETS];
};

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t desc;
#else
typedef const dnnl_memory_desc_t *desc;
#endif

static dnnl_status_t make_desc(desc *ret_desc, int64_t rows, int64_t columns, int64_t row_stride,
                               int64_t column_stride, dnnl_data_type_t type)
{
    const dnnl_dims_t sizes = {rows, columns}, strides = {row_stride, column_stride};

#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_strides(ret_desc, 2, sizes, type, strides);
#else
    dnnl_memory_desc_t *made = calloc(1, sizeof *made);
    dnnl_status_t failed;

    if (!made)
        return dnnl_out_of_memory;
    failed = dnnl_memory_desc_init_by_strides(made, 2, sizes, type, strides);
    if (failed)
        free(made);
    else
        *ret_desc = made;
    return failed;
#endif
}

static void free_desc(desc d)
{
    if (!d)
        return;
#if DNNL_VERSION_MAJOR >= 3
    (void)dnnl_memory_desc_destroy(d);
#else
    free((void *)d);
#endif
}

static dnnl_status_t make_matmul(dnnl_primitive_desc_t *ret_matmul, dnnl_engine_t engine, desc a,
                                 desc b, desc bias, desc c, const_dnnl_primitive_attr_t attr)
{
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_matmul_primitive_desc_create(ret_matmul, engine, a, b, bias, c, attr);
#else
    dnnl_matmul_desc_t matmul;
    const dnnl_status_t failed = dnnl_matmul_desc_init(&matmul, a, b, bias, c);

    return failed ? failed : dnnl_primitive_desc_create(ret_matmul, &matmul, attr, engine, NULL);
#endif
}

static dnnl_data_type_t type_of(enum hd_dtype dtype)
{
    return dtype == HD_BF16 ? dnnl_bf16 : dtype == HD_F16 ? dnnl_f16 : dnnl_f32;
}

/* Sets *ret_shape to the cache key of a GEMM. If c has one row, ldc has no effect: it is replaced,
 * so that it leads neither to another cache entry nor to a shape that oneDNN refuses. */
static void shape_of(const struct hd_gemm_args *args, struct shape *ret_shape)
{
    struct shape *s = ret_shape;

    memset(s, 0, sizeof *s);
    s->M = args->M;
    s->N = args->N;
    s->K = args->K;
    s->lda = args->lda;
    s->ldb = args->ldb;
    s->ldc = args->M == 1 ? args->N : args->ldc;
    s->trans_a = args->trans_a;
    s->trans_b = args->trans_b;
    s->accumulate = args->accumulate;
    s->bias = args->bias != NULL;
    s->ab_dtype = (int32_t)args->ab_dtype;
    s->c_dtype = (int32_t)args->c_dtype;
}

static unsigned bucket_of(const struct shape *shape)
{
    const unsigned char *bytes = (const unsigned char *)shape;
    uint64_t hash = 14695981039346656037u; /* offset basis of the 64-bit FNV-1a hash */

    for (size_t i = 0; i < sizeof *shape; i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    return (unsigned)((hash >> 32) % BUCKETS);
}

static dnnl_status_t add_tensor(struct product *p, dnnl_engine_t engine, int arg, const void *d)
{
    dnnl_exec_arg_t *tensor = &p->tensors[p->tensor_count];
    const dnnl_status_t failed = dnnl_memory_create(&tensor->memory, d, engine, DNNL_MEMORY_NONE);

    if (!failed) {
        tensor->arg = arg;
        p->tensor_count++;
    }
    return failed;
}

static dnnl_status_t make_attr(const struct shape *s, dnnl_primitive_attr_t *ret_attr)
{
    dnnl_post_ops_t post = NULL;
    dnnl_status_t failed = dnnl_primitive_attr_create(ret_attr);

    if (failed)
        return failed;
    failed = dnnl_primitive_attr_set_scratchpad_mode(*ret_attr, dnnl_scratchpad_mode_user);
    if (!failed && s->accumulate) {
        failed = dnnl_post_ops_create(&post);
        if (!failed)
#if DNNL_VERSION_MAJOR >= 3
            failed = dnnl_post_ops_append_sum(post, 1.0f, 0, dnnl_data_type_undef);
#else
            failed = dnnl_post_ops_append_sum(post, 1.0f);
#endif
        if (!failed)
            failed = dnnl_primitive_attr_set_post_ops(*ret_attr, post);
        if (post)
            (void)dnnl_post_ops_destroy(post);
    }
    if (failed)
        (void)dnnl_primitive_attr_destroy(*ret_attr);
    return failed;
}

/* Returns true if oneDNN's implementation of this product is not its reference loops and needs at
 * most scratch_bytes of scratch. */
static bool is_acceptable(dnnl_primitive_desc_t matmul, int64_t scratch_bytes)
{
    const char *name = "";

    if (dnnl_primitive_desc_query(matmul, dnnl_query_impl_info_str, 0, &name))
        return false;
    if (!strncmp(name, "ref", 3))
        return false;
    return (int64_t)dnnl_memory_desc_get_size(
               dnnl_primitive_desc_query_md(matmul, dnnl_query_scratchpad_md, 0)) <= scratch_bytes;
}

static dnnl_status_t make_tensors(struct product *p, dnnl_engine_t engine,
                                  dnnl_primitive_desc_t matmul)
{
    static const struct {
        int arg;
        dnnl_query_t query;
        int index;
    } all[] = {{DNNL_ARG_SRC, dnnl_query_src_md, 0},
               {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0},
               {DNNL_ARG_DST, dnnl_query_dst_md, 0},
               {DNNL_ARG_SCRATCHPAD, dnnl_query_scratchpad_md, 0},
               {DNNL_ARG_BIAS, dnnl_query_weights_md, 1}};
    dnnl_status_t failed = dnnl_success;

    for (int i = 0; !failed && i < (p->shape.bias ? 5 : 4); i++)
        failed = add_tensor(p, engine, all[i].arg,
                            dnnl_primitive_desc_query_md(matmul, all[i].query, all[i].index));
    return failed;
}

/* Returns true if a factor or c is one column with a stride. oneDNN 3.7 also reads and writes the
 * elements in between (a NaN there gives NaN in the product), so own code computes these shapes. */
static bool has_scattered_vector(const struct shape *s)
{
    return (s->M == 1 && s->trans_a && s->lda != 1) || (s->N == 1 && !s->trans_b && s->ldb != 1) ||
           (s->N == 1 && s->ldc != 1);
}

/* Sets p->primitive to oneDNN's object for this shape, or leaves it NULL if oneDNN cannot or should
 * not compute the shape. */
static void make_primitive(struct hd_cpu_gemm_library *library, struct product *p,
                           int64_t scratch_bytes)
{
    const struct shape *s = &p->shape;
    const dnnl_data_type_t ab = type_of(s->ab_dtype), ct = type_of(s->c_dtype);
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t matmul = NULL;
    desc a = NULL, b = NULL, c = NULL, bias = NULL;
    dnnl_status_t failed;

    if (has_scattered_vector(s))
        return;
    failed = make_attr(s, &attr);
    if (failed)
        return;
    failed = make_desc(&a, s->M, s->K, s->trans_a ? 1 : s->lda, s->trans_a ? s->lda : 1, ab);
    if (!failed)
        failed = make_desc(&b, s->K, s->N, s->trans_b ? 1 : s->ldb, s->trans_b ? s->ldb : 1, ab);
    if (!failed)
        failed = make_desc(&c, s->M, s->N, s->ldc, 1, ct);
    if (!failed && s->bias)
        failed = make_desc(&bias, 1, s->N, s->N, 1, ab);
    if (!failed)
        failed = make_matmul(&matmul, library->engine, a, b, bias, c, attr);
    if (!failed && is_acceptable(matmul, scratch_bytes) &&
        !make_tensors(p, library->engine, matmul))
        if (dnnl_primitive_create(&p->primitive, matmul))
            p->primitive = NULL;

    if (matmul)
        (void)dnnl_primitive_desc_destroy(matmul);
    free_desc(bias);
    free_desc(c);
    free_desc(b);
    free_desc(a);
    (void)dnnl_primitive_attr_destroy(attr);
}

static void free_product(struct product *p)
{
    for (int i = 0; i < p->tensor_count; i++)
        (void)dnnl_memory_destroy(p->tensors[i].memory);
    if (p->primitive)
        (void)dnnl_primitive_destroy(p->primitive);
    free(p);
}

static enum hd_status find_product(struct hd_cpu_gemm_library *library,
                                   const struct hd_gemm_args *args, int64_t scratch_bytes,
                                   struct product **ret_product)
{
    struct shape shape;
    struct product **bucket, *p;

    shape_of(args, &shape);
    bucket = &library->products[bucket_of(&shape)];
    for (p = *bucket; p; p = p->next)
        if (!memcmp(&p->shape, &shape, sizeof shape))
            break;
    omp_set_num_threads(library->threads); /* oneDNN takes its number of threads from this setting
                                              of the calling thread */
    if (!p) {
        p = calloc(1, sizeof *p);
        if (!p)
            return hd_err(HD_NO_MEMORY, "gemm: no memory for a oneDNN primitive");
        p->shape = shape;
        make_primitive(library, p, scratch_bytes);
        p->next = *bucket;
        *bucket = p;
    }
    *ret_product = p;
    return HD_OK;
}

void hd_cpu_gemm_library_name(char *ret_name, size_t size_bytes)
{
    const dnnl_version_t *version = dnnl_version();

    (void)snprintf(ret_name, size_bytes, "oneDNN-%d.%d.%d", version->major, version->minor,
                   version->patch);
}

enum hd_status hd_cpu_gemm_library_open(int threads, struct hd_cpu_gemm_library **ret_library)
{
    struct hd_cpu_gemm_library *library = calloc(1, sizeof *library);
    dnnl_status_t failed;

    if (!library)
        return hd_err(HD_NO_MEMORY, "no memory for the state of oneDNN");
    library->threads = threads;
    failed = dnnl_engine_create(&library->engine, dnnl_cpu, 0);
    if (!failed)
        failed = dnnl_stream_create(&library->stream, library->engine, dnnl_stream_default_flags);
    if (failed) {
        hd_cpu_gemm_library_close(library);
        return hd_err(HD_INTERNAL, "oneDNN %d.%d.%d cannot create an engine or stream: status %d",
                      DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH, (int)failed);
    }
    *ret_library = library;
    return HD_OK;
}

void hd_cpu_gemm_library_close(struct hd_cpu_gemm_library *library)
{
    if (!library)
        return;
    for (int i = 0; i < BUCKETS; i++)
        while (library->products[i]) {
            struct product *p = library->products[i];

            library->products[i] = p->next;
            free_product(p);
        }
    if (library->stream)
        (void)dnnl_stream_destroy(library->stream);
    if (library->engine)
        (void)dnnl_engine_destroy(library->engine);
    free(library);
}

enum hd_status hd_cpu_gemm_library_prepare(struct hd_cpu_gemm_library *library,
                                           const struct hd_gemm_args *args, int64_t scratch_bytes)
{
    struct product *p;

    return find_product(library, args, scratch_bytes, &p);
}

enum hd_status hd_cpu_gemm_library_run(struct hd_cpu_gemm_library *library,
                                       const struct hd_gemm_args *args, int64_t scratch_bytes,
                                       bool *ret_done)
{
    const void *const data[TENSORS_MAX] = {args->a, args->b, args->c, args->scratch, args->bias};
    dnnl_status_t failed = dnnl_success;
    struct product *p;
    enum hd_status st;

    *ret_done = false;
    st = find_product(library, args, scratch_bytes, &p);
    if (st || !p->primitive)
        return st;
    for (int i = 0; !failed && i < p->tensor_count; i++)
        failed = dnnl_memory_set_data_handle(p->tensors[i].memory, (void *)data[i]);
    if (!failed)
        failed = dnnl_primitive_execute(p->primitive, library->stream, p->tensor_count, p->tensors);
    if (!failed)
        failed = dnnl_stream_wait(library->stream);
    if (failed)
        return hd_err(HD_INTERNAL, "oneDNN failed to multiply [%lld,%lld] x [%lld,%lld]: status %d",
                      (long long)args->M, (long long)args->K, (long long)args->K,
                      (long long)args->N, (int)failed);
    *ret_done = true;
    return HD_OK;
}
