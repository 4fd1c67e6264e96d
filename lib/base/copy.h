/* copy: the bytes of one open file into another.
 *
 * Used by: cli.   Uses: file.   Threads: any.
 */
#ifndef HD_BASE_COPY_H
#define HD_BASE_COPY_H

#include "base/status.h"

/* Copies the rest of a file; shares the bytes where the file system can. path: name of the copy in
 * messages. On failure the copy is left in part. */
enum hd_status hd_file_copy_rest(int from, int to, const char *path);

#endif
