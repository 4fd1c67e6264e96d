/* list: a chunk as text, for debugging and for tests that pin programs.
 *
 *     F
 *        # op                outs                     args           region+offset   bytes  stream
 *        0 rmsnorm_forward   normed.3 f32[8,16], ...  x.0, weight:2  kept+0x000000   512    compute
 *
 * A store is printed as "name dtype[shape]" if it is an output and as "name" if it is an input;
 * state of a bucket as "kind:unit". Region, offset and bytes are those of the first output; "!"
 * marks the registered half. After the stream come a collective's group, "last" for nodes that
 * run only in the last micro-batch, and "wait N" for an edge from node N. "+" marks a kernel that
 * adds to a gradient, "=+" its first contribution in a micro-batch.
 */
#include "program/program.h"

static void add_name(const struct hd_chunk *chunk, struct hd_text *text, struct hd_operand o,
                     bool shape)
{
    const struct hd_store *s = o.store;

    if (s->kind == HD_STORE_BUCKET || s->kind == HD_STORE_GRAD_BUCKET ||
        s->kind == HD_STORE_GATHERED || s->kind == HD_STORE_WIRE) {
        hd_text_add(text, "%s:%s", s->name,
                    chunk->registry->units[chunk->registry->buckets[s->bucket].unit].name);
    } else {
        hd_text_add(text, "%s.%d", s->name, s->id);
        if (shape && s->columns)
            hd_text_add(text, " %s[%lld,%lld]", hd_dtype_name(s->dtype), (long long)s->rows,
                        (long long)s->columns);
        else if (shape && s->rows)
            hd_text_add(text, " %s[%lld]", hd_dtype_name(s->dtype), (long long)s->rows);
    }
    if (o.offset_bytes)
        hd_text_add(text, "+%lld", (long long)o.offset_bytes);
}

static void pad_to(struct hd_text *text, size_t line_start, size_t column)
{
    do
        hd_text_add(text, " ");
    while (!text->failed && text->len_bytes - line_start < column);
}

static bool is_output(const struct hd_node *node, int k)
{
    return (hd_node_access(node, k) & HD_WRITE) != 0;
}

static void list_operands(const struct hd_chunk *chunk, struct hd_text *text,
                          const struct hd_node *node, bool outputs)
{
    const char *between = "";

    for (int k = 0; k < hd_node_operand_count(node); k++) {
        if (!node->operands[k].store || is_output(node, k) != outputs)
            continue;
        hd_text_add(text, "%s", between);
        add_name(chunk, text, node->operands[k], outputs);
        between = ", ";
    }
}

/* Returns the first output operand of the node that is not absent; every node has one. */
static struct hd_operand first_output(const struct hd_node *node)
{
    int k = 0;

    while (!node->operands[k].store || !is_output(node, k))
        k++;
    return node->operands[k];
}

/* Returns the listing's name of a GEMM node, which tells its epilogue or the operation that is
 * fused with it. */
static const char *product_name(const struct hd_node *node)
{
    static const char *const names[] = {[HD_EPILOGUE_NONE] = "gemm",
                                        [HD_EPILOGUE_GELU] = "gemm_gelu",
                                        [HD_EPILOGUE_GELU_BACKWARD] = "gemm_gelu_backward",
                                        [HD_EPILOGUE_GLU] = "gemm_glu",
                                        [HD_EPILOGUE_GLU_BACKWARD] = "gemm_glu_backward"};
    const struct hd_gemm_args *args = node->args;

    return args->add ? "gemm_add" : names[args->epilogue];
}

const char *hd_node_name(const struct hd_node *node)
{
    if (node->is_comm)
        return hd_comm_kind_name(node->comm);
    if (node->kernel == HD_K_gemm)
        return product_name(node);
    if (node->kernel == HD_K_fp8_gemm && ((const struct hd_fp8_gemm_args *)node->args)->add)
        return "fp8_gemm_add";
    return hd_kernel_get_info(node->kernel)->name;
}

static void list_node(const struct hd_chunk *chunk, struct hd_text *text,
                      const struct hd_node *node, int number)
{
    const size_t start = text->len_bytes;
    const struct hd_operand output = first_output(node);
    const struct hd_store *out = output.store;

    hd_text_add(text, "%4d %s%s", number, hd_node_name(node),
                node->contribution ? (node->first_contribution ? " =+" : " +") : "");
    pad_to(text, start, 34);
    list_operands(chunk, text, node, true);
    pad_to(text, start, 76);
    list_operands(chunk, text, node, false);
    pad_to(text, start, 128);
    hd_text_add(text, "%s%s+0x%06llx", hd_region_name(out->region), out->registered ? "!" : "",
                (unsigned long long)(out->offset + output.offset_bytes));
    pad_to(text, start, 148);
    hd_text_add(text, "%lld", (long long)out->size_bytes);
    pad_to(text, start, 158);
    hd_text_add(text, "%s", hd_stream_text(node->stream));
    if (node->is_comm)
        hd_text_add(text, " %s", hd_group_text(node->group));
    if (node->only_last)
        hd_text_add(text, " last");
    for (int w = 0; w < node->wait_count; w++)
        hd_text_add(text, " wait %d", node->waits[w]);
    hd_text_add(text, "\n");
}

void hd_chunk_list(const struct hd_chunk *chunk, struct hd_text *ret_text)
{
    for (int c = 0; c < HD_CALL_COUNT; c++) {
        const struct hd_program *p = &chunk->program[c];

        if (!p->count)
            continue;
        hd_text_add(ret_text, "%s\n", hd_call_name(p->call));
        for (int i = 0; i < p->count; i++)
            list_node(chunk, ret_text, p->nodes[i], i);
    }
    for (int r = 0; r < HD_REGION_COUNT; r++) {
        const struct hd_extent *x = &chunk->extent[r];

        if (x->private_bytes || x->registered_bytes)
            hd_text_add(ret_text, "%s private %lld visible %lld\n",
                        hd_region_name((enum hd_region)r), (long long)x->private_bytes,
                        (long long)x->registered_bytes);
    }
}
