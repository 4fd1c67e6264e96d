/* encode: encodes a text to ids. First it cuts out added tokens that are not `normalized`. Each
 * piece between them goes through the normalizers; then `normalized` added tokens are cut out of
 * it, and the rest goes through the pre-tokenizers, which split it into words (bpe.c).
 *
 * If there are marks or guards, each byte of a piece has an origin: the bytes of the text that it
 * was made from (piece.c). So no step needs to handle marks or guards. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

struct hd_bpe_encoder {
    const struct hd_bpe *bpe;
    struct hd_words *words;
    struct hd_regex_scratch *scratch;
    struct hd_rewrite normal[2]; /* buffers of the normalizers */
    /* by pre-tokenizer step: buffer for a piece that the step changed */
    struct hd_rewrite changed[HD_BPE_STEPS_MAX];
    bool tracks; /* whether the bytes of pieces have origins */
    struct hd_id_list *list;
    struct hd_encoder_mark *open, *mark, *last_mark; /* [open, mark): marks that have a token; an
                                                        end among them may get a later token. [mark,
                                                        last_mark): marks that have none yet */
};

enum hd_status hd_bpe_encoder_new(const struct hd_bpe *bpe, struct hd_bpe_encoder **ret_encoder)
{
    struct hd_bpe_encoder *e = calloc(1, sizeof *e);
    enum hd_status st;

    if (!e)
        return hd_err(HD_NO_MEMORY, "no memory for an encoder");
    e->bpe = bpe;
    st = hd_words_new(bpe, &e->words);
    if (!st)
        st = hd_regex_scratch_new(&e->scratch);
    if (st) {
        hd_bpe_encoder_free(e);
        return st;
    }
    *ret_encoder = e;
    return HD_OK;
}

void hd_bpe_encoder_free(struct hd_bpe_encoder *encoder)
{
    if (!encoder)
        return;
    hd_words_free(encoder->words);
    hd_regex_scratch_free(encoder->scratch);
    for (int i = 0; i < 2; i++)
        hd_rewrite_free(&encoder->normal[i]);
    for (int i = 0; i < HD_BPE_STEPS_MAX; i++)
        hd_rewrite_free(&encoder->changed[i]);
    free(encoder);
}

/* ---- marks ---- */

/* Assigns token number `token`, made from the bytes `origin` of the text, to the marks in these
 * bytes, and to earlier marks that no token covers. */
static void place(struct hd_bpe_encoder *e, struct hd_origin origin, size_t token)
{
    for (; e->open < e->mark && e->open->at < origin.from; e->open++) {
    }
    for (struct hd_encoder_mark *m = e->open; m < e->mark; m++)
        if (m->is_end && m->at >= origin.from && m->at < origin.to)
            m->token = token; /* a mark with is_end gets the last token that covers its byte */
    while (e->mark < e->last_mark && e->mark->at < origin.to)
        e->mark++->token = token;
}

/* ---- words ---- */

static enum hd_status add_word(struct hd_bpe_encoder *e, const struct hd_text_piece *piece,
                               size_t from, size_t to)
{
    size_t token = e->list->count;
    const int32_t *lens = NULL;
    enum hd_status st;

    if (e->open == e->last_mark || hd_text_piece_origin(piece, to - 1, to).to <= e->open->at)
        return hd_words_add(e->words, piece->text + from, to - from, e->list);
    st = hd_words_add_lens(e->words, piece->text + from, to - from, e->list, &lens);
    for (size_t at = from; !st && token < e->list->count; at += (size_t)*lens++, token++)
        place(e, hd_text_piece_origin(piece, at, at + (size_t)*lens), token);
    return st;
}

/* Returns whether U+2581 begins at offset `at` and the character before it is another one. */
static bool begins_part(const unsigned char *text, size_t at)
{
    static const unsigned char mark[] = {0xE2, 0x96, 0x81};

    return memcmp(text + at, mark, 3) == 0 && (at < 3 || memcmp(text + at - 3, mark, 3) != 0);
}

/* Adds the ids of a piece that passed all pre-tokenizer steps. Where the vocabulary allows
 * (hd_bpe.parts_at_spaces), words end before U+2581, so that they are short and found in the
 * cache. */
static enum hd_status add_words(struct hd_bpe_encoder *e, const struct hd_text_piece *piece)
{
    const size_t n = piece->len_bytes;
    enum hd_status st = HD_OK;

    if (!e->bpe->parts_at_spaces)
        return add_word(e, piece, 0, n);
    for (size_t at = 0, end; !st && at < n; at = end) {
        for (end = at + 1; end < n && !(piece->text[end] == 0xE2 && n - end >= 3 &&
                                        begins_part(piece->text, end));)
            end++;
        st = add_word(e, piece, at, end);
    }
    return st;
}

/* ---- pre-tokenizers ---- */

static enum hd_status pre_tokenize(struct hd_bpe_encoder *e, int step,
                                   const struct hd_text_piece *piece);

