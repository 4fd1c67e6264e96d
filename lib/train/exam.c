#include "train/exam.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/data.h"
#include "data/fingerprint.h"
#include "data/lines.h"

/* ---- reading ---- */

/* Grows an array for `more` elements behind `count`. */
static enum hd_status grow(void **array, int64_t count, int64_t more, int64_t *capacity,
                           size_t size)
{
    int64_t wish = *capacity ? *capacity : 256;
    void *grown;

    if (count + more <= *capacity)
        return HD_OK;
    while (wish < count + more)
        wish *= 2;
    grown = realloc(*array, (size_t)wish * size);
    if (!grown)
        return hd_err(HD_NO_MEMORY, "no memory for the questions of validate.choices");
    *array = grown;
    *capacity = wish;
    return HD_OK;
}

/* Appends a window that begins with the next sequence, or ends the list. */
static enum hd_status add_window(struct hd_exam *e)
{
    const enum hd_status st =
        grow((void **)&e->windows, e->window_count + 1, 1, &e->window_capacity, sizeof *e->windows);

    if (!st)
        e->windows[e->window_count++] = e->count;
    return st;
}

/* Adds a prompt with a choice, as ids. *filled: rows of the newest window in use. */
static enum hd_status add_sequence(struct hd_exam *e, const struct hd_id_list *ids, int64_t first,
                                   int32_t characters, int64_t *filled, bool *ret_cut)
{
    const int64_t all = (int64_t)ids->count - 1; /* the last token is not fed to the model */
    const int64_t skip = all > e->context ? all - e->context : 0, rows = all - skip;
    enum hd_status st =
        grow((void **)&e->sequences, e->count, 1, &e->sequence_capacity, sizeof *e->sequences);

    if (!st)
        st = grow((void **)&e->ids, e->id_count, rows + 1, &e->id_capacity, sizeof *e->ids);
    if (!st && (!e->window_count || *filled + rows > e->context)) {
        st = add_window(e);
        *filled = 0;
    }
    if (st)
        return st;
    *ret_cut |= skip > 0;
    *filled += rows;
    e->sequences[e->count++] = (struct hd_exam_sequence){.at = e->id_count,
                                                         .rows = (int32_t)rows,
                                                         .first = (int32_t)(first - 1 - skip),
                                                         .characters = characters};
    memcpy(e->ids + e->id_count, ids->ids + skip, (size_t)(rows + 1) * sizeof *e->ids);
    e->id_count += rows + 1;
    return HD_OK;
}

static enum hd_status add_question(struct hd_exam *e, const struct hd_whole_encoder *encoder,
                                   const struct hd_question *q, int64_t *filled)
{
    int64_t capacity = e->question_capacity, first;
    struct hd_id_list ids = {0};
    bool cut = false;
    enum hd_status st = grow((void **)&e->choices, e->questions, 1, &capacity, sizeof *e->choices);

    if (!st)
        st = grow((void **)&e->right, e->questions, 1, &e->question_capacity, sizeof *e->right);
    for (int i = 0; !st && i < q->count; i++) {
        ids.count = 0;
        st = hd_question_encode(encoder, q, i, e->context, &ids, &first);
        if (!st)
            st = add_sequence(e, &ids, first, hd_question_characters(q->choices[i]), filled, &cut);
    }
    hd_id_list_free(&ids);
    if (st)
        return st;
    e->choices[e->questions] = q->count;
    e->right[e->questions++] = q->right;
    e->cut += cut;
    return HD_OK;
}

static enum hd_status read_lines(struct hd_exam *e, const struct hd_whole_encoder *encoder,
                                 struct hd_lines *lines, const char *path, int64_t limit)
{
    struct hd_question_mistakes mistakes = {.count = 0};
    int64_t filled = 0, questions = 0;
    bool there = true;
    enum hd_status st = HD_OK;

    while (!st && (!limit || questions < limit)) {
        struct hd_arena arena;
        struct hd_question q;

        st = hd_lines_next(lines, &there);
        if (st || !there)
            break;
        if (hd_lines_is_blank(lines))
            continue;
        questions++;
        hd_arena_init(&arena, 0);
        st = hd_question_read(&arena, lines->line.data, lines->line.len_bytes, &q);
        if (!st)
            st = add_question(e, encoder, &q, &filled);
        hd_arena_done(&arena);
        if (st == HD_INVALID) {
            hd_question_mistake(&mistakes, path, lines->number);
            st = HD_OK;
        }
    }
    if (!st && !questions)
        st = hd_err(HD_INVALID, "%s has no question", path);
    if (st)
        hd_text_free(&mistakes.text);
    if (!st)
        st = hd_question_judge(&mistakes, questions);
    if (!st)
        st = add_window(e); /* the end of the last window */
    e->window_count -= !st;
    return st;
}

