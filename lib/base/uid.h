/* uid: the name of a system user by its number.
 *
 * Used by: file, user, agent, cli.   Uses: libc.   Threads: any. */
#ifndef HD_BASE_UID_H
#define HD_BASE_UID_H

#include <stdbool.h>
#include <stdint.h>

enum { HD_UID_NAME_MAX = 65 }; /* bytes of a name and its end */

/* Writes the name of the system user with this number. Returns false, and writes the number in
 * digits, if this machine knows no name, or one that does not fit. */
bool hd_uid_name(uint32_t uid, char ret_name[HD_UID_NAME_MAX]);

#endif
