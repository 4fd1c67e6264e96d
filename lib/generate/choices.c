#include "generate/choices.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/lines.h"

/* One question that is in progress. The generator reads its choices one after the other, so that
 * each one finds the prompt in the generator slot that the previous choice used. */
struct question {
    struct examination *all;
    struct hd_arena arena;
    const char *file;
    int64_t line;
    struct hd_question text;
    int next; /* index of the choice that is being read */
    double log_likelihoods[HD_CHOICES_MAX];
    bool cut, is_done;
};

struct examination {
    struct hd_generator *generator;
    struct hd_language *language;
    const struct hd_choices_options *options;
    int64_t context;
    struct question *questions; /* ring buffer [capacity] of the questions in progress */
    int capacity, first, held;
    size_t file;
    struct hd_lines lines; /* reader of the current file of questions, if is_open */
    bool is_open;
    int64_t begun;
    struct hd_choices sums; /* scores so far; acc and acc_norm are numbers of right answers, not
                               fractions */
    enum hd_status st;      /* status of a failure in a callback of the generator; HD_OK: none */
    struct hd_error error;
};

/* ---- reading ---- */

/* Reads the next line that is not blank, of the current or a later file, into e->lines.line. Sets
 * *ret_there to false after the last line of the last file. */
static enum hd_status next_line(struct examination *e, bool *ret_there)
{
    enum hd_status st = HD_OK;

    *ret_there = false;
    while (!st && !*ret_there) {
        if (!e->is_open && e->file == e->options->file_count)
            return HD_OK;
        if (!e->is_open) {
            e->is_open = true;
            st = hd_lines_open(&e->lines, e->options->files[e->file], NULL,
                               HD_CHOICES_LINE_BYTES_MAX);
        }
        if (!st)
            st = hd_lines_next(&e->lines, ret_there);
        if (!st && !*ret_there) {
            hd_lines_close(&e->lines);
            e->is_open = false;
            e->file++;
        } else if (!st) {
            *ret_there = !hd_lines_is_blank(&e->lines);
        }
    }
    return st;
}

/* ---- one choice ---- */

static bool on_token(void *user, const struct hd_generated *token)
{
    struct question *q = user;

    q->log_likelihoods[q->next] += token->log_probability;
    return true;
}

static enum hd_status begin_choice(struct question *q);

static void on_end(void *user, enum hd_generation_end end, enum hd_status st)
{
    struct question *q = user;

    (void)end;
    q->next++;
    q->is_done = q->next == q->text.count;
    if (!st && !q->is_done)
        st = begin_choice(q);
    if (st && !q->all->st) {
        q->all->st = hd_err_prefix(st, "%s:%lld", q->file, (long long)q->line);
        hd_err_save(q->all->st, &q->all->error);
    }
}

static enum hd_status begin_choice(struct question *q)
{
    struct hd_id_list ids = {0};
    int64_t first = 0;
    enum hd_status st = hd_question_encode(hd_language_encoder(q->all->language), &q->text, q->next,
                                           q->all->context, &ids, &first);
    const struct hd_generation what = {.prompt = ids.ids,
                                       .prompt_count = (int64_t)ids.count,
                                       .reports_prompt = true,
                                       .reported_from = first,
                                       .slides = true,
                                       .on_token = on_token,
                                       .on_end = on_end,
                                       .user = q};

    q->log_likelihoods[q->next] = 0;
    q->cut |= what.prompt_count > q->all->context + 1; /* the last token is not fed to the model */
    if (!st)
        st = hd_generator_add(q->all->generator, &what, NULL);
    hd_id_list_free(&ids);
    return st;
}

/* ---- checking all questions ---- */

/* Parses and encodes the question of the current line. */
static enum hd_status check_line(struct examination *e)
{
    struct hd_id_list ids = {0};
    struct hd_arena arena;
    struct hd_question q;
    int64_t first;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_question_read(&arena, e->lines.line.data, e->lines.line.len_bytes, &q);
    for (int i = 0; !st && i < q.count; i++) {
        ids.count = 0;
        st = hd_question_encode(hd_language_encoder(e->language), &q, i, e->context, &ids, &first);
    }
    hd_id_list_free(&ids);
    hd_arena_done(&arena);
    return st;
}

/* Reads all questions that will be run, and reports all invalid ones in one message, so that an
 * invalid question does not end the run after hours. */
static enum hd_status check_all(struct examination *e)
{
    struct hd_question_mistakes m = {.count = 0};
    int64_t questions = 0;
    bool there = true;
    enum hd_status st = HD_OK;

