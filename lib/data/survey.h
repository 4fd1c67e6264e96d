/* survey: counts the documents and tokens of data files before a job runs, and checks that a rank
 * can read them.
 *
 * Opens each file as a rank does. All lines of a .jsonl are read as a rank reads them, and all text
 * is encoded, within the bounds below; a rank would find what is wrong only when it starts, or in
 * the middle of a run.
 *
 * Used by: worker.   Uses: data, tokenize, base.   Threads: starts those of tokenize.
 */
#ifndef HD_DATA_SURVEY_H
#define HD_DATA_SURVEY_H

#include <stdbool.h>

#include "data/data.h"
#include "tokenizer/tokenizer.h"

struct hd_survey {
    const char *kind; /* "text", "jsonl", the form of conversations ("messages" ..),
                         "conversations", "npy", "llm.c", "megatron", or "mixed" */
    int64_t files, bytes;
    int64_t documents; /* -1: unknown, or the files are too large to count them */
    int64_t tokens;    /* -1: unknown until the text is tokenized */
    int64_t checked;   /* bytes that were read as a rank reads them */
};

/* Facts about a job's data files, and what is left of the survey's bounds, which goes down from
 * file to file. */
struct hd_survey_rules {
    const struct hd_tokenizer *tokenizer; /* of text; NULL: none */
    int64_t end_of_text;                  /* the id that ends a document, or -1 */
    int64_t vocab;                        /* see hd_corpus_set_vocab */
    enum hd_chat_form form;               /* of the lines of .jsonl files */
    int threads;
    int64_t encode_left; /* bytes of text that are encoded; of more only the form is checked */
    int64_t read_left;   /* bytes of text that are read; of more the beginning of each file */
};

#define HD_SURVEY_ENCODE_MAX (INT64_C(256) << 20) /* some seconds of a machine's cores */
#define HD_SURVEY_READ_MAX   (INT64_C(16) << 30)  /* about a minute */

/* HD_NOT_FOUND, HD_IO and HD_INVALID name the file, and of a .jsonl the line. */
enum hd_status hd_survey_run(const struct hd_corpus_file *files, size_t count,
                             struct hd_survey_rules *rules, struct hd_survey *ret_survey);

#endif
