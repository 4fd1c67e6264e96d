/* saved_set: the files of a data set that `datasets` wrote into a folder by save_to_disk. Its
 * state.json names them in order; other files beside them, such as caches, are not part of it.
 *
 * Used by: spec, worker.   Uses: base.   Threads: any.
 */
#ifndef HD_RECORDS_SAVED_SET_H
#define HD_RECORDS_SAVED_SET_H

#include "base/json.h"

/* Finds the files of a set: a JSON list of objects with `filename`, a name in the folder. *ret_files
 * NULL: the folder has no such set. HD_INVALID: the folder has several splits, or its state.json is
 * damaged. */
enum hd_status hd_records_read_saved_set(const char *folder, struct hd_arena *arena,
                                         const struct hd_json **ret_files);

#endif
