/* golden: the tokenizers whose ids Hugging Face tokenizers gave (tests/interop/tokenizers). */
#ifndef HD_TESTS_DATA_GOLDEN_H
#define HD_TESTS_DATA_GOLDEN_H

#include "tokenizer/tokenizer.h"

/* Returns the path of a file among them; good until the next call. */
const char *golden_path(const char *file);

/* Opens a tokenizer. A build without the libraries for tokenizer.json says so, and that is all
 * there is to test: the case is skipped. */
enum hd_status golden_open(const char *path, struct hd_tokenizer **ret_tokenizer);

#endif
