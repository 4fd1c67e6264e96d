/* Multiple choice: a choice's log-likelihood is that of its own bytes behind the prompt, and both
 * accuracies are what these numbers say. The tokenizer has one token per byte. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoding.h"
#include "generate/choices.h"
#include "harness.h"
#include "tests/program/test.h"

enum { CONTEXT = 64, VOCAB = 256, CHOICES = 3 };

struct model {
    struct harness h;
    struct hd_job job;
    struct hd_saved saved;
    struct hd_decoder *decoder;
    struct hd_generator *generator;
    struct hd_language *language;
};

static void model_open(struct model *m)
{
    struct hd_decoder_options options = {.backend = harness_backend(), .threads = 1, .slots = 3};

    harness_setup(&m->h, 20000);
    m->job = harness_job(&m->h, "llama", 1);
    m->job.context = CONTEXT;
    must(harness_threads(&m->job, 1, &m->saved, harness_save_trained));
    options.dirs.dir = m->saved.path;
    must(hd_decoder_open(&options, &m->decoder));
    must(hd_language_open(m->decoder, m->saved.path, &m->language));
    must(hd_generator_new(m->decoder, 0, &m->generator));
}

static void model_close(struct model *m)
{
    hd_generator_free(m->generator);
    hd_language_close(m->language);
    hd_decoder_close(m->decoder);
    harness_teardown(&m->h);
}

static const struct question {
    const char *line, *prompt, *choices[CHOICES]; /* with what is in front of them */
    int count, right;
    int characters[CHOICES];
} questions[] = {
    {"{\"prompt\": \"the sea\", \"choices\": [\"is\", \"\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"
     "\xc3\xa9\", \"abc\"], \"answer\": 1}",
     "the sea",
     {" is", " \xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", " abc"},
     3,
     1,
     {2, 6, 3}},
    /* white space at the prompt's end belongs to the choice */
    {"{\"prompt\": \"one, two \\n\", \"choices\": [\"three\", \"\xe2\x82\xac\xe2\x82\xac\"], "
     "\"answer\": \"three\", \"delimiter\": \"\"}",
     "one, two",
     {" \nthree", " \n\xe2\x82\xac\xe2\x82\xac"},
     2,
     0,
     {5, 2}},
    {"{\"prompt\": \"x\", \"choices\": [\"a\", \"\xc3\xbc\", \"cc\"], \"answer\": 2}",
     "x",
     {" a", " \xc3\xbc", " cc"},
     3,
     2,
     {1, 1, 2}},
    {"{\"prompt\": \"long long\", \"choices\": [\"go\", \"\xe6\xbc\xa2\xe5\xad\x97\xe6\xbc\xa2\"], "
     "\"answer\": 0}",
     "long long",
     {" go", " \xe6\xbc\xa2\xe5\xad\x97\xe6\xbc\xa2"},
     2,
     0,
     {2, 3}},
};
enum { QUESTIONS = sizeof questions / sizeof questions[0] };

static double log_p(const float *logits, int target)
{
    double largest = -INFINITY, sum = 0;

    for (int v = 0; v < VOCAB; v++)
        largest = fmax(largest, (double)logits[v]);
    for (int v = 0; v < VOCAB; v++)
        sum += exp((double)logits[v] - largest);
    return (double)logits[target] - largest - log(sum);
}

static double likelihood(const struct model *m, const char *prompt, const char *choice)
{
    struct decoding d = decoding_open(m->saved.path);
    const float *logits = NULL;
    double sum = 0;

    for (; *prompt; prompt++)
        logits = decoding_next(&d, (unsigned char)*prompt);
    for (; *choice; choice++) {
        sum += log_p(logits, (unsigned char)*choice);
        if (choice[1]) /* nothing follows the last one, and the context may be full */
            logits = decoding_next(&d, (unsigned char)*choice);
    }
    decoding_close(&d);
    return sum;
}

struct seen {
    const struct model *m;
    int count, acc, acc_norm;
};

