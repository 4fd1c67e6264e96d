/* file: atomic and durable writes, and the helpers by which Heddle reads, locks and removes files.
 *
 * Durability rule: hd_file_write_atomic returns HD_OK only when the bytes and the name are on disk
 * (write PATH.part.PID, fsync, rename to PATH, fsync of the directory). A crash leaves the old file
 * or the new one, never a partial file under PATH.
 *
 * Used by: everything.   Uses: status, text.   Threads: any.
 */
#ifndef HD_BASE_FILE_H
#define HD_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "base/text.h"

/* What a failed write, flush, rename or creation means, by its errno. HD_STORAGE: the file system
 * takes no writes for now: it is full or over a quota, read-only, has an I/O error, or its server
 * does not answer; or the file would exceed a limit that can be raised. Else HD_IO. The functions
 * below return it for what they write. */
enum hd_status hd_file_write_status(int error);
/* strerror, and for EFBIG which limit a file would exceed. */
const char *hd_file_error_text(int error);
/* A limit on file sizes (ulimit -f) is then a failed write with EFBIG, and not the end of the
 * program by SIGXFSZ. Each program calls it first; what it starts inherits it. */
void hd_file_ignore_size_signal(void);

/* For a file that open(2) or stat(2) refused with `error`, `what` before its path ("the data file
 * "). HD_NOT_FOUND; HD_DENIED, naming the user and what helps: it stays so until somebody changes
 * something; else HD_IO. */
enum hd_status hd_file_cannot_open(const char *what, const char *path, int error);

/* HD_STORAGE: in the file system of `path`, or of the next folder above it that exists, fewer than
 * `bytes` are free for this user, no file can be created, or it is read-only; the message has both
 * sizes. HD_OK also where it does not say. */
enum hd_status hd_file_check_space(const char *path, int64_t bytes);

enum hd_status hd_file_write_atomic(const char *path, const void *data, size_t size_bytes,
                                    mode_t mode);

/* Makes the path of a folder that is there one without "." and "..": paths of checkpoints below it
 * may have none (controller/services/fleet.c, daemon/agent/deletion.c). Does nothing for a path
 * that has none. HD_INVALID: it would have max_bytes bytes or more. */
enum hd_status hd_file_make_plain(char *path, size_t max_bytes);

/* Appends the whole file to ret_text; of nothing else than a regular file, so that no FIFO makes
 * the caller wait and no device feeds it without end. HD_LIMIT: it is larger than max_bytes.
 * HD_NOT_FOUND: it does not exist. HD_INVALID: it is a folder, a pipe or a device, or its name
 * cannot be followed. */
enum hd_status hd_file_read(const char *path, size_t max_bytes, struct hd_text *ret_text);

/* HD_INVALID: the path leads to something else than a regular file, so that a library that opens it
 * might wait without end. HD_OK: also where there is nothing. */
enum hd_status hd_file_check_regular(const char *path);

/* hd_file_read for what a person names on a command line, which may be /dev/stdin, /dev/null or
 * <(a program): also pipes and devices. HD_INVALID: nothing came for patience_ms (0: as
 * hd_file_read). */
enum { HD_FILE_PATIENCE_MS = 30 * 1000 };
enum hd_status hd_file_read_stream(const char *path, size_t max_bytes, int patience_ms,
                                   struct hd_text *ret_text);

/* Write or read all size_bytes, retrying after EINTR and short counts. hd_file_pread_all returns
 * HD_CORRUPT when the file is too short. */
enum hd_status hd_file_write_all(int fd, const void *data, size_t size_bytes);
enum hd_status hd_file_pread_all(int fd, void *ret_data, size_t size_bytes, int64_t offset_bytes);

enum { HD_FILE_WHY_MAX = 512 };
/* Writes the text of an error with the file or folder `path`, and returns it. The text of one that
 * is denied says whose `path` is, or the folder above it if there is no `path`: so a folder is found
 * that another user has put in its place. Leaves errno as it was. */
const char *hd_file_explain(int error, const char *path, char ret_text[HD_FILE_WHY_MAX]);

/* A piece of a file that may grow: up to max_bytes from byte `offset_bytes` on; negative: so many
 * bytes before the end. *ret_offset: where the piece begins: behind a hole of the file, if the
 * offset is in one. *ret_count 0: nothing there yet.
 * HD_NOT_FOUND: no such file. HD_IO: also a link, or no regular file. */
enum hd_status hd_file_read_piece(const char *path, int64_t offset_bytes, void *ret_bytes,
                                  size_t max_bytes, size_t *ret_count, int64_t *ret_offset);
/* Of folders that ranks make in a job's folder: where the folder above has a default access list
 * (daemon/isolation/acl.h), the group's bits bound what heddled's user may do in it; elsewhere the
 * umask takes them. */
enum { HD_FILE_JOB_DIR_MODE = 0775 };
enum hd_status hd_file_sync_dir(const char *path); /* makes names created in `path` durable */
enum hd_status hd_file_make_dirs(const char *path, mode_t mode); /* like mkdir -p, durable names */
/* The same for `below` ("7/attempt-1") in the folder `base`, and no link is followed below that.
 * HD_CONFLICT: a part of `below` is a link or no folder, so that files would go to another place.
 */
enum hd_status hd_file_make_dirs_below(const char *base, const char *below, mode_t mode);
/* Removes a folder or file by hd_tree_remove (base/tree.h) without marks: follows no links, enters
 * no other mounts. A path that is absent is HD_OK. */
enum hd_status hd_file_remove_tree(const char *path);

/* Takes an exclusive flock on `path` (created if absent). Closing *ret_fd or the end of the process
 * releases it. HD_CONFLICT: another process holds it. The descriptor is close-on-exec. */
enum hd_status hd_file_lock(const char *path, int *ret_fd);

/* Text to standard output, at once. HD_IO when not all of it was written, or not all that went
 * there before: a full disk is told. */
enum hd_status hd_file_print(const char *text);

/* The umask of a program that makes files for jobs, and so of all that it starts. `octal` is what
 * an operator says; NULL: 027, or more where the program was started with more. HD_INVALID: it is
 * no umask, or one that keeps out the user who makes the files. */
enum hd_status hd_file_set_umask(const char *octal);

bool hd_file_exists(const char *path);
/* Appends `path` to ret_text, relative to `dir`: "/home/x" and "a/b.txt" give "/home/x/a/b.txt"; an
 * absolute `path` is appended unchanged. */
void hd_file_join(struct hd_text *ret_text, const char *dir, const char *path);

#endif
