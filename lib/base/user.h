/* user: how a system user is named where jobs are given to it: by name, or as uid:NUMBER; and whose
 * a daemon's folder is.
 *
 * Of names only the words are looked at: whether a machine has the user, heddle-launcher says
 * there.
 *
 * Used by: controller, agent, launcher.   Uses: status, text.   Threads: any.
 */
#ifndef HD_BASE_USER_H
#define HD_BASE_USER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { HD_USER_BYTES_MAX = 64 };

/* HD_OK: `word` is a name of at most HD_USER_BYTES_MAX bytes (letters, digits, _ - . @, not all
 * digits, no - or . first), or uid:NUMBER. HD_INVALID: it is neither; HD_DENIED: it is root. */
enum hd_status hd_user_check(const char *word);

/* Whether `word`, which hd_user_check has passed, is uid:NUMBER. */
bool hd_user_is_uid(const char *word, uint32_t *ret_uid);

/* Before root makes private files in the folder `dir` of a service: HD_INVALID, with the command to
 * run instead (`command`: "heddled join"), if this process is root's and `dir` another user's, who
 * could not read them. HD_OK also where there is no `dir` yet. */
enum hd_status hd_user_check_folder(const char *dir, const char *command);

#endif