/* Checks that the file is the one of the submission. */
static enum hd_status check_file(const struct hd_choice_set *set)
{
    struct stat info;

    if (stat(set->path, &info) < 0)
        return hd_err(HD_NOT_FOUND, "cannot find %s", set->path);
    if (set->size_bytes >= 0 && info.st_size != set->size_bytes)
        return hd_err(HD_INVALID,
                      "%s has %lld bytes, and had %lld when the job was submitted; restore it, or "
                      "submit the job again",
                      set->path, (long long)info.st_size, (long long)set->size_bytes);
    return hd_fingerprint_check(set->path, set->fingerprint);
}

static enum hd_status open_exam(const struct hd_job *job, int64_t index,
                                const struct hd_whole_encoder *encoder, struct hd_exam *e)
{
    struct hd_choice_set set;
    struct hd_lines lines;
    enum hd_status st = hd_choice_set_read(job, HD_QUESTIONS_CHOICES, index, &set);

    if (st)
        return st;
    (void)snprintf(e->name, sizeof e->name, "%s", set.name);
    e->context = job->context;
    st = check_file(&set);
    if (!st) {
        st = hd_lines_open(&lines, set.path, NULL, HD_CHOICES_LINE_BYTES_MAX);
        if (!st)
            st = read_lines(e, encoder, &lines, set.path, job->choices_limit);
        hd_lines_close(&lines);
    }
    return st ? hd_err_prefix(st, "validate.choices.%s", set.name) : HD_OK;
}

enum hd_status hd_exams_open(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                             struct hd_exams *ret_exams)
{
    const int64_t count = hd_choice_set_count(job, HD_QUESTIONS_CHOICES);
    struct hd_job_tokenizer own = {.opened = NULL};
    struct hd_whole_encoder encoder = {.vocab = job->vocab};
    const struct hd_special *special;
    enum hd_status st = HD_OK;

    *ret_exams = (struct hd_exams){.count = 0};
    if (!count)
        return HD_OK;
    tokenizer = tokenizer ? tokenizer : &own;
    st = hd_job_tokenizer_need(tokenizer, job, &encoder.tokenizer);
    if (!st)
        st = hd_job_tokenizer_special(tokenizer, job, &special);
    if (!st)
        st = hd_encoder_new(encoder.tokenizer, &encoder.encoder);
    if (!st)
        encoder.begin = hd_special_begin(special);
    for (int64_t i = 0; !st && i < count; i++) {
        ret_exams->count = i + 1;
        st = open_exam(job, i, &encoder, &ret_exams->list[i]);
    }
    hd_encoder_free(encoder.encoder);
    hd_job_tokenizer_close(&own);
    return st;
}

void hd_exams_close(struct hd_exams *exams)
{
    for (int64_t i = 0; i < exams->count; i++) {
        struct hd_exam *e = &exams->list[i];

        free(e->sequences);
        free(e->ids);
        free(e->choices);
        free(e->right);
        free(e->windows);
    }
    *exams = (struct hd_exams){.count = 0};
}

/* ---- batches ---- */

/* Fills row `row` of a batch: row j of the `rows` of a sequence that begins at `begin` of its window
 * and has the ids `ids`; ids NULL: padding. */
static void fill_row(const struct hd_data_batch *b, int64_t row, int64_t begin, int64_t j,
                     const struct hd_exam_sequence *s, const int32_t *ids)
{
    if (b->tokens)
        b->tokens[row] = ids ? ids[j] : b->empty_token;
    if (b->targets)
        b->targets[row] = ids && j >= s->first ? ids[j + 1] : HD_DATA_TARGET_NONE;
    if (b->positions)
        b->positions[row] = (int32_t)j;
    if (b->index)
        b->index[row] = (int32_t)(begin + j);
    if (b->bounds)
        b->bounds[row] = (int32_t)begin;
    if (b->begins)
        b->begins[row] = (int32_t)begin;
    if (b->lengths)
        b->lengths[row] = ids ? s->rows : 0;
    if (b->answers)
        b->answers[row] = -1;
    if (b->reference)
        b->reference[row] = 0;
}

void hd_exam_fill(const struct hd_exam *e, int64_t first, int64_t count,
                  const struct hd_data_batch *batch)
{
    for (int64_t i = 0; i < count; i++) {
        const int64_t w = first + i, base = i * e->context;
        int64_t at = 0;

        for (int64_t k = w < e->window_count ? e->windows[w] : 0;
             w < e->window_count && k < e->windows[w + 1]; k++) {
            const struct hd_exam_sequence *s = &e->sequences[k];

            for (int64_t j = 0; j < s->rows; j++)
                fill_row(batch, base + at + j, at, j, s, e->ids + s->at);
            at += s->rows;
        }
        for (int64_t j = 0; at + j < e->context; j++)
            fill_row(batch, base + at + j, at, j, NULL, NULL);
    }
}