struct bpe_split {
    size_t from, to;
    bool is_match;
};

/* State of one split of a piece, whose parts go to the next pre-tokenizer step. `held`: a part that
 * may be joined with the next part. */
struct splitter {
    struct hd_bpe_encoder *encoder;
    int step;
    const struct hd_text_piece *piece;
    struct bpe_split held;
    bool has_held;
};

static enum hd_status split_on(const struct splitter *s, struct bpe_split part)
{
    const struct hd_text_piece piece = hd_text_piece_part(s->piece, part.from, part.to);

    return pre_tokenize(s->encoder, s->step + 1, &piece);
}

static enum hd_status flush(struct splitter *s)
{
    if (!s->has_held)
        return HD_OK;
    s->has_held = false;
    return split_on(s, s->held);
}

static bool joins_pieces(enum hd_split_behavior behavior, bool before, bool now)
{
    switch (behavior) {
    case HD_SPLIT_MERGED_WITH_PREVIOUS:
        return now && !before;
    case HD_SPLIT_MERGED_WITH_NEXT:
        return before && !now;
    case HD_SPLIT_CONTIGUOUS:
        return now == before;
    default:
        return false;
    }
}

static enum hd_status pass_on(struct splitter *s, struct bpe_split part)
{
    const struct hd_split_step *step = &s->encoder->bpe->steps[s->step];
    enum hd_status st;

    part.is_match ^= step->invert;
    if (step->behavior == HD_SPLIT_ISOLATED)
        return split_on(s, part);
    if (step->behavior == HD_SPLIT_REMOVED)
        return part.is_match ? HD_OK : split_on(s, part);
    if (s->has_held && joins_pieces(step->behavior, s->held.is_match, part.is_match)) {
        s->held.to = part.to;
        s->held.is_match = part.is_match;
        return HD_OK;
    }
    st = flush(s);
    s->held = part;
    s->has_held = true;
    return st;
}

static enum hd_status split(struct hd_bpe_encoder *e, int step, const struct hd_text_piece *piece)
{
    struct splitter s = {.encoder = e, .step = step, .piece = piece};
    struct hd_match_walk walk = {.matcher = &e->bpe->steps[step].pattern,
                                 .scratch = e->scratch,
                                 .text = piece->text,
                                 .len_bytes = piece->len_bytes};
    size_t at = 0, from = 0, to = 0;
    bool found = false;
    enum hd_status st = hd_match_next(&walk, &found, &from, &to);

    while (!st && found) {
        if (at < from)
            st = pass_on(&s, (struct bpe_split){at, from, false});
        if (!st)
            st = pass_on(&s, (struct bpe_split){from, to, true});
        at = to;
        if (!st)
            st = hd_match_next(&walk, &found, &from, &to);
    }
    if (!st && at < piece->len_bytes)
        st = pass_on(&s, (struct bpe_split){at, piece->len_bytes, false});
    return st ? st : flush(&s);
}

/* Metaspace: writes its character instead of each space, and in front of the piece where `prepend`
 * asks for it. */
static void write_metaspace(struct hd_bpe_encoder *e, const struct hd_split_step *how,
                            struct hd_rewrite *out, const struct hd_text_piece *piece)
{
    const size_t n = strlen(how->content);
    const bool has_one = piece->text[0] == ' ' ||
                         (piece->len_bytes >= n && memcmp(piece->text, how->content, n) == 0);
    size_t at = 0;

    (void)e;
    if (!has_one &&
        (how->prepend == HD_PREPEND_ALWAYS || (how->prepend == HD_PREPEND_FIRST && !piece->from)))
        hd_rewrite_add(out, how->content, n,
                       hd_text_piece_origin(piece, 0, hd_character_bytes(piece->text[0])));
    while (at < piece->len_bytes) {
        const unsigned char *space = memchr(piece->text + at, ' ', piece->len_bytes - at);
        const size_t end = space ? (size_t)(space - piece->text) : piece->len_bytes;

        hd_rewrite_copy(out, piece, at, end);
        at = end;
        if (space) {
            hd_rewrite_add(out, how->content, n, hd_text_piece_origin(piece, at, at + 1));
            at++;
        }
    }
}

/* Applies a pre-tokenizer step that changes a piece without splitting it, then the steps after
 * it. */
static enum hd_status apply_rewrite_step(struct hd_bpe_encoder *e, int step,
                                         const struct hd_text_piece *piece)
{
    const struct hd_split_step *how = &e->bpe->steps[step];
    struct hd_rewrite *out = &e->changed[step];
    struct hd_text_piece changed = *piece;
    enum hd_status st;

    hd_rewrite_begin(out, e->tracks);
    if (how->kind == HD_STEP_METASPACE) {
        write_metaspace(e, how, out, piece);
    } else if (how->kind == HD_STEP_LETTERS) {
        hd_rewrite_letters(out, piece);
    } else {
        hd_rewrite_add(out, " ", 1,
                       hd_text_piece_origin(piece, 0, hd_character_bytes(piece->text[0])));
        hd_rewrite_copy(out, piece, 0, piece->len_bytes);
    }
    st = hd_rewrite_take(out, &changed);
    return st ? st : pre_tokenize(e, step + 1, &changed);
}

