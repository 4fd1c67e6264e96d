#include "generate/choices.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/lines.h"

enum { MISTAKES_BYTES_MAX = 880 /* bytes of all messages together: an error has 1023 bytes */ };

/* One question that is in progress. The generator reads its choices one after the other, so that
 * each one finds the prompt in the generator slot that the previous choice used. */
struct question {
    struct examination *all;
    struct hd_arena arena;
    const char *file, *prompt, *delimiter;
    const char *choices[HD_CHOICES_MAX];
    int64_t line;
    int count, right, next; /* number of choices; index of the right one; index of the choice that
                               is being read */
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

static enum hd_status read_answer(const struct hd_json *answer, struct question *q)
{
    int64_t index;

    if (answer && answer->kind == HD_JSON_NUMBER) {
        if (hd_json_to_int64(answer, 0, q->count - 1, &index))
            return hd_err(HD_INVALID, "answer: %.20s is no index of the %d choices; the first is 0",
                          answer->text, q->count);
        q->right = (int)index;
        return HD_OK;
    }
    for (q->right = 0; answer && answer->kind == HD_JSON_STRING && q->right < q->count; q->right++)
        if (strcmp(q->choices[q->right], answer->text) == 0)
            return HD_OK;
    return hd_err(HD_INVALID, "answer: give the index of the right choice, from 0, or its text");
}

static enum hd_status read_choices(const struct hd_json *list, struct question *q)
{
    if (list->count < 2 || list->count > HD_CHOICES_MAX)
        return hd_err(HD_INVALID, "choices: give 2 to %d texts, not %zu", HD_CHOICES_MAX,
                      list->count);
    for (const struct hd_json *c = list->first; c; c = c->next) {
        if (c->kind != HD_JSON_STRING || !*c->text)
            return hd_err(HD_INVALID, "choices: number %d is not a text, or is empty",
                          q->count + 1);
        for (int i = 0; i < q->count; i++)
            if (strcmp(q->choices[i], c->text) == 0)
                return hd_err(HD_INVALID, "choices: number %d is the same as number %d",
                              q->count + 1, i + 1);
        q->choices[q->count++] = c->text;
    }
    return HD_OK;
}

static enum hd_status parse(struct question *q, const char *line, size_t bytes)
{
    static const struct hd_json_limits limits = {.values_max = 1000, .depth_max = 16};
    const struct hd_json *root, *list, *delimiter;
    enum hd_status st = hd_json_parse_line(&q->arena, line, bytes, &limits, &root);

    if (!st)
        st = hd_json_need_string(root, "prompt", &q->prompt);
    if (!st)
        st = hd_json_need(root, "choices", HD_JSON_ARRAY, &list);
    if (!st)
        st = read_choices(list, q);
    if (!st)
        st = read_answer(hd_json_member(root, "answer"), q);
    delimiter = st ? NULL : hd_json_member(root, "delimiter");
    q->delimiter = " ";
    if (delimiter)
        st = hd_json_need_string(root, "delimiter", &q->delimiter);
    return st;
}

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
    q->is_done = q->next == q->count;
    if (!st && !q->is_done)
        st = begin_choice(q);
    if (st && !q->all->st) {
        q->all->st = hd_err_prefix(st, "%s:%lld", q->file, (long long)q->line);
        hd_err_save(q->all->st, &q->all->error);
    }
}

/* Encodes a choice behind an empty prompt: the token that begins a text, unless the choice begins
 * with it, and the choice without special tokens. */
static enum hd_status encode_alone(struct question *q, const struct hd_text *whole,
                                   struct hd_id_list *ids)
{
    const int32_t begin = hd_language_begin(q->all->language);
    enum hd_status st;

    if (begin < 0)
        return hd_err(HD_INVALID, "the prompt is empty, and the model has no token to begin with");
    st = hd_language_encode(q->all->language, whole->data, whole->len_bytes, ids);
    if (!st && (!ids->count || ids->ids[0] != begin))
        st = hd_id_list_reserve(ids, 1);
    if (!st && (!ids->count || ids->ids[0] != begin)) {
        memmove(ids->ids + 1, ids->ids, ids->count * sizeof *ids->ids);
        ids->ids[0] = begin;
        ids->count++;
    }
    return st;
}

/* Encodes the text of the prompt and the next choice to `ids`; sets *ret_first to the index of the
 * choice's first token. Both are encoded with the special tokens that the tokenizer adds by
 * default, as in lm-evaluation-harness. */
static enum hd_status encode(struct question *q, struct hd_id_list *ids, int64_t *ret_first)
{
    struct hd_language *language = q->all->language;
    const size_t bytes = hd_text_trim_end(q->prompt, strlen(q->prompt));
    struct hd_id_list prompt = {0};
    struct hd_text whole = {0};
    enum hd_status st = HD_OK;

