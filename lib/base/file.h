/* file: atomic and durable writes, and functions to read, lock and remove files.
 *
 * Durability rule: hd_file_write_atomic returns HD_OK only when the bytes and the name are on disk
 * (write PATH.part.PID, fsync, rename to PATH, fsync of the directory). A crash leaves the old file
 * or the new one, never a partial file under PATH.
 *
 * Used by: everything.   Uses: status, text.   Threads: any. */
#ifndef HD_BASE_FILE_H
#define HD_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "base/text.h"

struct stat;

/* Returns the status of a failed write, flush, rename or creation by its errno. Returns HD_STORAGE
 * if the file system accepts no writes for now, because it is full, over a quota or read-only, has
 * an I/O error, or its server does not answer; or the file would exceed a limit that can be raised.
 * Returns HD_IO for any other errno. The functions below return this status when a write fails. */
enum hd_status hd_file_write_status(int error);
/* Returns strerror(error); for EFBIG also the limit that the file would exceed. */
const char *hd_file_error_text(int error);
/* Makes a write beyond the limit on file sizes (ulimit -f) fail with EFBIG instead of killing the
 * program by SIGXFSZ. Each program calls this first; its children inherit the setting. */
void hd_file_ignore_size_signal(void);

/* Reports that open(2) or stat(2) refused a file with `error`. `what` precedes the path in the
 * message ("the data file "). Returns HD_NOT_FOUND; HD_DENIED, naming the user and the remedy,
 * because a retry cannot help; otherwise HD_IO. */
enum hd_status hd_file_cannot_open(const char *what, const char *path, int error);

/* Opens a regular file for reading, without waiting for a FIFO's writer. HD_INVALID: the path is a
 * folder, a pipe or a device. If open(2) fails: as hd_file_cannot_open. */
enum hd_status hd_file_open_regular(const char *what, const char *path, int *ret_fd);

/* Returns HD_STORAGE if the file system of `path`, or of the nearest existing folder above it, has
 * fewer than `bytes` free for this user, cannot create files, or is read-only; the message has both
 * sizes. Returns HD_OK also if the file system does not report its size. */
enum hd_status hd_file_check_space(const char *path, int64_t bytes);
/* Returns the free space of the file system of `path` for this user; -1: it cannot be queried. */
int64_t hd_file_free_bytes(const char *path);

enum hd_status hd_file_write_atomic(const char *path, const void *data, size_t size_bytes,
                                    mode_t mode);

/* Resolves "." and ".." in the path of an existing folder, because paths of checkpoints below it
 * must not contain them (controller/services/fleet.c, daemon/agent/deletion.c). Does nothing if the
 * path contains neither. HD_INVALID: the result would have max_bytes bytes or more. */
enum hd_status hd_file_make_plain(char *path, size_t max_bytes);

/* Appends the whole file to ret_text, which the caller frees, also on failure: bytes that were read
 * before it stay there. Accepts only regular files, so that no FIFO makes the caller wait and no
 * device delivers data without end. HD_LIMIT: the file is larger than max_bytes. HD_NOT_FOUND: the
 * file does not exist. HD_INVALID: the path is a folder, a pipe or a device, or cannot be
 * resolved. */
enum hd_status hd_file_read(const char *path, size_t max_bytes, struct hd_text *ret_text);

/* Returns HD_INVALID if the path exists and is not a regular file: a library that opened it might
 * wait for ever. */
enum hd_status hd_file_check_regular(const char *path);

/* Reads a file that a user names on a command line: like hd_file_read, but also pipes and devices,
 * such as /dev/stdin or <(program). HD_INVALID: the pipe or device delivered no data for
 * patience_ms milliseconds (0: pipes and devices are refused). */
enum { HD_FILE_PATIENCE_MS = 30 * 1000 };
enum hd_status hd_file_read_stream(const char *path, size_t max_bytes, int patience_ms,
                                   struct hd_text *ret_text);
