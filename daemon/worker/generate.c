/* generate: `heddle-worker generate`, text from a checkpoint on stdout. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "tokenizer/tokenizer.h"
#include "train/generate.h"
#include "train/job_chat.h"
#include "train/stops.h"
#include "worker/flags.h"
#include "worker/worker.h"

enum { PROMPT_BYTES_MAX = 1 << 20 };

struct generate_request {
    struct hd_source_dirs dirs;
    const char *prompt;
    bool chat;                     /* the prompt is what a user says to the model */
    const char *system, *template; /* of the chat; NULL: none, the model's */
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
        {"--adapter", false, false, NULL},    {"--chat", false, true, NULL},
        {"--system", false, false, NULL},     {"--template", false, false, NULL}};
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
    if (!st && !f[11].value && (f[12].value || f[13].value))
        st = hd_err(HD_INVALID, "--system and --template are for --chat");
    if (st)
        return st;
    r.chat = f[11].value;
    r.system = f[12].value;
    r.template = f[13].value;
    if (f[6].value)
        r.sampling.temperature = 0;
    r.sampling.seed = (uint64_t)seed;
    r.dirs = (struct hd_source_dirs){f[0].value, f[9].value, f[10].value};
    r.prompt = f[1].value;
    *ret_request = r;
    return HD_OK;
}

/* As safe text, at once. */
static enum hd_status print_bytes(struct hd_utf8_printer *printer, const void *bytes, size_t count)
{
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    hd_utf8_printer_add(printer, bytes, count, &text);
    if (text.len_bytes &&
        (fwrite(text.data, 1, text.len_bytes, stdout) != text.len_bytes || fflush(stdout)))
        st = hd_err(HD_IO, "cannot write to standard output: %s", strerror(errno));
    hd_text_free(&text);
    return st;
}

static enum hd_status print(const struct hd_tokenizer *tokenizer, struct hd_utf8_printer *printer,
                            const int32_t *tokens, size_t count)
{
    struct hd_text bytes = {0};
    enum hd_status st = hd_tokenizer_decode(tokenizer, tokens, count, &bytes);

    if (!st)
        st = print_bytes(printer, bytes.data, bytes.len_bytes);
    hd_text_free(&bytes);
    return st;
}

/* The prompt's ids as text, without the space that the tokenizer put in front of it. */
static enum hd_status print_prompt(const struct hd_tokenizer *tokenizer,
                                   struct hd_utf8_printer *printer, const struct hd_id_list *prompt)
{
    struct hd_text bytes = {0};
    size_t skip;
    enum hd_status st = hd_tokenizer_decode(tokenizer, prompt->ids, prompt->count, &bytes);

    skip = !st && hd_tokenizer_adds_space(tokenizer) && bytes.len_bytes && *bytes.data == ' ';
    if (!st)
        st = print_bytes(printer, bytes.data + skip, bytes.len_bytes - skip);
    hd_text_free(&bytes);
    return st;
}

/* Prints what the model writes behind the prompt, up to a token of `stops`; in a chat the prompt is
 * not printed. */
