/* tokenizer_internal: the data structures of a BPE, shared by the files of this folder.
 *
 *   json.c          tokenizer.json -> struct hd_bpe
 *   companions.c    the files beside it that name and add tokens
 *   merged.c        all added tokens, and their ids; what a post-processor puts around a text
 *   json_added.c    the merged list, as the encoder searches it
 *   json_steps.c    its normalizer, pre_tokenizer and post_processor
 *   json_decoder.c  its decoder
 *   added.c         finds added tokens in a text
 *   piece.c         pieces of a text that remember the bytes they were made of
 *   normal.c        normalizers
 *   unicode.c       normal forms and sets of characters (the only user of utf8proc.h)
 *   pattern.c       regular expressions: from Oniguruma's syntax to PCRE2's
 *   split.c         matches of patterns (the only user of pcre2.h)
 *   cut.c           offsets at which a text may be cut
 *   encode.c        text -> normalizers -> pre-tokenizers -> words
 *   bpe.c           words into ids
 *   decode.c        ids into text
 *   tokenizer.c     the public functions, and "bytes"
 *
 * Every step sees the text that the step of the reference sees: U+2581 is a character like any
 * other, and a space is a space until a step of the file replaces it. One thing is represented
 * otherwise: where ByteLevel is the last pre-tokenizer, its letters are not written out. The words
 * are then bytes, and the tokens of the model are stored as the bytes that their letters represent
 * (`is_byte_level`). Nothing sees the letters but the model, and each letter is one byte, so the
 * ids are the same.
 */
#ifndef HD_TOKENIZER_INTERNAL_H
#define HD_TOKENIZER_INTERNAL_H

#include <stdbool.h>

#include "base/arena.h"
#include "tokenizer/companions.h"
#include "tokenizer/tokenizer.h"

enum {
    HD_BPE_IDS_MAX = 1 << 24,
    HD_BPE_TOKEN_BYTES_MAX = 1 << 16,
    HD_BPE_STEPS_MAX = 32,             /* of each kind */
    HD_BPE_AFFIX_BYTES_MAX = 32,       /* a prefix or suffix of the model */
    HD_BPE_TEXT_BYTES_MAX = INT32_MAX, /* of one call */
};

struct hd_token_text {          /* content NULL: no token has this id */
    const char *content;        /* as written in tokenizer.json */
    const char *shown;          /* as decoders see it: an added token as the normalizers make it */
    const unsigned char *bytes; /* a token of the model as its words spell it; NULL: not of it */
    uint32_t len_bytes;         /* of `bytes`; 0: never occurs in a word */
    bool is_added;
};

struct hd_merge { /* adjacent tokens left and right become `result`; key 0: a free slot */
    uint64_t key;
    int32_t rank, result;
};

enum hd_split_behavior {
    HD_SPLIT_ISOLATED,
    HD_SPLIT_REMOVED,
    HD_SPLIT_MERGED_WITH_PREVIOUS,
    HD_SPLIT_MERGED_WITH_NEXT,
    HD_SPLIT_CONTIGUOUS,
};

struct hd_regex; /* immutable */

/* A pattern: a regular expression or a literal. */
struct hd_matcher {
    struct hd_regex *regex;       /* NULL: the literal */
    const unsigned char *literal; /* not empty */
    size_t literal_bytes;
};

/* ---- steps ---- */

enum hd_normal_kind {
    HD_NORMAL_FORM, /* one of enum hd_normal_form */
    HD_NORMAL_LOWERCASE,
    HD_NORMAL_STRIP,
    HD_NORMAL_STRIP_ACCENTS,
    HD_NORMAL_NMT,
    HD_NORMAL_REPLACE,
    HD_NORMAL_PREPEND,
    HD_NORMAL_LETTERS, /* ByteLevel */
    /* parts of BertNormalizer */
    HD_NORMAL_BERT_CLEAN,
    HD_NORMAL_BERT_CHINESE,
    HD_NORMAL_BERT_ACCENTS,
};

enum hd_normal_form { HD_NFC, HD_NFD, HD_NFKC, HD_NFKD };

struct hd_normal_step {
    enum hd_normal_kind kind;
    enum hd_normal_form form;
    bool left, right;          /* STRIP */
    struct hd_matcher pattern; /* REPLACE */
    const char *content;       /* REPLACE, PREPEND */
    size_t content_bytes;
};

enum hd_split_kind {
    HD_STEP_SPLIT,
    HD_STEP_SPACE,     /* ByteLevel: a space in front of a piece that begins without one */
    HD_STEP_METASPACE, /* a character in place of spaces and in front */
    HD_STEP_LETTERS,   /* ByteLevel: a letter for each byte */
    HD_STEP_LENGTH,    /* FixedLength */
};

