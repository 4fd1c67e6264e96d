/* The functions of gloo.h in a build without the library gloo. */
#include "comm/gloo.h"

bool hd_gloo_built_in(void)
{
    return false;
}

static enum hd_status absent(void)
{
    return hd_err(HD_UNSUPPORTED,
                  "gloo: this build has no engine for ranks on several nodes; install libgloo-dev "
                  "and build again, or keep the ranks of the job on one node");
}

enum hd_status hd_gloo_listener_open(const char *address, const char *node,
                                     struct hd_gloo_listener **ret_listener)
{
    (void)address;
    (void)node;
    (void)ret_listener;
    return absent();
}

const struct hd_gloo_endpoint *hd_gloo_listener_endpoint(const struct hd_gloo_listener *listener)
{
    (void)listener;
    return NULL;
}

void hd_gloo_listener_close(struct hd_gloo_listener *listener)
{
    (void)listener;
}

void hd_gloo_listener_report(struct hd_gloo_listener *listener,
                             void (*waiting_on)(void *of, int rank), void *of)
{
    (void)listener;
    (void)waiting_on;
    (void)of;
}

enum hd_status hd_comm_open_gloo(struct hd_gloo_listener *listener,
                                 const struct hd_gloo_endpoint *endpoints, int rank, int world,
                                 int64_t deadline_ms, struct hd_comm **ret_comm)
{
    (void)listener;
    (void)endpoints;
    (void)rank;
    (void)world;
    (void)deadline_ms;
    (void)ret_comm;
    return absent();
}

uint64_t hd_gloo_memory_bytes(int world)
{
    (void)world;
    return 0;
}
