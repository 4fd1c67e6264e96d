/* tokenize: text files into one token file, by several threads.
 *
 * A text file is one document; of a .jsonl file each line is one, under a key. The order is that of
 * the inputs, whatever the number of threads, and so is every byte of the output.
 *
 * Work is cut into pieces of about a MiB: at ends of documents, and inside of a long text where
 * hd_tokenizer_cut knows that no id depends on what is behind the cut (tokenizer_cut.c proves it
 * for the tokenizers in use). With any other tokenizer, or where a text has no such place, a piece
 * is as long as it takes, at most HD_TOKENIZE_PIECE_BYTES_MAX; then memory and threads are those of
 * one piece. In memory are two pieces for each thread with their ids, and of Megatron's format 20
 * bytes for each document.
 *
 * Used by: train, worker.   Uses: base, tokenizer, token_writer.   Threads: one caller; it starts
 * its own, and calls `progress` in the caller's.
 */
#ifndef HD_DATA_TOKENIZE_H
#define HD_DATA_TOKENIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/token_writer.h"
#include "tokenizer/tokenizer.h"

enum { HD_TOKENIZE_THREADS_MAX = 256 };
#define HD_TOKENIZE_PIECE_BYTES_MAX INT32_MAX

struct hd_tokenize_counts {
    int64_t documents, tokens, read_bytes, total_bytes; /* bytes of the input files */
};

struct hd_tokenize {
    const struct hd_tokenizer *tokenizer;
    int64_t end_of_text; /* id behind each document; < 0: none */
    const char *const *inputs;
    size_t input_count;
    const char *out; /* as for hd_token_writer_open */
    enum hd_token_format format;
    const char *key; /* of a line of .jsonl; NULL: "text" */
    int threads;
    /* Called often, also while nothing comes out; false stops the work. May be NULL. */
    bool (*progress)(void *context, const struct hd_tokenize_counts *so_far);
    void *context;
};

/* Ids take 16 bits where the vocabulary and end_of_text allow it, else 32. The result is whole and
 * durable, or what was there stays. HD_INVALID names the input and, in .jsonl, the line; HD_IO a
 * full disk, too. HD_ABORTED: progress said so. ret_counts may be NULL. */
enum hd_status hd_tokenize(const struct hd_tokenize *how, struct hd_tokenize_counts *ret_counts);

#endif
