/* disk_vfs: an SQLite VFS in memory that behaves like a disk on a bad day.
 *
 * Every write is remembered until the file is synced; a power cut keeps of the writes since then
 * none, all, or a random choice of their sectors. Operations can be made to fail from a chosen one
 * on, and the disk can be full.
 *
 * Threads: one connection at a time.
 */
#ifndef HD_TEST_CONTROLLER_DISK_VFS_H
#define HD_TEST_CONTROLLER_DISK_VFS_H

#include <stdbool.h>
#include <stdint.h>

#define DISK_VFS "heddle-test-disk"

enum disk_cut { DISK_KEEPS_NOTHING, DISK_KEEPS_ALL, DISK_KEEPS_SOME };

void disk_register(void);
void disk_wipe(void); /* a new, empty, healthy disk */

/* The operation numbered n (writes, syncs, truncations; from 1) and all after it fail: the power is
 * gone. 0: never. */
void disk_fail_from(int64_t operation);
int64_t disk_operations(void); /* done so far on this disk */

/* The machine comes back: open files are closed, what was not synced is kept as told. */
void disk_power_cut(enum disk_cut kept, uint64_t seed);

void disk_set_full(bool full); /* writes that would make a file longer fail */
/* All files together take at most so much; 0: no limit. */
void disk_set_capacity(int64_t bytes);
/* Lets another program take half of the space that a file frees, at once and for good. */
void disk_set_greedy(bool greedy);
/* While no other thread writes: bytes of all files; of the one whose name ends so, 0: there is
 * none.
 */
int64_t disk_used(void);
int64_t disk_size_of(const char *suffix);
void disk_set_broken(bool broken);   /* every write fails with an I/O error */
void disk_ignore_syncs(bool ignore); /* syncs say that all is well, and do nothing */
void disk_hold_syncs(bool hold);     /* a sync does not return while this is true */
void disk_wait_held(void);           /* until a sync is held */
void disk_damage(const char *suffix, int64_t offset); /* flips a byte of the file named so */

#endif
