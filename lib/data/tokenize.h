/* tokenize: converts text files to one token file, with several threads.
 *
 * A text file is one document. Each record of a file (records/source.h) is one: its member `text`
 * or, with `conversations`, a conversation, for which the output says which tokens count for the
 * loss. The output is the same for any number of threads: documents in the order of the inputs.
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

#include "data/bad_rows.h"
#include "data/conversations.h"
#include "data/data.h"
#include "data/token_writer.h"
#include "tokenizer/tokenizer.h"

enum { HD_TOKENIZE_THREADS_MAX = 256 };
#define HD_TOKENIZE_PIECE_BYTES_MAX INT32_MAX

struct hd_tokenize_counts {
    /* documents and tokens written so far; bytes of the input files read so far, and in total */
    int64_t documents, tokens, read_bytes, total_bytes;
    int64_t text_bytes; /* bytes of text, or of records as lines of JSON, that the files hold */
    int64_t targets;    /* tokens that count for the loss; for text, all */
    /* number of conversations in which a message contains the text of a special token */
    int64_t spelled;
    int64_t left_out; /* bad records that were left out */
};

struct hd_tokenize {
    const struct hd_tokenizer *tokenizer;
    int64_t end_of_text; /* id to add after each document; < 0: none */
    /* rows of the model's embedding: text with an id not below it is refused; 0: not checked */
    int64_t vocab;
    const char *const *inputs;
    size_t input_count;
    /* true: of records without a member `text`, the texts of a conversation's messages are encoded,
     * one by one, without a template */
    bool takes_messages;
    bool needs_tokens; /* true: inputs that give no token are HD_INVALID, and no file is written */
    const char *out;   /* path as for hd_token_writer_open; NULL: writes no file */
    /* Gets all ids in their order, some at a time, on the caller's thread; a failure ends the run.
     * NULL: not needed. */
    enum hd_status (*take)(void *context, const int32_t *ids, size_t count);
    int64_t read_max; /* if out is NULL: bytes of text to read of each input, approximately; 0:
                          all */
    int64_t every;    /* if out is NULL: one record in so many is encoded; 0: each */
    enum hd_token_format format;
    /* Rules for conversations; then all inputs are .jsonl files of conversations, the format must
     * be HD_TOKEN_FORMAT_COUNTS, and end_of_text must equal that of the rules. NULL: the inputs are
     * text. */
    const struct hd_conversation_rules *conversations;
    struct hd_row_rules rows; /* how records are read; bad ones are left out if it says so */
    /* Collects the bad records. Where these are an error, the run fails only after
     * HD_BAD_ROWS_SHOWN of them or at the end of a file. NULL: the first bad record ends the
     * run. */
    struct hd_bad_rows *bad;
    int threads;
    /* Called several times per second; returns false to stop the run. May be NULL. */
    bool (*progress)(void *context, const struct hd_tokenize_counts *so_far);
    void *context;
};

/* Tokenizes the input files into one token file. Ids have 16 bits if the vocabulary and end_of_text
 * allow it, else 32. Atomic and durable (token_writer.h). ret_counts may be NULL. HD_INVALID: the
 * message names the input and the line of a .jsonl. HD_ABORTED: progress returned false. */
enum hd_status hd_tokenize_run(const struct hd_tokenize *how,
                               struct hd_tokenize_counts *ret_counts);

#endif
