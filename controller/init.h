/* init: heddle-controller init: the state directory, the certificate authority, the controller's
 * certificate and the first admin's token.
 *
 * Used by: main.c.   Uses: identity, store, pki, base.   Threads: one.
 */
#ifndef HD_CONTROLLER_INIT_H
#define HD_CONTROLLER_INIT_H

#include "base/status.h"

/* hosts: more names or addresses of the controller, between commas; NULL: those of this machine
 * alone. Says on standard output what it made. HD_EXISTS: the directory has an authority already;
 * HD_CONFLICT: a controller uses it. */
enum hd_status controller_init(const char *state_dir, const char *hosts);

#endif
