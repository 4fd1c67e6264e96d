/* generate: `heddle-worker generate`, prints text that a checkpoint generates. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "flags/flags.h"
#include "generate/generator.h"
#include "generate/language.h"
#include "kernels/plugin.h"
#include "worker/worker.h"

enum { PROMPT_BYTES_MAX = 1 << 20 };

struct generate_request {
    struct hd_decoder_options decoder;
    const char *device, *prompt;
    bool chat; /* true: the prompt is a user's message in a chat */
    /* system message, and path of the template, of a chat; NULL: no message; the model's own
     * template */
    const char *system, *template;
    const char *date; /* date for the template; NULL: the job's, else today's */
    int64_t max_tokens;
    struct hd_sampling sampling;
};

static enum hd_status read_generate_request(int argc, char **argv, struct generate_request *r)
{
    const double none = -1; /* not given */
    double temperature = none, top_p = none;
    int64_t top_k = -1, seed = 1;
    bool greedy = false;
    struct hd_flag f[] = {HD_FLAGS_OF_DECODER(r->decoder),
                          HD_FLAG_INT("--draft", r->decoder.drafts, 0, HD_DECODER_DRAFTS_MAX),
                          HD_FLAG_NEEDED("--prompt", r->prompt),
                          HD_FLAG_INT64("--max-tokens", r->max_tokens, 1, INT64_C(1) << 40),
                          HD_FLAG_REAL("--temperature", temperature, 0, 100),
                          HD_FLAG_INT64("--top-k", top_k, 0, 1 << 24),
                          HD_FLAG_REAL("--top-p", top_p, 0, 1),
                          HD_FLAG_SWITCH("--greedy", greedy),
                          HD_FLAG_INT64("--seed", seed, 0, INT64_MAX),
                          HD_FLAG_SWITCH("--chat", r->chat),
                          HD_FLAG_TEXT("--system", r->system),
                          HD_FLAG_TEXT("--template", r->template),
                          HD_FLAG_TEXT("--date", r->date),
                          HD_FLAG_TEXT("--device", r->device)};
    enum hd_status st;

    *r = (struct generate_request){.device = "cpu",
                                   .max_tokens = 256,
                                   .decoder.threads = hd_flags_threads(HD_FLAG_THREADS_MAX)};
    st = HD_FLAGS_READ(argc, argv, f);
    if (!st && greedy && (temperature >= 0 || top_k >= 0 || top_p >= 0))
        st = hd_err(
            HD_INVALID,
            "--greedy takes the most likely token; leave out --temperature, --top-k and --top-p");
    if (!st && !r->chat && (r->system || r->template || r->date))
        st = hd_err(HD_INVALID, "--system, --template and --date are for --chat");
    r->sampling = (struct hd_sampling){.temperature = greedy             ? 0
                                                      : temperature >= 0 ? temperature
                                                                         : 0.8,
                                       .top_k = top_k > 0 ? top_k : 0,
                                       .top_p = top_p >= 0 ? top_p : 1,
                                       .seed = (uint64_t)seed};
    return st;
}

/* State of printing the generated text. */
struct writing {
    const struct hd_tokenizer *tokenizer;
    struct hd_utf8_printer printer;
    int64_t tokens;    /* number of tokens generated */
    enum hd_status st; /* first failure of a callback that prints */
    struct hd_error error;
    bool ended;
};

/* Prints bytes as text at once, with control characters and broken UTF-8 made safe. */
static enum hd_status print_bytes(struct writing *w, const void *bytes, size_t count)
{
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    hd_utf8_printer_add(&w->printer, bytes, count, &text);
    if (text.len_bytes &&
        (fwrite(text.data, 1, text.len_bytes, stdout) != text.len_bytes || fflush(stdout)))
        st = hd_err(HD_IO, "cannot write to standard output: %s", strerror(errno));
    hd_text_free(&text);
    return st;
}

/* Decodes the token ids of the prompt and prints their text. */
static enum hd_status print_prompt(struct writing *w, const struct hd_id_list *prompt)
{
    struct hd_text bytes = {0};
    enum hd_status st = hd_tokenizer_decode(w->tokenizer, prompt->ids, prompt->count, &bytes);

    if (!st)
        st = print_bytes(w, bytes.data ? bytes.data : "", bytes.len_bytes);
    hd_text_free(&bytes);
    return st;
}

static bool on_token(void *user, const struct hd_generated *token)
{
    struct writing *w = user;
    struct hd_text bytes = {0};

    w->tokens++;
    if (token->is_stop)
        return true;
    w->st = hd_tokenizer_decode_next(w->tokenizer, token->id, &bytes);
    if (!w->st && bytes.len_bytes)
        w->st = print_bytes(w, bytes.data, bytes.len_bytes);
    hd_text_free(&bytes);
    if (w->st)
        hd_err_save(w->st, &w->error);
    return !w->st;
}

static void on_end(void *user, enum hd_generation_end end, enum hd_status st)
{
    struct writing *w = user;

    (void)end;
    w->ended = true;
    if (st && !w->st) {
        w->st = st;
        hd_err_save(st, &w->error);
    }
}

