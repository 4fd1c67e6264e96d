/* generate: `heddle-worker generate`, text from a checkpoint on stdout. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tokenizer/tokenizer.h"
#include "train/generate.h"
#include "worker/flags.h"
#include "worker/worker.h"

enum { PROMPT_BYTES_MAX = 1 << 20 };

struct generate_request {
    struct hd_source_dirs dirs;
    const char *prompt;
    int64_t max_tokens, threads;
    struct hd_sampling sampling;
};

static enum hd_status read_request(int argc, char **argv, struct generate_request *ret_request)
{
    struct hd_flag f[] = {
        {"--checkpoint", true, false, NULL},  {"--prompt", true, false, NULL},
        {"--max-tokens", false, false, NULL}, {"--temperature", false, false, NULL},
        {"--top-k", false, false, NULL},      {"--top-p", false, false, NULL},
        {"--greedy", false, true, NULL},      {"--seed", false, false, NULL},
        {"--threads", false, false, NULL},    {"--base", false, false, NULL},
        {"--adapter", false, false, NULL}};
    struct generate_request r = {0};
    int64_t seed = 0;
    enum hd_status st = hd_flags_read(argc, argv, f, sizeof f / sizeof f[0]);

    if (!st)
        st = hd_flag_int(&f[2], 1, INT64_C(1) << 40, 256, &r.max_tokens);
    if (!st)
        st = hd_flag_real(&f[3], 0, 100, 0.8, &r.sampling.temperature);
    if (!st)
        st = hd_flag_int(&f[4], 0, 1 << 24, 0, &r.sampling.top_k);
    if (!st)
        st = hd_flag_real(&f[5], 0, 1, 1, &r.sampling.top_p);
    if (!st)
        st = hd_flag_int(&f[7], 0, INT64_MAX, 1, &seed);
    if (!st)
        st = hd_flag_int(&f[8], 1, 4096, sysconf(_SC_NPROCESSORS_ONLN), &r.threads);
    if (!st && f[6].value && (f[3].value || f[4].value || f[5].value))
        st = hd_err(HD_INVALID, "--greedy takes the most likely token; without --temperature, "
                                "--top-k and --top-p");
    if (st)
        return st;
    if (f[6].value)
        r.sampling.temperature = 0;
    r.sampling.seed = (uint64_t)seed;
    r.dirs = (struct hd_source_dirs){f[0].value, f[9].value, f[10].value};
    r.prompt = f[1].value;
    *ret_request = r;
    return HD_OK;
}

/* Tokens as safe text, at once. */
static enum hd_status print(const struct hd_tokenizer *tokenizer, struct hd_utf8_printer *printer,
                            const int32_t *tokens, size_t count)
{
    struct hd_text bytes = {0}, text = {0};
    enum hd_status st = hd_tokenizer_decode(tokenizer, tokens, count, &bytes);

    if (!st)
        hd_utf8_printer_add(printer, bytes.data, bytes.len_bytes, &text);
    if (!st && text.len_bytes &&
        (fwrite(text.data, 1, text.len_bytes, stdout) != text.len_bytes || fflush(stdout)))
        st = hd_err(HD_IO, "cannot write to standard output: %s", strerror(errno));
    hd_text_free(&bytes);
    hd_text_free(&text);
    return st;
}

static enum hd_status write_text(struct hd_generator *g, const struct generate_request *r,
                                 const struct hd_tokenizer *tokenizer,
                                 const struct hd_id_list *prompt)
{
    struct hd_utf8_printer printer = {0};
    struct hd_text rest = {0};
    /* a vocabulary may be larger than its tokenizer: what has no text is never drawn */
    const int64_t known = hd_tokenizer_vocab(tokenizer);
    const int64_t vocab = hd_generator_vocab(g) < known ? hd_generator_vocab(g) : known;
    int32_t *order = calloc((size_t)vocab, sizeof *order);
    const float *logits = NULL;
    enum hd_status st = order ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to sample");

    if (!st)
        st = print(tokenizer, &printer, prompt->ids, prompt->count);
    if (!st)
        st = hd_generator_prompt(g, prompt->ids, (int64_t)prompt->count, &logits);
    for (int64_t i = 0; !st && i < r->max_tokens; i++) {
        int32_t token = hd_sample(logits, vocab, &r->sampling, (uint64_t)i, order);

        st = print(tokenizer, &printer, &token, 1);
        if (!st && i + 1 < r->max_tokens)
            st = hd_generator_next(g, token, &logits);
    }
    hd_utf8_printer_end(&printer, &rest);
    if (!st)
        (void)printf("%s\n", rest.data ? rest.data : "");
    hd_text_free(&rest);
    free(order);
    return st;
}

/* The ids of the prompt, all of which the model must know. */
static enum hd_status encode(const struct hd_tokenizer *tokenizer, const struct generate_request *r,
                             int64_t vocab, struct hd_id_list *ret_prompt)
{
    struct hd_encoder *encoder = NULL;
    enum hd_status st = hd_encoder_new(tokenizer, &encoder);

    if (!st)
        st = hd_encoder_add(encoder, r->prompt, strlen(r->prompt), ret_prompt);
    for (size_t i = 0; !st && i < ret_prompt->count; i++)
        if (ret_prompt->ids[i] >= vocab)
            st = hd_err(HD_INVALID, "token %d of %s is outside the model's vocabulary of %lld",
                        (int)ret_prompt->ids[i], hd_tokenizer_name(tokenizer), (long long)vocab);
    hd_encoder_free(encoder);
    return st;
}

static enum hd_status generate(const struct generate_request *r)
{
    const size_t bytes = strlen(r->prompt);
    struct hd_tokenizer *tokenizer = NULL;
    struct hd_generator *g = NULL;
    struct hd_id_list prompt = {0};
    enum hd_status st;

    if (!bytes || bytes > PROMPT_BYTES_MAX)
        return hd_err(HD_INVALID, "--prompt takes 1 to %d bytes", PROMPT_BYTES_MAX);
    st = hd_generator_open(&r->dirs, hd_backend_cpu(), (int)r->threads, &g);
    if (!st && !hd_generator_tokenizer(g)[0])
        st = hd_err(HD_UNSUPPORTED,
                    "%s does not say which tokenizer its model has; heddle-worker logits takes "
                    "token ids",
                    r->dirs.dir);
    if (!st && strcmp(hd_generator_tokenizer(g), "none") == 0)
        st = hd_err(HD_INVALID, "the job was trained on token files and names no data.tokenizer: "
                                "the text of its token ids is unknown");
    if (!st)
        st = hd_tokenizer_open(hd_generator_tokenizer(g), &tokenizer);
    if (!st)
        st = encode(tokenizer, r, hd_generator_vocab(g), &prompt);
    if (!st)
        st = write_text(g, r, tokenizer, &prompt);
    hd_generator_close(g);
    hd_id_list_free(&prompt);
    hd_tokenizer_close(tokenizer);
    return st;
}

int hd_worker_generate(int argc, char **argv)
{
    struct generate_request r;
    enum hd_status st = read_request(argc, argv, &r);

    if (!st)
        st = generate(&r);
    return hd_worker_finish("generate", st);
}
