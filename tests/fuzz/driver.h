/* driver: what a fuzz target provides.
 *
 * The entry point is libFuzzer's, so that a target also runs under it. Where libFuzzer is not
 * there, driver.c calls it with mutations of the target's seeds: bits flipped, bytes changed,
 * pieces taken out, doubled, and put from one seed into another. The sequence is the same in every
 * run; the number of the run that went wrong is printed by HEDDLE_FUZZ_VERBOSE=1, and
 * HEDDLE_FUZZ_RUNS=n sets how many there are.
 */
#ifndef HD_FUZZ_DRIVER_H
#define HD_FUZZ_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* One input of exactly `size_bytes` bytes. Returns 0; a violated promise aborts. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

/* Writes seed number `index` (from 0) to ret_bytes, at most max_bytes, and returns its size; 0 when
 * there are no more. Good seeds are honest inputs that together use every part of the format. */
size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes);

/* Aborts where a promise does not hold. */
static inline void require(bool holds)
{
    if (!holds)
        abort();
}

/* Answers hd_fuzz_seed from a table of texts. */
static inline size_t fuzz_text_seed(const char *const *seeds, size_t count, unsigned index,
                                    uint8_t *ret_bytes, size_t max_bytes)
{
    size_t size;

    if (index >= count)
        return 0;
    size = strlen(seeds[index]);
    size = size < max_bytes ? size : max_bytes;
    memcpy(ret_bytes, seeds[index], size);
    return size;
}

#endif