enum hd_prepend { HD_PREPEND_NEVER, HD_PREPEND_FIRST, HD_PREPEND_ALWAYS };

struct hd_split_step {
    enum hd_split_kind kind;
    struct hd_matcher pattern; /* SPLIT */
    enum hd_split_behavior behavior;
    bool invert;
    unsigned cut_properties; /* of hd_cut_properties; 0: unknown */
    char content[8];         /* METASPACE: the character in UTF-8 */
    enum hd_prepend prepend; /* METASPACE */
    int64_t length;          /* LENGTH: characters */
};

enum hd_decode_kind {
    HD_DECODE_REPLACE,
    HD_DECODE_BYTE_FALLBACK,
    HD_DECODE_FUSE,
    HD_DECODE_STRIP,
    HD_DECODE_METASPACE,
    HD_DECODE_LETTERS, /* ByteLevel */
    HD_DECODE_SUFFIX,  /* BPEDecoder */
};

struct hd_decode_step {
    enum hd_decode_kind kind;
    struct hd_matcher pattern; /* REPLACE, SUFFIX */
    const char *content;       /* REPLACE; STRIP, METASPACE: a character */
    int64_t start, stop;       /* STRIP: characters */
    enum hd_prepend prepend;   /* METASPACE */
};

struct hd_added_token {
    const char *content; /* in normal form C if `normalized` */
    uint32_t len_bytes;
    int32_t id;
    bool lstrip, rstrip, single_word, normalized, special;
};

/* A trie of added tokens, by bytes. A node's children are a linked list; node 0 is the root. */
struct hd_added_set {
    struct hd_added_node {
        int32_t child, sibling; /* 0: none */
        int32_t token;          /* index in `tokens`, or -1 */
        unsigned char byte;
    } * nodes;
    int node_count, node_capacity;
    int32_t first[256]; /* the root's children by byte; 0: none */
};

/* Ids that tokenizers puts around one text if special tokens are asked for. */
struct hd_around {
    int32_t *before, *behind;
    int before_count, behind_count;
};

enum hd_cut { HD_CUT_NOWHERE, HD_CUT_AT_LINES, HD_CUT_AT_SPACES };

struct hd_bpe {
    struct hd_arena arena;
    struct hd_token_text *texts; /* [vocab] */
    int32_t vocab;
    int32_t byte_ids[256];   /* the token of a byte: of its letter if is_byte_level, else <0x..> if
                                falls_back; -1: none */
    struct hd_merge *merges; /* [merge_mask + 1], a hash table */
    uint64_t merge_mask;
    int32_t *words; /* [word_mask + 1], a hash table of the model's tokens by bytes; -1: free */
    uint64_t word_mask;
    bool ignores_merges;
    bool is_byte_level;
    bool falls_back;    /* a character without a token becomes its bytes, if all have one */
    int32_t unknown;    /* the token of a character without one; -1: such a text is refused */
    bool fuses_unknown; /* one token for adjacent ones */
    const char *prefix, *suffix; /* continuing_subword_prefix, end_of_word_suffix; "": none */
    bool parts_at_spaces;        /* words may end in front of U+2581: no token has it behind another
                                    character, so nothing can be merged across that place */
    struct hd_normal_step normals[HD_BPE_STEPS_MAX];
    int normal_count;
    struct hd_split_step steps[HD_BPE_STEPS_MAX];
    int step_count;
    struct hd_decode_step decodes[HD_BPE_STEPS_MAX];
    int decode_count;
    bool has_decoder;
    bool needs_origins; /* a step asks where a piece begins in the text, behind steps that change it
                         */
    enum hd_cut cut;
    struct hd_regex *word_char; /* for single_word tokens; NULL: there are none */
    struct hd_added_token *tokens;
    int token_count;
    struct hd_added_set plain, normalized;
    struct hd_added_set specials; /* the special ones among both, as written; none if
                                     splits_specials */
    bool splits_specials;         /* a special token in a text becomes ordinary tokens */
    struct hd_around around;
};

/* ---- json.c ---- */

/* Reads a tokenizer.json. companions: of the file's folder, which gets notes; NULL: none. Also
 * after a failure the caller must call hd_bpe_done. */
enum hd_status hd_bpe_read(const char *text, size_t text_bytes, struct hd_companions *companions,
                           struct hd_bpe *bpe);
void hd_bpe_done(struct hd_bpe *bpe);

