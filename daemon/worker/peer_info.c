#include "worker/peer_info.h"

#include <string.h>

enum { ISA_AT = HD_GLOO_ENDPOINT_BYTES, LIBRARY_AT = ISA_AT + 32, ENGINE_AT = LIBRARY_AT + 32 };
enum { WORD_BYTES = 32 };
_Static_assert(sizeof((struct peer_compute){0}).isa == WORD_BYTES, "an instruction set fits");
_Static_assert(sizeof((struct peer_compute){0}) == 3 * WORD_BYTES, "all words are as long");
_Static_assert((int)PEER_INFO_BYTES <= (int)HD_LINK_VALUE_MAX, "a endpoint fits the rendezvous");

void peer_info_write(const struct hd_gloo_endpoint *endpoint, const struct peer_compute *compute,
                     uint8_t ret_bytes[PEER_INFO_BYTES])
{
    memset(ret_bytes, 0, PEER_INFO_BYTES);
    memcpy(ret_bytes, endpoint->bytes, HD_GLOO_ENDPOINT_BYTES);
    memcpy(ret_bytes + ISA_AT, compute->isa, strnlen(compute->isa, WORD_BYTES - 1));
    memcpy(ret_bytes + LIBRARY_AT, compute->library, strnlen(compute->library, WORD_BYTES - 1));
    memcpy(ret_bytes + ENGINE_AT, compute->engine, strnlen(compute->engine, WORD_BYTES - 1));
}

/* Copies the text that begins `at` bytes into another rank's information. */
static void read_word(const uint8_t *value, int at, char ret_word[WORD_BYTES])
{
    memcpy(ret_word, value + at, WORD_BYTES);
    ret_word[WORD_BYTES - 1] = '\0';
}

static const char *transport(const struct peer_compute *compute)
{
    return strstr(compute->engine, "+TCP") ? "sockets" : "InfiniBand or RoCE adapters";
}

static enum hd_status check(const uint8_t *value, int64_t rank, int64_t self,
                            const struct peer_compute *own)
{
    struct peer_compute theirs;

    read_word(value, ISA_AT, theirs.isa);
    read_word(value, LIBRARY_AT, theirs.library);
    read_word(value, ENGINE_AT, theirs.engine);
    if (strcmp(theirs.isa, own->isa) == 0 && strcmp(theirs.library, own->library) == 0 &&
        strcmp(theirs.engine, own->engine) == 0)
        return HD_OK;
    if (!strstr(theirs.engine, "+TCP") != !strstr(own->engine, "+TCP"))
        return hd_err(HD_UNSUPPORTED,
                      "NCCL of rank %lld would use %s, that of rank %lld %s: they would wait for "
                      "each other; give heddled of both nodes a --data-address on the same "
                      "network, or set NCCL_IB_DISABLE=1 for both",
                      (long long)rank, transport(&theirs), (long long)self, transport(own));
    return hd_err(
        HD_UNSUPPORTED,
        "rank %lld computes with %s and %s%s%s, rank %lld with %s and %s%s%s: their results would "
        "differ; keep the job on nodes of one kind (heddle drain NODE for the others)",
        (long long)rank, theirs.isa, theirs.library, theirs.engine[0] ? " and " : "", theirs.engine,
        (long long)self, own->isa, own->library, own->engine[0] ? " and " : "", own->engine);
}

enum hd_status peer_info_read_all(const struct hd_link_values *values, int64_t self,
                                  const struct peer_compute *compute,
                                  struct hd_gloo_endpoint *ret_cards)
{
    enum hd_status st = HD_OK;

    for (int64_t r = 0; !st && r < values->world; r++) {
        if (values->size_bytes[r] != PEER_INFO_BYTES)
            return hd_err(
                HD_CONFLICT,
                "rank %lld sent connection data of %zu bytes, not of %d: all nodes need the same "
                "build of Heddle",
                (long long)r, values->size_bytes[r], PEER_INFO_BYTES);
        st = check(values->value[r], r, self, compute);
        memcpy(ret_cards[r].bytes, values->value[r], HD_GLOO_ENDPOINT_BYTES);
    }
    return st;
}