/* Prints how many drafts were kept, and the tokens that a pass of the model gave. */
static void tell_drafts(const struct hd_generator *g, int64_t tokens, double seconds)
{
    const struct hd_draft_counts c = hd_generator_drafts(g);

    (void)fprintf(stderr, "heddle: %lld tokens in %.2f s, %.1f tokens/s; %lld of %lld drafts kept",
                  (long long)tokens, seconds, (double)tokens / seconds, (long long)c.accepted,
                  (long long)c.drafted);
    if (c.drafted)
        (void)fprintf(stderr, " (%.1f %%)", 100 * (double)c.accepted / (double)c.drafted);
    if (tokens > c.accepted)
        (void)fprintf(stderr, ", %.2f tokens per pass of the model",
                      (double)tokens / (double)(tokens - c.accepted));
    (void)fputc('\n', stderr);
}

/* Prints the text that the model generates after the prompt, up to a stop token. The prompt is
 * printed first, except in a chat. */
static enum hd_status write_text(struct hd_decoder *decoder, const struct generate_request *r,
                                 const struct hd_language *language,
                                 const struct hd_id_list *prompt)
{
    struct writing w = {.tokenizer = hd_language_tokenizer(language)};
    const struct hd_generation what = {.prompt = prompt->ids,
                                       .prompt_count = (int64_t)prompt->count,
                                       .max_tokens = r->max_tokens,
                                       .sampling = r->sampling,
                                       .stops = r->chat ? hd_language_chat_stops(language)
                                                        : hd_language_stops(language),
                                       .slides = true,
                                       .on_token = on_token,
                                       .on_end = on_end,
                                       .user = &w};
    struct hd_generator *g = NULL;
    struct hd_text rest = {0};
    const int64_t begin_ms = hd_clock_now_ms();
    bool busy;
    enum hd_status st = hd_generator_new(decoder, hd_tokenizer_vocab(w.tokenizer), &g);

    if (!st && !r->chat)
        st = print_prompt(&w, prompt);
    if (!st)
        st = hd_generator_add(g, &what, NULL);
    while (!st && !w.ended)
        st = hd_generator_step(g, &busy);
    if (!st && w.st)
        st = hd_err_restore(&w.error);
    hd_utf8_printer_end(&w.printer, &rest);
    if (!st)
        (void)printf("%s\n", rest.data ? rest.data : "");
    if (!st && r->decoder.drafts) {
        (void)fflush(stdout);
        tell_drafts(g, w.tokens, (double)(hd_clock_now_ms() - begin_ms + 1) / 1000);
    }
    hd_text_free(&rest);
    hd_generator_free(g);
    return st;
}

/* Encodes the prompt as a chat: [{"role": "user", "content": ..}], after the system message if
 * there is one. */
static enum hd_status encode_chat(const struct generate_request *r, struct hd_language *language,
                                  struct hd_id_list *ret_prompt)
{
    struct hd_text messages = {0};
    struct hd_json_writer w = {.out = &messages};
    const char *const turns[][2] = {{"system", r->system}, {"user", r->prompt}};
    enum hd_status st = hd_language_open_chat(language, r->template, r->date);

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
    if (!st && messages.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a prompt");
    if (!st)
        st = hd_language_encode_chat(language, messages.data, messages.len_bytes, ret_prompt);
    hd_text_free(&messages);
    return st;
}

/* Warns about a prompt longer than the model's context, of which only the end is read. */
static void tell_cut(const struct generate_request *r, const struct hd_id_list *prompt,
                     int64_t context)
{
    const int64_t count = (int64_t)prompt->count;

    if (count > context)
        (void)fprintf(
            stderr,
            "heddle: the prompt has %lld tokens, and the model reads %lld: the first %lld "
            "are left out%s\n",
            (long long)count, (long long)context, (long long)(count - context),
            r->chat && r->system ? ", and with them what --system says" : "");
}

static enum hd_status generate(struct generate_request *r)
{
    const size_t bytes = strlen(r->prompt);
    struct hd_decoder *decoder = NULL;
    struct hd_language *language = NULL;
    struct hd_id_list prompt = {0};
    enum hd_status st;

    if (!bytes || bytes > PROMPT_BYTES_MAX)
        return hd_err(HD_INVALID, "--prompt takes 1 to %d bytes", PROMPT_BYTES_MAX);
    st = hd_plugin_backend(r->device, &r->decoder.backend);
    if (!st)
        st = hd_decoder_open(&r->decoder, &decoder);
    if (!st)
        st = hd_language_open(decoder, r->decoder.dirs.dir, &language);
    if (!st)
        hd_worker_note("generate", hd_language_special(language)->notes);
    if (!st)
        st = r->chat ? encode_chat(r, language, &prompt)
                     : hd_language_encode(language, r->prompt, bytes, &prompt);
    if (!st) {
        tell_cut(r, &prompt, hd_decoder_context(decoder));
        st = write_text(decoder, r, language, &prompt);
    }
    hd_id_list_free(&prompt);
    hd_language_close(language);
    hd_decoder_close(decoder);
    return st;
}

int hd_worker_generate(int argc, char **argv)
{
    struct generate_request r;
    enum hd_status st = read_generate_request(argc, argv, &r);

    if (!st)
        st = generate(&r);
    return hd_worker_finish("generate", st);
}
