/* disk: a witness between the room under test and the kernel.
 *
 * It keeps, by the rules of POSIX, what would survive a power cut: bytes from fsync of their file
 * on, names from fsync of their directory on. And it can end the process at the n-th call.
 */
#ifndef HD_TESTS_CHECKPOINT_DISK_H
#define HD_TESTS_CHECKPOINT_DISK_H

enum { DISK_CUT_STATUS = 77 };

void disk_watch(void); /* forget everything, begin to watch: writes below checkpoints/ */
void disk_watch_below(const char *part); /* the same, writes to paths that have this in them */
int disk_pending_count(void);            /* names and files that a power cut might take now */
int disk_call_count(void);               /* watched calls so far */
int disk_complaint_count(void);    /* renames before the bytes, removals before the name ... */
const char *disk_complaint(void);  /* ... and the first of them in words */
void disk_cut_at(int call_number); /* _exit(DISK_CUT_STATUS) instead of that call; writes half */

#endif
