/* bpe_train: makes the merges of a byte-level BPE from word counts, and writes them as a
 * tokenizer.json.
 *
 * The pair of adjacent tokens that occurs most often becomes a token, until the vocabulary is full;
 * of equal counts the pair with the smaller ids first (Sennrich et al. 2016, "Neural Machine
 * Translation of Rare Words with Subword Units"). Ids and merges are those that BpeTrainer of
 * Hugging Face tokenizers gives for the same words: special tokens, then the 256 letters of
 * ByteLevel, then the merges.
 *
 * Used by: worker.   Uses: base, tokenizer, word_counts.   Threads: one.
 */
#ifndef HD_TOKENIZER_BPE_TRAIN_H
#define HD_TOKENIZER_BPE_TRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "tokenizer/word_counts.h"

enum {
    HD_BPE_TRAIN_SPECIALS_MAX = 1024,
    HD_BPE_TRAIN_VOCAB_MAX = 1 << 22, /* most ids, as of model.vocab */
};

/* How a text is split into words, which no token crosses. */
enum hd_word_pattern {
    HD_WORDS_CL100K, /* the pattern of GPT-4 and Llama 3: at most 3 digits a word */
    HD_WORDS_GPT2,
    HD_WORD_PATTERNS
};
extern const char *const hd_word_pattern_names[HD_WORD_PATTERNS];

struct hd_tokenizer;

/* Opens a tokenizer that only splits texts into words: the ids of a text are the bytes of each word
 * and HD_WORD_END behind it. */
enum hd_status hd_tokenizer_open_words(enum hd_word_pattern pattern,
                                       struct hd_tokenizer **ret_tokenizer);

struct hd_bpe_training {
    int32_t vocab;     /* ids to make, special tokens and letters included */
    int64_t min_count; /* a pair that occurs less often is not merged */
    /* special tokens, which get the first ids; distinct, not empty */
    const char *const *specials;
    int special_count;
    enum hd_word_pattern pattern; /* pattern that made the words; written to the file */
    /* Called about a hundred times; returns false to stop. May be NULL. */
    bool (*progress)(void *context, int32_t ids, int32_t vocab);
    void *context;
};

struct hd_bpe_trained {
    int32_t ids; /* ids made: less than `vocab` if no further pair occurs min_count times */
    int32_t merges;
    int64_t words; /* distinct words */
};

/* Appends to ret_json the tokenizer.json of a BPE trained on the words. HD_INVALID: the vocabulary
 * has no space for the letters and special tokens. HD_ABORTED: progress returned false. */
enum hd_status hd_bpe_train(const struct hd_bpe_training *how, const struct hd_word_counts *words,
                            struct hd_text *ret_json, struct hd_bpe_trained *ret_trained);

/* A token of the model: bytes that words consist of, or a special token. */
struct hd_bpe_token {
    const unsigned char *bytes;
    uint32_t len_bytes;
    bool is_special;
};

struct hd_bpe_rule { /* the merge of two adjacent tokens */
    int32_t left, right;
};

/* Appends the tokenizer.json of these tokens, by id, and merges. */
void hd_bpe_write(enum hd_word_pattern pattern, const struct hd_bpe_token *tokens, int32_t count,
                  const struct hd_bpe_rule *merges, int32_t merge_count, struct hd_text *ret_json);

/* Appends the tokenizer_config.json that names the tokens that begin, end and fill texts; NULL:
 * none. */
void hd_bpe_write_config(const char *bos, const char *eos, const char *pad,
                         struct hd_text *ret_json);

#endif
