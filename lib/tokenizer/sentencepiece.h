/* sentencepiece: a SentencePiece model, the file tokenizer.model; inside the folder.
 *
 *   sp_file.c    the file -> struct hd_sp_file
 *   sp_model.c   struct hd_sp_file -> struct hd_bpe with a struct hd_sp
 *   sp_normal.c  its normalizer
 *   sp_words.c   words into ids: BPE by scores, and unigram (Kudo 2018, "Subword Regularization")
 *
 * A model of either kind becomes a struct hd_bpe whose words are encoded by sp_words.c instead of
 * merges: added tokens, places, decoders and the cache of words are those of every tokenizer. Ids
 * are those of the library sentencepiece 0.2.3, to the rounding of its sums.
 */
#ifndef HD_TOKENIZER_SENTENCEPIECE_H
#define HD_TOKENIZER_SENTENCEPIECE_H

#include "tokenizer/tokenizer_internal.h"

enum {
    HD_SP_FILE_BYTES_MAX = 64 << 20,
    HD_SP_PIECES_MAX = 1 << 22,
    HD_SP_PIECE_BYTES_MAX = 4096,
    /* bytes of one text; encoding needs up to 80 times as much memory */
    HD_SP_WORD_BYTES_MAX = 1 << 27,
};

enum hd_sp_type {
    HD_SP_NORMAL = 1,
    HD_SP_UNKNOWN,
    HD_SP_CONTROL,
    HD_SP_USER_DEFINED,
    HD_SP_UNUSED,
    HD_SP_BYTE
};

enum hd_sp_kind { HD_SP_UNIGRAM = 1, HD_SP_BPE };

struct hd_sp_piece {
    const char *text; /* not empty, UTF-8 */
    float score;
    enum hd_sp_type type;
};

/* Contents of the file; everything lives in the arena given to hd_sp_file_read. */
struct hd_sp_file {
    struct hd_sp_piece *pieces; /* by id */
    int32_t count, capacity;
    int64_t kind; /* enum hd_sp_kind, or a kind that is not supported */
    bool falls_back;
    bool space_is_suffix;              /* treat_whitespace_as_suffix */
    const char *unk, *bos, *eos, *pad; /* pieces with these roles; the file may lack them */
    /* normalizer_spec */
    const unsigned char *charsmap; /* precompiled_charsmap; NULL: none */
    size_t charsmap_bytes;
    bool adds_prefix, removes_spaces, escapes_spaces;
    bool has_denormalizer; /* denormalizer_spec has rules */
};

/* Reads a ModelProto. HD_INVALID, HD_LIMIT: the message says what is wrong at which byte. */
enum hd_status hd_sp_file_read(const void *bytes, size_t size_bytes, struct hd_arena *arena,
                               struct hd_sp_file *ret_file);

/* Returns the id of a piece of the type `control` that has this text; -1: none. */
int32_t hd_sp_find_control(const struct hd_sp_file *file, const char *text);

/* The parts of a model that encode; immutable. */
struct hd_sp {
    enum hd_sp_kind kind;
    const float *scores;        /* [vocab of the model] */
    const unsigned char *types; /* [vocab of the model], enum hd_sp_type */
    int32_t count;              /* pieces; larger ids are added tokens */
    float least;                /* smallest score of a normal piece */
    bool has_unused;
    struct hd_added_set symbols; /* user-defined pieces, by id */
    struct hd_added_set pieces;  /* unigram: all pieces that words can have, by id */
    /* rules of the normalizer: a double array of units, and their replacements, each ended by NUL */
    const uint32_t *units;
    size_t unit_count;
    const char *replacements;
    size_t replacement_bytes;
    bool adds_prefix, removes_spaces, escapes_spaces, space_is_suffix;
};

/* Reads a tokenizer.model into `bpe`, like hd_bpe_read. Without a tokenizer_config.json special
 * tokens are known, but no text becomes one, as in the library. */
enum hd_status hd_sp_read(const void *bytes, size_t size_bytes, struct hd_companions *companions,
                          struct hd_bpe *bpe);

/* Writes the normalized piece to `out`. */
enum hd_status hd_sp_normalise(const struct hd_sp *sp, const struct hd_text_piece *piece,
                               struct hd_rewrite *out);

/* Takes the rules of a precompiled_charsmap: the number of bytes of a double array, the array, and
 * the replacements. */
enum hd_status hd_sp_take_rules(const unsigned char *charsmap, size_t charsmap_bytes,
                                struct hd_arena *arena, struct hd_sp *sp);

/* Returns the length of the longest, or shortest, rule at the beginning of a text, and sets
 * *ret_value to the offset of its replacement; 0: no rule. Never leaves the array, whatever it
 * holds. */
size_t hd_sp_find_rule(const struct hd_sp *sp, const unsigned char *text, size_t len_bytes,
                       bool shortest, uint32_t *ret_value);

/* ---- precompiled.c ---- */

/* Reads the normalizer Precompiled of a tokenizer.json. */
enum hd_status hd_precompiled_read(const struct hd_json *n, struct hd_arena *arena,
                                   const struct hd_sp **ret_sp);
/* Writes the normalized piece to `out`. */
enum hd_status hd_precompiled_normalise(const struct hd_sp *sp, const struct hd_text_piece *piece,
                                        struct hd_rewrite *out);

/* Returns the length of the longest text in the set at the beginning of a text; 0: none.
 * *ret_token: its token. */
size_t hd_sp_longest(const struct hd_added_set *set, const unsigned char *text, size_t len_bytes,
                     int32_t *ret_token);

/* Working memory of one thread. */
struct hd_sp_words;
enum hd_status hd_sp_words_new(const struct hd_bpe *bpe, struct hd_sp_words **ret_words);
void hd_sp_words_free(struct hd_sp_words *words); /* NULL is fine */
/* Appends the ids of a word. lens: [len_bytes] bytes of the word that each id spells; NULL: not
 * needed. */
enum hd_status hd_sp_words_add(struct hd_sp_words *words, const unsigned char *word,
                               size_t len_bytes, struct hd_id_list *list, int32_t *lens);

#endif
