/* special: the token that ends a document, those at which generation stops, and the other special
 * tokens of a model: one answer for training, generation, evaluation and export.
 *
 *   the tokenizer's names    eos_token, bos_token ... of the files beside its tokenizer.json
 *                            (companions.h has their order of precedence)
 *   generation_config.json   of the model's folder: eos_token_id (a number or a list),
 *                            bos_token_id, pad_token_id; where this file is missing those of
 *                            config.json, also in its text_config
 *
 *   end of a document   eos_token; else the first id of the model's files that is a special token;
 *                       else none
 *   stops               the ids of the model's files; else eos_token; else none
 *   bos, pad            the tokenizer's names; else the ids of the model's files
 *
 * That is what transformers does, where a trainer asks the tokenizer and generate asks the model.
 * No token is found by what it is usually called.
 *
 * Used by: data, train, generate, worker, hf.   Uses: base, companions, tokenizer.
 * Threads: any; an answer is immutable and borrows from its tokenizer.
 */
#ifndef HD_TOKENIZER_SPECIAL_H
#define HD_TOKENIZER_SPECIAL_H

#include <stdbool.h>
#include <stdint.h>

#include "tokenizer/tokenizer.h"

enum { HD_SPECIAL_STOPS_MAX = 32, HD_SPECIAL_NOTES_BYTES_MAX = 4096 };

/* Ids of a model's folder, as its files say them; no tokenizer checked them. */
struct hd_model_ids {
    int32_t eos[HD_SPECIAL_STOPS_MAX];
    int eos_count;
    int32_t bos, pad;     /* -1: none */
    const char *eos_file; /* "generation_config.json" or "config.json"; "": eos_count is 0 */
    bool has_generation;  /* there is a generation_config.json */
    const char *no_eos;   /* how that file says that nothing ends a text: "null"; "": it does not */
};

/* Reads the ids. HD_INVALID, HD_LIMIT: the message names the file and the key. No ids if dir is ""
 * or NULL, or has no such files. */
enum hd_status hd_model_ids_read(const char *dir, struct hd_model_ids *ret_ids);

struct hd_special_token {
    int32_t id;       /* -1: none */
    const char *file; /* file that names it, or a class of tokenizers */
};

struct hd_special {
    struct hd_special_token end; /* of a document */
    struct hd_special_token bos, pad, unk;
    int32_t stops[HD_SPECIAL_STOPS_MAX]; /* the tokens at which generation ends */
    int stop_count;
    /* Lines for people: where files contradict each other, and which one won. */
    char notes[HD_SPECIAL_NOTES_BYTES_MAX];
};

/* Finds the special tokens of a model. tokenizer: NULL: unknown. model_dir: its folder; NULL or
 * "": none. Fails like hd_model_ids_read. */
enum hd_status hd_special_resolve(const struct hd_tokenizer *tokenizer, const char *model_dir,
                                  struct hd_special *ret_special);

/* Says that no file names the token that ends a document, and what to write instead; lists the
 * special tokens that could be meant. */
void hd_special_explain_end(const struct hd_tokenizer *tokenizer, const char *what_to_write,
                            struct hd_text *ret_text);

#endif
