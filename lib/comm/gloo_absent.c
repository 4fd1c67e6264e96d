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

enum hd_status hd_gloo_door_open(const char *address, const char *node,
                                 struct hd_gloo_door **ret_door)
{
    (void)address;
    (void)node;
    (void)ret_door;
    return absent();
}

const struct hd_gloo_card *hd_gloo_door_card(const struct hd_gloo_door *door)
{
    (void)door;
    return NULL;
}

void hd_gloo_door_close(struct hd_gloo_door *door)
{
    (void)door;
}

void hd_gloo_door_tell(struct hd_gloo_door *door, void (*awaits)(void *of, int rank), void *of)
{
    (void)door;
    (void)awaits;
    (void)of;
}

enum hd_status hd_comm_open_gloo(struct hd_gloo_door *door, const struct hd_gloo_card *cards,
                                 int rank, int world, int64_t deadline_ms,
                                 struct hd_comm **ret_comm)
{
    (void)door;
    (void)cards;
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