    while (!st && (!e->options->limit || questions < e->options->limit)) {
        st = next_line(e, &there);
        if (st || !there)
            break;
        questions++;
        st = check_line(e);
        if (st == HD_INVALID) {
            hd_question_mistake(&m, e->options->files[e->file], e->lines.number);
            st = HD_OK;
        }
    }
    if (e->is_open)
        hd_lines_close(&e->lines);
    e->is_open = false;
    e->file = 0;
    if (st)
        hd_text_free(&m.text);
    return st ? st : hd_question_judge(&m, questions);
}

/* ---- running all questions ---- */

/* Reads the next question from the files and adds its first choice to the generator. Sets *ret_none
 * to true if there is no further question. */
static enum hd_status begin_question(struct examination *e, bool *ret_none)
{
    struct question *q = &e->questions[(e->first + e->held) % e->capacity];
    bool there = false;
    enum hd_status st = HD_OK;

    *ret_none = true;
    if (e->options->limit && e->begun == e->options->limit)
        return HD_OK;
    st = next_line(e, &there);
    if (st || !there)
        return st;
    *ret_none = false;
    *q = (struct question){.all = e, .file = e->options->files[e->file], .line = e->lines.number};
    hd_arena_init(&q->arena, 0);
    e->held++;
    e->begun++;
    st = hd_question_read(&q->arena, e->lines.line.data, e->lines.line.len_bytes, &q->text);
    if (!st)
        st = begin_choice(q);
    return st ? hd_err_prefix(st, "%s:%lld", q->file, (long long)q->line) : HD_OK;
}

static void finish_question(struct examination *e)
{
    struct question *q = &e->questions[e->first];
    struct hd_choice_answer a = {.file = q->file,
                                 .line = q->line,
                                 .count = q->text.count,
                                 .right = q->text.right,
                                 .log_likelihoods = q->log_likelihoods,
                                 .cut = q->cut};
    int32_t characters[HD_CHOICES_MAX];

    for (int i = 0; i < q->text.count; i++)
        characters[i] = hd_question_characters(q->text.choices[i]);
    hd_question_answer(q->log_likelihoods, characters, q->text.count, &a.best, &a.best_norm);
    e->sums.questions++;
    e->sums.cut += q->cut;
    e->sums.acc += a.best == q->text.right;
    e->sums.acc_norm += a.best_norm == q->text.right;
    if (e->options->on_answer)
        e->options->on_answer(e->options->user, &a);
    hd_arena_done(&q->arena);
    e->first = (e->first + 1) % e->capacity;
    e->held--;
}

static enum hd_status examine(struct examination *e)
{
    bool none = false, busy = true;
    enum hd_status st = HD_OK;

    while (!st && (!none || e->held)) {
        while (!st && !none && e->held < e->capacity)
            st = begin_question(e, &none);
        if (!st)
            st = hd_generator_step(e->generator, &busy);
        if (!st && e->st)
            st = hd_err_restore(&e->error);
        while (!st && e->held && e->questions[e->first].is_done)
            finish_question(e);
    }
    return st;
}

/* Returns the standard error of a mean of zeros and ones: their standard deviation (n - 1) divided
 * by sqrt(n). */
static double error_of(double mean, int64_t n)
{
    return n > 1 ? sqrt(mean * (1 - mean) / (double)(n - 1)) : 0;
}

enum hd_status hd_choices_run(struct hd_generator *generator, const struct hd_decoder *decoder,
                              struct hd_language *language,
                              const struct hd_choices_options *options,
                              struct hd_choices *ret_choices)
{
    struct examination e = {.generator = generator,
                            .language = language,
                            .options = options,
                            .context = hd_decoder_context(decoder),
                            .capacity = hd_decoder_slots(decoder)};
    enum hd_status st;

    e.questions = calloc((size_t)e.capacity, sizeof *e.questions);
    st = e.questions ? check_all(&e) : hd_err(HD_NO_MEMORY, "no memory for questions");
    if (!st)
        st = examine(&e);
    if (!st && !e.sums.questions)
        st = hd_err(HD_INVALID, "the files contain no question");
    if (!st) {
        const double n = (double)e.sums.questions;

        *ret_choices = e.sums;
        ret_choices->acc /= n;
        ret_choices->acc_norm /= n;
        ret_choices->acc_error = error_of(ret_choices->acc, e.sums.questions);
        ret_choices->acc_norm_error = error_of(ret_choices->acc_norm, e.sums.questions);
    }
    for (; e.questions && e.held; e.held--, e.first = (e.first + 1) % e.capacity)
        hd_arena_done(&e.questions[e.first].arena);
    if (e.is_open)
        hd_lines_close(&e.lines);
    free(e.questions);
    return st;
}
