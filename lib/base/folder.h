/* folder: the files of a folder by their names, such as config.json of a model's folder.
 *
 * A name may have folders in it ("base/tokenizer.json"); a name that is an absolute path is taken
 * as it is (hd_file_join). Failures name DIR/NAME.
 *
 * Used by: everything.   Uses: file, json.
 * Threads: any.
 */
#ifndef HD_BASE_FOLDER_H
#define HD_BASE_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/json.h"
#include "base/status.h"
#include "base/text.h"

/* Appends the folder of a path to ret_dir: "a" for "a/b", "/" for "/b", "." for "b". */
void hd_folder_of(const char *path, struct hd_text *ret_dir);
/* Makes the folder of a path, and those above it, if they are missing. */
enum hd_status hd_folder_make_of(const char *path, mode_t mode);
/* Makes the name of a file that was created, renamed or removed durable, in its folder. */
enum hd_status hd_folder_sync_of(const char *path);

/* Returns whether the folder has a file of this name; false also if memory is used up. */
bool hd_folder_has(const char *dir, const char *name);

/* Replaces the text of ret_path by DIR/NAME. The caller frees it, also on failure. */
enum hd_status hd_folder_path(struct hd_text *ret_path, const char *dir, const char *name);

/* Appends the bytes of a file to ret_text, like hd_file_read. HD_NOT_FOUND: the file is missing. */
enum hd_status hd_folder_read(const char *dir, const char *name, size_t max_bytes,
                              struct hd_text *ret_text);

/* Appends the bytes of a file, if the folder has it. ret_text->data stays NULL only if the file is
 * missing. */
enum hd_status hd_folder_read_any(const char *dir, const char *name, size_t max_bytes,
                                  struct hd_text *ret_text);

/* Parses a JSON file, if the folder has it, by hd_json_parse_repeated; *ret_root NULL: it is
 * missing. */
enum hd_status hd_folder_read_json(struct hd_arena *arena, const char *dir, const char *name,
                                   size_t max_bytes, const struct hd_json_limits *limits,
                                   const struct hd_json **ret_root);

#endif
