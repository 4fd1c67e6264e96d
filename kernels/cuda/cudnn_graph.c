/* cudnn_graph: the operations are those from which NVIDIA's own front end builds attention (its patterns
 * are what the library recognises and computes as one kernel), for one case: self-attention with a causal
 * mask. Tensors between operations are virtual: they never exist in memory. */
#include "kernels/cuda/cudnn_graph.h"

#include <stdio.h>
#include <string.h>

/* ---- Tensors ---- */

enum layout {
    ROWS,      /* [B, heads, S, D] of rows with a distance */
    COLUMNS,   /* the same memory as [B, heads, D, S] */
    DENSE,     /* [B, H, S, D] without gaps */
    SCORES,    /* [B, H, S, S] */
    SCORES_T,  /* the same as [B, H, S of keys, S of queries] */
    PER_QUERY, /* [B, H, S, 1] */
    LOG_SUMS,  /* the same, head by head over all sequences: [H, B * S] */
    ONE_VALUE, /* [1, 1, 1, 1], passed by its address on the host */
};

/* Numbers of virtual tensors follow those of tensors with memory. */
enum tensor {
    SCORE = HD_CUDNN_MEMORY_COUNT,
    SCALED,
    ROW,
    COLUMN,
    VISIBLE,
    MASKED,
    TOP,
    BELOW_TOP,
    EXP,
    SUM,
    LOG,
    WEIGHT,
    DOUT_OUT,
    ROW_SUM,
    BELOW_LSE,
    WEIGHT_T,
    DV_HEADS,
    DWEIGHT,
    BELOW_DELTA,
    DSCORE,
    DSCALED,
    DSCALED_T,
    DK_HEADS,
    KEYS,
    TENSOR_COUNT,
    NO_TENSOR = -1
};

enum { BY_DTYPE = -1 }; /* the type of the operands */

static const struct {
    int8_t layout;
    int8_t type;
} tensors[TENSOR_COUNT] = {
    [HD_CUDNN_Q] = {ROWS, BY_DTYPE},
    [HD_CUDNN_K] = {COLUMNS, BY_DTYPE},
    [HD_CUDNN_V] = {ROWS, BY_DTYPE}, /* backward: COLUMNS */
    [HD_CUDNN_OUT] = {ROWS, BY_DTYPE},
    [HD_CUDNN_LSE] = {LOG_SUMS, CUDNN_DATA_FLOAT},
    [HD_CUDNN_SCALE] = {ONE_VALUE, CUDNN_DATA_FLOAT},
    [HD_CUDNN_MASKED_OUT] = {ONE_VALUE, CUDNN_DATA_FLOAT},
    [HD_CUDNN_DOUT] = {ROWS, BY_DTYPE},
    [HD_CUDNN_DQ] = {ROWS, BY_DTYPE},
    [HD_CUDNN_DK] = {ROWS, BY_DTYPE},
    [HD_CUDNN_DV] = {ROWS, BY_DTYPE},
    [HD_CUDNN_ONE] = {ONE_VALUE, CUDNN_DATA_FLOAT},
    [HD_CUDNN_DELTA] = {PER_QUERY, CUDNN_DATA_FLOAT},
    [HD_CUDNN_DQ_SUM] = {DENSE, CUDNN_DATA_FLOAT},
    [SCORE] = {SCORES, CUDNN_DATA_FLOAT},
    [SCALED] = {SCORES, CUDNN_DATA_FLOAT},
    [ROW] = {SCORES, CUDNN_DATA_INT32},
    [COLUMN] = {SCORES, CUDNN_DATA_INT32},
    [VISIBLE] = {SCORES, CUDNN_DATA_BOOLEAN},
    [MASKED] = {SCORES, CUDNN_DATA_FLOAT},
    [TOP] = {PER_QUERY, CUDNN_DATA_FLOAT},
    [BELOW_TOP] = {SCORES, CUDNN_DATA_FLOAT},
    [EXP] = {SCORES, CUDNN_DATA_FLOAT},
    [SUM] = {PER_QUERY, CUDNN_DATA_FLOAT},
    [LOG] = {PER_QUERY, CUDNN_DATA_FLOAT},
    [WEIGHT] = {SCORES, BY_DTYPE},
    [DOUT_OUT] = {DENSE, CUDNN_DATA_FLOAT},
    [ROW_SUM] = {PER_QUERY, CUDNN_DATA_FLOAT},
    [BELOW_LSE] = {SCORES, CUDNN_DATA_FLOAT},
    [WEIGHT_T] = {SCORES_T, BY_DTYPE},
    [DV_HEADS] = {DENSE, BY_DTYPE},
    [DWEIGHT] = {SCORES, CUDNN_DATA_FLOAT},
    [BELOW_DELTA] = {SCORES, CUDNN_DATA_FLOAT},
    [DSCORE] = {SCORES, CUDNN_DATA_FLOAT},
    [DSCALED] = {SCORES, CUDNN_DATA_FLOAT},
    [DSCALED_T] = {SCORES_T, BY_DTYPE},
    [DK_HEADS] = {DENSE, BY_DTYPE},
    [KEYS] = {ROWS, BY_DTYPE},
};