    hd_text_add(&whole, "%s%s%s", q->prompt, q->delimiter, q->choices[q->next]);
    if (whole.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a question");
    if (!st && *q->prompt)
        st = hd_language_encode_whole(language, q->prompt, bytes, &prompt);
    *ret_first = prompt.count ? (int64_t)prompt.count : 1;
    if (!st && !prompt.count) /* a prompt of white space has no token if the tokenizer adds none
                                 before a text */
        st = encode_alone(q, &whole, ids);
    else if (!st)
        st = hd_language_encode_whole(language, whole.data, whole.len_bytes, ids);
    if (!st && *ret_first >= (int64_t)ids->count)
        st = hd_err(HD_INVALID, "choices: number %d has no token of its own behind the prompt",
                    q->next + 1);
    hd_text_free(&whole);
    hd_id_list_free(&prompt);
    return st;
}

/* Encodes the prompt with the question's next choice, and checks that the model's context can hold
 * the choice. */
static enum hd_status prepare_choice(struct question *q, struct hd_id_list *ids, int64_t *ret_first)
{
    enum hd_status st = encode(q, ids, ret_first);
    const int64_t count = st ? 0 : (int64_t)ids->count - *ret_first;

    if (count > q->all->context)
        st = hd_err(HD_INVALID, "choices: number %d has %lld tokens, and the context is %lld",
                    q->next + 1, (long long)count, (long long)q->all->context);
    return st;
}

static enum hd_status begin_choice(struct question *q)
{
    struct hd_id_list ids = {0};
    int64_t first = 0;
    enum hd_status st = prepare_choice(q, &ids, &first);
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

struct mistakes {
    struct hd_text text; /* messages of the first mistakes, with "; " between them */
    int64_t count, left; /* number of mistakes; number of those not in `text` */
};

/* Parses and encodes the question of the current line. */
static enum hd_status check_line(struct examination *e)
{
    struct question q = {.all = e, .file = e->options->files[e->file], .line = e->lines.number};
    struct hd_id_list ids = {0};
    int64_t first;
    enum hd_status st;

    hd_arena_init(&q.arena, 0);
    st = parse(&q, e->lines.line.data, e->lines.line.len_bytes);
    for (; !st && q.next < q.count; q.next++) {
        ids.count = 0;
        st = prepare_choice(&q, &ids, &first);
    }
    hd_id_list_free(&ids);
    hd_arena_done(&q.arena);
    return st;
}

/* Appends the current error message, about the current line, to m->text. If the text would become
 * longer than MISTAKES_BYTES_MAX, cuts the first message, and counts any other in m->left. */
static void add_mistake(const struct examination *e, struct mistakes *m)
{
    char text[MISTAKES_BYTES_MAX + 1];

    (void)snprintf(text, sizeof text, "%s:%lld: %s", e->options->files[e->file],
                   (long long)e->lines.number, hd_err_message());
    m->count++;
    if (m->count > 1 && m->text.len_bytes + strlen("; ") + strlen(text) > MISTAKES_BYTES_MAX)
        m->left++;
    else
        hd_text_add(&m->text, "%s%s", m->text.len_bytes ? "; " : "", text);
}

static enum hd_status refuse(const struct mistakes *m, int64_t questions)
{
    const char *text = m->text.failed || !m->text.data ? "no memory for messages" : m->text.data;

    if (m->count == 1)
        return hd_err(HD_INVALID, "%s", text);
    if (!m->left)
        return hd_err(HD_INVALID, "%lld of %lld questions are wrong: %s", (long long)m->count,
                      (long long)questions, text);
    return hd_err(HD_INVALID, "%lld of %lld questions are wrong: %s; and %lld more",
                  (long long)m->count, (long long)questions, text, (long long)m->left);
}

/* Reads all questions that will be run, and reports all invalid ones in one message, so that an
 * invalid question does not end the run after hours. */
static enum hd_status check_all(struct examination *e)
{
    struct mistakes m = {.count = 0};
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
            add_mistake(e, &m);
            st = HD_OK;
        }
    }
    if (e->is_open)
        hd_lines_close(&e->lines);
    e->is_open = false;
    e->file = 0;
    if (!st && m.count)
        st = refuse(&m, questions);
    hd_text_free(&m.text);
    return st;
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
    st = parse(q, e->lines.line.data, e->lines.line.len_bytes);
    if (!st)
        st = begin_choice(q);
    return st ? hd_err_prefix(st, "%s:%lld", q->file, (long long)q->line) : HD_OK;
}

/* Returns the number of characters of a UTF-8 text: all bytes but continuation bytes. */
static double characters(const char *text)
{
    double count = 0;

    for (; *text; text++)
        count += ((unsigned char)*text & 0xc0) != 0x80;
    return count;
}

static void finish_question(struct examination *e)
{
    struct question *q = &e->questions[e->first];
    struct hd_choice_answer a = {.file = q->file,
                                 .line = q->line,
                                 .count = q->count,
                                 .right = q->right,
                                 .log_likelihoods = q->log_likelihoods,
                                 .cut = q->cut};

    for (int i = 1; i < q->count; i++) {
        if (q->log_likelihoods[i] > q->log_likelihoods[a.best])
            a.best = i;
        if (q->log_likelihoods[i] / characters(q->choices[i]) >
            q->log_likelihoods[a.best_norm] / characters(q->choices[a.best_norm]))
            a.best_norm = i;
    }
    e->sums.questions++;
    e->sums.cut += q->cut;
    e->sums.acc += a.best == q->right;
    e->sums.acc_norm += a.best_norm == q->right;
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
