/* fingerprint: detects that a data file was replaced since its job was submitted.
 *
 * Size and modification time do not detect it: two texts may have the same size, and a copy may
 * keep the time. A fingerprint is a hash of bytes at places spread evenly over the file, so that it
 * costs as little for a terabyte as for a megabyte. It detects that a file was replaced. A file
 * that is not larger than its places together is read whole; so are all files of a job of up to
 * HD_FINGERPRINT_WHOLE_BYTES. In larger data it does not detect a change of a few bytes between two
 * places.
 *
 * Used by: spec (records them), corpus, train.   Uses: base.   Threads: any.
 */
#ifndef HD_DATA_FINGERPRINT_H
#define HD_DATA_FINGERPRINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum {
    HD_FINGERPRINT_TEXT_MAX = 32,      /* bytes of the text form, with its NUL */
    HD_FINGERPRINT_PLACE_BYTES = 4096, /* bytes read at each place */
    HD_FINGERPRINT_SHARE_MAX = 256,    /* most places that are read in one file of large data */
    /* least places that are read in a file: its beginning and its end */
    HD_FINGERPRINT_SHARE_MIN = 2,
    /* if a job's files have at most this many bytes together, they are hashed whole */
    HD_FINGERPRINT_WHOLE_BYTES = 256 << 20,
    HD_FINGERPRINT_PLACES_MAX =
        HD_FINGERPRINT_WHOLE_BYTES / HD_FINGERPRINT_PLACE_BYTES, /* most places in one file */
    HD_FINGERPRINT_JOB_PLACES = 1024, /* approximate number of places in all files of a job */
    HD_FINGERPRINT_FILES_MAX = 4096   /* most files of a job that get a fingerprint */
};

/* Sets ret_text to the fingerprint of a file, and of the .idx beside a .bin, from `places` places
 * in each, 1 to HD_FINGERPRINT_PLACES_MAX. Text form: number of places, a colon, 16 hexadecimal
 * digits. */
enum hd_status hd_fingerprint(const char *path, int64_t places,
                              char ret_text[HD_FINGERPRINT_TEXT_MAX]);

/* Returns whether the text is the text form of a fingerprint. Text from a client must be checked,
 * because it is written into a line of the job file. */
bool hd_fingerprint_is_form(const char *text);

/* Checks the file against a recorded fingerprint; succeeds if `recorded` is NULL or "" (none was
 * recorded). HD_INVALID, naming the file: its bytes differ. */
enum hd_status hd_fingerprint_check(const char *path, const char *recorded);

#endif
