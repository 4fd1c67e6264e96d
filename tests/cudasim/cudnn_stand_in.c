/* cudnn_stand_in: emulates the graphs of cuDNN that attention needs, in the order of the stream. It does not know
 * attention: it computes whatever graph of products, pointwise operations, reductions and reshapes it is
 * given, operation by operation in double, so that a wrong operand, stride or scale gives wrong numbers.
 * Virtual tensors of 16 bits are rounded.
 *
 * It refuses what a graph may not be: an operation whose operands do not fit together, a virtual tensor that
 * is read before it is written, a tensor with memory that has no address or a misaligned one, memory that
 * overlaps the workspace. The heuristic offers three plans: one whose workspace is too large, one that is
 * not deterministic, and one that is, with what cuDNN 9.28 asks for. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "kernels/cuda/cudnn_api.h"
#include "tests/cudasim/internal.h"

enum { DIMS = 4, VALUES = 8, OPS_MAX = 40, TENSORS_MAX = 64, PLANS = HD_CUDASIM_CUDNN_PLANS };

static _Atomic int version = 92800, cuda_version;
static _Atomic uint64_t launches[PLANS];

void hd_cudasim_cudnn_version(int code)
{
    version = code;
}

static _Atomic bool refuses_all;

void hd_cudasim_cudnn_refuse(bool refuses)
{
    refuses_all = refuses;
}

uint64_t hd_cudasim_cudnn_launches(int plan)
{
    return launches[plan];
}

/* ---- descriptors: lists of attributes ---- */

struct attribute {
    struct attribute *next;
    int name, type;
    int64_t count;
    union {
        int64_t integer[OPS_MAX];
        void *pointer[OPS_MAX];
        int32_t word[OPS_MAX];
        bool flag[OPS_MAX];
    } of;
};

struct descriptor {
    int type, users;
    bool is_final;
    struct attribute *attributes;
    int place;                /* of an engine and of what is made with it: which plan */
    struct descriptor *graph; /* of these: the graph; held */
};

struct cudnnContext {
    cudaStream_t stream;
};

static const struct {
    int type;
    size_t bytes;
} sizes[] = {
    {CUDNN_TYPE_HANDLE, sizeof(void *)},     {CUDNN_TYPE_DATA_TYPE, 4},
    {CUDNN_TYPE_BOOLEAN, sizeof(bool)},      {CUDNN_TYPE_INT64, 8},
    {CUDNN_TYPE_VOID_PTR, sizeof(void *)},   {CUDNN_TYPE_HEUR_MODE, 4},
    {CUDNN_TYPE_POINTWISE_MODE, 4},          {CUDNN_TYPE_BACKEND_DESCRIPTOR, sizeof(void *)},
    {CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 4},
};

static const struct attribute *find(const struct descriptor *d, int name)
{
    for (const struct attribute *a = d ? d->attributes : NULL; a; a = a->next)
        if (a->name == name)
            return a;
    return NULL;
}

static int64_t integer(const struct descriptor *d, int name, int64_t otherwise)
{
    const struct attribute *a = find(d, name);

    return !a                              ? otherwise
           : a->type == CUDNN_TYPE_INT64   ? a->of.integer[0]
           : a->type == CUDNN_TYPE_BOOLEAN ? a->of.flag[0]
                                           : a->of.word[0];
}

static struct descriptor *below(const struct descriptor *d, int name)
{
    const struct attribute *a = find(d, name);

    return a ? a->of.pointer[0] : NULL;
}

/* A descriptor lives as long as the caller has it, or another one refers to it. */
static void drop(struct descriptor *d)
{
    if (!d || --d->users > 0)
        return;
    for (struct attribute *a = d->attributes, *next; a; a = next) {
        next = a->next;
        for (int64_t i = 0; a->type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < a->count; i++)
            drop(a->of.pointer[i]);
        free(a);
    }
    drop(d->graph);
    free(d);
}

static struct descriptor *hold(struct descriptor *d)
{
    if (d)
        d->users++;
    return d;
}

void hd_cudasim_cudnn_cuda(int code)
{
    cuda_version = code;
}

size_t cudnnGetCudartVersion(void)
{
    int runtime = cuda_version;

    if (!runtime)
        (void)cudaRuntimeGetVersion(&runtime);
    return (size_t)runtime;
}

size_t cudnnGetVersion(void)
{
    return (size_t)version;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                                : "CUDNN_STATUS_BAD_PARAM";
}

static char story[128];

