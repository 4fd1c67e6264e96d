/* find: where a controller listens when nobody says where, and how its clients find it.
 *
 *     --controller ADDR  >  HEDDLE_CONTROLLER  >  the user's socket  >  the system's socket
 *
 *     $XDG_RUNTIME_DIR/heddle/controller.sock      of a controller that a user started
 *     /run/heddle/controller.sock                  of the machine's
 *
 * Used by: controller, daemon, command line.   Uses: base.   Threads: any (reads the environment).
 */
#ifndef HD_RPC_FIND_H
#define HD_RPC_FIND_H

#include "base/status.h"
#include "base/text.h"

#define HD_RPC_CONTROLLER_ENV    "HEDDLE_CONTROLLER"
#define HD_RPC_SYSTEM_SOCKET_DIR "/run/heddle"
#define HD_RPC_SOCKET_NAME       "controller.sock"

/* The address of the controller to talk to; `given` (may be NULL) is what --controller said.
 * HD_UNAVAILABLE names the places that were looked at when there is nothing at any. */
enum hd_status hd_rpc_find_controller(const char *given, struct hd_text *ret_address);

/* Where a controller without --listen listens: the system's socket for root, else the user's.
 * HD_INVALID when there is no such place (no XDG_RUNTIME_DIR). */
enum hd_status hd_rpc_default_listen(struct hd_text *ret_address);

#endif
