/* config_internal: messages and notes that the files which read config.json share.
 *
 * Used by: config.c, rope.c, tied.c.   Threads: any.
 */
#ifndef HD_HF_CONFIG_INTERNAL_H
#define HD_HF_CONFIG_INTERNAL_H

#include "hf/hf_internal.h"

enum { HD_HF_QUOTE_MAX = 80 };

/* Formats a JSON value as short text without control characters, for messages; returns ret_text. */
const char *hd_hf_quote(const struct hd_json *value, char ret_text[HD_HF_QUOTE_MAX]);

/* Returns HD_UNSUPPORTED with the error message "KEY: VALUE is not supported; INSTEAD". */
enum hd_status hd_hf_unsupported(const char *key, const struct hd_json *value, const char *instead);

/* Reads a number from min to max. HD_INVALID: the value is none; the message names the key. */
enum hd_status hd_hf_to_real(const struct hd_json *value, const char *key, double min, double max,
                             double *ret_value);

/* Appends a sentence to the notes for the user about a model folder; does nothing if notes is
 * NULL. */
void hd_hf_note(struct hd_text *notes, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Returns whether two JSON values are equal: numbers by value, objects by their members in any
 * order. */
bool hd_hf_same_value(const struct hd_json *a, const struct hd_json *b);

/* Resolves the rotary positions of a config.json into the members rope_* of the job, by the order
 * of precedence of transformers 5 (described in rope.c). default_theta: that of the model's class.
 * job->context must be that of config.json. HD_INVALID, HD_UNSUPPORTED: the message names the key.
 * Contradictions become notes. */
enum hd_status hd_hf_read_rope(const struct hd_json *root, double default_theta, struct hd_job *job,
                               struct hd_text *notes);

/* Sets the job's head to untied if the folder's head tensor differs from its embedding, as
 * transformers 5 does, and adds a note. Leaves the job unchanged if the folder has no weights, or
 * damaged ones. */
void hd_hf_resolve_tied(const char *dir, struct hd_job *job, struct hd_text *notes);

#endif
