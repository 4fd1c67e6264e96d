/* copy: the bytes of one file into another.
 *
 * Used by: cli.   Uses: file.   Threads: any.
 */
#ifndef HD_BASE_COPY_H
#define HD_BASE_COPY_H

#include <sys/types.h>

#include "base/status.h"

/* Copies a file to a new one, or over one that is there and no link; shares the bytes where the file
 * system can. HD_NOT_FOUND: there is no such file. After another failure no copy is left. */
enum hd_status hd_file_copy(const char *from, const char *to, mode_t mode);

#endif
