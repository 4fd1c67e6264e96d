/* temporary: folders that tests write in. tests/run gives each test a TMPDIR of its own and removes
 * it behind the test, so nothing stays of one that failed.
 *
 * Used by: fixtures.   Uses: libc.   Threads: any.
 */
#ifndef HD_TESTS_TEMPORARY_H
#define HD_TESTS_TEMPORARY_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEMPORARY_BYTES = 64 }; /* of a path, at most, its end included */

/* A new folder NAME-XXXXXX below TMPDIR, or below /tmp where that is so long that the address of a
 * socket in the folder would not fit. A failure ends the program. */
static inline void temporary_dir(char ret_dir[TEMPORARY_BYTES], const char *name)
{
    const char *parent = getenv("TMPDIR");

    if (!parent || !*parent || strlen(parent) > 40)
        parent = "/tmp";
    if (snprintf(ret_dir, TEMPORARY_BYTES, "%s/%s-XXXXXX", parent, name) >= TEMPORARY_BYTES ||
        !mkdtemp(ret_dir)) {
        perror(ret_dir);
        abort();
    }
}

#endif