/* ---- Operations ---- */

enum operation_kind { POINTWISE, REDUCE, MATMUL, RESHAPE };

struct operation {
    int8_t kind;
    int16_t mode;      /* of POINTWISE and REDUCE */
    int8_t x, b, t, y; /* inputs; the condition of a selection; the result */
    int8_t axis;       /* of GEN_INDEX */
};

#define OP1(mode, x, y)                                                   \
    {                                                                     \
        POINTWISE, CUDNN_POINTWISE_##mode, x, NO_TENSOR, NO_TENSOR, y, -1 \
    }
#define OP2(mode, x, b, y)                                        \
    {                                                             \
        POINTWISE, CUDNN_POINTWISE_##mode, x, b, NO_TENSOR, y, -1 \
    }
#define INDEX(x, axis, y)                                                      \
    {                                                                          \
        POINTWISE, CUDNN_POINTWISE_GEN_INDEX, x, NO_TENSOR, NO_TENSOR, y, axis \
    }
#define SELECT(x, b, t, y)                                       \
    {                                                            \
        POINTWISE, CUDNN_POINTWISE_BINARY_SELECT, x, b, t, y, -1 \
    }
#define SUM_OF(x, y)                                                    \
    {                                                                   \
        REDUCE, CUDNN_REDUCE_TENSOR_ADD, x, NO_TENSOR, NO_TENSOR, y, -1 \
    }
#define MAX_OF(x, y)                                                    \
    {                                                                   \
        REDUCE, CUDNN_REDUCE_TENSOR_MAX, x, NO_TENSOR, NO_TENSOR, y, -1 \
    }
#define PRODUCT(a, b, y)                  \
    {                                     \
        MATMUL, 0, a, b, NO_TENSOR, y, -1 \
    }
#define RESHAPED(x, y)                             \
    {                                              \
        RESHAPE, 0, x, NO_TENSOR, NO_TENSOR, y, -1 \
    }

/* x where key <= query, else MASKED_OUT. */
#define CAUSAL(x, y)                                                          \
    INDEX(x, 2, ROW), INDEX(x, 3, COLUMN), OP2(CMP_GE, ROW, COLUMN, VISIBLE), \
        SELECT(x, HD_CUDNN_MASKED_OUT, VISIBLE, y)

static const struct operation forward[] = {
    PRODUCT(HD_CUDNN_Q, HD_CUDNN_K, SCORE),
    OP2(MUL, SCORE, HD_CUDNN_SCALE, SCALED),
    CAUSAL(SCALED, MASKED),
    MAX_OF(MASKED, TOP),
    OP2(SUB, MASKED, TOP, BELOW_TOP),
    OP1(EXP, BELOW_TOP, EXP),
    SUM_OF(EXP, SUM),
    OP1(LOG, SUM, LOG),
    OP2(ADD, TOP, LOG, HD_CUDNN_LSE),
    OP2(DIV, EXP, SUM, WEIGHT),
    PRODUCT(WEIGHT, HD_CUDNN_V, HD_CUDNN_OUT),
};

