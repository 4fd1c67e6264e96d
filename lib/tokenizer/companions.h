/* companions: the files beside a tokenizer.json that name special tokens and add tokens.
 *
 *   tokenizer_config.json    bos_token, eos_token ..., NAME_token; tokens that are added:
 *                            added_tokens_decoder, extra_special_tokens, additional_special_tokens;
 *                            tokenizer_class; split_special_tokens; add_prefix_space
 *   special_tokens_map.json  the same names. It wins over tokenizer_config.json, but is not read if
 *                            that file has added_tokens_decoder
 *   added_tokens.json        an older form of added_tokens_decoder, with the same condition
 *   config.json              model_type, and tokenizer_class if tokenizer_config.json has none
 *
 * The order of precedence is that of AutoTokenizer.from_pretrained in transformers 5. A class of
 * tokenizer can have names of its own (GPT2Tokenizer: <|endoftext|>), which hold where no file
 * gives the name. A value is a text, an object with "content" (an AddedToken), or null, which means
 * that there is no such token. merged.c merges these tokens with those of tokenizer.json.
 *
 * Used by: chat, data, special, tokenizer.   Uses: base.
 * Threads: immutable once read.
 */
#ifndef HD_TOKENIZER_COMPANIONS_H
#define HD_TOKENIZER_COMPANIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"

enum { HD_COMPANION_BYTES_MAX = 16 << 20 };

/* How an added token is found in a text; the meaning of each flag is that of Hugging Face
 * tokenizers. */
struct hd_token_flags {
    bool lstrip, rstrip, single_word, normalized, special;
};

struct hd_companion_token {
    const char *content; /* never empty */
    struct hd_token_flags flags;
    bool is_text;         /* written as a text: `flags` are those of a special token */
    bool says_normalized; /* else flags.normalized follows from flags.special */
    int64_t id;           /* as its file says; -1: its file says none */
};

struct hd_companion_name {
    const char *name; /* "eos_token" */
    struct hd_companion_token token;
    const char *file; /* "tokenizer_config.json"; of a class its name */
};

enum hd_companion_file {
    HD_COMPANION_TOKENIZER_CONFIG,
    HD_COMPANION_SPECIAL_TOKENS_MAP,
    HD_COMPANION_ADDED_TOKENS,
    HD_COMPANION_CONFIG,
    HD_COMPANION_FILES
};
extern const char *const hd_companion_files[HD_COMPANION_FILES]; /* their names */

struct hd_companions {
    struct hd_arena arena;
    const char *tokenizer_class; /* the one transformers would take; "": the general one */
    bool rebuilds; /* this class builds the tokenizer anew: the added tokens of tokenizer.json count
                      only where `listed` is not from added_tokens_decoder */
    bool resets;   /* and gives all special tokens the same flags at its end */
    bool asks_prefix_space; /* this class follows add_prefix_space of tokenizer_config.json, not the
                               steps of tokenizer.json, and the file has the key: */
    bool wants_prefix_space; /* its value */
    bool splits_specials;    /* split_special_tokens: a text that spells a special token becomes
                                ordinary tokens */
    struct hd_companion_name *names; /* in the order in which tokens are added */
    int name_count;
    struct hd_companion_token *listed; /* with ids, ascending */
    int listed_count;
    bool has_decoder; /* `listed` is added_tokens_decoder, else added_tokens.json */
    struct hd_companion_token *extras;
    int extra_count;
    struct hd_text notes; /* lines: where two files contradict each other, and which one won */
};

/* The contents of the files. data NULL: there is no such file. */
struct hd_companion_texts {
    struct hd_text files[HD_COMPANION_FILES];
    bool is_byte_level; /* tokenizer.json says "ByteLevel" */
};

/* Reads the contents of the files. HD_INVALID, HD_LIMIT: the message names the file and the key.
 * Also after a failure the caller must call hd_companions_done. */
enum hd_status hd_companions_parse(const struct hd_companion_texts *texts,
                                   struct hd_companions *ret_companions);

/* Reads the files of a folder. tokenizer_json: the bytes of its tokenizer.json; NULL: reads what
 * it needs of that file, if there is one. */
enum hd_status hd_companions_read(const char *dir, const struct hd_text *tokenizer_json,
                                  struct hd_companions *ret_companions);
void hd_companions_done(struct hd_companions *companions);

/* Says that a model folder has no tokenizer.json, which other form of a tokenizer it has, and how a
 * tokenizer.json is made of that. */
void hd_companions_explain_missing(const char *dir, struct hd_text *ret_text);

/* Returns the name's row; NULL: it has no token. */
const struct hd_companion_name *hd_companions_find(const struct hd_companions *companions,
                                                   const char *name);

/* Returns a hash of all that can change the ids of a text or a special token's name; 0: nothing
 * can. */
uint64_t hd_companions_hash(const struct hd_companions *companions);

#endif
