/* tokenizer_internal: the data structures of a BPE, shared by the files of this folder.
 *
 *   json.c        tokenizer.json -> struct hd_bpe
 *   json_steps.c  its normalizer, pre_tokenizer, post_processor and decoder
 *   companions.c  the files beside it that name and add tokens
 *   merged.c      all added tokens, and their ids; what a post-processor puts around a text
 *   added.c       finds added tokens in a text
 *   split.c       regular expressions of pre-tokenizers (the only user of pcre2.h)
 *   cut.c         offsets at which a text may be cut
 *   nfc.c         normal form C (the only user of utf8proc.h)
 *   bpe.c         text into words, words into ids
 *   tokenizer.c   the public functions, and "bytes"
 *
 * Tokens are stored as bytes: the letters by which tokenizer.json represents bytes are converted
 * when it is read. There are two kinds. A byte-level BPE begins with the bytes of a word. A BPE
 * with byte fallback (Llama-2, Mistral) writes a space as U+2581 and begins with characters; a
 * character without a token becomes its bytes, <0x0A>. Here U+2581 is a space, in tokens and in
 * texts.
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
    HD_BPE_STEPS_MAX = 16,             /* pre-tokenizers in a sequence */
    HD_BPE_TEXT_BYTES_MAX = INT32_MAX, /* of one call */
};

struct hd_token_text {   /* the text of a token; bytes NULL: no token has this id */
    const char *content; /* as written in tokenizer.json */
    const unsigned char *bytes;
    uint32_t len_bytes;
    bool is_added;
    bool is_byte; /* <0x0A> of a BPE with byte fallback */
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

struct hd_split_step {
    struct hd_regex *regex; /* NULL: no split */
    enum hd_split_behavior behavior;
    bool invert;
    unsigned cut_properties; /* of hd_cut_properties; 0: unknown */
    bool adds_space;         /* before the split, to each piece that does not begin with a space */
};

struct hd_added_token {
    const char *content; /* in normal form C if `normalized` */
    uint32_t len_bytes;
    int32_t id;
    bool lstrip, rstrip, single_word, normalized, special;
};

enum hd_bpe_prefix { /* a space in front of a text of a BPE with byte fallback */
                     HD_PREFIX_NEVER,
                     HD_PREFIX_NORMAL, /* of every piece between added tokens: a normalizer's
                                          Prepend */
                     HD_PREFIX_PIECE,  /* the same, but not where there is one: Metaspace */
                     HD_PREFIX_FIRST,  /* the same, at the beginning of the text alone */
};

/* A trie of added tokens, by bytes. A node's children are a linked list; node 0 is the root. */
struct hd_added_set {
    struct hd_added_node {
        int32_t child, sibling; /* 0: none */
        int32_t token;          /* index in `tokens`, or -1 */
        unsigned char byte;
    } * nodes;
    int node_count, node_room;
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
    int32_t byte_ids[256];   /* the token of a single byte; -1: none */
    struct hd_merge *merges; /* [merge_mask + 1], a hash table */
    uint64_t merge_mask;
    int32_t *words; /* [word_mask + 1], a hash table of the model's tokens by bytes; -1: free */
    uint64_t word_mask;
    bool ignores_merges;
    bool is_nfc;
    bool falls_back;      /* a BPE with byte fallback; byte_ids are its tokens <0x..> */
    bool parts_at_spaces; /* falls_back, and no token has a space behind another character: words
                             end there, because nothing can be merged across it */
    bool normal_spaces;   /* falls_back: the normalizer makes the spaces, also of added tokens */
    enum hd_bpe_prefix prefix;
    struct hd_split_step steps[HD_BPE_STEPS_MAX];
    int step_count;
    enum hd_cut cut;
    struct hd_regex *word_char; /* for single_word tokens; NULL: there are none */
    struct hd_added_token *tokens;
    int token_count;
    struct hd_added_set plain, normalized;
    struct hd_added_set specials; /* the special ones among both, as written */
    struct hd_around around;
};

/* ---- json.c ---- */

/* companions: of the file's folder, which gets notes; NULL: none. Also after a failure the caller
 * must call hd_bpe_done. */
enum hd_status hd_bpe_read(const char *text, size_t text_bytes, struct hd_companions *companions,
                           struct hd_bpe *bpe);
void hd_bpe_done(struct hd_bpe *bpe);

/* Appends `text` with a space for each U+2581. */
void hd_bpe_add_spaces(const char *text, size_t len_bytes, struct hd_text *ret_text);

struct hd_json; /* base/json.h */

/* For json.c and json_steps.c. `known`: the keys that `object` may have, as "a|b|c". */
enum hd_status hd_bpe_check_keys(const struct hd_json *object, const char *where,
                                 const char *known);
/* The member, or NULL if it is absent or null. */
const struct hd_json *hd_bpe_member(const struct hd_json *object, const char *key);
enum hd_status hd_bpe_read_bool(const struct hd_json *object, const char *where, const char *key,
                                bool otherwise, bool *ret_value);

/* ---- json_steps.c ---- */

struct hd_bpe_steps {                /* what was read; initialise with {0} */
    bool has_byte_level, has_spaces; /* ByteLevel; U+2581 in place of spaces */
};

/* normalizer, pre_tokenizer, post_processor and decoder of the file, into the members of `bpe`. */
enum hd_status hd_bpe_read_steps(const struct hd_json *root, struct hd_bpe *bpe,
                                 struct hd_bpe_steps *ret_steps);

/* ---- merged.c ---- */

struct hd_merged_token {
    const char *content;
    struct hd_token_flags flags;
    int32_t id;
};

struct hd_merged_list { /* in the arena; initialise with {0} */
    struct hd_merged_token *tokens;
    int count, room;
};

/* All added tokens: those of the file (`own`: its added_tokens, or NULL) and of its companions (or
 * NULL), in the order of AutoTokenizer. A token of the model keeps its id; each other one gets the
 * next free id, as Hugging Face tokenizers counts, whatever the files say; a note names those that
 * say another one. bpe: its model's tokens are read. */
enum hd_status hd_merged_list_make(struct hd_arena *arena, const struct hd_json *own,
                                   struct hd_companions *companions, const struct hd_bpe *bpe,
                                   struct hd_merged_list *ret_list);

/* What a post_processor puts around a text. HD_INVALID names the key. */
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
    const size_t *guards; /* ascending offsets; no special token may hold one */
    size_t guard_count;
};

