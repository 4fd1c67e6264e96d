#include "rpc/acceptor.h"

#define NAME "external:heddle"

/* gRPC's object is a C++ one: class TcpServerFdHandler { virtual ~TcpServerFdHandler(); virtual
 * void Handle(int listener_fd, int fd, grpc_byte_buffer *read_already) }, in the layout that all
 * C++ compilers on Linux share (Itanium C++ ABI): a pointer to a table of functions, two of which
 * are the destructor. libgrpc and libgrpc++ are separate libraries that share this table, so it has
 * been stable since 2019. */
struct functions {
    /* destructor; like the next function called by gRPC only */
    void (*destroy)(struct hd_rpc_acceptor *acceptor);
    void (*destroy_and_free)(struct hd_rpc_acceptor *acceptor);
    void (*handle)(struct hd_rpc_acceptor *acceptor, int listener_fd, int fd,
                   grpc_byte_buffer *read_already);
};

struct hd_rpc_acceptor {
    const struct functions *functions;
};

static void *copy(void *where)
{
    return where;
}

static void destroy(void *where)
{
    (void)where; /* storage is a member of the server's struct */
}

static int compare(void *a, void *b)
{
    return a < b ? -1 : a > b;
}

grpc_arg hd_rpc_acceptor_arg(struct hd_rpc_acceptor **where)
{
    static const grpc_arg_pointer_vtable table = {copy, destroy, compare};

    return (grpc_arg){.type = GRPC_ARG_POINTER,
                      .key = (char *)NAME,
                      .value.pointer = {.p = where, .vtable = &table}};
}

bool hd_rpc_acceptor_open(grpc_server *server, grpc_server_credentials *credentials,
                          struct hd_rpc_acceptor *const *where)
{
    /* opens no socket, so there is no port to return */
    (void)grpc_server_add_http2_port(server, NAME, credentials);
    return *where != NULL;
}

void hd_rpc_acceptor_give(struct hd_rpc_acceptor *acceptor, int fd)
{
    acceptor->functions->handle(acceptor, -1, fd, NULL);
}