/* Reads a file like hd_file_read_stream, and sets *ret_info to what fstat says of the open file: a
 * check of the path would be of another file, if the name was given to one meanwhile. */
enum hd_status hd_file_read_open(const char *path, size_t max_bytes, int patience_ms,
                                 struct hd_text *ret_text, struct stat *ret_info);

/* Write or read all size_bytes, retrying after EINTR and short counts. hd_file_pread_all returns
 * HD_CORRUPT when the file is too short. */
enum hd_status hd_file_write_all(int fd, const void *data, size_t size_bytes);
enum hd_status hd_file_pread_all(int fd, void *ret_data, size_t size_bytes, int64_t offset_bytes);

enum { HD_FILE_WHY_MAX = 512 };
/* Writes the text of errno `error` about the file or folder `path`, and returns it. If access was
 * denied, the text also names the owner of `path`, or of the folder above it if `path` does not
 * exist, so that the user notices a folder that belongs to another user. Preserves errno. */
const char *hd_file_explain(int error, const char *path, char ret_text[HD_FILE_WHY_MAX]);

/* Reads a piece of a file that may grow: up to max_bytes from byte `offset_bytes` on; a negative
 * offset counts from the end. *ret_offset: where the piece begins, which is after a hole if the
 * offset is in one. *ret_count 0: no data there yet. HD_NOT_FOUND: no such file. HD_IO: a read
 * error, a symbolic link, or not a regular file. */
enum hd_status hd_file_read_piece(const char *path, int64_t offset_bytes, void *ret_bytes,
                                  size_t max_bytes, size_t *ret_count, int64_t *ret_offset);
/* Mode of folders that ranks make in a job's folder. If the folder above has a default ACL
 * (daemon/isolation/acl.h), the group bits limit the access of heddled's user; otherwise the umask
 * removes them. */
enum { HD_FILE_JOB_DIR_MODE = 0775 };
enum hd_status hd_file_sync_dir(const char *path); /* makes names of files created or renamed in the
                                                      folder `path` durable (fsync) */
/* Creates a folder and its parents, like mkdir -p; the new names are durable. */
enum hd_status hd_file_make_dirs(const char *path, mode_t mode);
/* Creates the folders of `below` ("7/attempt-1") in the folder `base`, durably, and follows no
 * links below `base`. HD_CONFLICT: a part of `below` is a link or not a folder, so that files would
 * be written elsewhere. */
enum hd_status hd_file_make_dirs_below(const char *base, const char *below, mode_t mode);
/* Removes a folder with its contents, or a file, by hd_tree_remove (base/tree.h) without marks:
 * follows no links and enters no other mounts. Returns HD_OK also if `path` does not exist. */
enum hd_status hd_file_remove_tree(const char *path);

/* Takes an exclusive flock on `path` (created if absent). Closing *ret_fd or the end of the process
 * releases it. HD_CONFLICT: another process holds the lock. The descriptor is close-on-exec. */
enum hd_status hd_file_lock(const char *path, int *ret_fd);

/* Writes text to standard output and flushes it. Returns HD_IO if this write or an earlier one to
 * standard output was incomplete, so that a full disk is reported. */
enum hd_status hd_file_print(const char *text);

/* Sets the umask of a program that creates files for jobs, and of its children. `octal`: the
 * operator's setting; NULL: 027, plus the bits of the inherited umask. HD_INVALID: `octal` is not a
 * umask, or would deny access to the user who creates the files. */
enum hd_status hd_file_set_umask(const char *octal);
/* HD_INVALID: hd_file_set_umask refuses this text. */
enum hd_status hd_file_check_umask(const char *octal);

bool hd_file_exists(const char *path);
bool hd_file_is_dir(const char *path); /* or a link to a folder */
/* Appends `path` to ret_text, relative to `dir`: "/home/x" and "a/b.txt" give "/home/x/a/b.txt"; an
 * absolute `path` is appended unchanged. */
void hd_file_join(struct hd_text *ret_text, const char *dir, const char *path);

#endif
