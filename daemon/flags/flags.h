/* flags: parses the "--name value" flags of heddle-worker and heddle-serve. */
#ifndef HD_FLAGS_H
#define HD_FLAGS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct hd_flag {
    const char *name; /* with its dashes, "--rank" */
    bool required, is_switch;
    /* set by hd_flags_read: the value's text, "1" for a switch; NULL: not given */
    const char *value;
};

/* Parses all of argv. Returns HD_INVALID for unknown, repeated and missing flags, and for one
 * without its value. */
enum hd_status hd_flags_read(int argc, char **argv, struct hd_flag *flags, int count);

/* Parse the value as a number from min to max; `otherwise` if the flag was not given. The error
 * message names the flag. */
enum hd_status hd_flag_int(const struct hd_flag *flag, int64_t min, int64_t max, int64_t otherwise,
                           int64_t *ret_value);
enum hd_status hd_flag_real(const struct hd_flag *flag, double min, double max, double otherwise,
                            double *ret_value);

#endif
