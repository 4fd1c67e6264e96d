/* flips: is each switch of each row of families.def seen by a model that is compared with
 * transformers? The list of mutations is made from the rows themselves: every member that a row sets
 * is changed, one after the other, and every model of the row is then read again.
 *
 *   family_flips LIST TOKENS     a line of LIST is "NAME DIR LOGITS"; the .npy file LOGITS has the logits of
 *                                the model in DIR for TOKENS, as `heddle-worker logits` writes them
 *
 * A flip fails, as it must, if Heddle refuses a model of the row or computes other logits in at least
 * one of them. Prints a line per row, ok or not ok. Rows are constants of the program: the test makes
 * their memory writable. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "hf/hf_internal.h"
#include "job/family.h"
#include "tests/job_text.h"
#include "train/decoder.h"

enum { TOKENS_MAX = 64, MODELS_MAX = 256, NAME_MAX_BYTES = 64, DIR_BYTES = 512, NPY_HEAD = 128 };

/* Largest difference of logits, by their largest one, that is no other model; least one that is. */
static const double same_max = 1e-5, other_min = 1e-4;

/* ---- the members of a row ---- */

enum kind {
    FLAG,
    CHOICE, /* an enum with `count` values, of which the next one is taken */
    COUNT,  /* a number of things: one more */
    REAL,   /* a quarter more */
    SMALL,  /* an epsilon: ten thousand times as large, so that it shows */
    RULE,   /* layers: all in place of some */
    BRANCHES
};

/* shown: a model of the row must show the flip. Other members are defaults of keys that config.json
 * may have, or do nothing in a model without the feature that they are about. */
struct member {
    const char *name;
    size_t offset, size_bytes;
    enum kind kind;
    int count;
    bool shown;
};

#define MEMBER(what, kind, count, shown)                                                           \
    {                                                                                              \
#what, offsetof(struct hd_family, what), sizeof((struct hd_family *)0)->what, kind, count, \
            shown                                                                                  \
    }
#define SWITCH(what)  MEMBER(what, FLAG, 0, true)
#define DEFAULT(what) MEMBER(what, FLAG, 0, false)
static const struct member members[] = {
    MEMBER(norm, CHOICE, HD_NORM_LAYER_BARE + 1, true),
    MEMBER(place, CHOICE, HD_NORM_BOTH + 1, true),
    MEMBER(activation, CHOICE, HD_FFN_OSS + 1, true),
    SWITCH(gated),
    SWITCH(learned),
    SWITCH(interleaved),
    SWITCH(experts),
    SWITCH(shared_gated),
    SWITCH(router_sigmoid),
    SWITCH(router_pairs),
    SWITCH(router_bias),
    SWITCH(select_bias),
    DEFAULT(router_groups),
    SWITCH(gate_input),
    SWITCH(sinks),
    SWITCH(scaled_alibi),
    SWITCH(query_factor_unrotated),
    SWITCH(scales_embedding),
    SWITCH(embedding_norm),
    SWITCH(head_bias),
    SWITCH(alibi),
    MEMBER(first_position, COUNT, 0, true),
    MEMBER(qk_norm_form, CHOICE, HD_QK_NORM_HEAD_LAST + 1, true),
    MEMBER(latent.q_rank, COUNT, 0, false),
    MEMBER(latent.kv_rank, COUNT, 0, false),
    MEMBER(latent.nope, COUNT, 0, false),
    MEMBER(latent.rope, COUNT, 0, false),
    MEMBER(latent.value, COUNT, 0, false),
    MEMBER(latent.eps, SMALL, 0, true),
    MEMBER(parallel, BRANCHES, 0, true),
    DEFAULT(sequential),
    MEMBER(delta.layers, RULE, 0, false),
    MEMBER(delta.key_heads, COUNT, 0, false),
    MEMBER(delta.value_heads, COUNT, 0, false),
    MEMBER(delta.key_width, COUNT, 0, false),
    MEMBER(delta.value_width, COUNT, 0, false),
    MEMBER(delta.conv_width, COUNT, 0, false),
    MEMBER(conv.layers, RULE, 0, false),
    MEMBER(conv.width, COUNT, 0, false),
    SWITCH(output_gate),
    DEFAULT(qkv_bias),
    DEFAULT(out_bias),
    DEFAULT(mlp_bias),
    DEFAULT(qk_norm),
    DEFAULT(tied),
    DEFAULT(renormalize),
    MEMBER(window_layers, RULE, 0, false),
    MEMBER(rope_layers, RULE, 0, false),
    MEMBER(rope_fraction, REAL, 0, false),
    MEMBER(local_theta, REAL, 0, false),
    MEMBER(attention_cap, REAL, 0, false),
    MEMBER(logit_cap, REAL, 0, false),
    MEMBER(glu_limit, REAL, 0, false),
    MEMBER(new_experts, COUNT, 0, false),
    MEMBER(new_experts_per_token, COUNT, 0, false),
    MEMBER(window, CHOICE, HD_WINDOW_CHUNKS + 1, true),
    SWITCH(no_out_bias),
    SWITCH(rope_in_windows),
    SWITCH(rope_without_windows),
    SWITCH(ntk_alpha),
    SWITCH(dynamic),
    SWITCH(logits_multiplied),
    DEFAULT(longrope),
};
enum { MEMBER_COUNT = sizeof members / sizeof members[0] };

