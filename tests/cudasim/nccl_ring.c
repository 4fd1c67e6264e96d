#include "nccl_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, LINE_BYTES = 64 };

/* One direction. Bytes from `taken` to `put` are in the ring; both count from the beginning and
 * never go back, so their difference is the number of bytes, and the place is the rest by the size.
 */
struct ring {
    _Alignas(LINE_BYTES) _Atomic uint64_t put;   /* written by the sender */
    _Alignas(LINE_BYTES) _Atomic uint64_t taken; /* written by the receiver */
    _Atomic uint32_t waits;                      /* the sender found no room for all it had */
    _Alignas(LINE_BYTES) char bytes[HD_RING_BYTES];
};
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "atomics of 64 bits work between processes");

struct hd_rings {
    struct ring *out, *in, *memory; /* memory: [2], the first is the maker's to the other */
};

int hd_rings_make(void)
{
    const int fd = memfd_create("emulated-nccl", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return -1;
    if (ftruncate(fd, 2 * sizeof(struct ring)) == 0 && fcntl(fd, F_ADD_SEALS, SEALS) == 0)
        return fd;
    (void)close(fd);
    return -1;
}

struct hd_rings *hd_rings_map(int fd, bool maker)
{
    const int seals = fcntl(fd, F_GET_SEALS);
    struct hd_rings *rings = calloc(1, sizeof *rings);
    struct stat st;
    void *memory = MAP_FAILED;

    if (!rings)
        abort();
    if (seals >= 0 && (seals & SEALS) == SEALS && fstat(fd, &st) == 0 &&
        st.st_size == 2 * sizeof(struct ring))
        memory = mmap(NULL, 2 * sizeof(struct ring), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        free(rings);
        return NULL;
    }
    rings->memory = memory;
    rings->out = rings->memory + !maker;
    rings->in = rings->memory + maker;
    return rings;
}

void hd_rings_unmap(struct hd_rings *rings)
{
    if (rings)
        (void)munmap(rings->memory, 2 * sizeof(struct ring));
    free(rings);
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Puts as many bytes as fit now. The counts are the other process's word: a nonsensical one gives
 * no room. */
static size_t put_some(struct ring *ring, const char *bytes, size_t size)
{
    const uint64_t put = atomic_load_explicit(&ring->put, memory_order_relaxed);
    const uint64_t used = put - atomic_load(&ring->taken);
    const size_t count = used <= HD_RING_BYTES ? smaller(size, HD_RING_BYTES - used) : 0;
    const size_t place = put % HD_RING_BYTES, first = smaller(count, HD_RING_BYTES - place);

    memcpy(ring->bytes + place, bytes, first);
    memcpy(ring->bytes, bytes + first, count - first);
    atomic_store(&ring->put, put + count);
    return count;
}

size_t hd_rings_put(struct hd_rings *rings, const void *bytes, size_t size)
{
    size_t count = put_some(rings->out, bytes, size);

    if (count == size)
        return count;
    /* Between the look and this store the receiver may have taken something without knowing that
     * this process waits: look once more. */
    atomic_store(&rings->out->waits, 1);
    count += put_some(rings->out, (const char *)bytes + count, size - count);
    return count;
}

size_t hd_rings_take(struct hd_rings *rings, void *to, size_t size, bool *ret_wake)
{
    struct ring *ring = rings->in;
    const uint64_t taken = atomic_load_explicit(&ring->taken, memory_order_relaxed);
    const uint64_t there = atomic_load(&ring->put) - taken;
    const size_t count = there <= HD_RING_BYTES ? smaller(size, there) : 0;
    const size_t place = taken % HD_RING_BYTES, first = smaller(count, HD_RING_BYTES - place);

    memcpy(to, ring->bytes + place, first);
    memcpy((char *)to + first, ring->bytes, count - first);
    atomic_store(&ring->taken, taken + count);
    *ret_wake |= count && atomic_exchange(&ring->waits, 0);
    return count;
}
