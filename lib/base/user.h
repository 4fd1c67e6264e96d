/* user: names of the system users that run jobs (a name, or uid:NUMBER), and the owners of a
 * program's folders and files.
 *
 * Names are only checked for their form: heddle-launcher reports on each node whether the user
 * exists there.
 *
 * Used by: controller, agent, launcher, rpc.   Uses: file, status, text.   Threads: any. */
#ifndef HD_BASE_USER_H
#define HD_BASE_USER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "base/text.h"

enum { HD_USER_BYTES_MAX = 64 };

/* Checks that `word` is a name of at most HD_USER_BYTES_MAX bytes (letters, digits, _ - . @, not
 * all digits, no - or . first), or uid:NUMBER. HD_INVALID: `word` is neither; HD_DENIED: it names
 * root. */
enum hd_status hd_user_check(const char *word);

/* Returns whether `word`, which hd_user_check has accepted, is uid:NUMBER. */
bool hd_user_is_uid(const char *word, uint32_t *ret_uid);

/* Checks, before private files are created in a service's folder `dir`, that root does not create
 * them in another user's folder, where that user could not read them. HD_INVALID: root would; the
 * message shows how to run `command` ("heddled join") as the owner of `dir`. HD_OK also if `dir`
 * does not exist yet. */
enum hd_status hd_user_check_folder(const char *dir, const char *command);

/* Reads a file of tokens or rules, as hd_file_read_stream does, and checks that a trusted user owns
 * it, because its owner can change it. Owner and *ret_mode (st_mode) are those of the file that was
 * opened, also if another one has its name by now. HD_DENIED: another user owns it; the message has
 * the command that helps. The caller frees ret_text also after a failure. Trusted are
 *
 *   - root, and the user of this process
 *   - if that is root: the owner of the state directory `dir`, who can change the database, too;
 *     with `dir` NULL (for a token that is only shown to a server) every user
 *   - in a user namespace: owners that the namespace does not map (the overflow uid, 65534), such
 *     as owners of files that a container's host has mounted. No user inside can have made such a
 *     file, except one with uid 65534 inside, which the system user called "nobody" often has
 *
 * Pipes and devices may have any owner. */
enum hd_status hd_user_read_file(const char *path, size_t max_bytes, int patience_ms,
                                 const char *dir, mode_t *ret_mode, struct hd_text *ret_text);

/* Returns whether a map of user ids (the text of /proc/self/uid_map) contains all users of the
 * machine. */
bool hd_user_map_is_whole(const char *map);

#endif
