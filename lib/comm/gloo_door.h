/* gloo_door: how the ranks of a job find and recognise each other.
 *
 * A rank calls at the doors of all lower ranks and lets all higher ranks in:
 *
 *   caller                                 host
 *   hello: who I am, whom I want, nonce -> checks world, ranks and that the caller is awaited
 *                                       <- answer: own nonce, proof A over all of that
 *   checks proof A; proof B             -> checks proof B
 *                                       <- welcome: proof C
 *
 * The proofs are keyed by the hash of all cards, so only who holds them all makes or passes them.
 * Whoever says anything else, or nothing for GLOO_PATIENCE_MS, is turned away, and the oldest of
 * GLOO_GUESTS_MAX that are not yet known makes room for the next. A caller that was turned away
 * (it may have been pushed out by a crowd) calls again.
 *
 * Used by: gloo.c, tests.   Uses: base, libc.   Threads: one per door.
 */
#ifndef HD_COMM_GLOO_DOOR_H
#define HD_COMM_GLOO_DOOR_H

#include <netinet/in.h>

#include "comm/gloo.h"
#include "comm/gloo_secret.h"

enum { GLOO_GUESTS_MAX = 64, GLOO_PATIENCE_MS = 10000 };

/* A card as it lies in HD_GLOO_CARD_BYTES: magic, nonce, then what can be read. */
struct gloo_place {
    char address[INET6_ADDRSTRLEN];
    char node[HD_GLOO_NODE_MAX];
    uint16_t port;
};
enum hd_status gloo_card_read(const struct hd_gloo_card *card, int rank,
                              struct gloo_place *ret_place);

/* The messages. Numbers are little endian. */
#define GLOO_HELLO_MAGIC "hd-gloo1"
struct gloo_hello {
    char magic[8];
    uint32_t caller, host, world, zero;
    uint8_t nonce[HD_GLOO_HASH_BYTES];
};
struct gloo_answer {
    uint8_t nonce[HD_GLOO_HASH_BYTES], proof[HD_GLOO_HASH_BYTES];
};

/* proof of `side` ('A', 'B' or 'C'): keyed by the secret, over side, hello and the host's nonce. */
void gloo_prove(const uint8_t secret[HD_GLOO_HASH_BYTES], char side, const struct gloo_hello *hello,
                const uint8_t host_nonce[HD_GLOO_HASH_BYTES],
                uint8_t ret_proof[HD_GLOO_HASH_BYTES]);
void gloo_secret(const struct hd_gloo_card *cards, int world,
                 uint8_t ret_secret[HD_GLOO_HASH_BYTES]);

/* One connected socket per peer, the place of `rank` itself -1. places: [world], read from the
 * cards. HD_TIMEOUT names who is missing. */
enum hd_status gloo_meet(struct hd_gloo_door *door, const struct hd_gloo_card *cards, int rank,
                         int world, int64_t deadline_ms, struct gloo_place *ret_places,
                         int *ret_fds);

#endif
