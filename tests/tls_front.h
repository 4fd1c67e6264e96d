/* tls_front: TLS in front of a server of a test that speaks plain HTTP on loopback, with a certificate
 * of an authority of its own.
 *
 * Used by: tests.   Uses: pki, OpenSSL.
 * Threads: one for the socket and one for each connection.
 */
#ifndef HD_TESTS_TLS_FRONT_H
#define HD_TESTS_TLS_FRONT_H

#include <pthread.h>

struct tls_front {
    int port;        /* of the front, on 127.0.0.1 */
    int behind_port; /* of the server */
    int listener;
    int connections; /* atomic: threads that pass bytes */
    pthread_t thread;
    void *context;
};

/* Begins; writes the authority's certificate, which callers must trust, to ca_file. */
void tls_front_start(struct tls_front *front, int behind_port, const char *ca_file);
void tls_front_stop(struct tls_front *front); /* ends all its threads */

#endif
