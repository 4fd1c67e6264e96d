/* special: finds the token that ends a document, those at which generation stops, and the other
 * special tokens of a model, alike for training, generation, evaluation and export.
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
 * As in transformers, the end of a document follows the tokenizer's files, and the stops follow the
 * model's files. No token is recognised by its usual spelling alone.
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

/* Special token ids in the files of a model's folder, not checked against a tokenizer. */
struct hd_model_ids {
    int32_t eos[HD_SPECIAL_STOPS_MAX];
    int eos_count;
    int32_t bos, pad;     /* ids of the bos and the padding token; -1: none */
    const char *eos_file; /* file that has the eos ids: "generation_config.json" or "config.json";
                             "": none */
    bool has_generation;  /* whether the folder has a generation_config.json */
    const char *no_eos;   /* value by which generation_config.json says that nothing ends a text,
                             such as "null"; "": it does not say so */
};

/* Sets *ret_ids to the special token ids in the files of a model's folder; to none if dir is "" or
 * NULL, or has no such files. HD_INVALID, HD_LIMIT: the message names file and key. */
enum hd_status hd_model_ids_read(const char *dir, struct hd_model_ids *ret_ids);

struct hd_special_token {
    int32_t id;       /* token id; -1: none */
    const char *file; /* file, or tokenizer class, that names the token */
};

struct hd_special {
    struct hd_special_token end; /* token that ends a document */
    struct hd_special_token bos, pad, unk;
    int32_t stops[HD_SPECIAL_STOPS_MAX]; /* tokens at which generation ends */
    int stop_count;
    /* Lines for the user about contradictions between files, which say the file that wins. */
    char notes[HD_SPECIAL_NOTES_BYTES_MAX];
};

/* Returns the token with which a text without a prompt begins: bos, else the token that ends a
 * document; -1: there is neither. */
static inline int32_t hd_special_begin(const struct hd_special *special)
{
    return special->bos.id >= 0 ? special->bos.id : special->end.id;
}

/* Sets *ret_special to the special tokens of a model. tokenizer NULL: unknown. model_dir: the
 * model's folder; NULL or "": none. Fails like hd_model_ids_read. */
enum hd_status hd_special_resolve(const struct hd_tokenizer *tokenizer, const char *model_dir,
                                  struct hd_special *ret_special);

/* Appends a message for the user: no file names the token that ends a document; what to write
 * instead (what_to_write); which special tokens could be meant. */
void hd_special_explain_end(const struct hd_tokenizer *tokenizer, const char *what_to_write,
                            struct hd_text *ret_text);

#endif
