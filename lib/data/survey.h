/* survey: counts the documents and tokens of data files before a job runs.
 *
 * Opens each file as a rank does and counts what is known without the tokenizer.
 *
 * Used by: worker.   Uses: data, base.   Threads: any.
 */
#ifndef HD_DATA_SURVEY_H
#define HD_DATA_SURVEY_H

#include <stdbool.h>

#include "data/data.h"

struct hd_survey {
    const char *kind; /* "text", "jsonl", the form of conversations ("messages" ..),
                         "conversations", "npy", "llm.c", "megatron", or "mixed" */
    int64_t files, bytes;
    int64_t documents; /* -1: unknown, or the files are too large to count them */
    int64_t tokens;    /* -1: unknown until the text is tokenized */
};

/* form: of the lines of .jsonl files. is_bytes: text has one token per byte. end_of_text: the id
 * that ends a document, or -1. vocab: see hd_corpus_set_vocab. HD_NOT_FOUND, HD_IO and HD_INVALID
 * name the file, and of a .jsonl the line. */
enum hd_status hd_survey(const struct hd_corpus_file *files, size_t count, bool is_bytes,
                         int64_t end_of_text, int64_t vocab, enum hd_chat_form form,
                         struct hd_survey *ret_survey);

#endif