struct hd_json; /* base/json.h */

/* For json.c and json_steps.c. `known`: the keys that `object` may have, as "a|b|c". */
enum hd_status hd_bpe_check_keys(const struct hd_json *object, const char *where,
                                 const char *known);
/* The member, or NULL if it is absent or null. */
const struct hd_json *hd_bpe_member(const struct hd_json *object, const char *key);
enum hd_status hd_bpe_read_bool(const struct hd_json *object, const char *where, const char *key,
                                bool otherwise, bool *ret_value);

/* Allocates entries for the ids up to `id`. */
enum hd_status hd_bpe_reach(struct hd_bpe *bpe, int32_t id);

/* ---- json_added.c ---- */

/* Reads the tokens of `list` (added_tokens of the file, or NULL) and of its companions (or NULL),
 * after model and steps. arena: for as long as the file is read. */
enum hd_status hd_bpe_read_added(const struct hd_json *list, struct hd_arena *arena,
                                 struct hd_companions *companions, struct hd_bpe *bpe);

/* ---- json_steps.c ---- */

/* Reads normalizer, pre_tokenizer and post_processor of the file into the members of `bpe`. */
enum hd_status hd_bpe_read_steps(const struct hd_json *root, struct hd_bpe *bpe);
/* Reads {"String": ..} or {"Regex": ..} of the member "pattern". */
enum hd_status hd_bpe_read_pattern(struct hd_bpe *bpe, const struct hd_json *object,
                                   const char *where, struct hd_matcher *ret_matcher);
void hd_matcher_done(struct hd_matcher *matcher);
/* Reads a member that is one character. */
enum hd_status hd_bpe_read_character(const struct hd_json *object, const char *where,
                                     const char *key, const char **ret_text);

/* Reads the settings of Metaspace. */
enum hd_status hd_bpe_read_metaspace(struct hd_bpe *bpe, const struct hd_json *p, const char *where,
                                     const char **ret_content, enum hd_prepend *ret_prepend,
                                     bool *ret_splits);

/* ---- json_decoder.c ---- */

enum hd_status hd_bpe_read_decoder(const struct hd_json *root, struct hd_bpe *bpe);

/* ---- piece.c ---- */

struct hd_origin { /* the bytes [from, to) of the text of a call */
    uint32_t from, to;
};

/* Part of a text, perhaps changed by steps. */
struct hd_text_piece {
    const unsigned char *text;
    size_t len_bytes;
    const struct hd_origin *origins; /* of each byte; NULL: byte i is byte from + i of the text */
    size_t from;
};

/* A text under construction. Initialise with {0}. */
struct hd_rewrite {
    struct hd_text text;
    struct hd_origin *origins;
    size_t capacity;
    bool tracks; /* origins are kept */
};

void hd_rewrite_begin(struct hd_rewrite *rewrite, bool tracks);
void hd_rewrite_free(struct hd_rewrite *rewrite);
/* Appends bytes that were all made of `origin`. */
void hd_rewrite_add(struct hd_rewrite *rewrite, const void *bytes, size_t count,
                    struct hd_origin origin);
/* Appends the bytes [from, to) of a piece. */
void hd_rewrite_copy(struct hd_rewrite *rewrite, const struct hd_text_piece *piece, size_t from,
                     size_t to);
/* Makes *piece the text that was written in its place. */
enum hd_status hd_rewrite_take(struct hd_rewrite *rewrite, struct hd_text_piece *piece);
void hd_rewrite_letters(struct hd_rewrite *rewrite,
                        const struct hd_text_piece *piece); /* ByteLevel */

/* Returns the bytes of the text that [from, to) of a piece was made of; [from, to) is not
 * empty. */
struct hd_origin hd_text_piece_origin(const struct hd_text_piece *piece, size_t from, size_t to);
struct hd_text_piece hd_text_piece_part(const struct hd_text_piece *piece, size_t from, size_t to);

/* Return the code point of ByteLevel's letter for a byte, and the reverse, or -1. */
uint32_t hd_letter_of_byte(unsigned char byte);
int hd_byte_of_letter(uint32_t code);

/* UTF-8 that is known to be valid. */
static inline size_t hd_character_bytes(unsigned char lead)
{
    return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}
uint32_t hd_character_code(const unsigned char *character, size_t *ret_bytes);
size_t hd_character_spell(uint32_t code, unsigned char ret_bytes[4]); /* bytes */

/* ---- normal.c ---- */

struct hd_regex_scratch;

