/* fingerprint: whether a data file is still the one that a job was submitted with.
 *
 * A size does not tell a text from another one of the same length, nor does a time, which a copy
 * keeps. A fingerprint is a hash of bytes at places spread evenly over the file, so that it costs
 * as little for a terabyte as for a megabyte. It finds a file that was replaced. A file that is not
 * larger than its places together is read whole: all files of a job of up to
 * HD_FINGERPRINT_WHOLE_BYTES are. In larger data it does not find a change of a few bytes between
 * two places.
 *
 * Used by: spec (records them), corpus, train.   Uses: base.   Threads: any.
 */
#ifndef HD_DATA_FINGERPRINT_H
#define HD_DATA_FINGERPRINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum {
    HD_FINGERPRINT_TEXT_MAX = 32,           /* bytes of its text form, NUL included */
    HD_FINGERPRINT_PLACE_BYTES = 4096,      /* read at each place */
    HD_FINGERPRINT_SHARE_MAX = 256,         /* places of one file of large data .. */
    HD_FINGERPRINT_SHARE_MIN = 2,           /* .. at least its beginning and its end */
    HD_FINGERPRINT_WHOLE_BYTES = 256 << 20, /* of all files of a job: so much is read whole */
    HD_FINGERPRINT_PLACES_MAX =
        HD_FINGERPRINT_WHOLE_BYTES / HD_FINGERPRINT_PLACE_BYTES, /* of one file */
    HD_FINGERPRINT_JOB_PLACES = 1024,                            /* of all files of a job, about */
    HD_FINGERPRINT_FILES_MAX = 4096 /* of a job: files that have a fingerprint */
};

/* The fingerprint of a file, and of the .idx beside a .bin, by `places` places of each, 1 to
 * HD_FINGERPRINT_PLACES_MAX. As text: the number of places, a colon, and 16 hexadecimal digits. */
enum hd_status hd_fingerprint(const char *path, int64_t places,
                              char ret_text[HD_FINGERPRINT_TEXT_MAX]);

/* Whether the text is such a form. One of a client need not be: it ends up in a line of the job's
 * text. */
bool hd_fingerprint_is_form(const char *text);

/* HD_INVALID, naming the file: its bytes are not those of `recorded`, which NULL or "" is where
 * none was recorded. */
enum hd_status hd_fingerprint_check(const char *path, const char *recorded);

#endif
