/* adapter_stacks: PEFT's factors of experts whose matrices are one parameter (a stack), which its
 * target_parameters name. With E experts and rank r they are the matrices
 *
 *     EXPERTS.lora_A.weight [E r, in]       row e r + i is row i of expert e's A
 *     EXPERTS.lora_B.weight [out, r E]      column i E + e is column i of expert e's B
 *
 * EXPERTS is the module of both parameters, gate_up_proj and down_proj. If both have factors, PEFT
 * wraps the module twice: those of gate_up_proj, the inner ones, are EXPERTS.base_layer.lora_A. The
 * rows of B of gate_up_proj are those of gate and up, one after another or alternating.
 *
 * A class of transformers says by is_transposed whether its parameter is [E, in, out]; that of Llama 4
 * does not, though it is. PEFT then takes out for in: the same product has its factors the other way
 * round, A [E r, out] and B [in, r E].
 */
#include <string.h>

#include "hf/hf_internal.h"

static const struct hd_hf_stacks of_names[HD_NAMES_COUNT] = {
    [HD_NAMES_GRANITE_MOE] = {.experts = "block_sparse_moe.experts"},
    [HD_NAMES_GRANITE_MOE_SWA] = {.experts = "block_sparse_moe.experts"},
    [HD_NAMES_GPT_OSS] = {.experts = "mlp.experts", .alternate = true},
    [HD_NAMES_LLAMA4] = {.experts = "feed_forward.experts", .turned = true},
    [HD_NAMES_QWEN3_5] = {.experts = "mlp.experts"},
};

const struct hd_hf_stacks *hd_hf_stacks_of(const char *family)
{
    const struct hd_family *f = hd_family_named(family);

    return f && f->experts && of_names[f->names].experts ? &of_names[f->names] : NULL;
}

bool hd_hf_is_stack(const char *module, size_t length)
{
    static const char *const ends[] = {"experts", ".base_layer"};

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t n = strlen(ends[i]);

        if (length >= n && strncmp(module + length - n, ends[i], n) == 0)
            return true;
    }
    return false;
}

/* Makes the row of a factor: a (A) or b (B) of ours. */
static struct hd_hf_row stack_row(const struct hd_hf_stacks *s, struct hd_arena *arena,
                                  const char *ours, bool b, const char *wrapped)
{
    const bool theirs_b = b != s->turned;

    return (struct hd_hf_row){.ours = ours,
                              .theirs = hd_arena_printf(arena, "layers.#.%s%s.lora_%c.weight",
                                                        s->experts, wrapped, theirs_b ? 'B' : 'A'),
                              .stack = theirs_b ? HD_HF_STACK_COLUMNS : HD_HF_STACK_ROWS,
                              .transposed = s->turned,
                              .parts = 1};
}

void hd_hf_stack_rows(const struct hd_hf_stacks *s, bool nested, struct hd_arena *arena,
                      struct hd_hf_row ret_rows[HD_HF_STACK_FACTORS])
{
    const char *inner = nested ? ".base_layer" : "";

    ret_rows[0] = stack_row(s, arena, "blocks.#.moe.gate_up.lora_a", false, inner);
    ret_rows[1] = stack_row(s, arena, "blocks.#.moe.gate.lora_b", true, inner);
    ret_rows[2] = stack_row(s, arena, "blocks.#.moe.up.lora_b", true, inner);
    for (int place = 0; place < 2; place++) {
        ret_rows[1 + place].parts = 2;
        ret_rows[1 + place].place = place;
        ret_rows[1 + place].alternate = s->alternate;
    }
    ret_rows[3] = stack_row(s, arena, "blocks.#.moe.down.lora_a", false, "");
    ret_rows[4] = stack_row(s, arena, "blocks.#.moe.down.lora_b", true, "");
}

void hd_hf_stack_shape(enum hd_hf_stack stack, bool turned, const int64_t ours[3],
                       int64_t ret_shape[2])
{
    const bool rows = stack == HD_HF_STACK_ROWS;

    ret_shape[0] = ours[turned ? 2 : 1] * (rows ? ours[0] : 1);
    ret_shape[1] = ours[turned ? 1 : 2] * (rows ? 1 : ours[0]);
}

static int64_t index_of(enum hd_hf_stack stack, bool turned, int64_t experts,
                        const int64_t shape[2], int64_t expert, int64_t i, int64_t j)
{
    const int64_t row = turned ? j : i, column = turned ? i : j;

    return stack == HD_HF_STACK_ROWS ? (expert * (shape[0] / experts) + row) * shape[1] + column
                                     : row * shape[1] + column * experts + expert;
}

struct hd_hf_stack_place hd_hf_find_in_stack(enum hd_hf_stack stack, bool turned, int64_t experts,
                                             const int64_t shape[2], int64_t expert, int64_t i,
                                             int64_t j)
{
    const int64_t first = index_of(stack, turned, experts, shape, expert, i, j);

    return (struct hd_hf_stack_place){
        first, index_of(stack, turned, experts, shape, expert, i, j + 1) - first};
}
