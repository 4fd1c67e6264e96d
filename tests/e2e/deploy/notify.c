/* notify: the socket of systemd's notifications, for tests. Prints what comes to it.
 *
 *   deploy_notify PATH      a datagram socket at PATH; each line of each datagram is printed at
 * once
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { DATAGRAM_MAX = 4096 };

int main(int argc, char **argv)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char datagram[DATAGRAM_MAX];
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ssize_t n;

    if (argc != 2 || strlen(argv[1]) >= sizeof address.sun_path)
        return EXIT_FAILURE;
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", argv[1]);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof address) < 0) {
        perror(argv[1]);
        return EXIT_FAILURE;
    }
    while ((n = recv(fd, datagram, sizeof datagram, 0)) > 0) {
        (void)printf("%.*s\n", (int)n, datagram);
        (void)fflush(stdout);
    }
    return EXIT_FAILURE;
}