/* Applies the steps to *piece. `rewrites`: two; *piece points into one of them or stays. */
enum hd_status hd_normalise(const struct hd_normal_step *steps, int count,
                            struct hd_regex_scratch *scratch, bool tracks,
                            struct hd_rewrite rewrites[2], struct hd_text_piece *piece);

/* ---- merged.c ---- */

struct hd_merged_token {
    const char *content;
    struct hd_token_flags flags;
    int32_t id;
};

struct hd_merged_list { /* in the arena; initialise with {0} */
    struct hd_merged_token *tokens;
    int count, capacity;
};

/* Makes the list of all added tokens: those of the file (`own`: its added_tokens, or NULL) and of
 * its companions (or NULL), in the order of AutoTokenizer. A token of the model keeps its id. Each
 * other token gets the next free id, as Hugging Face tokenizers counts, whatever id the files give
 * it; a note names the tokens whose id differs. bpe: its model's tokens are read. */
enum hd_status hd_merged_list_make(struct hd_arena *arena, const struct hd_json *own,
                                   struct hd_companions *companions, const struct hd_bpe *bpe,
                                   struct hd_merged_list *ret_list);

/* Reads the ids that a post_processor puts around a text. HD_INVALID names the key. */
enum hd_status hd_around_read(const struct hd_json *post_processor, struct hd_arena *arena,
                              struct hd_around *ret_around);

/* ---- added.c ---- */

enum hd_status hd_added_insert(struct hd_arena *arena, struct hd_added_set *set, int token,
                               const char *content, size_t len_bytes);

/* A piece of a text: an added token (its id), or text between added tokens (-1). */
struct hd_added_piece {
    size_t from, to;
    int32_t id;
};

/* Iterates over the pieces of a text; set bpe, set, text and len_bytes. Pieces do not overlap,
 * except that a token may strip a space that is itself an added token. */
struct hd_added_walk {
    const struct hd_bpe *bpe;
    const struct hd_added_set *set;
    const unsigned char *text;
    size_t len_bytes;
    size_t search, done; /* offsets: next search; end of the pieces that were returned */
    struct hd_added_piece held;
    bool has_held;
    const size_t *guards; /* ascending offsets in the text of the call; no special token may hold
                             one */
    size_t guard_count;
    const struct hd_text_piece *piece; /* whose text it is; NULL: the text of the call */
};

bool hd_added_next(struct hd_added_walk *walk, struct hd_added_piece *ret_piece);

/* As hd_tokenizer_find_special. */
bool hd_added_find_special(const struct hd_bpe *bpe, const unsigned char *text, size_t len_bytes,
                           size_t *at);

/* ---- pattern.c ---- */

/* Translates a pattern in the syntax of Oniguruma, as Hugging Face tokenizers reads it, to one that
 * PCRE2 reads alike. `newer`: with the characters that the Unicode of PCRE2 does not have yet.
 * HD_INVALID: no pattern; HD_UNSUPPORTED names the part, its byte and what to write instead. */
enum hd_status hd_pattern_translate(const char *pattern, bool newer, struct hd_text *ret_text);

/* ---- split.c ---- */

bool hd_regex_is_present(void);
enum hd_status hd_regex_new(const char *pattern, struct hd_regex **ret_regex); /* Oniguruma's */
/* A pattern of PCRE2 in which <name> is replaced by the characters of a set of unicode.def. */
enum hd_status hd_regex_of_sets(const char *pattern, struct hd_regex **ret_regex);
void hd_regex_free(struct hd_regex *regex);               /* NULL is fine */
bool hd_regex_may_be_empty(const struct hd_regex *regex); /* whether a match may be empty */

/* One thread's. */
enum hd_status hd_regex_scratch_new(struct hd_regex_scratch **ret_scratch);
void hd_regex_scratch_free(struct hd_regex_scratch *scratch); /* NULL is fine */
/* Says whether the following texts may have characters that the Unicode of PCRE2 lacks. */
void hd_regex_scratch_newer(struct hd_regex_scratch *scratch, bool newer);

/* Returns whether the text, a single character, matches. For patterns of one character. */
bool hd_regex_is(const struct hd_regex *regex, const unsigned char *text, size_t len_bytes);

/* Iterates over the matches of a text, which is UTF-8 and not empty. Initialise the first four. An
 * empty match is one too, unless it is where the match before it ended. */
struct hd_match_walk {
    const struct hd_matcher *matcher;
    struct hd_regex_scratch *scratch;
    const unsigned char *text;
    size_t len_bytes;
    size_t search, last_end;
    bool has_last;
};

