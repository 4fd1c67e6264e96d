/* logits: `heddle-worker logits`, evaluates a model on given tokens: for each position prints the
 * probability of the next token and the most likely one, as JSON lines; with --out also writes all
 * logits as a .npy array [tokens, vocabulary] of fp32. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/token_file.h"
#include "flags/flags.h"
#include "train/decoder.h"
#include "worker/worker.h"

enum { TOKENS_MAX = 1 << 20 };

struct logits_request {
    struct hd_decoder_options decoder;
    const char *out;
    int32_t *tokens;
    int64_t count;
};

/* Reads tokens such as "12 7 255", separated by spaces or commas. */
static enum hd_status read_tokens(const char *text, struct logits_request *r)
{
    const char *p = text;

    r->tokens = calloc(strlen(text) / 2 + 1, sizeof *r->tokens);
    if (!r->tokens)
        return hd_err(HD_NO_MEMORY, "no memory for the tokens");
    while (*(p += strspn(p, " ,"))) {
        char *end;
        long token;

        errno = 0;
        token = strtol(p, &end, 10);
        if (end == p || errno || token < 0 || token > INT32_MAX || (*end && !strchr(" ,", *end)))
            return hd_err(HD_INVALID,
                          "--tokens: '%.20s' is no token; give numbers, such as '3 1 4'", p);
        if (r->count == TOKENS_MAX)
            return hd_err(HD_INVALID, "--tokens: more than %d", TOKENS_MAX);
        r->tokens[r->count++] = (int32_t)token;
        p = end;
    }
    if (!r->count)
        return hd_err(HD_INVALID, "--tokens: needs at least one");
    return HD_OK;
}

static enum hd_status read_logits_request(int argc, char **argv, struct logits_request *r)
{
    const char *tokens = NULL;
    struct hd_flag f[] = {HD_FLAGS_OF_MODEL(r->decoder), HD_FLAG_NEEDED("--tokens", tokens),
                          HD_FLAG_TEXT("--out", r->out)};
    enum hd_status st;

    r->decoder.backend = hd_backend_cpu();
    r->decoder.threads = hd_flags_threads(HD_FLAG_THREADS_MAX);
    st = HD_FLAGS_READ(argc, argv, f);
    return st ? st : read_tokens(tokens, r);
}

static enum hd_status write_failed(const char *path)
{
    return hd_err(HD_IO, "cannot write %s: %s", path, strerror(errno));
}

static enum hd_status write_npy_head(FILE *out, const struct logits_request *r, int64_t V)
{
    char head[HD_NPY_HEAD_BYTES], shape[48];

    (void)snprintf(shape, sizeof shape, "%lld, %lld", (long long)r->count, (long long)V);
    hd_npy_format_head("<f4", shape, head);
    return fwrite(head, 1, sizeof head, out) == sizeof head ? HD_OK : write_failed(r->out);
}

/* Returns the log of the sum of exp, without overflow; *ret_top: index of the largest logit. */
static double log_sum_exp(const float *logits, int64_t V, int64_t *ret_top)
{
    double sum = 0;

    *ret_top = 0;
    for (int64_t v = 1; v < V; v++)
        if (logits[v] > logits[*ret_top])
            *ret_top = v;
    for (int64_t v = 0; v < V; v++)
        sum += exp((double)logits[v] - (double)logits[*ret_top]);
    return (double)logits[*ret_top] + log(sum);
}

static enum hd_status print_position(const struct logits_request *r, int64_t i, const float *logits,
                                     int64_t V)
{
    struct hd_text line = {0};
    struct hd_json_writer w = {.out = &line};
    int64_t top;
    const double norm = log_sum_exp(logits, V, &top);
    enum hd_status st = HD_OK;

    hd_json_begin(&w, NULL, '{');
    hd_json_add_int64(&w, "position", i);
    hd_json_add_int64(&w, "token", r->tokens[i]);
    if (i + 1 < r->count) {
        hd_json_add_int64(&w, "next", r->tokens[i + 1]);
        hd_json_add_real(&w, "next_log_probability", (double)logits[r->tokens[i + 1]] - norm);
    }
    hd_json_add_int64(&w, "top", top);
    hd_json_add_real(&w, "top_log_probability", (double)logits[top] - norm);
    hd_json_end(&w, '}');
    if (line.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a line");
    else if (printf("%s\n", line.data) < 0)
        st = write_failed("the result");
    hd_text_free(&line);
    return st;
}

static enum hd_status write_logits(struct hd_decoder *d, const struct logits_request *r, FILE *out)
{
    const int64_t V = hd_decoder_vocab(d);
    enum hd_status st = HD_OK;

    if (r->count > hd_decoder_context(d))
        return hd_err(HD_INVALID, "--tokens: %lld are more than the context of %lld",
                      (long long)r->count, (long long)hd_decoder_context(d));
    for (int64_t i = 0; i < r->count; i++)
        if (r->tokens[i] >= V)
            return hd_err(HD_INVALID, "--tokens: %d is outside the vocabulary of %lld",
                          r->tokens[i], (long long)V);
    if (out)
        st = write_npy_head(out, r, V);
    for (int64_t i = 0; !st && i < r->count; i++) {
        const struct hd_decoder_rows next = {.filled = i, .tokens = r->tokens + i, .count = 1};
        const float *logits = NULL;

        st = hd_decoder_run(d, &next, 1);
        if (!st)
            st = hd_decoder_logits(d, 0, 0, &logits);
        if (!st && out && fwrite(logits, sizeof *logits, (size_t)V, out) != (size_t)V)
            st = write_failed(r->out);
        if (!st)
            st = print_position(r, i, logits, V);
    }
    return st;
}

static enum hd_status logits(const struct logits_request *r)
{
    struct hd_decoder *d = NULL;
    FILE *out = r->out ? fopen(r->out, "wb") : NULL;
    enum hd_status st = HD_OK;

    if (r->out && !out)
        return hd_err(HD_INVALID, "--out: cannot write %s: %s", r->out, strerror(errno));
    st = hd_decoder_open(&r->decoder, &d);
    if (!st)
        st = write_logits(d, r, out);
    hd_decoder_close(d);
    if (out && fclose(out) != 0 && !st)
        st = write_failed(r->out);
    return st;
}

int hd_worker_logits(int argc, char **argv)
{
    struct logits_request r = {0};
    enum hd_status st = read_logits_request(argc, argv, &r);

    if (!st)
        st = logits(&r);
    free(r.tokens);
    return hd_worker_finish("logits", st);
}
