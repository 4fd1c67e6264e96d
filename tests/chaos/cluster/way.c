/* way: the network between a node and the controller, of which the monkey has a process of its own
 * to kill, to stop and to slow down.
 *
 *   way SOCKET CONTROLLERS_SOCKET ROUND_TRIP_MS
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/delay_proxy.h"

int main(int argc, char **argv)
{
    uv_loop_t loop;

    if (argc != 4 || uv_loop_init(&loop)) {
        fprintf(stderr, "way SOCKET CONTROLLERS_SOCKET ROUND_TRIP_MS\n");
        return 2;
    }
    (void)delay_proxy_open_unix(&loop, argv[1], argv[2], atoll(argv[3]));
    return uv_run(&loop, UV_RUN_DEFAULT);
}