static const struct operation backward[] = {
    OP2(MUL, HD_CUDNN_DOUT, HD_CUDNN_OUT, DOUT_OUT),
    SUM_OF(DOUT_OUT, ROW_SUM),
    OP2(MUL, ROW_SUM, HD_CUDNN_ONE, HD_CUDNN_DELTA),
    PRODUCT(HD_CUDNN_Q, HD_CUDNN_K, SCORE),
    OP2(MUL, SCORE, HD_CUDNN_SCALE, SCALED),
    OP2(SUB, SCALED, HD_CUDNN_LSE, BELOW_LSE),
    CAUSAL(BELOW_LSE, MASKED),
    OP1(EXP, MASKED, EXP),
    RESHAPED(EXP, WEIGHT_T),
    PRODUCT(WEIGHT_T, HD_CUDNN_DOUT, DV_HEADS),
    SUM_OF(DV_HEADS, HD_CUDNN_DV),
    PRODUCT(HD_CUDNN_DOUT, HD_CUDNN_V, DWEIGHT),
    OP2(SUB, DWEIGHT, HD_CUDNN_DELTA, BELOW_DELTA),
    OP2(MUL, BELOW_DELTA, EXP, DSCORE),
    OP2(MUL, DSCORE, HD_CUDNN_SCALE, DSCALED),
    RESHAPED(DSCALED, DSCALED_T),
    PRODUCT(DSCALED_T, HD_CUDNN_Q, DK_HEADS),
    SUM_OF(DK_HEADS, HD_CUDNN_DK),
    RESHAPED(HD_CUDNN_K, KEYS),
    PRODUCT(DSCALED, KEYS, HD_CUDNN_DQ_SUM),
    OP1(IDENTITY, HD_CUDNN_DQ_SUM, HD_CUDNN_DQ),
};

/* Returns the tensor that takes the place of `tensor`: heads that share no keys have nothing to add up,
 * and with `deterministic` dq is not summed in memory. */
static int in_place_of(const struct hd_cudnn_shape *s, int tensor)
{
    if (s->H == s->G && tensor == DV_HEADS)
        return HD_CUDNN_DV;
    if (s->H == s->G && tensor == DK_HEADS)
        return HD_CUDNN_DK;
    if (s->deterministic && tensor == HD_CUDNN_DQ_SUM)
        return HD_CUDNN_DQ;
    return tensor;
}

/* ---- Descriptors ---- */

enum { OPERATIONS_MAX = 32, MADE_MAX = TENSOR_COUNT + 2 * OPERATIONS_MAX + 8, ENGINES_MAX = 16 };

_Static_assert(sizeof backward / sizeof backward[0] <= OPERATIONS_MAX, "an array holds the graph");

/* A graph in the making. The first failure stays; what follows does nothing. */
struct maker {
    const struct hd_cudnn_calls *calls;
    const struct hd_cudnn_shape *shape;
    cudnnHandle_t handle;
    cudnnStatus_t failed;
    const char *what; /* that failed */
    cudnnBackendDescriptor_t tensor[TENSOR_COUNT];
    cudnnBackendDescriptor_t operation[OPERATIONS_MAX];
    cudnnBackendDescriptor_t made[MADE_MAX]; /* all of them, to be destroyed in reverse */
    int operations, made_count;
};

static void note(struct maker *m, cudnnStatus_t status, const char *what)
{
    if (m->failed || !status)
        return;
    m->failed = status;
    m->what = what;
}

static cudnnBackendDescriptor_t make(struct maker *m, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t made = NULL;

    if (!m->failed && m->made_count == MADE_MAX)
        note(m, CUDNN_STATUS_INTERNAL_ERROR, "too many descriptors");
    if (!m->failed)
        note(m, m->calls->cudnnBackendCreateDescriptor(type, &made), "a descriptor");
    if (made)
        m->made[m->made_count++] = made;
    return made;
}

static void set_value(struct maker *m, cudnnBackendDescriptor_t to,
                      cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                      int64_t count, const void *values)
{
    if (!m->failed)
        note(m, m->calls->cudnnBackendSetAttribute(to, name, type, count, values), "an attribute");
}

