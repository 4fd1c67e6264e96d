/* user: how a system user is named where jobs are given to it: by name, or as uid:NUMBER; and whose
 * the folder and the files of a program are.
 *
 * Of names only the words are looked at: whether a machine has the user, heddle-launcher says
 * there.
 *
 * Used by: controller, agent, launcher, rpc.   Uses: file, status, text.   Threads: any.
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

/* Checks that a user who is trusted owns the file `path` of tokens or rules, because an owner can
 * change it. HD_DENIED: another user does; the message has the command that helps. Trusted are
 *
 *   - root, and the user of this process
 *   - where that is root: the owner of the state directory `dir`, who can change the database, too;
 *     `dir` NULL, as for a token that is only shown to a server: everybody
 *   - in a user namespace: owners that the namespace does not know (the overflow uid, 65534), as of
 *     files that a container's host has mounted. No user inside can have made such a file, but a
 *     user nobody inside has the same number
 *
 * HD_OK also for pipes and devices, and where there is no such file. */
enum hd_status hd_user_check_owner(const char *path, const char *dir);

/* Returns whether a map of user ids, the text of /proc/self/uid_map, has all users of the machine.
 */
bool hd_user_map_is_whole(const char *map);

#endif
