/* tokenizer_internal: the data structures of a BPE or Unigram model, shared by the files of this folder.
 *
 *   json.c          tokenizer.json -> struct hd_bpe
 *   companions.c    the files beside it that name and add tokens
 *   merged.c        all added tokens and their ids; ids that a post-processor puts around a text
 *   json_added.c    the tables in which the encoder searches added tokens
 *   json_steps.c    its normalizer, pre_tokenizer and post_processor
 *   json_decoder.c  its decoder
 *   added.c         finds added tokens in a text
 *   vocabulary.c    finds tokens by their bytes
 *   sp_*.c          SentencePiece models (sentencepiece.h)
 *   unigram.c       models of type Unigram
 *   precompiled.c   the normalizer Precompiled
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
 *   count.c         counts ids from the files alone
 *   word_counts.c   counts words, from which
 *   bpe_train.c     makes merges, and
 *   bpe_write.c     writes a tokenizer.json
 *
 * Every step sees the text that the step of the reference sees: U+2581 is a character like any
 * other, and a space is a space until a step of the file replaces it. One representation differs:
 * if ByteLevel is the last pre-tokenizer, its letters are not written out. The words
 * are then bytes, and the tokens of the model are stored as the bytes that their letters represent
 * (`is_byte_level`). Only the model would read the letters, and each letter is one byte, so the ids
 * are equal.
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
    HD_BPE_STEPS_MAX = 32, /* most steps of each kind: normalizers, pre-tokenizers, decoder steps */
    HD_BPE_AFFIX_BYTES_MAX = 32,       /* bytes of the model's prefix or suffix */
    HD_BPE_TEXT_BYTES_MAX = INT32_MAX, /* bytes of text in one call */
};

struct hd_token_text {   /* content NULL: no token has this id */
    const char *content; /* text as written in tokenizer.json */
    /* text that decoders get; of an added token its text after the normalizers */
    const char *shown;
    /* bytes by which the token occurs in words; NULL: it is no token of the model */
    const unsigned char *bytes;
    uint32_t len_bytes; /* bytes in `bytes`; 0: never occurs in a word */
    bool is_added;
};

/* row of a hash table: the merge of two adjacent tokens (both in `key`) into `result`; key 0: free
 * row */
