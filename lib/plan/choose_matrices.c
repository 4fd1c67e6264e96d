/* choose_matrices: the weight matrices of attention, whose shapes differ between kinds of attention. */
#include <string.h>

#include "plan/choose_internal.h"

static int64_t head_width(const struct hd_plan_request *w)
{
    return w->head_width ? w->head_width : w->hidden / w->heads;
}

/* Lists the matrices of latent attention. The products that make latents are whole on each rank. */
static int list_latents(const struct hd_plan_request *w, struct choose_matrix *ret_list)
{
    const int64_t C = w->hidden, Q = w->heads * head_width(w), V = w->heads * w->mla_value;
    const int64_t rope = head_width(w) - w->mla_nope;
    int n = 0;

    if (w->mla_q_rank)
        ret_list[n++] = (struct choose_matrix){w->mla_q_rank, C, CHOOSE_WHOLE, 0};
    ret_list[n++] = (struct choose_matrix){Q, w->mla_q_rank ? w->mla_q_rank : C, CHOOSE_ROWS, 0};
    ret_list[n++] = (struct choose_matrix){w->mla_kv_rank + rope, C, CHOOSE_WHOLE, 0};
    ret_list[n++] =
        (struct choose_matrix){w->heads * w->mla_nope + V, w->mla_kv_rank, CHOOSE_ROWS, 0};
    ret_list[n++] = (struct choose_matrix){C, V, CHOOSE_COLUMNS, 0};
    return n;
}

int choose_attention(const struct hd_plan_request *w,
                     struct choose_matrix ret_list[CHOOSE_MATRICES_MAX])
{
    const int64_t C = w->hidden, Q = w->heads * head_width(w), K = w->kv_heads * head_width(w);
    const struct choose_matrix list[] = {{Q, C, CHOOSE_ROWS, 0},
                                         {K, C, CHOOSE_ROWS, w->kv_heads},
                                         {K, C, CHOOSE_ROWS, w->kv_heads},
                                         {C, Q, CHOOSE_COLUMNS, 0}};

    if (w->mla_kv_rank)
        return list_latents(w, ret_list);
    memcpy(ret_list, list, sizeof list);
    return (int)(sizeof list / sizeof list[0]);
}

int choose_delta(const struct hd_plan_request *w,
                 struct choose_matrix ret_list[CHOOSE_MATRICES_MAX])
{
    const int64_t C = w->hidden, K = w->delta_heads * w->delta_key_width,
                  V = w->delta_value_heads * w->delta_value_width;
    const struct choose_matrix list[] = {{K, C, CHOOSE_ROWS, 0},
                                         {K, C, CHOOSE_ROWS, 0},
                                         {V, C, CHOOSE_ROWS, 0},
                                         {V, C, CHOOSE_ROWS, 0},
                                         {C, V, CHOOSE_COLUMNS, 0}};

    if (!w->delta_layers)
        return 0;
    memcpy(ret_list, list, sizeof list);
    return (int)(sizeof list / sizeof list[0]);
}

int choose_conv(const struct hd_plan_request *w, struct choose_matrix ret_list[CHOOSE_MATRICES_MAX])
{
    const int64_t C = w->hidden;
    const struct choose_matrix list[] = {{C, C, CHOOSE_ROWS, 0},
                                         {C, C, CHOOSE_ROWS, 0},
                                         {C, C, CHOOSE_ROWS, 0},
                                         {C, C, CHOOSE_COLUMNS, 0}};

    if (!w->conv_layers)
        return 0;
    memcpy(ret_list, list, sizeof list);
    return (int)(sizeof list / sizeof list[0]);
}
