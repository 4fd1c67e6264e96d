/* gloo_listener: connects the ranks of a job and authenticates the connections.
 *
 * A rank connects to the listeners of all lower ranks (as "caller") and accepts all higher ranks
 * (as "host"):
 *
 *   caller                                 host
 *   hello: both ranks, world, nonce     -> checks magic, world and ranks
 *                                       <- answer: own nonce, proof A over both
 *   checks proof A; proof B             -> checks proof B
 *                                       <- welcome: proof C
 *
 * A proof is an HMAC keyed by the hash of all endpoint infos. A connection with a wrong message, or
 * with an unfinished handshake after GLOO_HANDSHAKE_MS, is closed. When GLOO_INCOMING_MAX
 * handshakes are in progress, the oldest is closed for a new connection. A caller whose connection
 * was closed retries.
 *
 * Used by: gloo.c, tests.   Uses: base, libc.   Threads: one per listener. */
#ifndef HD_COMM_GLOO_LISTENER_H
#define HD_COMM_GLOO_LISTENER_H

#include <netinet/in.h>

#include "comm/gloo.h"
#include "comm/gloo_secret.h"

enum { GLOO_INCOMING_MAX = 64, GLOO_HANDSHAKE_MS = 10000 };

/* Fields parsed from an endpoint info, which consists of magic, nonce, port, address and node. */
struct gloo_address {
    char address[INET6_ADDRSTRLEN];
    char node[HD_GLOO_NODE_MAX];
    uint16_t port;
};
enum hd_status gloo_endpoint_read(const struct hd_gloo_endpoint *endpoint, int rank,
                                  struct gloo_address *ret_address);

/* The messages of the handshake. Numbers are little-endian. */
#define GLOO_HELLO_MAGIC "hd-gloo1"
struct gloo_hello {
    char magic[8];
    uint32_t caller, host, world, zero;
    uint8_t nonce[HD_GLOO_HASH_BYTES];
};
struct gloo_answer {
    uint8_t nonce[HD_GLOO_HASH_BYTES], proof[HD_GLOO_HASH_BYTES];
};

/* Writes proof `proof_kind` ('A', 'B' or 'C') of the handshake: an HMAC-SHA-256 keyed by the
 * secret, over proof_kind, hello and host_nonce. */
void gloo_prove(const uint8_t secret[HD_GLOO_HASH_BYTES], char proof_kind,
                const struct gloo_hello *hello, const uint8_t host_nonce[HD_GLOO_HASH_BYTES],
                uint8_t ret_proof[HD_GLOO_HASH_BYTES]);
void gloo_secret(const struct hd_gloo_endpoint *endpoints, int world,
                 uint8_t ret_secret[HD_GLOO_HASH_BYTES]);

/* Connects this rank to all other ranks. ret_fds: [world], one connected socket per peer, which the
 * caller closes; -1 for `rank` itself. ret_addresses: [world], from the endpoint infos. HD_TIMEOUT:
 * the message names the missing ranks. */
enum hd_status gloo_rendezvous(struct hd_gloo_listener *listener,
                               const struct hd_gloo_endpoint *endpoints, int rank, int world,
                               int64_t deadline_ms, struct gloo_address *ret_addresses,
                               int *ret_fds);

#endif