static bool is_set(const struct hd_family *row, const struct member *m)
{
    static const char zeros[sizeof(double)];

    return memcmp((const char *)row + m->offset, zeros, m->size_bytes) != 0;
}

/* Returns whether a model of the row must show a flip of the member. Not the place of norms where
 * branches are parallel, nor those where keys of config.json choose the branches; nor the gate of
 * dense layers beside experts, which always have one. */
static bool must_show(const struct hd_family *row, const struct member *m)
{
    if (m->offset == offsetof(struct hd_family, place))
        return !row->parallel || row->sequential;
    if (m->offset == offsetof(struct hd_family, parallel))
        return !hd_hf_reads(row, "num_ln_in_parallel_attn");
    if (m->offset == offsetof(struct hd_family, gated))
        return !row->experts;
    return m->shown;
}

/* Changes the member of the row. */
static void flip(struct hd_family *row, const struct member *m)
{
    void *at = (char *)row + m->offset;

    switch (m->kind) {
    case FLAG:
        *(bool *)at = !*(bool *)at;
        break;
    case CHOICE:
        *(int *)at = (*(int *)at + 1) % m->count;
        break;
    case COUNT:
        *(int64_t *)at += 1;
        break;
    case REAL:
        *(double *)at *= 1.25;
        break;
    case SMALL:
        *(double *)at *= 1e4;
        break;
    case RULE:
        *(const char **)at = "all";
        break;
    case BRANCHES:
        *(const char **)at = strcmp(*(const char **)at, "one_norm") == 0 ? "two_norms" : "one_norm";
        break;
    }
}

/* Returns the first byte of the row's blocks and defaults that is set and is in no member of the
 * list; -1: there is none. A new member of struct hd_family thus needs a line above. */
static ptrdiff_t unlisted(const struct hd_family *row)
{
    const size_t first = offsetof(struct hd_family, norm);

    for (size_t at = first; at < offsetof(struct hd_family, models); at++) {
        bool listed = ((const char *)row)[at] == 0;

        for (int i = 0; i < MEMBER_COUNT && !listed; i++)
            listed = at >= members[i].offset && at < members[i].offset + members[i].size_bytes;
        if (!listed)
            return (ptrdiff_t)at;
    }
    return -1;
}

static void make_writable(const void *first, size_t size_bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)first / page * page;

    if (mprotect((void *)at, (uintptr_t)first + size_bytes - at, PROT_READ | PROT_WRITE)) {
        perror("mprotect");
        exit(2);
    }
}

/* ---- models ---- */

struct model {
    char name[NAME_MAX_BYTES], dir[DIR_BYTES];
    const struct hd_family *row;
    struct hd_text npy; /* the file with the logits that it must give */
};

struct bench {
    struct model models[MODELS_MAX];
    int count;
    int32_t tokens[TOKENS_MAX];
    int64_t token_count;
};

/* Returns the largest difference of the logits from those of the file, by the largest of these;
 * infinity if the model is refused or has other numbers of logits. */
