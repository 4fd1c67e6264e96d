/* shm_block: writes the header of the control block (in the supervisor), and checks it (in each
 * rank). */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/shm_layout.h"

void shm_block_init(struct shm_block *block, int world)
{
    block->magic = SHM_MAGIC;
    block->version = SHM_VERSION;
    block->world = (uint32_t)world;
    block->area_bytes = shm_area_bytes(world);
}

enum hd_status shm_block_check(int control_fd, int world)
{
    struct {
        uint64_t magic;
        uint32_t version, world;
        uint64_t area_bytes;
    } head = {0}; /* the first members of struct shm_block */
    struct stat stat;

    _Static_assert(offsetof(struct shm_block, failure) == sizeof head, "same layout");

    if (fstat(control_fd, &stat) < 0)
        return hd_err(HD_INVALID, "shm: descriptor %d: %s", control_fd, strerror(errno));
    if (pread(control_fd, &head, sizeof head, 0) != (ssize_t)sizeof head || head.magic != SHM_MAGIC)
        return hd_err(HD_INVALID, "shm: descriptor %d is not a control block of Heddle",
                      control_fd);
    if (head.version != SHM_VERSION || head.area_bytes != shm_area_bytes((int)head.world))
        return hd_err(
            HD_INVALID,
            "shm: the control block has version %u with areas of %llu bytes, this program "
            "version %d with %zu; start supervisor and workers from one build",
            head.version, (unsigned long long)head.area_bytes, SHM_VERSION,
            shm_area_bytes((int)head.world));
    if (head.world != (uint32_t)world || stat.st_size < (off_t)shm_block_bytes(world))
        return hd_err(HD_INVALID, "shm: the control block is for %u ranks, not %d", head.world,
                      world);
    return HD_OK;
}
