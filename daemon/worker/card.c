#include "worker/card.h"

#include <string.h>

enum { ISA_AT = HD_GLOO_CARD_BYTES, LIBRARY_AT = ISA_AT + 32, WORD_BYTES = 32 };
_Static_assert(sizeof((struct hd_traits){0}).isa == WORD_BYTES, "an instruction set fits");
_Static_assert(sizeof((struct hd_traits){0}).library == WORD_BYTES, "a library fits");
_Static_assert((int)CARD_BYTES <= (int)HD_LINK_VALUE_MAX, "a card fits the rendezvous");

void card_write(const struct hd_gloo_card *card, const struct hd_traits *traits,
                uint8_t ret_bytes[CARD_BYTES])
{
    memset(ret_bytes, 0, CARD_BYTES);
    memcpy(ret_bytes, card->bytes, HD_GLOO_CARD_BYTES);
    memcpy(ret_bytes + ISA_AT, traits->isa, strnlen(traits->isa, WORD_BYTES - 1));
    memcpy(ret_bytes + LIBRARY_AT, traits->library, strnlen(traits->library, WORD_BYTES - 1));
}

/* The text at offset `at` of another rank's card. */
static void read_word(const uint8_t *value, int at, char ret_word[WORD_BYTES])
{
    memcpy(ret_word, value + at, WORD_BYTES);
    ret_word[WORD_BYTES - 1] = '\0';
}

static enum hd_status check(const uint8_t *value, int64_t rank, int64_t self,
                            const struct hd_traits *traits)
{
    char isa[WORD_BYTES], library[WORD_BYTES];

    read_word(value, ISA_AT, isa);
    read_word(value, LIBRARY_AT, library);
    if (strcmp(isa, traits->isa) == 0 && strcmp(library, traits->library) == 0)
        return HD_OK;
    return hd_err(
        HD_UNSUPPORTED,
        "rank %lld computes with %s and %s, rank %lld with %s and %s: their results would "
        "differ; keep the job on nodes of one kind (heddle drain NODE for the others)",
        (long long)rank, isa, library, (long long)self, traits->isa, traits->library);
}

enum hd_status card_read_all(const struct hd_link_values *values, int64_t self,
                             const struct hd_traits *traits, struct hd_gloo_card *ret_cards)
{
    enum hd_status st = HD_OK;

    for (int64_t r = 0; !st && r < values->world; r++) {
        if (values->size_bytes[r] != CARD_BYTES)
            return hd_err(HD_CONFLICT,
                          "rank %lld sent a card of %zu bytes, not of %d: all nodes need the same "
                          "build of Heddle",
                          (long long)r, values->size_bytes[r], CARD_BYTES);
        st = check(values->value[r], r, self, traits);
        memcpy(ret_cards[r].bytes, values->value[r], HD_GLOO_CARD_BYTES);
    }
    return st;
}