static void on_answer(void *user, const struct hd_choice_answer *a)
{
    struct seen *seen = user;
    const struct question *q = &questions[seen->count];
    int best = 0, best_norm = 0;
    double all[CHOICES];

    assert_int_equal(a->line,
                     1 + 2 * seen->count++); /* in the order of the file; a line is empty */
    assert_int_equal(a->count, q->count);
    assert_int_equal(a->right, q->right);
    assert_false(a->cut);
    for (int i = 0; i < q->count; i++) {
        all[i] = likelihood(seen->m, q->prompt, q->choices[i]);
        if (!(fabs(a->log_likelihoods[i] - all[i]) < 1e-4))
            fail_msg("%s, choice %d: %g, not %g", q->prompt, i, a->log_likelihoods[i], all[i]);
        best = all[i] > all[best] ? i : best;
        if (all[i] / q->characters[i] > all[best_norm] / q->characters[best_norm])
            best_norm = i;
    }
    assert_int_equal(a->best, best);
    assert_int_equal(a->best_norm, best_norm);
    seen->acc += best == q->right;
    seen->acc_norm += best_norm == q->right;
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static enum hd_status examine(struct model *m, const char *text,
                              void (*answer)(void *, const struct hd_choice_answer *), void *user,
                              struct hd_choices *ret)
{
    char path[300];
    const char *const files[] = {path};
    const struct hd_choices_options options = {
        .files = files, .file_count = 1, .on_answer = answer, .user = user};

    (void)snprintf(path, sizeof path, "%s/questions.jsonl", m->h.dir);
    write_file(path, text);
    return hd_choices_run(m->generator, m->decoder, m->language, &options, ret);
}

static void accuracies_are_those_of_the_log_likelihoods(void **state)
{
    struct model m = {.decoder = NULL};
    struct seen seen = {.m = &m};
    struct hd_choices result;
    struct hd_text text = {0};

    model_open(&m);
    for (int i = 0; i < QUESTIONS; i++)
        hd_text_add(&text, "%s\n\n", questions[i].line);
    must(examine(&m, text.data, on_answer, &seen, &result));
    assert_int_equal(seen.count, QUESTIONS);
    assert_int_equal(result.questions, QUESTIONS);
    assert_true(result.acc == (double)seen.acc / QUESTIONS);
    assert_true(result.acc_norm == (double)seen.acc_norm / QUESTIONS);
    /* the deviation of zeros and ones, with n - 1, by the root of n */
    assert_true(
        fabs(result.acc_error - sqrt(result.acc * (1 - result.acc) * QUESTIONS / (QUESTIONS - 1)) /
                                    sqrt(QUESTIONS)) < 1e-12);
    hd_text_free(&text);
    model_close(&m);
}

/* A path of more than 600 bytes, of which there is no second within an error's 1023 bytes. */
static void the_first_mistake_is_told_whole(struct model *m)
{
    struct hd_text path = {0};
    const char *files[1];
    const struct hd_choices_options options = {.files = files, .file_count = 1};
    struct hd_choices result;

    hd_text_add(&path, "%s/", m->h.dir);
    while (path.len_bytes < 600)
        hd_text_add(&path, "./");
    hd_text_add(&path, "questions.jsonl");
    files[0] = path.data;
    write_file(path.data, "5\n5\n5\n");
    assert_int_equal(hd_choices_run(m->generator, m->decoder, m->language, &options, &result),
                     HD_INVALID);
    if (!strstr(hd_err_message(), "/questions.jsonl:1: the line is no JSON object; write {..} "
                                  "around its keys; and 2 more"))
        fail_msg("%s", hd_err_message());
    hd_text_free(&path);
}

#define GOOD "{\"prompt\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 0}"

static void what_is_no_question_is_refused_with_its_line(void **state)
{
    static const struct {
        const char *text, *message;
    } all[] = {
        {"\n", "the files contain no question"},
        {"\n{\"prompt\": \"a\"}\n", "questions.jsonl:2: "},
        {"{\"prompt\": \"a\", \"choices\": [\"b\"], \"answer\": 0}",
         "choices: give 2 to 64 texts, not 1"},
        {"5\n" GOOD "\n[]\n", "2 of 3 questions are wrong: "},
        {"5\n" GOOD "\n[]\n", "questions.jsonl:1: the line is no JSON object"},
        {"5\n" GOOD "\n[]\n", "questions.jsonl:3: the line is a JSON array"},
        {"5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n", "20 of 20 questions"},
        {"5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n5\n", " more"},
        {"{\"prompt\": \"a\", \"choices\": [\"b\", \"\"], \"answer\": 0}",
         "choices: number 2 is not a text, or is empty"},
        {"{\"prompt\": \"a\", \"choices\": [\"b\", \"c\", \"b\"], \"answer\": \"b\"}",
         "choices: number 3 is the same as number 1"},
        {"{\"prompt\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 2}",
         "answer: 2 is no index of the 2 choices"},
        {"{\"prompt\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": \"d\"}",
         "answer: give the index of the right choice"},
        {"{\"prompt\": \"\", \"choices\": [\"b\", \"c\"], \"answer\": 0}",
         "the prompt is empty, and the model has no token to begin with"},
        {"{\"prompt\": \"a\", \"choices\": [\"b\", \"0123456789012345678901234567890123456789012345"
         "67890123456789012345\"], \"answer\": 0}",
         "choices: number 2 has 67 tokens, and the context is 64"},
        {"{\"a\": [[[[[[[[[[[[[[[[0]]]]]]]]]]]]]]]]}", "deeper than 16 arrays and objects"},
        {NULL, "a line of more than 4.0 MiB; is its end missing?"},
    };
    struct model m = {.decoder = NULL};
    struct hd_choices result;
    char *long_line = malloc(HD_CHOICES_LINE_BYTES_MAX + 2);

    assert_non_null(long_line);
    memset(long_line, ' ', HD_CHOICES_LINE_BYTES_MAX + 1);
    long_line[HD_CHOICES_LINE_BYTES_MAX + 1] = '\0';
    model_open(&m);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const char *text = all[i].text ? all[i].text : long_line;

        assert_int_equal(examine(&m, text, NULL, NULL, &result), HD_INVALID);
        if (!strstr(hd_err_message(), all[i].message))
            fail_msg("%.100s: %s", text, hd_err_message());
        hd_generator_free(m.generator); /* it may have sequences of the failed run */
        must(hd_generator_new(m.decoder, 0, &m.generator));
    }
    the_first_mistake_is_told_whole(&m);
    free(long_line);
    model_close(&m);
}

