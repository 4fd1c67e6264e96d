/* recorded_player: conversations of an old build's programs, recorded once, played against this
 * build.
 *
 *   recorded_player protocol
 *       prints the protocol of this build
 *   recorded_player record PROTOCOL LISTEN CONTROLLER FILE
 *       stands between a controller and its clients, and writes down what they say
 *   recorded_player print PROTOCOL FILE
 *       a conversation, readable
 *   recorded_player clients PROTOCOL FILE CONTROLLER ROOT
 *       plays nodes and commands to a controller
 *   recorded_player controller PROTOCOL FILE LISTEN ROOT
 *       plays the controller to nodes and commands
 *
 * tests/recorded/README.md says more.
 */
#include <stdio.h>
#include <string.h>

#include "play.h"
#include "record.h"

static int print_protocol(void)
{
    struct hd_text text = {0};

    plain_write_protocol(&text);
    (void)fputs(text.data, stdout);
    hd_text_free(&text);
    return 0;
}

int main(int argc, char **argv)
{
    struct protocol *protocol;
    int code = 2;

    if (argc == 2 && strcmp(argv[1], "protocol") == 0)
        return print_protocol();
    if (argc < 4) {
        fprintf(stderr,
                "recorded_player protocol|record|print|clients|controller .. (main.c says more)\n");
        return 2;
    }
    protocol = protocol_read(argv[2]);
    if (argc == 6 && strcmp(argv[1], "record") == 0)
        code = record(protocol, argv[3], argv[4], argv[5]);
    else if (argc == 4 && strcmp(argv[1], "print") == 0)
        code = play_print(protocol, argv[3]);
    else if (argc == 6 && strcmp(argv[1], "clients") == 0)
        code = play_clients(protocol, argv[3], argv[4], argv[5]);
    else if (argc == 6 && strcmp(argv[1], "controller") == 0)
        code = play_controller(protocol, argv[3], argv[4], argv[5]);
    protocol_free(protocol);
    return code;
}
