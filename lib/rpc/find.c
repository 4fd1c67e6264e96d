#include "rpc/find.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Appends the address of the user's socket; nothing if XDG_RUNTIME_DIR is not set. */
static void add_user_socket(struct hd_text *address)
{
    const char *dir = getenv("XDG_RUNTIME_DIR");

    if (dir && dir[0] == '/')
        hd_text_add(address, "unix:%s/heddle/" HD_RPC_SOCKET_NAME, dir);
}

static bool is_socket(const char *address)
{
    struct stat info;

    return stat(address + strlen("unix:"), &info) == 0 && S_ISSOCK(info.st_mode);
}

enum hd_status hd_rpc_find_controller(const char *given, struct hd_text *ret_address)
{
    static const char system_address[] = "unix:" HD_RPC_SYSTEM_SOCKET_DIR "/" HD_RPC_SOCKET_NAME;
    struct hd_text user = {0};
    const char *found = given;
    enum hd_status st = HD_OK;

    add_user_socket(&user);
    if (!found || !*found)
        found = getenv(HD_RPC_CONTROLLER_ENV);
    if ((!found || !*found) && user.data && is_socket(user.data))
        found = user.data;
    if ((!found || !*found) && is_socket(system_address))
        found = system_address;
    if (found && *found)
        hd_text_add(ret_address, "%s", found);
    else
        st = hd_err(HD_UNAVAILABLE,
                    "there is no controller at %s%s%s; start heddle-controller, or give "
                    "--controller ADDR or " HD_RPC_CONTROLLER_ENV,
                    user.data ? user.data : "", user.data ? " or " : "", system_address);
    if (user.failed || ret_address->failed)
        st = hd_err(HD_NO_MEMORY, "no memory for the controller's address");
    hd_text_free(&user);
    return st;
}

enum hd_status hd_rpc_default_listen(struct hd_text *ret_address)
{
    size_t before = ret_address->len_bytes;

    if (geteuid() == 0)
        hd_text_add(ret_address, "unix:" HD_RPC_SYSTEM_SOCKET_DIR "/" HD_RPC_SOCKET_NAME);
    else
        add_user_socket(ret_address);
    if (ret_address->failed)
        return hd_err(HD_NO_MEMORY, "no memory for the controller's address");
    if (ret_address->len_bytes == before)
        return hd_err(HD_INVALID, "there is no default socket: XDG_RUNTIME_DIR is not set; give "
                                  "--listen unix:PATH");
    return HD_OK;
}
