/* count: the number of ids of a tokenizer, and what they are, for programs that do not encode.
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
/* Sets *ret_hash to a hash of the texts of the ids below `ids`, without the tokens that are added to the
 * model's: tokenizers with equal hashes give these ids to the same texts. Fails likewise. */
enum hd_status hd_tokenizer_hash_ids(const char *path, int32_t ids, uint64_t *ret_hash);

#endif
