/* flags: "--name value" pairs of heddle-worker and heddle-serve, which the heddle command starts.
 */
#ifndef HD_FLAGS_H
#define HD_FLAGS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct hd_flag {
    const char *name; /* "--rank" */
    bool required, is_switch;
    const char *value; /* set by hd_flags_read: the text; "1" for a switch that was given */
};

/* Reads all of argv; unknown, repeated, missing and valueless flags are HD_INVALID. */
enum hd_status hd_flags_read(int argc, char **argv, struct hd_flag *flags, int count);

/* The value as a number, or `otherwise` when the flag was not given. */
enum hd_status hd_flag_int(const struct hd_flag *flag, int64_t min, int64_t max, int64_t otherwise,
                           int64_t *ret_value);
enum hd_status hd_flag_real(const struct hd_flag *flag, double min, double max, double otherwise,
                            double *ret_value);

#endif
