#include "model/only.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

enum { ITEM_MAX = 256 };

bool hd_only_is_all(const struct hd_only *only)
{
    return !*only->text || strcmp(only->text, "all") == 0;
}

/* Copies the item at the begin of `text` to ret_item. Returns the begin of the next item; NULL:
 * this was the last one. An item that is too long for ret_item is cut, and then names no
 * parameter. */
static const char *next_item(const char *text, char ret_item[ITEM_MAX])
{
    const size_t length = strcspn(text, ",");

    (void)snprintf(ret_item, ITEM_MAX, "%.*s", (int)length, text);
    return text[length] ? text + length + 1 : NULL;
}

/* Returns K of `last:K`; 0 for any other item, or if K is not a number from 1 to L. */
static int64_t last_blocks(const char *item, int64_t L)
{
    char *end;
    long long K;

    if (strncmp(item, "last:", 5) != 0 || item[5] < '1' || item[5] > '9')
        return 0;
    K = strtoll(item + 5, &end, 10);
    return *end || K > L ? 0 : K;
}

/* Returns the index of the block to which a parameter of this name belongs; -1: none. */
static int64_t block_of(const char *name)
{
    return strncmp(name, "blocks.", 7) == 0 ? strtoll(name + 7, NULL, 10) : -1;
}

/* Returns true for the name of a reward model's vector, which no base model has, so that it always
 * trains. */
static bool is_score(const char *name)
{
    return strcmp(name, "head.score.weight") == 0;
}

static bool item_names(const struct hd_only *only, const char *item, const char *name)
{
    const int64_t last = last_blocks(item, only->L);

    if (last)
        return block_of(name) >= only->L - last;
    if (strcmp(item, "embedding") == 0)
        return strncmp(name, "embedding.", 10) == 0;
    if (strcmp(item, "head") == 0)
        return is_score(name) || strcmp(name, only->tied ? "embedding.weight" : "head.weight") == 0;
    if (strcmp(item, "score") == 0)
        return is_score(name);
    if (strcmp(item, "norms") == 0)
        return strstr(name, "norm") != NULL;
    return strcmp(item, "all") == 0 || fnmatch(item, name, 0) == 0;
}

bool hd_only_trains(const struct hd_only *only, const char *name)
{
    char item[ITEM_MAX];

    if (hd_only_is_all(only) || is_score(name))
        return true;
    for (const char *at = only->text; at;) {
        at = next_item(at, item);
        if (item_names(only, item, name))
            return true;
    }
    return false;
}

/* Appends to `out` the names of the parameters of the first block and of those outside of blocks,
 * for a message. */
static void add_names(const struct hd_registry *r, struct hd_text *out)
{
    for (int i = 0; i < r->param_count; i++)
        if (block_of(r->params[i].name) <= 0 && !r->params[i].state)
            hd_text_add(out, "%s%s", out->len_bytes ? ", " : "", r->params[i].name);
}

static const char *key_of(const struct hd_only *only)
{
    return only->key ? only->key : "train.trainable";
}

static enum hd_status check_item(const struct hd_only *only, const struct hd_registry *r,
                                 const char *item)
{
    struct hd_text names = {0};
    enum hd_status st;

    if (strncmp(item, "last:", 5) == 0 && !last_blocks(item, only->L))
        return hd_err(HD_INVALID,
                      "%s: %s: the model has %" PRId64 " block%s; write last:1 to last:%" PRId64,
                      key_of(only), item, only->L, only->L == 1 ? "" : "s", only->L);
    for (int i = 0; i < r->param_count; i++)
        if (!r->params[i].state && item_names(only, item, r->params[i].name))
            return HD_OK;
    add_names(r, &names);
    st = hd_err(HD_INVALID,
                "%s: '%s' names no parameter; use all, last:K, embedding, norms, head, or a "
                "pattern of names; the names, with the first of %" PRId64 " blocks, are: %s",
                key_of(only), item, only->L, names.data ? names.data : "");
    hd_text_free(&names);
    return st;
}

/* Returns true if parameter p and `before`, declared just before it, must train together. */
static bool is_one_with(const struct hd_param *p, const struct hd_param *before)
{
    const char *last = strrchr(p->name, '.');
    const size_t stem = last ? (size_t)(last - p->name) : 0; /* length of the name without its last
                                                                part: of "blocks.0.norm1" */
    const bool is_bias_of_norm = last && strcmp(last, ".bias") == 0 && strstr(p->name, "norm") &&
                                 strncmp(p->name, before->name, stem + 1) == 0;
    const bool is_norm_of_keys = strstr(p->name, ".k_norm.") && strstr(before->name, ".q_norm.");

    return p->fused || is_bias_of_norm || is_norm_of_keys;
}

enum hd_status hd_only_check(const struct hd_only *only, const struct hd_registry *r)
{
    char item[ITEM_MAX];
    int trained = 0;
    enum hd_status st = HD_OK;

    if (hd_only_is_all(only))
        return HD_OK;
    for (const char *at = only->text; !st && at;) {
        at = next_item(at, item);
        st = check_item(only, r, item);
    }
    for (int i = 0; !st && i < r->param_count; i++) {
        const struct hd_param *p = &r->params[i];

        trained += p->trainable;
        if (i && is_one_with(p, p - 1) && p->trainable != (p - 1)->trainable)
            st = hd_err(HD_INVALID,
                        "%s: %s trains and %s does not, but the two must train together; name "
                        "both or neither",
                        key_of(only), p->trainable ? p->name : (p - 1)->name,
                        p->trainable ? (p - 1)->name : p->name);
    }
    if (!st && !trained)
        st = hd_err(HD_INVALID, "train.trainable: no parameter trains; name one, or use all");
    return st;
}
