/* find: the default address of a controller, and how clients find it.
 *
 * Clients take the first of: --controller ADDR, HEDDLE_CONTROLLER, the user's socket if it exists,
 * the system's socket if it exists.
 *
 *     user's socket      $XDG_RUNTIME_DIR/heddle/controller.sock
 *     system's socket    /run/heddle/controller.sock
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

/* Appends the address of the controller for a client. given: value of --controller; NULL: not
 * given. HD_UNAVAILABLE: no address was found; the message lists the sockets that were tried. */
enum hd_status hd_rpc_find_controller(const char *given, struct hd_text *ret_address);

/* Appends the address at which a controller without --listen listens: the system's socket for root,
 * else the user's. HD_INVALID: XDG_RUNTIME_DIR is not set. */
enum hd_status hd_rpc_default_listen(struct hd_text *ret_address);

#endif
