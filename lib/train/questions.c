#include "train/questions.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "tokenizer/companions.h"

enum { MISTAKES_BYTES_MAX = 880 /* bytes of all messages together: an error has 1023 bytes */ };

/* ---- encoding ---- */

enum hd_status hd_whole_encoder_check(const struct hd_whole_encoder *e,
                                      const struct hd_id_list *ids, size_t first)
{
    for (size_t i = first; i < ids->count; i++)
        if (ids->ids[i] >= e->vocab)
            return hd_err(HD_INVALID, "token %d of %s is outside the model's vocabulary of %lld",
                          (int)ids->ids[i], hd_tokenizer_name(e->tokenizer), (long long)e->vocab);
    return HD_OK;
}

enum hd_status hd_whole_encoder_plain(const struct hd_whole_encoder *e, const char *text,
                                      size_t text_bytes, struct hd_id_list *ids)
{
    const size_t first = ids->count;
    enum hd_status st = hd_encoder_add(e->encoder, text, text_bytes, ids);

    return st ? st : hd_whole_encoder_check(e, ids, first);
}

static enum hd_status append_ids(struct hd_id_list *ids, const int32_t *more, int count)
{
    enum hd_status st = hd_id_list_reserve(ids, (size_t)count);

    for (int i = 0; !st && i < count; i++)
        ids->ids[ids->count++] = more[i];
    return st;
}

enum hd_status hd_whole_encoder_add(const struct hd_whole_encoder *e, const char *text,
                                    size_t text_bytes, struct hd_id_list *ids)
{
    const char *begins = e->begin >= 0 ? hd_tokenizer_content(e->tokenizer, e->begin) : NULL;
    const struct hd_companions *c = hd_tokenizer_companions(e->tokenizer);
    const bool has_begin = begins && *begins && !(c && c->splits_specials) &&
                           text_bytes >= strlen(begins) &&
                           memcmp(text, begins, strlen(begins)) == 0;
    const size_t first = ids->count;
    int before_count, behind_count;
    const int32_t *before = hd_tokenizer_before(e->tokenizer, &before_count);
    const int32_t *behind = hd_tokenizer_behind(e->tokenizer, &behind_count);
    enum hd_status st = has_begin ? HD_OK : append_ids(ids, before, before_count);

    if (!st)
        st = hd_encoder_add(e->encoder, text, text_bytes, ids);
    if (!st && !has_begin)
        st = append_ids(ids, behind, behind_count);
    return st ? st : hd_whole_encoder_check(e, ids, first);
}

/* ---- reading ---- */

static enum hd_status read_answer(const struct hd_json *answer, struct hd_question *q)
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

static enum hd_status read_choices(const struct hd_json *list, struct hd_question *q)
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

enum hd_status hd_question_read(struct hd_arena *arena, const char *line, size_t bytes,
                                struct hd_question *ret_question)
{
    static const struct hd_json_limits limits = {.values_max = 1000, .depth_max = 16};
    const struct hd_json *root, *list, *delimiter;
    struct hd_question *q = ret_question;
    enum hd_status st = hd_json_parse_line(arena, line, bytes, &limits, &root);

    *q = (struct hd_question){.delimiter = " "};
    if (!st)
        st = hd_json_need_string(root, "prompt", &q->prompt);
    if (!st)
        st = hd_json_need(root, "choices", HD_JSON_ARRAY, &list);
    if (!st)
        st = read_choices(list, q);
    if (!st)
        st = read_answer(hd_json_member(root, "answer"), q);
    delimiter = st ? NULL : hd_json_member(root, "delimiter");
    if (delimiter)
        st = hd_json_need_string(root, "delimiter", &q->delimiter);
    return st;
}

/* ---- one choice ---- */

/* Encodes a choice behind an empty prompt: the token that begins a text, unless the choice begins
 * with it, and the choice without special tokens. */
static enum hd_status encode_alone(const struct hd_whole_encoder *e, const struct hd_text *whole,
                                   struct hd_id_list *ids)
{
    enum hd_status st;

    if (e->begin < 0)
        return hd_err(HD_INVALID, "the prompt is empty, and the model has no token to begin with");
    st = hd_whole_encoder_plain(e, whole->data, whole->len_bytes, ids);
    if (!st && (!ids->count || ids->ids[0] != e->begin))
        st = hd_id_list_reserve(ids, 1);
    if (!st && (!ids->count || ids->ids[0] != e->begin)) {
        memmove(ids->ids + 1, ids->ids, ids->count * sizeof *ids->ids);
        ids->ids[0] = e->begin;
        ids->count++;
    }
    return st;
}

