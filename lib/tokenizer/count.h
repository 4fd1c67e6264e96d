/* count: the number of ids of a tokenizer, for programs that do not encode.
 *
 * Used by: spec.   Uses: base.   Threads: any; no state is shared.
 */
#ifndef HD_TOKENIZER_COUNT_H
#define HD_TOKENIZER_COUNT_H

#include <stdint.h>

#include "base/status.h"

/* Sets *ret_count to the largest id + 1 of the tokenizer in the file `path`, with the tokens that
 * the files beside it add. HD_NOT_FOUND, HD_INVALID, HD_LIMIT: the message names the file. */
enum hd_status hd_tokenizer_count_ids(const char *path, int32_t *ret_count);

#endif
