/* tokenize: converts text files to one token file, with several threads.
 *
 * A text file is one document; each line of a .jsonl file is one, under a key, or with
 * `conversations` a conversation, whose tokens have a bit each that says whether they count. The
 * output is the same for any number of threads: documents in the order of the inputs.
 *
 * Work is split into pieces of about 1 MiB: at ends of documents, and inside a long text where
 * hd_tokenizer_cut allows it (lib/tokenizer/cut.c). With other tokenizers, or in a text without
 * such a place, a piece may be as long as HD_TOKENIZE_PIECE_BYTES_MAX; then one thread works alone
 * and memory grows with the piece. Memory: two pieces per thread with their ids, and for Megatron's
 * format 20 bytes per document.
 *
 * Used by: train, worker.   Uses: base, tokenizer, conversations, token_writer.
 * Threads: starts its own; `progress` is called on the caller's thread.
 */
#ifndef HD_DATA_TOKENIZE_H
#define HD_DATA_TOKENIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/conversations.h"
#include "data/token_writer.h"
#include "tokenizer/tokenizer.h"

enum { HD_TOKENIZE_THREADS_MAX = 256 };
#define HD_TOKENIZE_PIECE_BYTES_MAX INT32_MAX

struct hd_tokenize_counts {
    int64_t documents, tokens, read_bytes, total_bytes; /* bytes of the input files */
    int64_t targets; /* tokens that count for the loss; of text all */
    int64_t spelled; /* conversations in which a message spells a special token */
};

struct hd_tokenize {
    const struct hd_tokenizer *tokenizer;
    int64_t end_of_text; /* the id to add after each document; < 0: none */
    int64_t vocab;       /* rows of the model: a text with another token is refused; 0: any */
    const char *const *inputs;
    size_t input_count;
    bool needs_tokens; /* inputs without a token are refused, and nothing is written */
    const char *out;   /* as for hd_token_writer_open; NULL: the inputs are checked alone */
    int64_t read_max;  /* without `out`: only about so many bytes of each input; 0: all */
    enum hd_token_format format;
    /* Not NULL: the lines of the inputs, all .jsonl, are conversations. The format must be
     * HD_TOKEN_FORMAT_COUNTS, and end_of_text is that of the rules. */
    const struct hd_conversation_rules *conversations;
    const char *key; /* of the text in a line of .jsonl; NULL: "text" */
    int threads;
    /* Called several times per second; returns false to stop the work. May be NULL. */
    bool (*progress)(void *context, const struct hd_tokenize_counts *so_far);
    void *context;
};

/* Ids have 16 bits if the vocabulary and end_of_text allow it, else 32. Atomic and durable
 * (token_writer.h). HD_INVALID names the input and, in .jsonl, the line. HD_ABORTED: progress
 * returned false. ret_counts may be NULL. */
enum hd_status hd_tokenize_run(const struct hd_tokenize *how,
                               struct hd_tokenize_counts *ret_counts);

#endif
