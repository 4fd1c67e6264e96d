#include "tests/imitation_mlflow.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { REQUEST_BYTES_MAX = 1 << 20 };

static void answer_to(struct imitation_mlflow *s, int fd, const char *target)
{
    const char *status = "200 OK", *body = "{}";
    char text[1024];

    if (s->bad) {
        body = s->bad;
    } else if (s->busy > 0) {
        s->busy--;
        status = "503 Busy";
    } else if (s->busy_at && strstr(target, s->busy_at)) {
        s->busy_at = NULL;
        status = "503 Busy";
    } else if (s->denies) {
        status = "401 Unauthorized";
    } else if (strstr(target, "experiments/get-by-name")) {
        body = s->has_experiment
                   ? "{\"experiment\": {\"experiment_id\": \"7\", \"lifecycle_stage\": \"active\"}}"
                   : "{\"error_code\": \"RESOURCE_DOES_NOT_EXIST\", \"message\": \"none\"}";
        status = s->has_experiment ? status : "404 Not Found";
    } else if (strstr(target, "experiments/create")) {
        body = "{\"experiment_id\": \"8\"}";
    } else if (strstr(target, "runs/search")) {
        body = s->has_run == 1
                   ? "{\"runs\": [{\"info\": {\"run_id\": \"old\"}, \"data\": {\"tags\": "
                     "[{\"key\": \"heddle.begun\", \"value\": \"true\"}]}}]}"
               : s->has_run ? "{\"runs\": [{\"info\": {\"run_id\": \"lost\"}}]}"
                            : "{}";
    } else if (strstr(target, "runs/create") && s->loses > 0) {
        s->loses--;
        s->has_run = s->loses || s->is_late ? 0 : 2;
        return; /* the run is made, or will be, and the connection ends without an answer */
    } else if (strstr(target, "runs/create")) {
        s->has_run = s->is_late ? 2 : s->has_run;
        body = "{\"run\": {\"info\": {\"run_id\": \"new\"}}}";
    }
    (void)snprintf(text, sizeof text,
                   "HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s", status,
                   strlen(body), body);
    (void)send(fd, text, strlen(text), MSG_NOSIGNAL);
}

/* Reads one request, records it and answers. */
static void serve_one(struct imitation_mlflow *s, int fd)
{
    char *bytes = calloc(1, REQUEST_BYTES_MAX), target[512] = "", method[16] = "", *body, *at;
    size_t have = 0, wanted = 0;
    ssize_t n;

    while (have < REQUEST_BYTES_MAX - 1 &&
           (n = read(fd, bytes + have, REQUEST_BYTES_MAX - 1 - have)) > 0) {
        have += (size_t)n;
        body = strstr(bytes, "\r\n\r\n");
        if (!body)
            continue;
        at = strcasestr(bytes, "content-length:");
        wanted = at && at < body ? strtoul(at + 15, NULL, 10) : 0;
        if (have >= (size_t)(body + 4 - bytes) + wanted)
            break;
    }
    body = strstr(bytes, "\r\n\r\n");
    if (body && sscanf(bytes, "%15s %511s", method, target) == 2) {
        at = strcasestr(bytes, "authorization: ");
        if (at && at < body)
            (void)snprintf(s->authorization, sizeof s->authorization, "%.*s",
                           (int)strcspn(at + 15, "\r"), at + 15);
        hd_text_add(&s->said, "%s %s %s\n", method, target, body + 4);
        answer_to(s, fd, target);
    }
    free(bytes);
}

static void *serve(void *user)
{
    struct imitation_mlflow *s = user;
    int fd;

    while ((fd = accept(s->fd, NULL, NULL)) >= 0) {
        serve_one(s, fd);
        (void)close(fd);
    }
    return NULL;
}

int imitation_mlflow_start(struct imitation_mlflow *server)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;

    server->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (server->fd < 0 || bind(server->fd, (struct sockaddr *)&address, sizeof address) ||
        listen(server->fd, 8) || getsockname(server->fd, (struct sockaddr *)&address, &size))
        return -1;
    server->port = ntohs(address.sin_port);
    return pthread_create(&server->thread, NULL, serve, server) ? -1 : 0;
}

void imitation_mlflow_stop(struct imitation_mlflow *server)
{
    (void)shutdown(server->fd, SHUT_RDWR);
    (void)pthread_join(server->thread, NULL);
    (void)close(server->fd);
    hd_text_free(&server->said);
}
