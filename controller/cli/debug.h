/* debug: parts of `heddle debug bundle` that have tests.   Threads: any. */
#ifndef HD_CLI_DEBUG_H
#define HD_CLI_DEBUG_H

#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

/* Appends the text with [removed] in place of possible secrets (cmd_debug.c lists them). */
void debug_redact(const char *text, size_t count, struct hd_text *out);
/* Appends a file to a tar archive. */
void debug_add_member(struct hd_text *tar, const char *name, const char *bytes, size_t count,
                      int64_t unix_s);

#endif