bool hd_added_next(struct hd_added_walk *walk, struct hd_added_piece *ret_piece);

/* As hd_tokenizer_find_special. */
bool hd_added_find_special(const struct hd_bpe *bpe, const unsigned char *text, size_t len_bytes,
                           size_t *at);

/* ---- split.c ---- */

bool hd_regex_is_present(void);
/* `pattern` in Oniguruma's syntax. HD_UNSUPPORTED names the part that is not supported. */
enum hd_status hd_regex_new(const char *pattern, struct hd_regex **ret_regex);
enum hd_status hd_regex_quote(const char *literal, struct hd_regex **ret_regex);
void hd_regex_free(struct hd_regex *regex); /* NULL is fine */

struct hd_regex_scratch; /* one thread's */
enum hd_status hd_regex_scratch_new(struct hd_regex_scratch **ret_scratch);
void hd_regex_scratch_free(struct hd_regex_scratch *scratch); /* NULL is fine */

/* The first match that begins at or after `from`; *ret_found false: none. The text is UTF-8. */
enum hd_status hd_regex_find(const struct hd_regex *regex, struct hd_regex_scratch *scratch,
                             const unsigned char *text, size_t len_bytes, size_t from,
                             bool *ret_found, size_t *ret_start, size_t *ret_end);
/* Whether the text, a single character, matches. For patterns of one character. */
bool hd_regex_is(const struct hd_regex *regex, const unsigned char *text, size_t len_bytes);

/* ---- cut.c ---- */

/* Properties (bits of cut.c) of a split by `pattern`. */
unsigned hd_cut_properties(const char *pattern, enum hd_split_behavior behavior);
/* Where this tokenizer allows cuts, from its steps and its added tokens. */
enum hd_cut hd_bpe_find_cut(const struct hd_bpe *bpe);
/* As hd_tokenizer_cut. */
size_t hd_bpe_cut(const struct hd_bpe *bpe, const unsigned char *text, size_t len_bytes,
                  size_t from);

/* ---- nfc.c ---- */

bool hd_nfc_is_present(void);
/* Converts a UTF-8 text to normal form C; ret_text is cleared first. */
enum hd_status hd_nfc(const unsigned char *text, size_t len_bytes, struct hd_text *ret_text);

/* ---- bpe.c ---- */

struct hd_bpe_encoder;
enum hd_status hd_bpe_encoder_new(const struct hd_bpe *bpe, struct hd_bpe_encoder **ret_encoder);
void hd_bpe_encoder_free(struct hd_bpe_encoder *encoder); /* NULL is fine */
/* places: NULL, or as for hd_encoder_add_places. */
enum hd_status hd_bpe_encode(struct hd_bpe_encoder *encoder, const unsigned char *text,
                             size_t len_bytes, struct hd_encoder_places *places,
                             struct hd_id_list *list);

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
