/* interpose: counts the calls of malloc, its family and mmap while it is switched on, by whoever in
 * the process makes them. A program that links this file's object uses its malloc.
 */
#ifndef HD_TESTS_TRAIN_INTERPOSE_H
#define HD_TESTS_TRAIN_INTERPOSE_H

#include <stdbool.h>
#include <stddef.h>

/* Whose code called. The C++ library allocates for oneDNN alone, the only C++ in these programs. */
enum interpose_caller {
    INTERPOSE_HEDDLE, /* the program itself and libc */
    INTERPOSE_ONEDNN, /* libdnnl, libstdc++ */
    INTERPOSE_OPENMP, /* libgomp, libomp */
    INTERPOSE_CALLERS
};

struct interpose_count {
    long calls[INTERPOSE_CALLERS];
    size_t bytes[INTERPOSE_CALLERS];
    char first[160]; /* the first call by Heddle: what, and where from */
};

/* False where a sanitizer brings its own malloc: then nothing is counted. */
bool interpose_works(void);

void interpose_start(void);
void interpose_stop(void);                             /* what was counted adds up */
void interpose_get(struct interpose_count *ret_count); /* since the process began */

#endif
