/* Goal: the information that ranks of several nodes exchange before they connect. */
#include <string.h>

#include "tests/program/test.h"
#include "worker/peer_info.h"

enum { RANKS = 3 };

struct table {
    size_t size_bytes[RANKS];
    uint8_t value[RANKS][HD_LINK_VALUE_MAX];
    struct hd_link_values values;
};

static struct peer_compute compute_of(const char *isa, const char *library, const char *engine)
{
    struct peer_compute t = {.engine = ""};

    memcpy(t.isa, isa, strlen(isa) + 1);
    memcpy(t.library, library, strlen(library) + 1);
    memcpy(t.engine, engine, strlen(engine) + 1);
    return t;
}

/* Every rank's card is full of its number. */
static void fill(struct table *t, const struct peer_compute computes[RANKS])
{
    for (int r = 0; r < RANKS; r++) {
        struct hd_gloo_endpoint card;

        memset(card.bytes, r + 1, sizeof card.bytes);
        peer_info_write(&card, &computes[r], t->value[r]);
        t->size_bytes[r] = PEER_INFO_BYTES;
    }
    t->values = (struct hd_link_values){RANKS, t->size_bytes, t->value};
}

static void cards_arrive_in_the_order_of_ranks(void **state)
{
    const struct peer_compute one = compute_of("avx2", "own", ""), all[RANKS] = {one, one, one};
    struct hd_gloo_endpoint cards[RANKS];
    struct table t;

    fill(&t, all);
    assert_int_equal(peer_info_read_all(&t.values, 1, &one, cards), HD_OK);
    for (int r = 0; r < RANKS; r++)
        for (size_t i = 0; i < sizeof cards[r].bytes; i++)
            assert_int_equal(cards[r].bytes[i], r + 1);
}

static void ranks_that_would_round_otherwise_are_refused_by_name(void **state)
{
    const struct peer_compute one = compute_of("sm_90_cuda_13.0", "cuBLASLt-13.1.0", "NCCL 2.28.9");
    const struct peer_compute others[] = {
        compute_of("sm_80_cuda_13.0", "cuBLASLt-13.1.0", "NCCL 2.28.9"),
        compute_of("sm_90_cuda_13.0", "cuBLASLt-13.0.2", "NCCL 2.28.9"),
        compute_of("sm_90_cuda_13.0", "cuBLASLt-13.1.0", "NCCL 2.27.5"),
        compute_of("avx2", "own", ""),
    };
    struct hd_gloo_endpoint cards[RANKS];
    struct table t;

    for (size_t i = 0; i < 4; i++) {
        const struct peer_compute all[RANKS] = {one, one, others[i]};

        fill(&t, all);
        assert_int_equal(peer_info_read_all(&t.values, 0, &one, cards), HD_UNSUPPORTED);
        assert_non_null(strstr(hd_err_message(), "rank 2"));
        assert_int_equal(peer_info_read_all(&t.values, 2, &others[i], cards), HD_UNSUPPORTED);
        assert_non_null(strstr(hd_err_message(), "rank 0"));
    }
}

/* One end by sockets, the other by adapters: both would wait until the deadline. */
static void ends_that_would_wait_for_each_other_are_told(void **state)
{
    const struct peer_compute one = compute_of("sm_90", "cuBLASLt-13.1.0", "NCCL 2.28.9+RDMA");
    const struct peer_compute other = compute_of("sm_90", "cuBLASLt-13.1.0", "NCCL 2.28.9+TCP");
    const struct peer_compute all[RANKS] = {one, other, one};
    struct hd_gloo_endpoint cards[RANKS];
    struct table t;

    fill(&t, all);
    assert_int_equal(peer_info_read_all(&t.values, 0, &one, cards), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "NCCL of rank 1 would use sockets"));
    assert_non_null(strstr(hd_err_message(), "--data-address"));
}

static void a_card_of_another_build_is_refused(void **state)
{
    const struct peer_compute one = compute_of("avx2", "own", ""), all[RANKS] = {one, one, one};
    struct hd_gloo_endpoint cards[RANKS];
    struct table t;

    fill(&t, all);
    t.size_bytes[1]--;
    assert_int_equal(peer_info_read_all(&t.values, 0, &one, cards), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), "rank 1"));
    fill(&t, all);
    memset(t.value[1] + HD_GLOO_ENDPOINT_BYTES, 'x',
           PEER_INFO_BYTES - HD_GLOO_ENDPOINT_BYTES); /* without an end */
    assert_int_equal(peer_info_read_all(&t.values, 0, &one, cards), HD_UNSUPPORTED);
}

RUN_CASES()
