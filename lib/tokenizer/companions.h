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
 * tokenizer can have default tokens (GPT2Tokenizer: <|endoftext|>) for names that no file gives. A
 * value is a string, an object with "content" (an AddedToken), or null, which means that there is
 * no such token. merged.c merges these tokens with those of tokenizer.json.
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

/* Flags that say how an added token is found in a text, as Hugging Face tokenizers defines them. */
struct hd_token_flags {
    bool lstrip, rstrip, single_word, normalized, special;
};

struct hd_companion_token {
    const char *content; /* text of the added token, never empty */
    struct hd_token_flags flags;
    /* true: the file has the token as a string, so `flags` are those of a special token */
    bool is_text;
    /* true: the file has the key "normalized"; false: flags.normalized follows from
     * flags.special */
    bool says_normalized;
    int64_t id; /* id that the file gives the token; -1: none */
};

struct hd_companion_name {
    const char *name; /* name of the special token: the key, such as "eos_token" */
    struct hd_companion_token token;
    /* file that has the key, such as "tokenizer_config.json"; or the tokenizer class whose default
     * the token is */
    const char *file;
};

enum hd_companion_file {
    HD_COMPANION_TOKENIZER_CONFIG,
    HD_COMPANION_SPECIAL_TOKENS_MAP,
    HD_COMPANION_ADDED_TOKENS,
    HD_COMPANION_CONFIG,
    HD_COMPANION_FILES
};
/* names of the companion files, by enum hd_companion_file */
extern const char *const hd_companion_files[HD_COMPANION_FILES];

struct hd_companions {
    struct hd_arena arena;
    /* tokenizer class that transformers would choose; "": the general class */
    const char *tokenizer_class;
    const char *asked_class; /* class that the files name; "": none */
    /* true: the class builds the tokenizer anew: the added tokens of tokenizer.json count only if
     * `listed` is not from added_tokens_decoder */
    bool rebuilds;
    bool resets; /* true: the class finally gives all special tokens the same flags */
    /* true: tokenizer_config.json has add_prefix_space, and with this class it overrides the steps
     * of tokenizer.json */
    bool asks_prefix_space;
    bool wants_prefix_space; /* value of add_prefix_space, if asks_prefix_space */
    bool splits_specials;    /* value of split_special_tokens: the text of a special token is
                                encoded as ordinary tokens */
    /* special tokens by name, in the order in which they are added to the vocabulary */
    struct hd_companion_name *names;
    int name_count;
    /* added tokens for which a file gives an id, by ascending id */
    struct hd_companion_token *listed;
    int listed_count;
    /* true: `listed` is from added_tokens_decoder; false: from added_tokens.json */
    bool has_decoder;
    struct hd_companion_token *extras;
    int extra_count;
    struct hd_text notes; /* one line per contradiction between two files, saying which file wins */
};

/* Contents of the companion files of a tokenizer.json; data NULL: the file is missing. */
struct hd_companion_texts {
    struct hd_text files[HD_COMPANION_FILES];
    bool is_byte_level; /* whether tokenizer.json has the text "ByteLevel" */
};

/* Parses the contents of the companion files. HD_INVALID, HD_LIMIT: the message names file and key.
 * The caller must call hd_companions_done, also after a failure. */
enum hd_status hd_companions_parse(const struct hd_companion_texts *texts,
                                   struct hd_companions *ret_companions);

/* Reads the companion files in a folder. tokenizer_json: the contents of its tokenizer.json; NULL:
 * reads that file too, if there is one. Fails like hd_companions_parse. */
enum hd_status hd_companions_read(const char *dir, const struct hd_text *tokenizer_json,
                                  struct hd_companions *ret_companions);
void hd_companions_done(struct hd_companions *companions);

/* Sets ret_path to the tokenizer in a folder: its tokenizer.json, else its tokenizer.model or
 * spiece.model. Returns false, and leaves ret_path empty, if it has none of them. */
bool hd_companions_find_tokenizer(const char *dir, struct hd_text *ret_path);

/* Appends to ret_text a message for the user: the model folder has no tokenizer.json or
 * tokenizer.model, which other tokenizer files it has, and how to convert them to a tokenizer.json. */
void hd_companions_explain_missing(const char *dir, struct hd_text *ret_text);

/* Returns the special token of a name such as "eos_token"; NULL: the name has none. */
const struct hd_companion_name *hd_companions_find(const struct hd_companions *companions,
                                                   const char *name);

/* Returns a hash of everything in the companion files that can change the ids of a text or the name
 * of a special token; 0: nothing can. */
uint64_t hd_companions_hash(const struct hd_companions *companions);

#endif