void cudnnGetLastErrorString(char *message, size_t max_size)
{
    (void)snprintf(message, max_size, "%s", story);
}

static cudnnStatus_t bad(const char *why)
{
    (void)snprintf(story, sizeof story, "%s", why);
    return CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    *handle = calloc(1, sizeof **handle);
    return *handle ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *descriptor)
{
    struct descriptor *d = calloc(1, sizeof *d);

    if (!d)
        return CUDNN_STATUS_INTERNAL_ERROR;
    d->type = (int)type;
    d->users = 1;
    *descriptor = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    drop(descriptor);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *elements)
{
    struct descriptor *d = descriptor;
    struct attribute *a;
    size_t bytes = 0;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].type == (int)type)
            bytes = sizes[i].bytes;
    if (!d || d->is_final || !bytes || count < 1 || count > OPS_MAX)
        return bad("an attribute of a final descriptor, or of no type that is known");
    a = calloc(1, sizeof *a);
    if (!a)
        return CUDNN_STATUS_INTERNAL_ERROR;
    a->name = (int)name;
    a->type = (int)type;
    a->count = count;
    memcpy(&a->of, elements, bytes * (size_t)count);
    for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; i++) {
        const struct descriptor *other = a->of.pointer[i];

        if (!other || !other->is_final) {
            free(a);
            return bad("a descriptor that is not final");
        }
        hold(a->of.pointer[i]);
    }
    a->next = d->attributes;
    d->attributes = a;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- tensors ---- */

struct view {
    int64_t id, dim[DIMS], stride[DIMS];
    int type;
    bool is_virtual, by_value;
};

static struct view view_of(const struct descriptor *d)
{
    const struct attribute *dim = find(d, CUDNN_ATTR_TENSOR_DIMENSIONS);
    const struct attribute *stride = find(d, CUDNN_ATTR_TENSOR_STRIDES);
    struct view v = {.id = integer(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, -1),
                     .type = (int)integer(d, CUDNN_ATTR_TENSOR_DATA_TYPE, -1),
                     .is_virtual = integer(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, 0),
                     .by_value = integer(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, 0)};

    for (int i = 0; dim && stride && i < DIMS; i++) {
        v.dim[i] = dim->of.integer[i];
        v.stride[i] = stride->of.integer[i];
    }
    return v;
}

static int64_t volume(const struct view *v)
{
    return v->dim[0] * v->dim[1] * v->dim[2] * v->dim[3];
}

/* The offset of the element with this number, counted with the last dimension fastest. */
static int64_t offset_of(const struct view *v, int64_t number)
{
    int64_t offset = 0;

    for (int i = DIMS; i-- > 0; number /= v->dim[i])
        offset += number % v->dim[i] * v->stride[i];
    return offset;
}

static enum hd_dtype dtype_of(const struct view *v)
{
    return v->type == CUDNN_DATA_HALF ? HD_F16 : v->type == CUDNN_DATA_BFLOAT16 ? HD_BF16 : HD_F32;
}

static double load(const struct view *v, const void *memory, int64_t number)
{
    const int64_t at = offset_of(v, number);

    return dtype_of(v) == HD_F32 ? ((const float *)memory)[at]
                                 : hd_half_to_f32(dtype_of(v), ((const uint16_t *)memory)[at]);
}

static void store(const struct view *v, void *memory, int64_t number, double value)
{
    const int64_t at = offset_of(v, number);

    if (dtype_of(v) == HD_F32)
        ((float *)memory)[at] = (float)value;
    else
        ((uint16_t *)memory)[at] = hd_f32_to_half(dtype_of(v), (float)value);
}

static double rounded(const struct view *v, double value)
{
    return dtype_of(v) == HD_F32
               ? value
               : hd_half_to_f32(dtype_of(v), hd_f32_to_half(dtype_of(v), (float)value));
}

/* ---- operations ---- */

/* Attributes that name the operands of an operation of each kind; 0: it has none. */
static const struct {
    int type, how, x, b, t, y;
} kinds[] = {
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
     CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_DESC,
     CUDNN_ATTR_OPERATION_REDUCTION_XDESC, 0, 0, CUDNN_ATTR_OPERATION_REDUCTION_YDESC},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_DESC,
     CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC, 0,
     CUDNN_ATTR_OPERATION_MATMUL_CDESC},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, 0, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, 0, 0,
     CUDNN_ATTR_OPERATION_RESHAPE_YDESC},
};

