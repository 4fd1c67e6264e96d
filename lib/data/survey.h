/* survey: counts the documents and tokens of data files before a job runs, and checks that a rank
 * can read them.
 *
 * Opens each file as a rank does, reads the lines of a .jsonl as a rank does, and encodes text,
 * within the bounds below. A rank would find such errors only when it starts, or in the middle of a
 * run.
 *
 * Used by: worker.   Uses: data, tokenize, base.   Threads: starts those of tokenize.
 */
#ifndef HD_DATA_SURVEY_H
#define HD_DATA_SURVEY_H

#include <stdbool.h>

#include "data/data.h"
#include "tokenizer/tokenizer.h"

struct hd_survey {
    /* "text"; "jsonl", "parquet" and other kinds of records of text; a form of conversations, such
     * as "messages"; "conversations", "npy", "llm.c", "megatron", or "mixed" */
    const char *kind;
    int64_t files, bytes;
    /* documents of all files; -1: unknown, or the files are too large to count them */
    int64_t documents;
    int64_t tokens;   /* tokens of all files; -1: unknown until the text is tokenized */
    int64_t checked;  /* bytes of the files that were checked as a rank reads them */
    int64_t every;    /* records of a large file: one in so many was checked; 1: each */
    int64_t left_out; /* bad records that data.bad_rows leaves out, of those checked */
};

/* Facts about a job's data files, and the remaining budget of the survey, which each file
 * reduces. */
struct hd_survey_rules {
    const struct hd_tokenizer *tokenizer; /* tokenizer for text; NULL: none */
    int64_t end_of_text;                  /* id that ends a document; -1: none */
    int64_t vocab;                        /* size of the vocabulary: token ids must be below it */
    enum hd_chat_form form;               /* form that records must have */
    struct hd_row_rules rows;             /* how records are read */
    /* list of the bad records found; after HD_BAD_ROWS_SHOWN of them the survey ends, unless
     * data.bad_rows leaves bad records out. NULL: the first one is an error */
    struct hd_bad_rows *bad;
    int threads;
    /* bytes of records and text that the survey may still check completely (text by encoding it);
     * after that it checks only UTF-8, and the form of a sample of the records */
    int64_t encode_left;
    /* bytes that the survey may still read; after that it checks only the beginning of each file */
    int64_t read_left;
};

/* bytes of text that a survey encodes at most; takes seconds on all cores */
#define HD_SURVEY_ENCODE_MAX (INT64_C(256) << 20)
/* approximate bytes of records that are checked of a larger file, spread over the file */
#define HD_SURVEY_SAMPLE_BYTES (INT64_C(16) << 20)
/* bytes that a survey reads at most; takes about a minute */
#define HD_SURVEY_READ_MAX (INT64_C(16) << 30)

/* Counts and checks the files. Bad records in rules->bad are no failure here: the caller passes
 * them to hd_bad_rows_judge. On HD_NOT_FOUND, HD_IO and HD_INVALID the message names the file, and
 * the line of a .jsonl. */
enum hd_status hd_survey_run(const struct hd_corpus_file *files, size_t count,
                             struct hd_survey_rules *rules, struct hd_survey *ret_survey);

#endif
