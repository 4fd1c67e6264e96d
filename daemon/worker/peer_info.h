/* card: what a rank tells those of other nodes before they connect.
 *
 * Its gloo card, and what its results depend on besides the job: the instruction set and the
 * libraries. Every rank of plain data parallelism computes the same update for itself, so ranks
 * that round otherwise would slowly train different models; they are refused before the first step.
 *
 * Used by: rank.c, tests.   Uses: comm's gloo, link, kernels' traits.   Threads: none of its own.
 */
#ifndef HD_DAEMON_WORKER_PEER_INFO_H
#define HD_DAEMON_WORKER_PEER_INFO_H

#include "comm/gloo.h"
#include "kernels/kernels.h"
#include "link/link.h"

enum { PEER_INFO_BYTES = HD_GLOO_ENDPOINT_BYTES + 3 * 32 };

/* What a rank computes with; equal words: equal bits. */
struct peer_compute {
    char isa[32], library[32];
    char engine[32]; /* of a GPU: "NCCL 2.28.9", and its processor if that computes, too; else "" */
};

/* For hd_link_rendezvous. */
void peer_info_write(const struct hd_gloo_endpoint *card, const struct peer_compute *compute,
                     uint8_t ret_bytes[PEER_INFO_BYTES]);

/* The cards of all ranks, of which rank `self` computes with this. HD_CONFLICT: another build sent
 * one; HD_UNSUPPORTED: a rank computes with something else. Both name the rank. */
enum hd_status peer_info_read_all(const struct hd_link_values *values, int64_t self,
                                  const struct peer_compute *compute,
                                  struct hd_gloo_endpoint *ret_cards);

#endif
