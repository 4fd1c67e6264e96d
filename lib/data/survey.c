#include "data/survey.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "data/data_internal.h"

enum { CHUNK = 1 << 16 };
#define TOKENS_SCANNED_MAX (INT64_C(1) << 31) /* of one file; takes seconds */

static enum hd_status count_lines(const char *path, enum hd_chat_form *form, int64_t *ret_documents)
{
    const enum hd_status st = hd_jsonl_look(path, *form, form);

    return st ? st : hd_jsonl_count(path, ret_documents);
}

/* Counts the ends of documents, and an unfinished document at the end of the file. */
static enum hd_status count_ends(const struct hd_corpus *corpus, int64_t end_of_text,
                                 int64_t *ret_documents)
{
    const int64_t count = hd_corpus_token_count(corpus);
    int32_t *ids = malloc(CHUNK * sizeof *ids), last = -1;
    enum hd_status st = ids ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to count tokens");
    int64_t documents = 0;

    for (int64_t at = 0; !st && at < count; at += CHUNK) {
        const int64_t n = count - at < CHUNK ? count - at : CHUNK;

        st = hd_corpus_read(corpus, at, n, ids);
        for (int64_t i = 0; !st && i < n; i++)
            documents += ids[i] == end_of_text;
        last = st ? last : ids[n - 1];
    }
    free(ids);
    *ret_documents = documents + (count && last != end_of_text);
    return st;
}

static enum hd_status look_at_tokens(const struct hd_corpus *corpus, int64_t end_of_text,
                                     struct hd_survey *one)
{
    one->tokens = hd_corpus_token_count(corpus);
    one->documents = hd_corpus_document_count(corpus);
    if (one->documents >= 0 || end_of_text < 0 || one->tokens > TOKENS_SCANNED_MAX)
        return HD_OK;
    return count_ends(corpus, end_of_text, &one->documents);
}

static enum hd_status look_at(const struct hd_corpus_file *file, bool is_bytes, int64_t end_of_text,
                              int64_t vocab, enum hd_chat_form form, struct hd_survey *one)
{
    struct hd_corpus *corpus = NULL;
    enum hd_status st = hd_corpus_open(file, 1, &corpus);

    if (st)
        return st;
    *one = (struct hd_survey){.kind = hd_corpus_kind(corpus),
                              .files = 1,
                              .bytes = hd_corpus_byte_count(corpus),
                              .documents = 1,
                              .tokens = is_bytes ? hd_corpus_token_count(corpus) : -1};
    if (!hd_corpus_has_text(corpus)) {
        st = hd_corpus_set_vocab(corpus, vocab);
        if (!st)
            st = look_at_tokens(corpus, end_of_text, one);
    } else if (hd_text_ends(file->path, ".jsonl")) {
        one->tokens = -1;
        st = count_lines(file->path, &form, &one->documents);
        one->kind = st || form == HD_CHAT_TEXT ? "jsonl" : hd_chat_form_name(form);
    }
    hd_corpus_close(corpus);
    return st;
}

static int64_t add_known(int64_t a, int64_t b)
{
    return a < 0 || b < 0 ? -1 : a + b;
}

enum hd_status hd_survey(const struct hd_corpus_file *files, size_t count, bool is_bytes,
                         int64_t end_of_text, int64_t vocab, enum hd_chat_form form,
                         struct hd_survey *ret_survey)
{
    struct hd_survey all = {.kind = NULL}, one;

    for (size_t i = 0; i < count; i++) {
        enum hd_status st = look_at(&files[i], is_bytes, end_of_text, vocab, form, &one);

        if (st)
            return st;
        all.kind = !all.kind || strcmp(all.kind, one.kind) == 0 ? one.kind : "mixed";
        all.files++;
        all.bytes += one.bytes;
        all.documents = add_known(all.documents, one.documents);
        all.tokens = add_known(all.tokens, one.tokens);
    }
    *ret_survey = all;
    return HD_OK;
}
