/* json_added: builds the tables in which the encoder searches added tokens, from the merged list of
 * tokenizer.json and its companion files (merged.c). */
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

/* ---- tokens ---- */

/* Copies a token of the merged list into bpe's tables of texts and of added tokens. */
static enum hd_status take(struct hd_bpe *bpe, const struct hd_merged_token *from)
{
    struct hd_token_text *text;
    enum hd_status st;

    if (strlen(from->content) > HD_BPE_TOKEN_BYTES_MAX)
        return hd_err(HD_LIMIT, "a token is longer than %d bytes", HD_BPE_TOKEN_BYTES_MAX);
    st = hd_bpe_reach(bpe, from->id);
    if (st)
        return st;
    text = &bpe->texts[from->id];
    if (text->content && strcmp(text->content, from->content) != 0)
        return hd_err(
            HD_INVALID,
            "it would get the id %d of '%.64s'; give the tokens of model.vocab the ids from "
            "0 on, without holes",
            (int)from->id, text->content);
    if (!text->content)
        text->content = hd_arena_strdup(&bpe->arena, from->content);
    if (!text->content)
        return hd_err(HD_NO_MEMORY, "no memory for the added tokens");
    text->is_added = true;
    bpe->tokens[bpe->token_count++] = (struct hd_added_token){
        .id = from->id,
        .lstrip = from->flags.lstrip,
        .rstrip = from->flags.rstrip,
        .single_word = from->flags.single_word,
        /* the text before a token of a SentencePiece model is normalized without it */
        .normalized = from->flags.normalized && !bpe->sp,
        .special = from->flags.special};
    return HD_OK;
}

/* ---- sets ---- */

/* Sets the text of an added token for searching and for decoders; of a `normalized` token, its text
 * after the normalizers. */
static enum hd_status set_content(struct hd_bpe *bpe, struct hd_added_token *token,
                                  struct hd_regex_scratch *scratch, struct hd_rewrite rewrites[2])
{
    struct hd_token_text *text = &bpe->texts[token->id];
    struct hd_text_piece piece = {.text = (const unsigned char *)text->content,
                                  .len_bytes = strlen(text->content)};
    enum hd_status st = token->normalized ? hd_normalise(bpe->normals, bpe->normal_count, scratch,
                                                         false, rewrites, &piece)
                                          : HD_OK;
    char *copy = st ? NULL : hd_arena_alloc(&bpe->arena, piece.len_bytes + 1);

    if (st)
        return st;
    if (!copy)
        return hd_err(HD_NO_MEMORY, "no memory for the added tokens");
    if (piece.len_bytes)
        memcpy(copy, piece.text, piece.len_bytes);
    copy[piece.len_bytes] = '\0';
    token->content = text->shown = copy;
    token->len_bytes = (uint32_t)piece.len_bytes;
    return HD_OK;
}

static enum hd_status insert_all(struct hd_bpe *bpe, struct hd_regex_scratch *scratch)
{
    struct hd_rewrite rewrites[2] = {{{0}, NULL, 0, false}, {{0}, NULL, 0, false}};
    enum hd_status st = HD_OK;

    hd_regex_scratch_newer(scratch, true);
    for (int i = 0; !st && i < bpe->token_count; i++) {
        struct hd_added_token *token = &bpe->tokens[i];
        const char *content = bpe->texts[token->id].content;

        st = set_content(bpe, token, scratch, rewrites);
        if (!st && token->single_word && !bpe->word_char)
            st = hd_regex_of_sets("[<\\rw>]", &bpe->word_char);
        if (!st && token->len_bytes)
            st = hd_added_insert(&bpe->arena, token->normalized ? &bpe->normalized : &bpe->plain, i,
                                 token->content, token->len_bytes);
        if (!st && token->special && !bpe->splits_specials)
            st = hd_added_insert(&bpe->arena, &bpe->specials, i, content, strlen(content));
    }
    hd_rewrite_free(&rewrites[0]);
    hd_rewrite_free(&rewrites[1]);
    return st;
}

enum hd_status hd_bpe_read_added(const struct hd_json *list, struct hd_arena *arena,
                                 struct hd_companions *companions, struct hd_bpe *bpe)
{
    struct hd_merged_list merged = {0};
    struct hd_regex_scratch *scratch = NULL;
    enum hd_status st = hd_merged_list_make(arena, list, companions, bpe, &merged);

    if (st || !merged.count)
        return st;
    bpe->splits_specials = companions && companions->splits_specials;
    bpe->tokens = hd_arena_array(&bpe->arena, (size_t)merged.count, sizeof *bpe->tokens);
    if (!bpe->tokens)
        return hd_err(HD_NO_MEMORY, "no memory for the added tokens");
    for (int i = 0; !st && i < merged.count; i++) {
        st = take(bpe, &merged.tokens[i]);
        st = st ? hd_err_prefix(st, "the added token '%.64s'", merged.tokens[i].content) : HD_OK;
    }
    if (!st)
        st = hd_regex_scratch_new(&scratch);
    if (!st)
        st = insert_all(bpe, scratch);
    hd_regex_scratch_free(scratch);
    return st;
}