struct hd_merge {
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

struct hd_regex; /* compiled pattern; immutable */
struct hd_sp;    /* SentencePiece model, sentencepiece.h */

/* A pattern: a regular expression or a literal. */
struct hd_matcher {
    struct hd_regex *regex;       /* compiled regular expression; NULL: a literal */
    const unsigned char *literal; /* literal, not empty */
    size_t literal_bytes;
};

/* ---- steps ---- */

enum hd_normal_kind {
    HD_NORMAL_FORM, /* converts to a Unicode normal form, enum hd_normal_form */
    HD_NORMAL_LOWERCASE,
    HD_NORMAL_STRIP,
    HD_NORMAL_STRIP_ACCENTS,
    HD_NORMAL_NMT,
    HD_NORMAL_REPLACE,
    HD_NORMAL_PREPEND,
    HD_NORMAL_LETTERS, /* ByteLevel: writes a letter for each byte */
    HD_NORMAL_SENTENCEPIECE,
    HD_NORMAL_PRECOMPILED,
    /* steps of BertNormalizer */
    HD_NORMAL_BERT_CLEAN,
    HD_NORMAL_BERT_CHINESE,
    HD_NORMAL_BERT_ACCENTS,
};

enum hd_normal_form { HD_NFC, HD_NFD, HD_NFKC, HD_NFKD };

struct hd_normal_step {
    enum hd_normal_kind kind;
    enum hd_normal_form form;
    /* HD_NORMAL_STRIP: whether to strip white space at the beginning and at the end */
    bool left, right;
    struct hd_matcher pattern; /* HD_NORMAL_REPLACE: what to replace */
    const char *content;       /* HD_NORMAL_REPLACE, HD_NORMAL_PREPEND: text */
    size_t content_bytes;
    const struct hd_sp *sp; /* HD_NORMAL_SENTENCEPIECE, HD_NORMAL_PRECOMPILED: its rules */
};

enum hd_split_kind {
    HD_STEP_SPLIT,
    HD_STEP_SPACE, /* ByteLevel: adds a space before a piece that begins without one */
    /* Metaspace: writes a character, U+2581 by default, for each space and in front of the text */
    HD_STEP_METASPACE,
    HD_STEP_LETTERS, /* ByteLevel: writes a letter for each byte */
    HD_STEP_LENGTH,  /* FixedLength: cuts a piece into equal lengths */
};

enum hd_prepend { HD_PREPEND_NEVER, HD_PREPEND_FIRST, HD_PREPEND_ALWAYS };

struct hd_split_step {
    enum hd_split_kind kind;
    struct hd_matcher pattern; /* HD_STEP_SPLIT: where to split */
    enum hd_split_behavior behavior;
    bool invert;
    unsigned cut_properties; /* bits of hd_cut_properties; 0: unknown */
    char content[8];         /* HD_STEP_METASPACE: character that replaces spaces, in UTF-8 */
    /* HD_STEP_METASPACE: when to write the character in front of the text */
    enum hd_prepend prepend;
    int64_t length; /* HD_STEP_LENGTH: characters per piece */
};

enum hd_decode_kind {
    HD_DECODE_REPLACE,
    HD_DECODE_BYTE_FALLBACK,
    HD_DECODE_FUSE,
    HD_DECODE_STRIP,
    HD_DECODE_METASPACE,
    HD_DECODE_LETTERS, /* ByteLevel: letters to bytes */
    HD_DECODE_SUFFIX,  /* BPEDecoder: suffix to space */
};

struct hd_decode_step {
    enum hd_decode_kind kind;
    struct hd_matcher pattern; /* HD_DECODE_REPLACE, HD_DECODE_SUFFIX: what to replace */
    const char *content;       /* HD_DECODE_REPLACE: replacement; STRIP, METASPACE: one character */
    int64_t start, stop;       /* HD_DECODE_STRIP: characters to remove at each end, at most */
    enum hd_prepend prepend;   /* HD_DECODE_METASPACE: unless NEVER, drops the first space */
};

struct hd_added_token {
    /* text of the added token for which the encoder searches; after the normalizers if
     * `normalized` */
    const char *content;
    uint32_t len_bytes;
    int32_t id;
    bool lstrip, rstrip, single_word, normalized, special;
};

/* Trie of added tokens, by bytes. A node's children are a linked list; node 0 is the root. */
struct hd_added_set {
    struct hd_added_node {
        int32_t child, sibling; /* indices of nodes; 0: none */
        int32_t token;          /* index in `tokens`; -1: no token ends at this node */
        unsigned char byte;
    } * nodes;
    int node_count, node_capacity;
    int32_t first[256]; /* children of the root by byte; 0: none */
};

/* Ids that a post-processor puts before and after a text for add_special_tokens=True. */
struct hd_around {
    int32_t *before, *behind;
    int before_count, behind_count;
};

enum hd_cut { HD_CUT_NOWHERE, HD_CUT_AT_LINES, HD_CUT_AT_SPACES };

struct hd_bpe {
    struct hd_arena arena;
    struct hd_token_text *texts; /* [vocab] texts of the tokens by id */
    int32_t vocab;
    /* id of the token that spells each byte: its letter if is_byte_level, else <0x..> if
     * falls_back; -1: none */
    int32_t byte_ids[256];
    struct hd_merge *merges; /* hash table [merge_mask + 1] */
    uint64_t merge_mask;
    int32_t *words; /* hash table [word_mask + 1] of the model's tokens by their bytes; -1: free */
    uint64_t word_mask;
    bool ignores_merges;
    bool is_byte_level;
    /* true: a character without a token becomes the tokens <0x..> of its bytes, if all of them
     * exist */
    bool falls_back;
    /* id for a character without a token; -1: texts with such characters are refused */
    int32_t unknown;
    bool fuses_unknown; /* true: adjacent characters without a token become one `unknown` */
    const char *prefix, *suffix; /* continuing_subword_prefix, end_of_word_suffix; "": none */
    /* true: words may end before U+2581: no token has U+2581 after another character, so no merge
     * crosses that position */
    bool parts_at_spaces;
    struct hd_normal_step normals[HD_BPE_STEPS_MAX];
    int normal_count;
    struct hd_split_step steps[HD_BPE_STEPS_MAX];
    int step_count;
    struct hd_decode_step decodes[HD_BPE_STEPS_MAX];
    int decode_count;
    bool has_decoder;
    /* true: a step depends on the position of a piece in the text, and earlier steps change
     * offsets */
    bool needs_origins;
    enum hd_cut cut;
    struct hd_regex *word_char; /* pattern of a word character, for single_word tokens; NULL: no
                                   such tokens */
    struct hd_added_token *tokens;
    int token_count;
    struct hd_added_set plain, normalized;
    struct hd_added_set specials; /* special tokens of both sets, as written in the file; empty if
                                     splits_specials */
    bool splits_specials; /* true: the text of a special token is encoded as ordinary tokens */
    struct hd_around around;
    const struct hd_sp *sp;           /* encodes the words, instead of merges; NULL: others do */
    const struct hd_unigram *unigram; /* encodes the words; NULL: others do */
    /* true: ids are the bytes of words, each word followed by HD_WORD_END (word_counts.h) */
    bool spells_words;
};

/* ---- json.c ---- */

/* Reads a tokenizer.json. companions: the files of its folder, to which notes are added; NULL:
 * none. The caller must call hd_bpe_done, also after a failure. */
enum hd_status hd_bpe_read(const char *text, size_t text_bytes, struct hd_companions *companions,
                           struct hd_bpe *bpe);
void hd_bpe_done(struct hd_bpe *bpe);

/* Returns HD_NO_MEMORY with the error message that a tokenizer does not fit. */
enum hd_status hd_bpe_no_memory(void);

struct hd_json; /* parsed JSON, base/json.h */

/* Checks that a JSON object has no other keys than `known`, "a|b|c". Used by json*.c. */
enum hd_status hd_bpe_check_keys(const struct hd_json *object, const char *where,
                                 const char *known);
/* Finds the model of a tokenizer.json. HD_INVALID: it has none, and so is another file. */
enum hd_status hd_bpe_need_model(const struct hd_json *root, const struct hd_json **ret_model);
/* Checks the type of the model of a tokenizer.json, and sets whether it is Unigram, not BPE. */
enum hd_status hd_bpe_check_type(const struct hd_json *model, bool *ret_is_unigram);
/* Returns a member of a JSON object; NULL: absent or null. */
const struct hd_json *hd_bpe_member(const struct hd_json *object, const char *key);
enum hd_status hd_bpe_read_bool(const struct hd_json *object, const char *where, const char *key,
                                bool otherwise, bool *ret_value);

/* Extends the table of tokens, so that it has a row for `id`. */
enum hd_status hd_bpe_reach(struct hd_bpe *bpe, int32_t id);

/* ---- vocabulary.c ---- */

/* Makes the tables in which the model's tokens are found by their bytes; count: their number. The
 * texts of `bpe` must be set, and its settings. */
enum hd_status hd_bpe_index_words(struct hd_bpe *bpe, size_t count);
/* Returns the byte value of a token such as <0x0A>; -1: another token. */
int hd_vocabulary_byte(const char *content);
/* Returns the id of the model's token that occurs in words by these bytes; -1: none. */
int32_t hd_bpe_word(const struct hd_bpe *bpe, const unsigned char *bytes, size_t len_bytes);
/* Returns the mask of a hash table that `count` entries fill at most half. */
uint64_t hd_table_mask(size_t count);

/* ---- unigram.c ---- */

/* Reads a model of type Unigram into `bpe`, whose arena must be initialised. */
enum hd_status hd_unigram_read(const struct hd_json *model, struct hd_bpe *bpe);
struct hd_unigram_words; /* working memory in which one thread encodes words */
enum hd_status hd_unigram_words_new(const struct hd_bpe *bpe, struct hd_unigram_words **ret_words);
void hd_unigram_words_free(struct hd_unigram_words *words); /* NULL is fine */
/* Appends the ids of a word. lens: [len_bytes] bytes of the word that each id spells; NULL: not
 * needed. */
enum hd_status hd_unigram_words_add(struct hd_unigram_words *words, const unsigned char *word,
                                    size_t len_bytes, struct hd_id_list *list, int32_t *lens);

/* ---- json_added.c ---- */

/* Adds to `bpe` the tokens of `list` (added_tokens of the file; NULL: none) and of its companions
 * (NULL: none). Model and steps must have been read. arena: lives while the file is read. */
enum hd_status hd_bpe_read_added(const struct hd_json *list, struct hd_arena *arena,
                                 struct hd_companions *companions, struct hd_bpe *bpe);

/* ---- json_steps.c ---- */

/* Reads normalizer, pre_tokenizer and post_processor of the file into the members of `bpe`. */
enum hd_status hd_bpe_read_steps(const struct hd_json *root, struct hd_bpe *bpe);
/* Reads {"String": ..} or {"Regex": ..} of the member "pattern". */
enum hd_status hd_bpe_read_pattern(struct hd_bpe *bpe, const struct hd_json *object,
                                   const char *where, struct hd_matcher *ret_matcher);
void hd_matcher_done(struct hd_matcher *matcher);
/* Reads a member of a JSON object whose value must be one character. */
enum hd_status hd_bpe_read_character(const struct hd_json *object, const char *where,
                                     const char *key, const char **ret_text);

/* Reads the settings of a Metaspace pre-tokenizer or decoder. */
enum hd_status hd_bpe_read_metaspace(struct hd_bpe *bpe, const struct hd_json *p, const char *where,
                                     const char **ret_content, enum hd_prepend *ret_prepend,
                                     bool *ret_splits);

/* ---- json_decoder.c ---- */

enum hd_status hd_bpe_read_decoder(const struct hd_json *root, struct hd_bpe *bpe);

/* ---- piece.c ---- */

/* origin of bytes: bytes [from, to) of the text that was passed to the encoder */
struct hd_origin {
    uint32_t from, to;
};

/* Part of the encoder's text, perhaps changed by normalizers and pre-tokenizers. */
struct hd_text_piece {
    const unsigned char *text;
    size_t len_bytes;
    const struct hd_origin *origins; /* origin of each byte; NULL: byte i is byte from + i of the
                                        text */
    size_t from;
};

/* Text that a step writes, with the origins of its bytes. Initialise with {0}. */
struct hd_rewrite {
    struct hd_text text;
    struct hd_origin *origins;
    size_t capacity;
    bool tracks; /* whether the origin of each byte is stored */
};

void hd_rewrite_begin(struct hd_rewrite *rewrite, bool tracks);
void hd_rewrite_free(struct hd_rewrite *rewrite);
/* Appends bytes that were made from `origin`. */
void hd_rewrite_add(struct hd_rewrite *rewrite, const void *bytes, size_t count,
                    struct hd_origin origin);
/* Appends the bytes [from, to) of a piece, with their origins. */
void hd_rewrite_copy(struct hd_rewrite *rewrite, const struct hd_text_piece *piece, size_t from,
                     size_t to);
/* Makes *piece refer to the text that was written into `rewrite`. */
enum hd_status hd_rewrite_take(struct hd_rewrite *rewrite, struct hd_text_piece *piece);
void hd_rewrite_letters(struct hd_rewrite *rewrite,
                        /* writes the ByteLevel letter of each byte of a piece */
                        const struct hd_text_piece *piece);

/* Returns the bytes of the text that [from, to) of a piece was made from; [from, to) must not be
 * empty. */
struct hd_origin hd_text_piece_origin(const struct hd_text_piece *piece, size_t from, size_t to);
struct hd_text_piece hd_text_piece_part(const struct hd_text_piece *piece, size_t from, size_t to);

/* Return the code point of ByteLevel's letter for a byte, and the byte of a letter (-1: no such
 * letter). */
uint32_t hd_letter_of_byte(unsigned char byte);
int hd_byte_of_letter(uint32_t code);

/* Returns the offset of the first byte that begins no UTF-8 character; `count`: there is none. A NUL
 * is a character. */
static inline size_t hd_find_broken(const void *bytes, size_t count)
{
    const unsigned char *p = bytes;
    size_t at = 0;

    while ((at += hd_text_find_not_utf8(p + at, count - at)) < count && !p[at])
        at++;
    return at;
}

/* Returns the number of bytes of a character, by its first byte; the text must be valid UTF-8. */
static inline size_t hd_character_bytes(unsigned char lead)
{
    return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}
uint32_t hd_character_code(const unsigned char *character, size_t *ret_bytes);
/* writes the character in UTF-8; returns its number of bytes */
size_t hd_character_spell(uint32_t code, unsigned char ret_bytes[4]);

/* ---- normal.c ---- */

struct hd_regex_scratch;

/* Applies the normalizers of the tokenizer to *piece, which may then point into one of the two
 * `rewrites`. */
enum hd_status hd_normalise(const struct hd_normal_step *steps, int count,
                            struct hd_regex_scratch *scratch, bool tracks,
                            struct hd_rewrite rewrites[2], struct hd_text_piece *piece);

/* ---- merged.c ---- */

struct hd_merged_token {
    const char *content;
    struct hd_token_flags flags;
    int32_t id;
};

struct hd_merged_list { /* allocated in the arena; initialise with {0} */
    struct hd_merged_token *tokens;
    int count, capacity;
};

/* Makes the list of all added tokens, those of the file (`own`: its added_tokens; NULL: none)
 * and of its companions (NULL: none), in the order of AutoTokenizer. A token of the model keeps
 * its id. Each other token gets the next free id, as in Hugging Face tokenizers, whatever id the
 * files give; a note names the tokens whose id differs. The model's tokens in `bpe` must have
 * been read. */
enum hd_status hd_merged_list_make(struct hd_arena *arena, const struct hd_json *own,
                                   struct hd_companions *companions, const struct hd_bpe *bpe,
                                   struct hd_merged_list *ret_list);

/* Reads the ids that a post-processor puts around a text. HD_INVALID: the message names the key. */
enum hd_status hd_around_read(const struct hd_json *post_processor, struct hd_arena *arena,
                              struct hd_around *ret_around);

/* ---- added.c ---- */

enum hd_status hd_added_insert(struct hd_arena *arena, struct hd_added_set *set, int token,
                               const char *content, size_t len_bytes);

/* Returns the child of a node of a set by its byte; node 0 is the root; 0: no such child. */
static inline int32_t hd_added_next_node(const struct hd_added_set *set, int32_t node,
                                         unsigned char byte)
{
    int32_t child = node ? set->nodes[node].child : set->first[byte];

    while (node && child && set->nodes[child].byte != byte)
        child = set->nodes[child].sibling;
    return child;
}

/* Piece of a text: an added token (id >= 0), or the text between added tokens (id -1). */
struct hd_added_piece {
    size_t from, to;
    int32_t id;
};

/* Iterator over the pieces of a text; the caller sets bpe, set, text and len_bytes. Pieces do not
 * overlap, except that a token may strip a space that is itself an added token. */
struct hd_added_walk {
    const struct hd_bpe *bpe;
    const struct hd_added_set *set;
    const unsigned char *text;
    size_t len_bytes;
    /* offsets in `text`: start of the next search; end of the pieces returned so far */
    size_t search, done;
    struct hd_added_piece held;
    bool has_held;
    const size_t *guards; /* ascending offsets in the encoder's text; no special token may contain
                             one */
    size_t guard_count;
    const struct hd_text_piece *piece; /* piece whose text is searched; NULL: the encoder's whole
                                          text */
};

bool hd_added_next(struct hd_added_walk *walk, struct hd_added_piece *ret_piece);

/* Implements hd_tokenizer_find_special. */
bool hd_added_find_special(const struct hd_bpe *bpe, const unsigned char *text, size_t len_bytes,
                           size_t *at);

/* ---- pattern.c ---- */

/* Translates a pattern from Oniguruma's syntax, as Hugging Face tokenizers uses it, to an
 * equivalent one for PCRE2. newer: includes characters that the Unicode version of PCRE2 lacks.
 * HD_INVALID: not a valid pattern. HD_UNSUPPORTED: the message names the part, its byte offset and
 * what to write instead. */
enum hd_status hd_pattern_translate(const char *pattern, bool newer, struct hd_text *ret_text);

/* ---- split.c ---- */

bool hd_regex_is_present(void);
/* Compiles a regular expression in Oniguruma's syntax. */
enum hd_status hd_regex_new(const char *pattern, struct hd_regex **ret_regex);
/* Compiles a regular expression in PCRE2's syntax in which <name> means the characters of a set of
 * unicode.def. */
enum hd_status hd_regex_of_sets(const char *pattern, struct hd_regex **ret_regex);
void hd_regex_free(struct hd_regex *regex);               /* NULL is fine */
bool hd_regex_may_be_empty(const struct hd_regex *regex); /* returns whether a match may be empty */

/* Allocates the working memory in which one thread matches patterns. */
enum hd_status hd_regex_scratch_new(struct hd_regex_scratch **ret_scratch);
void hd_regex_scratch_free(struct hd_regex_scratch *scratch); /* NULL is fine */
/* Sets whether the following texts may have characters that the Unicode version of PCRE2 lacks. */
void hd_regex_scratch_newer(struct hd_regex_scratch *scratch, bool newer);

/* Returns whether a single character, `text`, matches a pattern that matches exactly one
 * character. */
bool hd_regex_is(const struct hd_regex *regex, const unsigned char *text, size_t len_bytes);

/* Iterator over the matches in a text, which must be UTF-8 and not empty. The caller sets the first
 * four members. An empty match counts, unless it is at the end of the match before it. */
struct hd_match_walk {
    const struct hd_matcher *matcher;
    struct hd_regex_scratch *scratch;
    const unsigned char *text;
    size_t len_bytes;
    size_t search, last_end;
    bool has_last;
};

/* Finds the next match in the text; sets *ret_found to false if there are no more. */
enum hd_status hd_match_next(struct hd_match_walk *walk, bool *ret_found, size_t *ret_from,
                             size_t *ret_to);

/* ---- cut.c ---- */

/* Returns the properties, bits of cut.c, that a split step with `pattern` has for cuts. */
unsigned hd_cut_properties(const char *pattern, enum hd_split_behavior behavior);
/* Returns at which offsets texts may be cut with this tokenizer, by its steps and added tokens. */
enum hd_cut hd_bpe_find_cut(const struct hd_bpe *bpe);
/* Implements hd_tokenizer_cut. */
size_t hd_bpe_cut(const struct hd_bpe *bpe, const unsigned char *text, size_t len_bytes,
                  size_t from);

/* ---- unicode.c ---- */

/* returns whether utf8proc was found at build time; sets of characters do not need it */
bool hd_unicode_is_present(void);
/* Appends the normal form of a text, by Unicode 9. */
enum hd_status hd_unicode_normal(enum hd_normal_form form, const unsigned char *text,
                                 size_t len_bytes, struct hd_text *ret_text);
/* Returns whether a character begins a sequence that a normal form converts alone: it never joins
 * with a character before it. */
bool hd_unicode_begins(enum hd_normal_form form, uint32_t code);
/* writes the lower case of a character; returns its number of characters */
size_t hd_unicode_lower(uint32_t code, uint32_t ret_codes[2]);
bool hd_unicode_is_accent(uint32_t code, bool as_bert);
/* returns whether it is a control character as BertNormalizer defines it */
bool hd_unicode_is_control(uint32_t code);
bool hd_unicode_is_space(uint32_t code); /* returns whether it has Unicode's property White_Space */
bool hd_unicode_has_newer(const unsigned char *text, size_t len_bytes);
/* Returns whether case folding can join a non-ASCII character with others. */
bool hd_unicode_may_fold(uint32_t code);
/* Appends the characters of a set of unicode.def as parts of a PCRE2 class. Returns false if there
 * is no such set. */
bool hd_unicode_add_set(const char *name, size_t name_bytes, bool newer, struct hd_text *ret_items);

/* ---- bpe.c ---- */

struct hd_words; /* working memory in which one thread encodes words */
enum hd_status hd_words_new(const struct hd_bpe *bpe, struct hd_words **ret_words);
void hd_words_free(struct hd_words *words); /* NULL is fine */
/* Appends the ids of a word to the list. */
enum hd_status hd_words_add(struct hd_words *words, const unsigned char *word, size_t len_bytes,
                            struct hd_id_list *list);
/* Appends the ids of a word like hd_words_add. Sets *ret_lens to the number of bytes of the word
 * that each id spells, valid until the next call. */
enum hd_status hd_words_add_lens(struct hd_words *words, const unsigned char *word,
                                 size_t len_bytes, struct hd_id_list *list,
                                 const int32_t **ret_lens);

/* ---- encode.c ---- */

struct hd_bpe_encoder;
enum hd_status hd_bpe_encoder_new(const struct hd_bpe *bpe, struct hd_bpe_encoder **ret_encoder);
void hd_bpe_encoder_free(struct hd_bpe_encoder *encoder); /* NULL is fine */
/* Encodes a text, and sets the tokens of its marks (hd_encoder_add_places). places NULL: no marks
 * and guards. */
enum hd_status hd_bpe_encode(struct hd_bpe_encoder *encoder, const unsigned char *text,
                             size_t len_bytes, struct hd_encoder_places *places,
                             struct hd_id_list *list);

/* ---- decode.c ---- */

/* Decode like hd_tokenizer_decode and hd_tokenizer_decode_next. */
enum hd_status hd_bpe_decode(const struct hd_bpe *bpe, const int32_t *ids, size_t count,
                             struct hd_text *ret_text);
enum hd_status hd_bpe_decode_next(const struct hd_bpe *bpe, int32_t id, struct hd_text *ret_bytes);

/* ---- hashes ---- */

static inline uint64_t hd_mix64(uint64_t x) /* finaliser of MurmurHash3 */
{
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

/* Returns the merge of two adjacent tokens; NULL: they do not merge. A merge's key is never 0. */
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

#endif