static void set_descriptor(struct maker *m, cudnnBackendDescriptor_t to,
                           cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value)
{
    set_value(m, to, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void set_type(struct maker *m, cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name,
                     cudnnDataType_t value)
{
    set_value(m, to, name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}

static void complete(struct maker *m, cudnnBackendDescriptor_t made, const char *what)
{
    if (!m->failed)
        note(m, m->calls->cudnnBackendFinalize(made), what);
}

/* ---- The graph ---- */

static int64_t distance_of(const struct hd_cudnn_shape *s, int tensor)
{
    switch (tensor) {
    case HD_CUDNN_Q:
        return s->ldq;
    case HD_CUDNN_V:
        return s->ldv;
    case HD_CUDNN_OUT:
        return s->ldo;
    case HD_CUDNN_DOUT:
        return s->lddo;
    case HD_CUDNN_DQ:
        return s->lddq;
    case HD_CUDNN_DK:
        return s->lddk;
    case HD_CUDNN_DV:
        return s->lddv;
    default: /* K and KEYS */
        return s->ldk;
    }
}

static bool is_of_keys(int tensor)
{
    return tensor == HD_CUDNN_K || tensor == HD_CUDNN_V || tensor == HD_CUDNN_DK ||
           tensor == HD_CUDNN_DV || tensor == KEYS;
}

static void swap(int64_t *a, int64_t *b)
{
    const int64_t kept = *a;

    *a = *b;
    *b = kept;
}

static void lay_out(const struct hd_cudnn_shape *s, int tensor, int64_t dim[4], int64_t stride[4])
{
    const int64_t S = s->S, H = is_of_keys(tensor) ? s->G : s->H, D = s->D;
    const int64_t ld = distance_of(s, tensor);
    const int64_t shapes[][2][4] = {
        [ROWS] = {{s->B, H, S, D}, {S * ld, D, ld, 1}},
        [COLUMNS] = {{s->B, H, D, S}, {S * ld, D, 1, ld}},
        [DENSE] = {{s->B, H, S, D}, {H * S * D, S * D, D, 1}},
        [SCORES] = {{s->B, H, S, S}, {H * S * S, S * S, S, 1}},
        [SCORES_T] = {{s->B, H, S, S}, {H * S * S, S * S, 1, S}},
        [PER_QUERY] = {{s->B, H, S, 1}, {H * S, S, 1, 1}},
        [LOG_SUMS] = {{s->B, H, S, 1}, {S, s->B * S, 1, 1}},
        [ONE_VALUE] = {{1, 1, 1, 1}, {1, 1, 1, 1}},
    };

    memcpy(dim, shapes[tensors[tensor].layout][0], 4 * sizeof *dim);
    memcpy(stride, shapes[tensors[tensor].layout][1], 4 * sizeof *stride);
    if (s->backward && tensor == HD_CUDNN_V) {
        swap(&dim[2], &dim[3]);
        swap(&stride[2], &stride[3]);
    }
}

/* Returns the descriptor of a tensor, which is made at its first use. */
static cudnnBackendDescriptor_t tensor_of(struct maker *m, int tensor)
{
    const struct hd_cudnn_shape *s = m->shape;
    const int which = in_place_of(s, tensor);
    const bool is_virtual = which >= HD_CUDNN_MEMORY_COUNT;
    const bool by_value = tensors[which].layout == ONE_VALUE;
    const int64_t id = which + 1, align = by_value ? 4 : 16;
    int64_t dim[4], stride[4];
    cudnnBackendDescriptor_t made;

    if (m->tensor[which])
        return m->tensor[which];
    lay_out(s, which, dim, stride);
    made = m->tensor[which] = make(m, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set_type(m, made, CUDNN_ATTR_TENSOR_DATA_TYPE,
             tensors[which].type != BY_DTYPE ? (cudnnDataType_t)tensors[which].type
             : s->dtype == HD_BF16           ? CUDNN_DATA_BFLOAT16
                                             : CUDNN_DATA_HALF);
    set_value(m, made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim);
    set_value(m, made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    set_value(m, made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set_value(m, made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    set_value(m, made, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set_value(m, made, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    complete(m, made, "a tensor");
    return made;
}

static cudnnBackendDescriptor_t pointwise_of(struct maker *m, const struct operation *o)
{
    const cudnnPointwiseMode_t mode = (cudnnPointwiseMode_t)o->mode;
    const cudnnDataType_t type =
        mode == CUDNN_POINTWISE_CMP_GE ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT;
    const int64_t axis = o->axis;
    cudnnBackendDescriptor_t how = make(m, CUDNN_BACKEND_POINTWISE_DESCRIPTOR), made;

    set_value(m, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_type(m, how, CUDNN_ATTR_POINTWISE_MATH_PREC, type);
    if (axis >= 0)
        set_value(m, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    complete(m, how, "a pointwise operation");
    made = make(m, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(m, made, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_descriptor(m, made, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensor_of(m, o->x));
    if (o->b != NO_TENSOR)
        set_descriptor(m, made, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensor_of(m, o->b));
    if (o->t != NO_TENSOR)
        set_descriptor(m, made, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, tensor_of(m, o->t));
    set_descriptor(m, made, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensor_of(m, o->y));
    return made;
}

static cudnnBackendDescriptor_t reduction_of(struct maker *m, const struct operation *o)
{
    const cudnnReduceTensorOp_t mode = (cudnnReduceTensorOp_t)o->mode;
    cudnnBackendDescriptor_t how = make(m, CUDNN_BACKEND_REDUCTION_DESCRIPTOR), made;

    set_value(m, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    set_type(m, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    complete(m, how, "a reduction");
    made = make(m, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(m, made, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    set_descriptor(m, made, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, tensor_of(m, o->x));
    set_descriptor(m, made, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, tensor_of(m, o->y));
    return made;
}

static cudnnBackendDescriptor_t product_of(struct maker *m, const struct operation *o)
{
    cudnnBackendDescriptor_t how = make(m, CUDNN_BACKEND_MATMUL_DESCRIPTOR), made;

    set_type(m, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    complete(m, how, "a product");
    made = make(m, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(m, made, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    set_descriptor(m, made, CUDNN_ATTR_OPERATION_MATMUL_ADESC, tensor_of(m, o->x));
    set_descriptor(m, made, CUDNN_ATTR_OPERATION_MATMUL_BDESC, tensor_of(m, o->b));
    set_descriptor(m, made, CUDNN_ATTR_OPERATION_MATMUL_CDESC, tensor_of(m, o->y));
    return made;
}

static cudnnBackendDescriptor_t reshape_of(struct maker *m, const struct operation *o)
{
    cudnnBackendDescriptor_t made = make(m, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);

    set_descriptor(m, made, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, tensor_of(m, o->x));
    set_descriptor(m, made, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, tensor_of(m, o->y));
    return made;
}

static void add_operation(struct maker *m, const struct operation *o)
{
    static cudnnBackendDescriptor_t (*const makers[])(struct maker *, const struct operation *) = {
        [POINTWISE] = pointwise_of,
        [REDUCE] = reduction_of,
        [MATMUL] = product_of,
        [RESHAPE] = reshape_of};
    cudnnBackendDescriptor_t made;

    if (in_place_of(m->shape, o->x) == in_place_of(m->shape, o->y))
        return; /* its input is its result */
    made = makers[o->kind](m, o);
    complete(m, made, "an operation");
    m->operation[m->operations++] = made;
}

static cudnnBackendDescriptor_t graph_of(struct maker *m)
{
    const struct operation *list = m->shape->backward ? backward : forward;
    const size_t count = m->shape->backward ? sizeof backward / sizeof backward[0]
                                            : sizeof forward / sizeof forward[0];
    cudnnBackendDescriptor_t graph;

    for (size_t i = 0; i < count; i++)
        add_operation(m, &list[i]);
    graph = make(m, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (m->handle)
        set_value(m, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &m->handle);
    set_value(m, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, m->operations,
              m->operation);
    complete(m, graph, "the graph");
    return graph;
}

/* ---- The plan ---- */

/* Returns whether the engine of a configuration may compute the shape: one that the library does not
 * repeat bit by bit only without `deterministic`. */
static bool is_allowed(struct maker *m, cudnnBackendDescriptor_t configuration)
{
    cudnnBackendNumericalNote_t notes[16];
    cudnnBackendDescriptor_t engine = make(m, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t count = 0;

    if (!m->shape->deterministic || m->failed ||
        m->calls->cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE,
                                           CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine) ||
        m->calls->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                           CUDNN_TYPE_NUMERICAL_NOTE, 16, &count, notes))
        return !m->shape->deterministic;
    for (int64_t i = 0; i < count && i < 16; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
            return false;
    return true;
}

/* Returns the plan of a configuration, and its workspace; NULL: the library has none on this device. */
static cudnnBackendDescriptor_t
try_configuration(const struct maker *m, cudnnBackendDescriptor_t configuration, int64_t *ret_bytes)
{
    const struct hd_cudnn_calls *calls = m->calls;
    cudnnBackendDescriptor_t plan = NULL;
    int64_t count = 0;

    if (calls->cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan))
        return NULL;
    if (!calls->cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE,
                                         1, &m->handle) &&
        !calls->cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                         CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &configuration) &&
        !calls->cudnnBackendFinalize(plan) &&
        !calls->cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                         CUDNN_TYPE_INT64, 1, &count, ret_bytes))
        return plan;
    (void)calls->cudnnBackendDestroyDescriptor(plan);
    return NULL;
}

/* Takes the first of the library's configurations, best first, that fits; *ret_least: the least workspace
 * of those that do not; 0: there is none. */
static void choose(struct maker *m, cudnnBackendDescriptor_t graph, int64_t budget_bytes,
                   cudnnBackendDescriptor_t *ret_plan, int64_t *ret_least)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    cudnnBackendDescriptor_t heuristic = make(m, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnnBackendDescriptor_t configurations[ENGINES_MAX];
    int64_t count = 0;

    set_descriptor(m, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set_value(m, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    complete(m, heuristic, "the choice of an engine");
    for (int i = 0; i < ENGINES_MAX; i++)
        configurations[i] = make(m, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!m->failed)
        note(m,
             m->calls->cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                CUDNN_TYPE_BACKEND_DESCRIPTOR, ENGINES_MAX, &count,
                                                configurations),
             "the choice of an engine");
    for (int64_t i = 0; i < count && i < ENGINES_MAX && !m->failed && !*ret_plan; i++) {
        int64_t bytes = 0;

        if (!is_allowed(m, configurations[i]))
            continue;
        *ret_plan = try_configuration(m, configurations[i], &bytes);
        if (!*ret_plan || bytes <= budget_bytes)
            continue;
        *ret_least = !*ret_least || bytes < *ret_least ? bytes : *ret_least;
        (void)m->calls->cudnnBackendDestroyDescriptor(*ret_plan);
        *ret_plan = NULL;
    }
}

static enum hd_status refuse(const struct maker *m)
{
    char story[256] = "";

    m->calls->cudnnGetLastErrorString(story, sizeof story);
    return hd_err(m->failed / 1000 * 1000 == CUDNN_STATUS_NOT_SUPPORTED ? HD_UNSUPPORTED
                                                                        : HD_INTERNAL,
                  "cuDNN refuses %s: %s%s%s", m->what, m->calls->cudnnGetErrorString(m->failed),
                  story[0] ? ": " : "", story);
}

enum hd_status hd_cudnn_plan_make(const struct hd_cudnn_calls *calls, cudnnHandle_t handle,
                                  const struct hd_cudnn_shape *shape, int64_t budget_bytes,
                                  cudnnBackendDescriptor_t *ret_plan)
{
    struct maker m = {.calls = calls, .handle = handle, .shape = shape};
    const cudnnBackendDescriptor_t graph = graph_of(&m);
    int64_t least = 0;
    enum hd_status st = HD_OK;

    *ret_plan = NULL;
    if (!m.failed)
        choose(&m, graph, budget_bytes, ret_plan, &least);
    if (m.failed)
        st = refuse(&m);
    else if (!*ret_plan && least)
        st = hd_err(HD_UNSUPPORTED, "cuDNN needs %lld bytes of workspace, and %lld are planned",
                    (long long)least, (long long)budget_bytes);
    else if (!*ret_plan)
        st = hd_err(HD_UNSUPPORTED, "cuDNN has no %skernel for it",
                    shape->deterministic ? "deterministic " : "");
    for (int i = m.made_count; i-- > 0;)
        (void)calls->cudnnBackendDestroyDescriptor(m.made[i]);
    return st;
}

/* ---- A launch ---- */

enum hd_status hd_cudnn_plan_run(const struct hd_cudnn_calls *calls, cudnnHandle_t handle,
                                 cudnnBackendDescriptor_t plan,
                                 void *const memory[HD_CUDNN_MEMORY_COUNT], void *workspace)
{
    struct maker m = {.calls = calls, .handle = handle};
    const cudnnBackendDescriptor_t pack = make(&m, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    int64_t ids[HD_CUDNN_MEMORY_COUNT];
    void *addresses[HD_CUDNN_MEMORY_COUNT];
    int count = 0;
    enum hd_status st = HD_OK;

    for (int i = 0; i < HD_CUDNN_MEMORY_COUNT; i++)
        if (memory[i]) {
            ids[count] = i + 1;
            addresses[count++] = memory[i];
        }
    set_value(&m, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids);
    set_value(&m, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count,
              addresses);
    set_value(&m, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    complete(&m, pack, "the addresses of attention");
    if (!m.failed)
        note(&m, calls->cudnnBackendExecute(handle, plan, pack), "a launch of attention");
    if (m.failed)
        st = refuse(&m);
    if (pack)
        (void)calls->cudnnBackendDestroyDescriptor(pack);
    return st;
}