static double difference(const struct bench *b, const struct model *m)
{
    const struct hd_decoder_options options = {
        .dirs = {.dir = m->dir}, .backend = hd_backend_cpu(), .threads = 1};
    const struct hd_decoder_rows rows = {.tokens = b->tokens, .count = b->token_count};
    const float *want = (const float *)(const void *)(m->npy.data + NPY_HEAD), *got;
    double largest = 0, worst = 0;
    struct hd_decoder *d = NULL;
    enum hd_status st = hd_decoder_open(&options, &d);
    int64_t V = st ? 0 : hd_decoder_vocab(d);

    if (!st && m->npy.len_bytes != NPY_HEAD + (size_t)(b->token_count * V) * sizeof(float))
        st = HD_INVALID;
    if (!st)
        st = hd_decoder_run(d, &rows, 1);
    for (int64_t r = 0; r < b->token_count && !st; r++) {
        st = hd_decoder_logits(d, 0, r, &got);
        for (int64_t v = 0; v < V && !st; v++) {
            largest = fmax(largest, fabs((double)want[r * V + v]));
            worst = fmax(worst, fabs((double)want[r * V + v] - (double)got[v]));
        }
    }
    hd_decoder_close(d);
    return st ? INFINITY : worst / largest;
}

/* Returns whether some model of the row is refused, or gives other logits. */
static bool is_seen(const struct bench *b, const struct hd_family *row)
{
    for (int i = 0; i < b->count; i++)
        if (b->models[i].row == row && difference(b, &b->models[i]) > other_min)
            return true;
    return false;
}

/* ---- rows ---- */

/* Flips each member of the row that is set; prints the verdict. Returns whether all are seen. */
static bool check_row(const struct bench *b, const struct hd_family *row)
{
    const struct hd_family original = *row;
    int flips = 0, hidden = 0, models = 0;
    char unseen[512] = "";
    size_t n = 0;

    for (int i = 0; i < b->count; i++)
        if (b->models[i].row == row) {
            const double error = difference(b, &b->models[i]);

            models++;
            if (error > same_max)
                n += (size_t)snprintf(unseen + n, sizeof unseen - n, " %s is off by %g unflipped;",
                                      b->models[i].name, error);
        }
    if (unlisted(row) >= 0)
        n += (size_t)snprintf(unseen + n, sizeof unseen - n, " byte %td of the row is unlisted;",
                              unlisted(row));
    for (int i = 0; i < MEMBER_COUNT && models && n < sizeof unseen / 2; i++) {
        const bool always = members[i].kind == CHOICE &&
                            members[i].offset <= offsetof(struct hd_family, activation);

        if (!is_set(row, &members[i]) && !always)
            continue;
        flip((struct hd_family *)row, &members[i]);
        flips++;
        if (!is_seen(b, row)) {
            hidden++;
            if (must_show(row, &members[i]))
                n += (size_t)snprintf(unseen + n, sizeof unseen - n, " %s;", members[i].name);
        }
        memcpy((void *)row, &original, sizeof original);
    }
    if (!models)
        (void)snprintf(unseen, sizeof unseen, " it has no model in families.py;");
    printf(
        "%s %s_shows_each_switch: %d models, %d flips, %d of defaults that no model leaves to the "
        "row%s%s\n",
        *unseen ? "not ok" : "ok", row->name, models, flips, hidden, *unseen ? "; unseen:" : "",
        unseen);
    return !*unseen;
}

/* Reads the models of the list. */
static enum hd_status read_list(struct bench *b, const char *path)
{
    FILE *list = fopen(path, "r");
    char npy[DIR_BYTES];
    enum hd_status st = list ? HD_OK : hd_err(HD_IO, "cannot read %s", path);

    while (!st && b->count < MODELS_MAX) {
        struct model *m = &b->models[b->count];
        struct hd_job job = HD_JOB(.arena = job_arena());

        if (fscanf(list, "%63s %511s %511s%*[^\n]", m->name, m->dir, npy) != 3)
            break;
        st = hd_hf_read_config(m->dir, &job, NULL);
        if (!st)
            st = hd_file_read(npy, 1 << 24, &m->npy);
        m->row = hd_family_named(job.family);
        b->count++;
    }
    if (list)
        (void)fclose(list);
    return st;
}

int main(int argc, char **argv)
{
    static struct bench b;
    enum hd_status st =
        argc == 3 ? read_list(&b, argv[1]) : hd_err(HD_INVALID, "usage: family_flips LIST TOKENS");
    int failures = 0;

    if (st) {
        fprintf(stderr, "%s\n", hd_err_message());
        return 2;
    }
    for (char *at = argv[2]; *at && b.token_count < TOKENS_MAX; at += *at == ' ')
        b.tokens[b.token_count++] = (int32_t)strtol(at, &at, 10);
    make_writable(hd_families, hd_family_count * sizeof *hd_families);
    for (size_t i = 0; i < hd_family_count; i++)
        failures += !check_row(&b, &hd_families[i]);
    for (int i = 0; i < b.count; i++)
        hd_text_free(&b.models[i].npy);
    return failures > 0;
}