struct step {
    int type, mode, axis;
    struct view x, b, t, y;
    bool has_b, has_t;
};

static bool step_of(const struct descriptor *d, struct step *ret)
{
    memset(ret, 0, sizeof *ret);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const struct descriptor *how = below(d, kinds[i].how), *b = below(d, kinds[i].b);
        const struct descriptor *t = below(d, kinds[i].t);

        if (kinds[i].type != d->type || !below(d, kinds[i].x) || !below(d, kinds[i].y) ||
            (kinds[i].how && !how))
            continue;
        ret->type = d->type;
        ret->mode = (int)integer(how,
                                 d->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR
                                     ? CUDNN_ATTR_REDUCTION_OPERATOR
                                     : CUDNN_ATTR_POINTWISE_MODE,
                                 0);
        ret->axis = (int)integer(how, CUDNN_ATTR_POINTWISE_AXIS, -1);
        ret->x = view_of(below(d, kinds[i].x));
        ret->y = view_of(below(d, kinds[i].y));
        ret->has_b = b && kinds[i].b;
        ret->has_t = t && kinds[i].t;
        if (ret->has_b)
            ret->b = view_of(b);
        if (ret->has_t)
            ret->t = view_of(t);
        return true;
    }
    return false;
}

/* Whether `small` spreads over `large`: each dimension is as long, 1, or, of heads, a divisor. */
static bool spreads(const struct view *small, const struct view *large)
{
    for (int i = 0; i < DIMS; i++)
        if (small->dim[i] < 1 || large->dim[i] % small->dim[i] ||
            (i != 1 && small->dim[i] != large->dim[i] && small->dim[i] != 1))
            return false;
    return true;
}