/* Encodes the text of the prompt and a choice. Both are encoded with the special tokens that the
 * tokenizer adds by default, as in lm-evaluation-harness. */
static enum hd_status encode(const struct hd_whole_encoder *e, const struct hd_question *q,
                             int index, struct hd_id_list *ids, int64_t *ret_first)
{
    const size_t bytes = hd_text_trim_end(q->prompt, strlen(q->prompt));
    struct hd_id_list prompt = {0};
    struct hd_text whole = {0};
    enum hd_status st = HD_OK;

    hd_text_add(&whole, "%s%s%s", q->prompt, q->delimiter, q->choices[index]);
    if (whole.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a question");
    if (!st && *q->prompt)
        st = hd_whole_encoder_add(e, q->prompt, bytes, &prompt);
    *ret_first = prompt.count ? (int64_t)prompt.count : 1;
    if (!st && !prompt.count) /* a prompt of white space has no token if the tokenizer adds none
                                 before a text */
        st = encode_alone(e, &whole, ids);
    else if (!st)
        st = hd_whole_encoder_add(e, whole.data, whole.len_bytes, ids);
    if (!st && *ret_first >= (int64_t)ids->count)
        st = hd_err(HD_INVALID, "choices: number %d has no token of its own behind the prompt",
                    index + 1);
    hd_text_free(&whole);
    hd_id_list_free(&prompt);
    return st;
}

enum hd_status hd_question_encode(const struct hd_whole_encoder *e, const struct hd_question *q,
                                  int index, int64_t context, struct hd_id_list *ids,
                                  int64_t *ret_first)
{
    enum hd_status st = encode(e, q, index, ids, ret_first);
    const int64_t count = st ? 0 : (int64_t)ids->count - *ret_first;

    if (count > context)
        st = hd_err(HD_INVALID, "choices: number %d has %lld tokens, and the context is %lld",
                    index + 1, (long long)count, (long long)context);
    return st;
}

/* ---- the answer ---- */

int32_t hd_question_characters(const char *text)
{
    int32_t count = 0;

    for (; *text; text++) /* all bytes but continuation bytes */
        count += ((unsigned char)*text & 0xc0) != 0x80;
    return count;
}

void hd_question_answer(const double *log_likelihoods, const int32_t *characters, int count,
                        int *ret_best, int *ret_best_norm)
{
    int best = 0, norm = 0;

    for (int i = 1; i < count; i++) {
        if (log_likelihoods[i] > log_likelihoods[best])
            best = i;
        if (log_likelihoods[i] / (double)characters[i] >
            log_likelihoods[norm] / (double)characters[norm])
            norm = i;
    }
    *ret_best = best;
    *ret_best_norm = norm;
}

/* ---- mistakes ---- */

void hd_question_mistake(struct hd_question_mistakes *m, const char *file, int64_t line)
{
    char text[MISTAKES_BYTES_MAX + 1];

    /* the first message is cut if it is too long; a later one is counted in `left` */
    (void)snprintf(text, sizeof text, "%s:%lld: %s", file, (long long)line, hd_err_message());
    m->count++;
    if (m->count > 1 && m->text.len_bytes + strlen("; ") + strlen(text) > MISTAKES_BYTES_MAX)
        m->left++;
    else
        hd_text_add(&m->text, "%s%s", m->text.len_bytes ? "; " : "", text);
}

enum hd_status hd_question_judge(struct hd_question_mistakes *m, int64_t questions)
{
    const char *text = m->text.failed || !m->text.data ? "no memory for messages" : m->text.data;
    enum hd_status st = HD_OK;

    if (m->count == 1)
        st = hd_err(HD_INVALID, "%s", text);
    else if (m->count && !m->left)
        st = hd_err(HD_INVALID, "%lld of %lld questions are wrong: %s", (long long)m->count,
                    (long long)questions, text);
    else if (m->count)
        st = hd_err(HD_INVALID, "%lld of %lld questions are wrong: %s; and %lld more",
                    (long long)m->count, (long long)questions, text, (long long)m->left);
    hd_text_free(&m->text);
    *m = (struct hd_question_mistakes){.count = 0};
    return st;
}