/* Finds the next match. *ret_found false: there are no more. */
enum hd_status hd_match_next(struct hd_match_walk *walk, bool *ret_found, size_t *ret_from,
                             size_t *ret_to);

/* ---- cut.c ---- */

/* Properties (bits of cut.c) of a split by `pattern`. */
unsigned hd_cut_properties(const char *pattern, enum hd_split_behavior behavior);
/* Where this tokenizer allows cuts, from its steps and its added tokens. */
enum hd_cut hd_bpe_find_cut(const struct hd_bpe *bpe);
/* As hd_tokenizer_cut. */
size_t hd_bpe_cut(const struct hd_bpe *bpe, const unsigned char *text, size_t len_bytes,
                  size_t from);

/* ---- unicode.c ---- */

bool hd_unicode_is_present(void); /* utf8proc; the sets need none */
/* Appends a text in a normal form of Unicode 9. */
enum hd_status hd_unicode_normal(enum hd_normal_form form, const unsigned char *text,
                                 size_t len_bytes, struct hd_text *ret_text);
/* Returns whether a character begins what a normal form changes together: no character before it
 * joins it. */
bool hd_unicode_begins(enum hd_normal_form form, uint32_t code);
size_t hd_unicode_lower(uint32_t code, uint32_t ret_codes[2]); /* how many */
bool hd_unicode_is_accent(uint32_t code, bool as_bert);
bool hd_unicode_is_control(uint32_t code); /* as BertNormalizer has it */
bool hd_unicode_is_space(uint32_t code);   /* White_Space */
bool hd_unicode_has_newer(const unsigned char *text, size_t len_bytes);
/* Returns whether case folding could join a character, not ASCII, with others. */
bool hd_unicode_may_fold(uint32_t code);
/* Appends the characters of a set of unicode.def as parts of a PCRE2 class. False: no such set. */
bool hd_unicode_add_set(const char *name, size_t name_bytes, bool newer, struct hd_text *ret_items);

/* ---- bpe.c ---- */

struct hd_words; /* the working memory of one thread */
enum hd_status hd_words_new(const struct hd_bpe *bpe, struct hd_words **ret_words);
void hd_words_free(struct hd_words *words); /* NULL is fine */
/* Appends the ids of a word. */
enum hd_status hd_words_add(struct hd_words *words, const unsigned char *word, size_t len_bytes,
                            struct hd_id_list *list);
/* Appends the ids of a word like hd_words_add. *ret_lens: the bytes of the word that each id
 * spells, valid until the next call. */
enum hd_status hd_words_add_lens(struct hd_words *words, const unsigned char *word,
                                 size_t len_bytes, struct hd_id_list *list,
                                 const int32_t **ret_lens);

/* ---- encode.c ---- */

struct hd_bpe_encoder;
enum hd_status hd_bpe_encoder_new(const struct hd_bpe *bpe, struct hd_bpe_encoder **ret_encoder);
void hd_bpe_encoder_free(struct hd_bpe_encoder *encoder); /* NULL is fine */
/* places: NULL, or as for hd_encoder_add_places. */
enum hd_status hd_bpe_encode(struct hd_bpe_encoder *encoder, const unsigned char *text,
                             size_t len_bytes, struct hd_encoder_places *places,
                             struct hd_id_list *list);

/* ---- decode.c ---- */

/* Decode like hd_tokenizer_decode and hd_tokenizer_decode_next. */
enum hd_status hd_bpe_decode(const struct hd_bpe *bpe, const int32_t *ids, size_t count,
                             struct hd_text *ret_text);
enum hd_status hd_bpe_decode_next(const struct hd_bpe *bpe, int32_t id, struct hd_text *ret_bytes);

/* ---- hashes ---- */

static inline uint64_t hd_mix64(uint64_t x) /* the finaliser of MurmurHash3 */
{
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

/* The merge of two adjacent tokens, or NULL. A key is never 0. */
static inline const struct hd_merge *hd_bpe_merge(const struct hd_bpe *bpe, int32_t left,
                                                  int32_t right)
{
    const uint64_t key = ((uint64_t)left + 1) << 32 | (uint32_t)right;

    for (uint64_t i = hd_mix64(key) & bpe->merge_mask;; i = (i + 1) & bpe->merge_mask) {
        if (bpe->merges[i].key == key)
            return &bpe->merges[i];
        if (!bpe->merges[i].key)
            return NULL;
    }
}

/* The token of the model with these bytes, or -1. */
int32_t hd_bpe_word(const struct hd_bpe *bpe, const unsigned char *bytes, size_t len_bytes);

#endif
