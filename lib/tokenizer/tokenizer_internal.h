/* tokenizer_internal: a byte-level BPE in memory, and what its files share.
 *
 *   json.c        tokenizer.json -> struct hd_bpe
 *   added.c       where added tokens stand in a text
 *   split.c       pre-tokenizers: a text into words (the owner of pcre2.h)
 *   cut.c         where a text may be cut
 *   nfc.c         the normaliser (the owner of utf8proc.h)
 *   bpe.c         words into ids
 *   tokenizer.c   the public functions, and "bytes"
 *
 * Tokens are kept as the bytes they stand for: the letters by which tokenizer.json spells bytes are
 * translated once, when it is read.
 */
#ifndef HD_TOKENIZER_INTERNAL_H
#define HD_TOKENIZER_INTERNAL_H

#include <stdbool.h>

#include "base/arena.h"
#include "tokenizer/tokenizer.h"

enum {
    HD_BPE_IDS_MAX = 1 << 24,
    HD_BPE_TOKEN_BYTES_MAX = 1 << 16,
    HD_BPE_STEPS_MAX = 16,             /* pre-tokenizers in a sequence */
    HD_BPE_TEXT_BYTES_MAX = INT32_MAX, /* of one call */
};

struct hd_token_text {   /* what a token stands for; bytes NULL: there is no such token */
    const char *content; /* as tokenizer.json spells it */
    const unsigned char *bytes;
    uint32_t len_bytes;
    bool is_added;
};

struct hd_merge { /* left and right side by side become `result`; key 0: a free slot */
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
    unsigned cut_properties; /* by hd_cut_properties; 0: nothing is known */
    bool adds_space; /* in front of each piece that does not begin with one, before the split */
};

struct hd_added_token {
    const char *content; /* after the normaliser where `normalized` */
    uint32_t len_bytes;
    int32_t id;
    bool lstrip, rstrip, single_word, normalized;
};

/* Added tokens by their bytes. A node's children are a list; node 0 is the root. */
struct hd_added_set {
    struct hd_added_node {
        int32_t child, sibling; /* 0: none */
        int32_t token;          /* index in `tokens`, or -1 */
        unsigned char byte;
    } * nodes;
    int node_count, node_room;
    int32_t first[256]; /* the root's children by byte; 0: none */
};

enum hd_cut { HD_CUT_NOWHERE, HD_CUT_AT_LINES, HD_CUT_AT_SPACES };

struct hd_bpe {
    struct hd_arena arena;
    struct hd_token_text *texts; /* [vocab] */
    int32_t vocab;
    int32_t byte_ids[256];   /* -1: none */
    struct hd_merge *merges; /* [merge_mask + 1] */
    uint64_t merge_mask;
    int32_t *words; /* [word_mask + 1] tokens of the model by their bytes; -1: free */
    uint64_t word_mask;
    bool ignores_merges;
    bool is_nfc;
    struct hd_split_step steps[HD_BPE_STEPS_MAX];
    int step_count;
    enum hd_cut cut;
    struct hd_regex *word_char; /* for single_word; NULL: no token needs it */
    struct hd_added_token *tokens;
    int token_count;
    struct hd_added_set plain, normalized;
};

/* ---- tokenizer_json.c ---- */

/* On failure what was taken is still the caller's to free. */
enum hd_status hd_bpe_read(const char *text, size_t text_bytes, struct hd_bpe *bpe);
void hd_bpe_done(struct hd_bpe *bpe);

/* ---- tokenizer_added.c ---- */

enum hd_status hd_added_insert(struct hd_arena *arena, struct hd_added_set *set, int token,
                               const char *content, size_t len_bytes);

/* A piece of a text: an added token (id >= 0), or text between them (-1). */
struct hd_added_piece {
    size_t from, to;
    int32_t id;
};

/* Walks over a text; start with {.text, .len_bytes}. Pieces never overlap, but where one token
 * strips the space that is another. */
struct hd_added_walk {
    const struct hd_bpe *bpe;
    const struct hd_added_set *set;
    const unsigned char *text;
    size_t len_bytes;
    size_t search, done; /* where to look for the next match; up to where pieces were given */
    struct hd_added_piece held;
    bool has_held;
};

bool hd_added_next(struct hd_added_walk *walk, struct hd_added_piece *ret_piece);

/* ---- tokenizer_split.c ---- */

bool hd_regex_is_present(void);
/* `pattern` in the language of tokenizer.json (Oniguruma's); HD_UNSUPPORTED names what of it is not
 * built. */
enum hd_status hd_regex_new(const char *pattern, struct hd_regex **ret_regex);
enum hd_status hd_regex_quote(const char *literal, struct hd_regex **ret_regex);
void hd_regex_free(struct hd_regex *regex); /* NULL is fine */

struct hd_regex_scratch; /* one thread's */
enum hd_status hd_regex_scratch_new(struct hd_regex_scratch **ret_scratch);
void hd_regex_scratch_free(struct hd_regex_scratch *scratch); /* NULL is fine */

/* The first match at or behind `from`; *ret_found false when there is none. The text is UTF-8. */
enum hd_status hd_regex_find(const struct hd_regex *regex, struct hd_regex_scratch *scratch,
                             const unsigned char *text, size_t len_bytes, size_t from,
                             bool *ret_found, size_t *ret_start, size_t *ret_end);
/* Does the one character that is the text match? For patterns of one character. */
bool hd_regex_is(const struct hd_regex *regex, const unsigned char *text, size_t len_bytes);

/* ---- tokenizer_cut.c ---- */

/* What is known of a split by `pattern`. */
unsigned hd_cut_properties(const char *pattern, enum hd_split_behavior behavior);
/* From the steps and the added tokens. */
enum hd_cut hd_bpe_find_cut(const struct hd_bpe *bpe);
/* The first place at or behind `from` where the text may be cut; 0: there is none. */
size_t hd_bpe_cut(const struct hd_bpe *bpe, const unsigned char *text, size_t len_bytes,
                  size_t from);

/* ---- tokenizer_nfc.c ---- */

bool hd_nfc_is_present(void);
/* The text, which is UTF-8, in normal form C; ret_text is cleared first. */
enum hd_status hd_nfc(const unsigned char *text, size_t len_bytes, struct hd_text *ret_text);

/* ---- tokenizer_bpe.c ---- */

struct hd_bpe_encoder;
enum hd_status hd_bpe_encoder_new(const struct hd_bpe *bpe, struct hd_bpe_encoder **ret_encoder);
void hd_bpe_encoder_free(struct hd_bpe_encoder *encoder); /* NULL is fine */
enum hd_status hd_bpe_encode(struct hd_bpe_encoder *encoder, const unsigned char *text,
                             size_t len_bytes, struct hd_id_list *list);

/* ---- hashes ---- */

static inline uint64_t hd_mix64(uint64_t x) /* the finaliser of MurmurHash3 */
{
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

/* NULL when the two never merge. Ids are below 2^24, so a key is never 0. */
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