static enum hd_status write_text(struct hd_generator *g, const struct generate_request *r,
                                 const struct hd_tokenizer *tokenizer, const struct hd_stops *stops,
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

    if (!st && !r->chat)
        st = print_prompt(tokenizer, &printer, prompt);
    if (!st)
        st = hd_generator_prompt(g, prompt->ids, (int64_t)prompt->count, &logits);
    for (int64_t i = 0; !st && i < r->max_tokens; i++) {
        int32_t token = hd_sample(logits, vocab, &r->sampling, (uint64_t)i, order);

        if (hd_stops_has(stops, token))
            break;
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

/* The model's folder, where its template and its stop tokens are; "": none. */
static const char *folder_of(const struct hd_generator *g, const struct generate_request *r)
{
    const struct hd_job *job = hd_generator_job(g);

    return job ? job->from_dir : r->dirs.dir;
}

static enum hd_status open_chat(const struct hd_generator *g, const struct generate_request *r,
                                struct hd_chat **ret_chat)
{
    const struct hd_job *job = hd_generator_job(g);
    const char *folder = folder_of(g, r);
    struct hd_text path = {0};
    char dir[HD_JOB_PATH_MAX] = "";
    enum hd_status st = HD_OK;

    if (r->template)
        hd_text_add(&path, "%s", r->template);
    else if (job && *job->template)
        hd_text_add(&path, "%s", job->template);
    else if (*folder)
        st = hd_chat_find(folder, &path);
    if (!st && path.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a path");
    if (job)
        hd_job_chat_folder(job, dir);
    if (!st)
        st = hd_chat_open(path.data ? path.data : "",
                          *dir      ? dir
                          : *folder ? folder
                                    : NULL,
                          ret_chat);
    hd_text_free(&path);
    return st;
}

/* The prompt as a chat: [{"role": "user", "content": ..}], behind that of the system. */
static enum hd_status encode_chat(const struct hd_generator *g, const struct generate_request *r,
                                  const struct hd_tokenizer *tokenizer, struct hd_stops *stops,
                                  struct hd_id_list *ret_prompt)
{
    struct hd_conversation_encoder *encoder = NULL;
    struct hd_conversation_rules rules = {.tokenizer = tokenizer, .end_of_text = -1};
    struct hd_text messages = {0};
    struct hd_json_writer w = {.out = &messages};
    const char *const turns[][2] = {{"system", r->system}, {"user", r->prompt}};
    struct hd_chat *chat = NULL;
    enum hd_status st = open_chat(g, r, &chat);

    hd_json_begin(&w, NULL, '[');
    for (int i = 0; i < 2; i++) {
        if (!turns[i][1])
            continue;
        hd_json_begin(&w, NULL, '{');
        hd_json_add_string(&w, "role", turns[i][0]);
        hd_json_add_string(&w, "content", turns[i][1]);
        hd_json_end(&w, '}');
    }
    hd_json_end(&w, ']');
    rules.chat = chat;
    if (!st && messages.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a prompt");
    if (!st)
        st = hd_conversation_encoder_new(&rules, &encoder);
    if (!st)
        st = hd_conversation_prompt(encoder, messages.data, messages.len_bytes, ret_prompt);
    if (!st)
        st = hd_stops_add_chat(encoder, chat, tokenizer, stops);
    hd_conversation_encoder_free(encoder);
    hd_chat_close(chat);
    hd_text_free(&messages);
    return st;
}

static enum hd_status encode_text(const struct generate_request *r,
                                  const struct hd_tokenizer *tokenizer,
                                  struct hd_id_list *ret_prompt)
{
    struct hd_encoder *encoder = NULL;
    enum hd_status st = hd_encoder_new(tokenizer, &encoder);

    if (!st)
        st = hd_encoder_add(encoder, r->prompt, strlen(r->prompt), ret_prompt);
    hd_encoder_free(encoder);
    return st;
}

/* The ids of the prompt, all of which the model must know, and the tokens that end its answer. */
static enum hd_status encode(const struct hd_generator *g, const struct hd_tokenizer *tokenizer,
                             const struct generate_request *r, struct hd_stops *stops,
                             struct hd_id_list *ret_prompt)
{
    const int64_t vocab = hd_generator_vocab(g);
    enum hd_status st = hd_stops_read(folder_of(g, r), tokenizer, stops);

    if (!st)
        st = r->chat ? encode_chat(g, r, tokenizer, stops, ret_prompt)
                     : encode_text(r, tokenizer, ret_prompt);
    for (size_t i = 0; !st && i < ret_prompt->count; i++)
        if (ret_prompt->ids[i] >= vocab)
            st = hd_err(HD_INVALID, "token %d of %s is outside the model's vocabulary of %lld",
                        (int)ret_prompt->ids[i], hd_tokenizer_name(tokenizer), (long long)vocab);
    return st;
}

static enum hd_status generate(const struct generate_request *r)
{
    const size_t bytes = strlen(r->prompt);
    struct hd_tokenizer *tokenizer = NULL;
    struct hd_generator *g = NULL;
    struct hd_id_list prompt = {0};
    struct hd_stops stops = {.count = 0};
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
        st = encode(g, tokenizer, r, &stops, &prompt);
    if (!st)
        st = write_text(g, r, tokenizer, &stops, &prompt);
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
