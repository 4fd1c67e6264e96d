/* choices: `heddle-worker choices`, answers multiple-choice questions from files by
 * log-likelihood. */
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "flags/flags.h"
#include "generate/choices.h"
#include "kernels/plugin.h"
#include "worker/worker.h"

enum { SEQUENCES = 8 };

struct choices_verb {
    struct hd_decoder_options decoder;
    struct hd_choices_options choices;
    bool as_json, as_lines;
    enum hd_status st; /* first failure to print a line */
};

/* Reads the command-line flags; they come before "--", names of files with questions after it. */
static enum hd_status read_choices_options(int argc, char **argv, struct choices_verb *e)
{
    const char *device = "cpu";
    struct hd_flag f[] = {HD_FLAGS_OF_DECODER(e->decoder),
                          HD_FLAG_INT64("--context", e->decoder.context, 1, 1 << 24),
                          HD_FLAG_INT64("--limit", e->choices.limit, 1, INT64_C(1) << 40),
                          HD_FLAG_TEXT("--device", device),
                          HD_FLAG_SWITCH("--json", e->as_json),
                          HD_FLAG_SWITCH("--jsonl", e->as_lines)};
    const int flags = hd_flags_count(argc, argv);
    enum hd_status st;

    e->decoder.threads = hd_flags_threads(HD_FLAG_THREADS_MAX);
    e->decoder.slots = SEQUENCES;
    st = HD_FLAGS_READ(flags, argv, f);
    if (!st && flags + 1 >= argc)
        st = hd_err(HD_INVALID, "--choices names no file of questions");
    e->choices.files = (const char *const *)argv + flags + 1;
    e->choices.file_count = (size_t)(argc - flags - 1);
    return st ? st : hd_plugin_backend(device, &e->decoder.backend);
}

/* Prints one question's result as a line of JSON (--jsonl). */
static void print_answer(void *user, const struct hd_choice_answer *a)
{
    struct choices_verb *e = user;
    struct hd_text line = {0};
    struct hd_json_writer w = {.out = &line};

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "type", "question");
    hd_json_add_string(&w, "file", a->file);
    hd_json_add_int64(&w, "line", a->line);
    hd_json_add_int64(&w, "answer", a->right);
    hd_json_add_int64(&w, "choice", a->best);
    hd_json_add_int64(&w, "choice_norm", a->best_norm);
    hd_json_begin(&w, "log_likelihoods", '[');
    for (int i = 0; i < a->count; i++)
        hd_json_add_real(&w, NULL, a->log_likelihoods[i]);
    hd_json_end(&w, ']');
    hd_json_add_bool(&w, "cut", a->cut);
    hd_json_end(&w, '}');
    hd_text_add(&line, "\n");
    e->st = hd_worker_print(e->st, &line);
}

static void add_choices_json(struct hd_text *text, const struct choices_verb *e,
                             const struct hd_decoder *d, const struct hd_choices *c)
{
    struct hd_json_writer w = {.out = text};

    if (!e->as_lines) {
        hd_json_begin(&w, NULL, '{');
        hd_json_add_string(&w, "api_version", "heddle/v1");
        hd_json_add_string(&w, "kind", "ChoicesList");
        hd_json_begin(&w, "items", '[');
    }
    hd_json_begin(&w, NULL, '{');
    if (e->as_lines)
        hd_json_add_string(&w, "type", "choices");
    hd_json_add_real(&w, "acc", c->acc);
    hd_json_add_real(&w, "acc_error", c->acc_error);
    hd_json_add_real(&w, "acc_norm", c->acc_norm);
    hd_json_add_real(&w, "acc_norm_error", c->acc_norm_error);
    hd_json_add_int64(&w, "questions", c->questions);
    hd_json_add_int64(&w, "cut", c->cut);
    hd_json_add_int64(&w, "context", hd_decoder_context(d));
    hd_json_add_string(&w, "precision", hd_job_precision_words[hd_decoder_job(d)->precision]);
    hd_json_add_string(&w, "model", e->decoder.dirs.dir);
    if (e->decoder.dirs.adapter)
        hd_json_add_string(&w, "adapter", e->decoder.dirs.adapter);
    if (hd_decoder_is_checkpoint(d))
        hd_json_add_int64(&w, "step", hd_decoder_step(d));
    else
        hd_json_add_null(&w, "step");
    hd_json_end(&w, '}');
    if (!e->as_lines) {
        hd_json_end(&w, ']');
        hd_json_end(&w, '}');
    }
    hd_text_add(text, "\n");
}

static void add_choices_text(struct hd_text *text, const struct choices_verb *e,
                             const struct hd_decoder *d, const struct hd_choices *c)
{
    hd_text_add(text, "acc         %.4f +- %.4f\n", c->acc, c->acc_error);
    hd_text_add(text, "acc_norm    %.4f +- %.4f\n", c->acc_norm, c->acc_norm_error);
    hd_text_add(text, "questions   %lld\n", (long long)c->questions);
    if (c->cut)
        hd_text_add(text,
                    "cut         %lld longer than %lld tokens: their beginning was left out\n",
                    (long long)c->cut, (long long)hd_decoder_context(d));
    if (hd_decoder_is_checkpoint(d))
        hd_text_add(text, "step        %lld\n", (long long)hd_decoder_step(d));
    hd_text_add(text, "model       %s, %s\n", e->decoder.dirs.dir,
                hd_job_precision_words[hd_decoder_job(d)->precision]);
    if (e->decoder.dirs.adapter)
        hd_text_add(text, "adapter     %s\n", e->decoder.dirs.adapter);
}

static enum hd_status examine(struct choices_verb *e)
{
    struct hd_decoder *decoder = NULL;
    struct hd_language *language = NULL;
    struct hd_generator *generator = NULL;
    struct hd_choices result;
    struct hd_text text = {0};
    enum hd_status st = hd_decoder_open(&e->decoder, &decoder);

    e->choices.user = e;
    e->choices.on_answer = e->as_lines ? print_answer : NULL;
    if (!st)
        st = hd_language_open(decoder, e->decoder.dirs.dir, &language);
    if (!st)
        hd_worker_note("choices", hd_language_special(language)->notes);
    if (!st)
        st = hd_generator_new(decoder, 0, &generator);
    if (!st)
        st = hd_choices_run(generator, decoder, language, &e->choices, &result);
    if (!st)
        st = e->st;
    if (!st && (e->as_json || e->as_lines))
        add_choices_json(&text, e, decoder, &result);
    else if (!st)
        add_choices_text(&text, e, decoder, &result);
    st = hd_worker_print(st, &text);
    hd_generator_free(generator);
    hd_language_close(language);
    hd_decoder_close(decoder);
    return st;
}

int hd_worker_choices(int argc, char **argv)
{
    struct choices_verb e = {.st = HD_OK};
    enum hd_status st = read_choices_options(argc, argv, &e);

    if (!st)
        st = examine(&e);
    return hd_worker_finish("choices", st);
}