static bool fits(const struct step *s)
{
    if (s->type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
        return volume(&s->x) == volume(&s->y);
    if (s->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
        return spreads(&s->y, &s->x);
    if (s->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
        return spreads(&s->x, &s->y) && (!s->has_b || spreads(&s->b, &s->y)) &&
               (!s->has_t || spreads(&s->t, &s->y));
    return s->has_b && s->x.dim[3] == s->b.dim[2] && s->y.dim[2] == s->x.dim[2] &&
           s->y.dim[3] == s->b.dim[3] && s->y.dim[1] % s->x.dim[1] == 0 &&
           s->y.dim[1] % s->b.dim[1] == 0 && s->x.dim[0] == s->y.dim[0] &&
           s->b.dim[0] == s->y.dim[0];
}

/* A launch: a copy of the graph, what its tensors have, and addresses. */
struct launch {
    struct step steps[OPS_MAX];
    int count;
    double *values[TENSORS_MAX]; /* by id; NULL: not computed yet */
    void *memory[TENSORS_MAX];
    float by_value[TENSORS_MAX];
    void *workspace;
    size_t workspace_bytes;
};

/* Returns the values of a tensor, in the order of its dimensions. */
static const double *values_of(struct launch *l, const struct view *v)
{
    if (!l->values[v->id]) {
        const int64_t count = volume(v);

        l->values[v->id] = malloc((size_t)count * sizeof(double));
        for (int64_t i = 0; i < count; i++)
            l->values[v->id][i] = v->by_value        ? l->by_value[v->id]
                                  : l->memory[v->id] ? load(v, l->memory[v->id], i)
                                                     : NAN; /* virtual, and not written yet */
    }
    return l->values[v->id];
}

/* The number in `small` of the element of `large` with this number. */
static int64_t spread(const struct view *small, const struct view *large, int64_t number)
{
    int64_t at[DIMS], to = 0;

    for (int i = DIMS; i-- > 0; number /= large->dim[i])
        at[i] = number % large->dim[i];
    for (int i = 0; i < DIMS; i++)
        to = to * small->dim[i] + at[i] / (large->dim[i] / small->dim[i]);
    return to;
}

static double point(const struct step *s, double x, double b, double t, int64_t number)
{
    switch (s->mode) {
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_EXP:
        return exp(x);
    case CUDNN_POINTWISE_LOG:
        return log(x);
    case CUDNN_POINTWISE_IDENTITY:
        return x;
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT:
        return t != 0 ? x : b;
    case CUDNN_POINTWISE_GEN_INDEX:
        for (int i = DIMS - 1; i > s->axis; i--)
            number /= s->y.dim[i];
        return (double)(number % s->y.dim[s->axis]);
    default:
        return NAN;
    }
}

static void do_pointwise(struct launch *l, const struct step *s, double *y)
{
    const double *x = values_of(l, &s->x), *b = s->has_b ? values_of(l, &s->b) : NULL;
    const double *t = s->has_t ? values_of(l, &s->t) : NULL;

    for (int64_t i = 0; i < volume(&s->y); i++)
        y[i] = point(s, x[spread(&s->x, &s->y, i)], b ? b[spread(&s->b, &s->y, i)] : 0,
                     t ? t[spread(&s->t, &s->y, i)] : 0, i);
}

static void do_reduction(struct launch *l, const struct step *s, double *y)
{
    const bool is_max = s->mode == CUDNN_REDUCE_TENSOR_MAX;
    const double *x = values_of(l, &s->x);

    for (int64_t i = 0; i < volume(&s->y); i++)
        y[i] = is_max ? -INFINITY : 0;
    for (int64_t i = 0; i < volume(&s->x); i++) {
        double *to = y + spread(&s->y, &s->x, i);

        *to = !is_max ? *to + x[i] : x[i] > *to ? x[i] : *to;
    }
}

static void do_product(struct launch *l, const struct step *s, double *y)
{
    const double *a = values_of(l, &s->x), *b = values_of(l, &s->b);
    const int64_t M = s->y.dim[2], N = s->y.dim[3], K = s->x.dim[3], H = s->y.dim[1];

    for (int64_t unit = 0; unit < s->y.dim[0] * H; unit++) {
        const int64_t head = unit % H, batch = unit / H;
        const double *ua = a + (batch * s->x.dim[1] + head / (H / s->x.dim[1])) * M * K;
        const double *ub = b + (batch * s->b.dim[1] + head / (H / s->b.dim[1])) * K * N;

        for (int64_t i = 0; i < M * N; i++) {
            double sum = 0;

            for (int64_t k = 0; k < K; k++)
                sum += ua[i / N * K + k] * ub[k * N + i % N];
            y[unit * M * N + i] = sum;
        }
    }
}

/* Elements of x and of y with one offset are the same. */
static void do_reshape(struct launch *l, const struct step *s, double *y)
{
    const double *x = values_of(l, &s->x);
    const int64_t count = volume(&s->x);
    int64_t size = 1;
    double *flat;

    for (int i = 0; i < DIMS; i++)
        size += (s->x.dim[i] - 1) * s->x.stride[i];
    flat = malloc((size_t)size * sizeof *flat);
    for (int64_t i = 0; i < count; i++)
        flat[offset_of(&s->x, i)] = x[i];
    for (int64_t i = 0; i < count; i++)
        y[i] = offset_of(&s->y, i) < size ? flat[offset_of(&s->y, i)] : NAN;
    free(flat);
}

static void compute(void *of)
{
    struct launch *l = of;

    memset(l->workspace, 0xff, l->workspace_bytes);
    for (int i = 0; i < l->count; i++) {
        const struct step *s = &l->steps[i];
        const int64_t count = volume(&s->y);
        double *y = malloc((size_t)count * sizeof *y);

        if (s->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
            do_pointwise(l, s, y);
        else if (s->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
            do_reduction(l, s, y);
        else if (s->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
            do_product(l, s, y);
        else
            do_reshape(l, s, y);
        for (int64_t k = 0; k < count; k++) {
            y[k] = rounded(&s->y, y[k]);
            if (!s->y.is_virtual)
                store(&s->y, l->memory[s->y.id], k, y[k]);
        }
        free(l->values[s->y.id]);
        l->values[s->y.id] = y;
    }
    for (int i = 0; i < TENSORS_MAX; i++) {
        free(l->values[i]);
        l->values[i] = NULL;
    }
}

/* ---- graphs and plans ---- */

static cudnnStatus_t check_graph(const struct descriptor *graph)
{
    const struct attribute *ops = find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    bool written[TENSORS_MAX] = {false};

    if (!ops || !find(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE))
        return bad("a graph without operations or handle");
    for (int64_t i = 0; i < ops->count; i++) {
        struct step s;

        if (!step_of(ops->of.pointer[i], &s) || !fits(&s))
            return bad("an operation whose operands do not fit together");
        if ((s.x.is_virtual && !written[s.x.id]) ||
            (s.has_b && s.b.is_virtual && !written[s.b.id]) ||
            (s.has_t && s.t.is_virtual && !written[s.t.id]))
            return bad("a virtual tensor is read before it is written");
        written[s.y.id] = true;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_tensor(const struct descriptor *d)
{
    const struct view v = view_of(d);

    if (v.id < 0 || v.id >= TENSORS_MAX || volume(&v) < 1 || v.type < 0)
        return bad("a tensor without an id, dimensions or a type");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    struct descriptor *d = descriptor;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;

    if (d->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR)
        status = check_tensor(d);
    if (d->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)
        status = check_graph(d);
    if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        const struct descriptor *from = below(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);

        if (!from || !find(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE))
            return bad("a plan without a configuration or handle");
        d->place = from->place;
        d->graph = hold(from->graph);
    }
    d->is_final = !status;
    return status;
}

/* dk and dv of all heads, twice if heads share keys; without a sum of dq in memory its scores. */
static int64_t workspace_of(const struct descriptor *graph, int place)
{
    const struct attribute *ops = find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    int64_t heads = 0, scores = 0, bytes = 256;
    bool shares = false, sums = false;

    for (int64_t i = 0; i < ops->count; i++) {
        struct step s;

        (void)step_of(ops->of.pointer[i], &s);
        shares = shares ||
                 (s.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR && s.b.dim[1] < s.y.dim[1]);
        sums = sums || s.mode == CUDNN_POINTWISE_IDENTITY;
        if (s.type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR && s.y.dim[2] == s.y.dim[3]) {
            const int64_t S = (s.y.dim[2] + 63) / 64 * 64;

            scores = s.y.dim[0] * s.y.dim[1] * S * S * 2;
        } else if (scores && s.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
            heads = volume(&s.y) * 2;
        }
    }
    bytes += heads * (shares ? 4 : 2) + (sums ? 0 : scores);
    return place == 0 ? bytes + 1 : bytes; /* the first plan needs more than is known */
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t *count, void *elements)
{
    struct descriptor *d = descriptor;

    (void)type;
    if (!d->is_final)
        return bad("what is not final is asked for an attribute");
    *count = 1;
    switch ((int)name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        *count = refuses_all ? 0 : PLANS;
        for (int i = 0; i < *count && i < requested; i++) {
            struct descriptor *to = ((struct descriptor **)elements)[i];

            to->place = i;
            to->is_final = true;
            to->graph = hold(below(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
        }
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE: {
        struct descriptor *to = *(struct descriptor **)elements;

        to->place = d->place;
        to->is_final = true;
        return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *(cudnnBackendNumericalNote_t *)elements = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        *count = d->place == 1;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *(int64_t *)elements = workspace_of(d->graph, d->place);
        return CUDNN_STATUS_SUCCESS;
    default:
        return bad("this attribute cannot be read from the stand-in");
    }
}

static cudnnStatus_t check_memory(const struct launch *l, const struct view *v)
{
    const char *at = l->memory[v->id], *workspace = l->workspace;

    if (v->is_virtual || v->by_value)
        return CUDNN_STATUS_SUCCESS;
    if (!at || (uintptr_t)at % 16)
        return bad("a tensor without an address, or with a misaligned one");
    if (at >= workspace && at < workspace + l->workspace_bytes)
        return bad("a tensor in the workspace");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    const struct descriptor *p = plan;
    const struct attribute *ops = find(p->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    const struct attribute *ids = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const struct attribute *pointers = find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    struct launch *l = calloc(1, sizeof *l);
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;

    if (!l || !ids || !pointers || ids->count != pointers->count) {
        free(l);
        return bad("a pack without addresses");
    }
    l->workspace = below(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    l->workspace_bytes = (size_t)workspace_of(p->graph, p->place);
    for (int64_t i = 0; i < ids->count; i++)
        l->memory[ids->of.integer[i]] = pointers->of.pointer[i];
    for (l->count = 0; l->count < ops->count && !status; l->count++) {
        struct step *s = &l->steps[l->count];
        const struct view *all[] = {&s->x, &s->b, &s->t, &s->y};

        (void)step_of(ops->of.pointer[l->count], s);
        for (int k = 0; k < 4; k++) {
            if ((k == 1 && !s->has_b) || (k == 2 && !s->has_t))
                continue;
            status = status ? status : check_memory(l, all[k]);
            if (all[k]->by_value && l->memory[all[k]->id])
                memcpy(&l->by_value[all[k]->id], l->memory[all[k]->id], sizeof(float));
        }
    }
    if (status || !l->workspace) {
        free(l);
        return status ? status : bad("no workspace");
    }
    launches[p->place]++;
    return hd_sim_enqueue(handle->stream, compute, free, l) == cudaSuccess
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_EXECUTION_FAILED;
}
