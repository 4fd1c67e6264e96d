/* Hostile bytes at a listener of gloo: as the endpoint info of a peer, and from a stranger who
 * connects. Nothing
 * may crash or be let in, and the rank that waits ends at its deadline. */
#include <arpa/inet.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/gloo_listener.h"
#include "tests/fuzz/driver.h"

enum { WORLD = 2, DEADLINE_MS = 2 };
enum { AS_ENDPOINT, AS_STRANGER, AS_COUNT }; /* by the first byte of an input */

static struct hd_gloo_listener *doors[WORLD];
static struct hd_gloo_endpoint endpoints[WORLD];

static void open_listeners(void)
{
    for (int r = 0; r < WORLD && !doors[r]; r++) {
        require(hd_gloo_listener_open("127.0.0.1", "here", &doors[r]) == HD_OK);
        endpoints[r] = *hd_gloo_listener_endpoint(doors[r]);
    }
}

/* Rank 0 waits for rank 1, who never comes. */
static enum hd_status wait_in_vain(const struct hd_gloo_endpoint *known)
{
    struct hd_comm *comm;

    return hd_comm_open_gloo(doors[0], known, 0, WORLD, DEADLINE_MS, &comm);
}

static void knock(const uint8_t *bytes, size_t size_bytes)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct gloo_address place;

    require(gloo_endpoint_read(&endpoints[0], 0, &place) == HD_OK);
    at.sin_port = htons(place.port);
    require(fd >= 0 && connect(fd, (const struct sockaddr *)&at, sizeof at) == 0);
    (void)send(fd, bytes, size_bytes, MSG_NOSIGNAL);
    require(wait_in_vain(endpoints) == HD_TIMEOUT);
    (void)close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    struct hd_gloo_endpoint known[WORLD];

    open_listeners();
    if (size_bytes == 0)
        return 0;
    if (bytes[0] % AS_COUNT == AS_STRANGER) {
        knock(bytes + 1, size_bytes - 1);
        return 0;
    }
    memcpy(known, endpoints, sizeof known);
    size_bytes = size_bytes - 1 < sizeof known[1] ? size_bytes - 1 : sizeof known[1];
    memcpy(known[1].bytes, bytes + 1, size_bytes);
    require(wait_in_vain(known) != HD_OK);
    return 0;
}

/* A endpoint info; a hello that rank 0 answers; the same with a proof that is none. */
size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    const struct gloo_hello hello = {.magic = {'h', 'd', '-', 'g', 'l', 'o', 'o', '1'},
                                     .caller = htole32(1),
                                     .host = htole32(0),
                                     .world = htole32(WORLD)};
    const size_t endpoint = 1 + sizeof endpoints[1], proved = 1 + sizeof hello + HD_GLOO_HASH_BYTES;

    open_listeners();
    require(max_bytes >= endpoint && max_bytes >= proved);
    memset(ret_bytes, 0, proved);
    ret_bytes[0] = index == 0 ? AS_ENDPOINT : AS_STRANGER;
    if (index == 0)
        memcpy(ret_bytes + 1, &endpoints[1], sizeof endpoints[1]);
    else
        memcpy(ret_bytes + 1, &hello, sizeof hello);
    return index == 0 ? endpoint : index == 1 ? 1 + sizeof hello : index == 2 ? proved : 0;
}
