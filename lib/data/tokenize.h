/* tokenize: a text file into a token file that knows its documents.
 *
 * The result is Megatron's indexed dataset (token_file.h): OUT.bin with 16-bit ids where the
 * vocabulary allows it, else 32-bit, and OUT.idx beside it, which comes last: where it is, both are
 * whole. Text goes through the tokenizer in pieces of about a MiB that end behind a line break
 * before a visible character, where no tokenizer's pattern joins what stands on both sides, so that
 * a file of any size takes little memory.
 *
 * Used by: train, worker.   Uses: tokenizer, base.   Threads: any; one call per thread.
 */
#ifndef HD_DATA_TOKENIZE_H
#define HD_DATA_TOKENIZE_H

#include <stdbool.h>

#include "data/tokenizer.h"

struct hd_tokenize {
    const struct hd_tokenizer *tokenizer;
    int64_t end_of_text; /* id behind each document; < 0: none */
    const char *in;      /* text, one document; or .jsonl: each line's member "text" is one */
    const char *out;     /* a path without .bin and .idx */
    /* Called often; false gives up (HD_ABORTED). May be NULL. */
    bool (*progress)(void *context, int64_t done_bytes, int64_t total_bytes);
    void *context;
};

/* HD_INVALID names the file, and the line of a .jsonl, that is not what it should be. A result that
 * is there already is replaced whole. */
enum hd_status hd_tokenize_file(const struct hd_tokenize *what);

#endif
