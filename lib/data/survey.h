/* survey: what data files hold, for who wants to know it before a job runs.
 *
 * Opens each file as a rank would and counts what can be counted without the tokenizer. Tokens of
 * text that a tokenizer.json will read are not known before it did.
 *
 * Used by: worker.   Uses: data, base.   Threads: any.
 */
#ifndef HD_DATA_SURVEY_H
#define HD_DATA_SURVEY_H

#include <stdbool.h>

#include "data/data.h"

struct hd_survey {
    const char *kind; /* "text", "jsonl", "npy", "llm.c", "megatron", or "mixed" */
    int64_t files, bytes;
    int64_t documents; /* -1: the files do not tell, or are too large to be looked through */
    int64_t tokens;    /* -1: known when the text has been tokenized */
};

/* is_bytes: text is read a token per byte. end_of_text: the id that ends a document, or -1. vocab:
 * ids must be below (looked at as hd_corpus_set_vocab says). HD_NOT_FOUND, HD_IO and HD_INVALID
 * name the file, of a .jsonl the first line that is not one. */
enum hd_status hd_survey(const struct hd_corpus_file *files, size_t count, bool is_bytes,
                         int64_t end_of_text, int64_t vocab, struct hd_survey *ret_survey);

#endif