static enum hd_status cut_lengths(struct hd_bpe_encoder *e, int step,
                                  const struct hd_text_piece *piece)
{
    enum hd_status st = HD_OK;

    for (size_t at = 0, end = 0; !st && at < piece->len_bytes; at = end) {
        struct hd_text_piece part;

        for (int64_t i = 0; i < e->bpe->steps[step].length && end < piece->len_bytes; i++)
            end += hd_character_bytes(piece->text[end]);
        part = hd_text_piece_part(piece, at, end);
        st = pre_tokenize(e, step + 1, &part);
    }
    return st;
}

/* Applies the pre-tokenizer steps from number `step` on to a piece, then adds the ids of its
 * words. */
static enum hd_status pre_tokenize(struct hd_bpe_encoder *e, int step,
                                   const struct hd_text_piece *piece)
{
    const struct hd_split_step *how = &e->bpe->steps[step];

    if (!piece->len_bytes)
        return HD_OK;
    if (step == e->bpe->step_count)
        return add_words(e, piece);
    switch (how->kind) {
    case HD_STEP_SPLIT:
        return split(e, step, piece);
    case HD_STEP_LENGTH:
        return cut_lengths(e, step, piece);
    case HD_STEP_SPACE:
        return piece->text[0] == ' ' ? pre_tokenize(e, step + 1, piece)
                                     : apply_rewrite_step(e, step, piece);
    default:
        return apply_rewrite_step(e, step, piece);
    }
}

/* ---- texts ---- */

static enum hd_status add_token(struct hd_bpe_encoder *e, int32_t id, struct hd_origin origin)
{
    enum hd_status st = hd_id_list_reserve(e->list, 1);

    if (st)
        return st;
    place(e, origin, e->list->count);
    e->list->ids[e->list->count++] = id;
    return HD_OK;
}

/* Encodes the piece of a text between added tokens that are not `normalized`. */
static enum hd_status add_piece(struct hd_bpe_encoder *e, struct hd_text_piece *piece,
                                const struct hd_encoder_places *places)
{
    struct hd_added_walk walk = {.bpe = e->bpe, .set = &e->bpe->normalized, .piece = piece};
    struct hd_added_piece found;
    enum hd_status st = hd_normalise(e->bpe->normals, e->bpe->normal_count, e->scratch, e->tracks,
                                     e->normal, piece);

    walk.text = piece->text;
    walk.len_bytes = piece->len_bytes;
    walk.guards = places ? places->guards : NULL;
    walk.guard_count = places ? places->guard_count : 0;
    while (!st && hd_added_next(&walk, &found)) {
        const struct hd_text_piece part = hd_text_piece_part(piece, found.from, found.to);

        st = found.id >= 0
                 ? add_token(e, found.id, hd_text_piece_origin(piece, found.from, found.to))
                 : pre_tokenize(e, 0, &part);
    }
    return st;
}

enum hd_status hd_bpe_encode(struct hd_bpe_encoder *encoder, const unsigned char *text,
                             size_t len_bytes, struct hd_encoder_places *places,
                             struct hd_id_list *list)
{
    struct hd_added_walk walk = {
        .bpe = encoder->bpe, .set = &encoder->bpe->plain, .text = text, .len_bytes = len_bytes};
    struct hd_added_piece found;
    enum hd_status st = HD_OK;

    if (len_bytes > HD_BPE_TEXT_BYTES_MAX)
        return hd_err(HD_LIMIT, "a text of %zu bytes; at most %d are encoded as one", len_bytes,
                      HD_BPE_TEXT_BYTES_MAX);
    encoder->list = list;
    encoder->tracks = encoder->bpe->needs_origins || places;
    encoder->open = encoder->mark = places ? places->marks : NULL;
    encoder->last_mark = places ? places->marks + places->mark_count : NULL;
    hd_regex_scratch_newer(encoder->scratch, hd_unicode_has_newer(text, len_bytes));
    walk.guards = places ? places->guards : NULL;
    walk.guard_count = places ? places->guard_count : 0;
    while (!st && hd_added_next(&walk, &found)) {
        struct hd_text_piece piece = {
            .text = text + found.from, .len_bytes = found.to - found.from, .from = found.from};

        st = found.id >= 0 ? add_token(encoder, found.id,
                                       (struct hd_origin){(uint32_t)found.from, (uint32_t)found.to})
                           : add_piece(encoder, &piece, places);
    }
    while (encoder->mark < encoder->last_mark)
        encoder->mark++->token = list->count;
    return st;
}
