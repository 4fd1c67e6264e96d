/* added: finds added tokens as Hugging Face tokenizers does: the leftmost match, then the longest;
 * the search continues after the match and before a space that the match strips. A match inside a
 * word is skipped if the token is single_word; a match of a special token is skipped if
 * split_special_tokens is set. */
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

static int32_t child_of(const struct hd_added_set *set, int32_t node, unsigned char byte)
{
    int32_t c = set->nodes[node].child;

    while (c && set->nodes[c].byte != byte)
        c = set->nodes[c].sibling;
    return c;
}

static int32_t node_new(struct hd_arena *arena, struct hd_added_set *set, unsigned char byte)
{
    struct hd_added_node *nodes =
        hd_arena_grow(arena, set->nodes, set->node_count, &set->node_capacity, sizeof *nodes);

    if (!nodes)
        return -1;
    set->nodes = nodes;
    set->nodes[set->node_count] = (struct hd_added_node){.token = -1, .byte = byte};
    return set->node_count++;
}

enum hd_status hd_added_insert(struct hd_arena *arena, struct hd_added_set *set, int token,
                               const char *content, size_t len_bytes)
{
    int32_t node = 0;

    if (!set->node_count && node_new(arena, set, 0) < 0)
        return hd_err(HD_NO_MEMORY, "no memory for the added tokens");
    for (size_t i = 0; i < len_bytes; i++) {
        const unsigned char byte = (unsigned char)content[i];
        int32_t next = child_of(set, node, byte);

        if (!next) {
            next = node_new(arena, set, byte);
            if (next < 0)
                return hd_err(HD_NO_MEMORY, "no memory for the added tokens");
            set->nodes[next].sibling = set->nodes[node].child;
            set->nodes[node].child = next;
            if (!node)
                set->first[byte] = next;
        }
        node = next;
    }
    if (set->nodes[node].token < 0) /* the first of several tokens with equal text counts */
        set->nodes[node].token = token;
    return HD_OK;
}

/* Returns the index of the longest added token whose text begins at offset `at`; -1: none. */
static int32_t longest_at(const struct hd_added_walk *w, size_t at)
{
    int32_t node = w->set->first[w->text[at]], token = -1;

    while (node) {
        if (w->set->nodes[node].token >= 0)
            token = w->set->nodes[node].token;
        if (++at == w->len_bytes)
            break;
        node = child_of(w->set, node, w->text[at]);
    }
    return token;
}

static size_t char_before(const unsigned char *text, size_t at)
{
    do
        at--;
    while (at && (text[at] & 0xC0) == 0x80);
    return at;
}

static bool is_space_character(const unsigned char *p)
{
    size_t n;

    return hd_unicode_is_space(hd_character_code(p, &n));
}

static bool is_single_word(const struct hd_added_walk *w, size_t from, size_t to)
{
    const struct hd_regex *word_char = w->bpe->word_char;

    if (from) {
        const size_t before = char_before(w->text, from);

        if (hd_regex_is(word_char, w->text + before, from - before))
            return false;
    }
    return to == w->len_bytes ||
           !hd_regex_is(word_char, w->text + to, hd_character_bytes(w->text[to]));
}

/* Returns whether a guard lies in the part of the encoder's text that bytes [from, to) were made
 * from. */
static bool is_guarded(const struct hd_added_walk *w, size_t from, size_t to)
{
    const struct hd_origin origin = w->guard_count && w->piece
                                        ? hd_text_piece_origin(w->piece, from, to)
                                        : (struct hd_origin){(uint32_t)from, (uint32_t)to};
    size_t lo = 0, hi = w->guard_count; /* the first guard >= from is in [lo, hi] */

    while (lo < hi) {
        const size_t middle = lo + (hi - lo) / 2;

        if (w->guards[middle] < origin.from)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo < w->guard_count && w->guards[lo] < origin.to;
}

bool hd_added_find_special(const struct hd_bpe *bpe, const unsigned char *text, size_t len_bytes,
                           size_t *at)
{
    const struct hd_added_set *set = &bpe->specials;

    for (; set->node_count && *at < len_bytes; ++*at) {
        size_t end = *at + 1;
        int32_t node = set->first[text[*at]];

        while (node && set->nodes[node].token < 0 && end < len_bytes)
            node = child_of(set, node, text[end++]);
        if (node)
            return true;
    }
    return false;
}

bool hd_added_next(struct hd_added_walk *walk, struct hd_added_piece *ret_piece)
{
    const struct hd_added_set *set = walk->set;

    if (walk->has_held) {
        walk->has_held = false;
        *ret_piece = walk->held;
        return true;
    }
    while (set->node_count && walk->search < walk->len_bytes) {
        const size_t at = walk->search;
        const int32_t index = set->first[walk->text[at]] ? longest_at(walk, at) : -1;
        const struct hd_added_token *token;
        size_t from = at, to;

        if (index < 0) {
            walk->search++;
            continue;
        }
        token = &walk->bpe->tokens[index];
        if (token->special && is_guarded(walk, at, at + token->len_bytes)) {
            walk->search++;
            continue;
        }
        walk->search = to = at + token->len_bytes;
        if ((token->special && walk->bpe->splits_specials) ||
            (token->single_word && !is_single_word(walk, from, to)))
            continue;
        if (token->lstrip)
            while (from > walk->done &&
                   is_space_character(walk->text + char_before(walk->text, from)))
                from = char_before(walk->text, from);
        if (token->rstrip)
            while (to < walk->len_bytes && is_space_character(walk->text + to))
                to += hd_character_bytes(walk->text[to]);
        walk->held = (struct hd_added_piece){from, to, token->id};
        if (walk->done < from) {
            *ret_piece = (struct hd_added_piece){walk->done, from, -1};
            walk->has_held = true;
        } else {
            *ret_piece = walk->held;
        }
        walk->done = to;
        return true;
    }
    if (walk->done >= walk->len_bytes)
        return false;
    *ret_piece = (struct hd_added_piece){walk->done, walk->len_bytes, -1};
    walk->done = walk->len_bytes;
    return true;
}