/* Goal: a long question is read as lm-evaluation-harness does. Method: questions of total bytes
 * around the context of 64: the last context + 1 of them are kept, and all but the last are fed. */
struct long_question {
    const struct model *m;
    const char *choice; /* with the space in front of it */
    int prompt_bytes;
};

static void on_cut(void *user, const struct hd_choice_answer *a)
{
    const struct long_question *q = user;
    const int total = q->prompt_bytes + (int)strlen(q->choice);
    char prompt[200];
    double expected;

    for (int i = 0; i < q->prompt_bytes; i++)
        prompt[i] = (char)('a' + i % 26);
    prompt[q->prompt_bytes] = '\0';
    expected =
        likelihood(q->m, prompt + (total > CONTEXT + 1 ? total - CONTEXT - 1 : 0), q->choice);
    assert_int_equal(a->cut, total > CONTEXT + 1);
    if (!(fabs(a->log_likelihoods[0] - expected) < 1e-4))
        fail_msg("%d bytes: %g, not %g", total, a->log_likelihoods[0], expected);
}

static void a_question_that_is_too_long_loses_its_beginning(void **state)
{
    static const char whole[] = " 0123456789012345678901234567890123456789012345678901234567890ab";
    static const struct {
        const char *choice;
        int total;
    } all[] = {{" four", 63}, {" four", 64}, {" four", 65}, {" four", 66},
               {" four", 85}, {whole, 65},   {whole, 66},   {whole, 80}};
    struct model m = {.decoder = NULL};

    assert_int_equal(sizeof whole - 1, CONTEXT);
    model_open(&m);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct long_question q = {&m, all[i].choice, all[i].total - (int)strlen(all[i].choice)};
        struct hd_choices result;
        struct hd_text text = {0};

        hd_text_add(&text, "{\"prompt\": \"");
        for (int c = 0; c < q.prompt_bytes; c++)
            hd_text_add(&text, "%c", 'a' + c % 26);
        hd_text_add(&text, "\", \"choices\": [\"%s\", \"five\"], \"answer\": 0}\n", q.choice + 1);
        must(examine(&m, text.data, on_cut, &q, &result));
        assert_int_equal(result.cut, all[i].total > CONTEXT + 1);
        hd_text_free(&text);
    }
    model_close(&m);
}

/* ---- white space ---- */

struct blank_question {
    const struct model *m;
    const char *blank;
    bool moves;
};

static void on_blank(void *user, const struct hd_choice_answer *a)
{
    const struct blank_question *q = user;
    char prompt[32], choice[32];
    double expected;

    (void)snprintf(prompt, sizeof prompt, "one%s", q->moves ? "" : q->blank);
    (void)snprintf(choice, sizeof choice, "%s two", q->moves ? q->blank : "");
    expected = likelihood(q->m, prompt, choice);
    if (!(fabs(a->log_likelihoods[0] - expected) < 1e-4))
        fail_msg("behind '%s': %g, not %g", q->blank, a->log_likelihoods[0], expected);
}

/* Goal: white space at the prompt's end belongs to the choice, where Python's str.rstrip takes it.
 * Method: each character for which str.isspace is true that JSON can hold, and some for which it is
 * not. */
static void white_space_of_any_script_belongs_to_the_choice(void **state)
{
    static const struct {
        const char *blank;
        bool moves;
    } all[] = {
        {" ", true},
        {"\xc2\x85", true},      /* U+0085 */
        {"\xc2\xa0", true},      /* U+00A0 */
        {"\xe1\x9a\x80", true},  /* U+1680 */
        {"\xe2\x80\x80", true},  /* U+2000 */
        {"\xe2\x80\x8a", true},  /* U+200A */
        {"\xe2\x80\xa8", true},  /* U+2028 */
        {"\xe2\x80\xa9 ", true}, /* U+2029 and a space */
        {"\xe2\x80\xaf", true},  /* U+202F */
        {"\xe2\x81\x9f", true},  /* U+205F */
        {"\xe3\x80\x80", true},  /* U+3000 */
        {"\xe2\x80\x8b", false}, /* U+200B: of no width */
        {"\xef\xbb\xbf", false}, /* U+FEFF */
        {"\xe1\xa0\x8e", false}, /* U+180E */
        {"\xc3\xa0", false},     /* ends in the byte of U+00A0 */
        {"\xf0\x90\x80\xa0", false},
    };
    struct model m = {.decoder = NULL};

    model_open(&m);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct blank_question q = {&m, all[i].blank, all[i].moves};
        struct hd_choices result;
        char line[128];

        (void)snprintf(line, sizeof line,
                       "{\"prompt\": \"one%s\", \"choices\": [\"two\", \"x\"], \"answer\": 0}\n",
                       all[i].blank);
        must(examine(&m, line, on_blank, &q, &result));
    }
    model_close(&m);
}

RUN_CASES()
