/* tokenize_files: text files into one token file, by several threads.
 *
 * A text file is one document; of a .jsonl file each line is one, under a key. The order is that of
 * the inputs, whatever the number of threads, and so is every byte of the output. Work is cut at
 * ends of documents only, where no id can depend on what follows; so one large text file keeps one
 * thread busy, and its ids stay in memory until it is done.
 *
 * Used by: worker.   Uses: base, tokenizer.   Threads: one caller; it starts its own.
 */
#ifndef HD_DATA_TOKENIZE_FILES_H
#define HD_DATA_TOKENIZE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { HD_TOKENIZE_THREADS_MAX = 256 };

struct hd_tokenize_counts {
    int64_t documents, tokens, read_bytes, total_bytes; /* bytes of the input files */
};

struct hd_tokenize_job {
    const char *const *inputs;
    size_t input_count;
    const char *out;       /* .npy: one dimension; .bin: llm.c's format */
    const char *tokenizer; /* as for hd_tokenizer_open */
    const char *key;       /* of a line of .jsonl; NULL: "text" */
    int threads;
    bool ends_documents; /* each document is followed by the tokenizer's end of text, if it has one
                          */
    /* Called now and then; false stops the work. May be NULL. */
    bool (*progress)(void *context, const struct hd_tokenize_counts *so_far);
    void *context;
};

/* Ids take 16 bits where the vocabulary has at most 65,536, else 32. The file is whole and durable,
 * or as it was before. Errors name the input and, in .jsonl, the line. HD_ABORTED: progress said
 * so. */
enum hd_status hd_tokenize_files(const struct hd_tokenize_job *how,
                                 struct hd_tokenize_counts *ret_counts);

#endif
