/* peer_info: the information that a rank sends to ranks of other nodes before they connect.
 *
 * It is the rank's gloo endpoint, and what its results depend on besides the job: the instruction
 * set and the libraries. With plain data parallelism every rank computes the same update on its
 * own, so ranks that round differently would slowly train different models; they are refused before
 * the first step.
 *
 * Used by: rank.c, tests.   Uses: comm's gloo, link, kernels' traits.   Threads: none of its own.
 */
#ifndef HD_DAEMON_WORKER_PEER_INFO_H
#define HD_DAEMON_WORKER_PEER_INFO_H

#include "comm/gloo.h"
#include "kernels/kernels.h"
#include "link/link.h"

enum { PEER_INFO_BYTES = HD_GLOO_ENDPOINT_BYTES + 3 * 32 };

/* Instruction set and libraries that a rank computes with; ranks for which all three texts are
 * equal compute equal bits. */
struct peer_compute {
    char isa[32], library[32];
    /* on a GPU: the communication library with the way between nodes, such as "NCCL 2.28.9+RDMA"
     * (adapters) or "+TCP" (sockets), and the CPU's instruction set if the CPU computes, too; else
     * "" */
    char engine[32];
};

/* Writes this rank's endpoint and `compute` as the bytes to send with hd_link_rendezvous. */
void peer_info_write(const struct hd_gloo_endpoint *endpoint, const struct peer_compute *compute,
                     uint8_t ret_bytes[PEER_INFO_BYTES]);

/* Reads the information of all ranks: their endpoints, and the instruction sets and libraries that
 * they compute with, which must equal those of rank `self`. HD_CONFLICT: a rank of another build
 * sent its information; HD_UNSUPPORTED: a rank computes with other libraries. Both messages name
 * the rank. */
enum hd_status peer_info_read_all(const struct hd_link_values *values, int64_t self,
                                  const struct peer_compute *compute,
                                  struct hd_gloo_endpoint *ret_cards);

#endif
