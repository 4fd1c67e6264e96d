/* reflection: grpc.reflection.v1 and v1alpha: describes the registered services from the descriptor
 * set that protoc generated. A request that cannot be answered gets an error response; the stream
 * stays open. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "rpc/standard.h"
#include "rpc/standard_internal.h"

#define ASKS(what)    GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##what
#define ANSWERS(what) GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##what

enum {
    /* limit of queued replies of one stream; beyond it reading of requests pauses */
    ANSWERS_WAITING_MAX = 16,
    FILES_MAX = 64, /* limit of files in one reply */
};

/* A reply while it is built. */
struct reflection_answer {
    struct hd_arena arena;
    const struct hd_rpc_standard *standard;
    Grpc__Reflection__V1__ServerReflectionResponse response;
};

/* ---- what is registered ---- */

struct hd_rpc_bytes hd_rpc_service_of(const char *path)
{
    const char *begin = path + (*path == '/');

    return (struct hd_rpc_bytes){(const uint8_t *)begin, strcspn(begin, "/")};
}

bool hd_rpc_has_service(const struct hd_rpc_server *server, const char *service)
{
    for (const struct hd_rpc_registration *m = server->methods; m; m = m->next) {
        const struct hd_rpc_bytes s = hd_rpc_service_of(m->method.path);

        if (strlen(service) == s.size_bytes && memcmp(service, s.data, s.size_bytes) == 0)
            return true;
    }
    return false;
}

/* ---- answers ---- */

static void refuse(struct reflection_answer *a, enum hd_status st, const char *what,
                   const char *name)
{
    Grpc__Reflection__V1__ErrorResponse *error = hd_arena_alloc(&a->arena, sizeof *error);

    if (!error)
        return; /* out of memory: the caller checks hd_arena_failed */
    grpc__reflection__v1__error_response__init(error);
    error->error_code = hd_rpc_status_to_grpc(st);
    error->error_message = hd_arena_printf(&a->arena, "%s%s", what, name);
    a->response.message_response_case = ANSWERS(ERROR_RESPONSE);
    a->response.error_response = error;
}

static int by_name(const void *a, const void *b)
{
    const Grpc__Reflection__V1__ServiceResponse *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

static void list_services(struct reflection_answer *a)
{
    Grpc__Reflection__V1__ListServiceResponse *list = hd_arena_alloc(&a->arena, sizeof *list);
    size_t methods = 0;

    for (const struct hd_rpc_registration *m = a->standard->server->methods; m; m = m->next)
        methods++;
    if (!list)
        return;
    grpc__reflection__v1__list_service_response__init(list);
    list->service = hd_arena_array(&a->arena, methods, sizeof *list->service);
    for (const struct hd_rpc_registration *m = a->standard->server->methods; list->service && m;
         m = m->next) {
        const struct hd_rpc_bytes name = hd_rpc_service_of(m->method.path);
        Grpc__Reflection__V1__ServiceResponse *one = hd_arena_alloc(&a->arena, sizeof *one);
        bool known = false;

        if (!one)
            return;
        grpc__reflection__v1__service_response__init(one);
        one->name = hd_arena_printf(&a->arena, "%.*s", (int)name.size_bytes, name.data);
        for (size_t i = 0; one->name && !known && i < list->n_service; i++)
            known = strcmp(list->service[i]->name, one->name) == 0;
        if (one->name && !known)
            list->service[list->n_service++] = one;
    }
    if (list->n_service)
        qsort(list->service, list->n_service, sizeof(Grpc__Reflection__V1__ServiceResponse *),
              by_name);
    a->response.message_response_case = ANSWERS(LIST_SERVICES_RESPONSE);
    a->response.list_services_response = list;
}

/* Adds a .proto file and all files that it imports, also indirectly, to the reply, each once. */
static void give_file(struct reflection_answer *a, struct hd_rpc_bytes file)
{
    Grpc__Reflection__V1__FileDescriptorResponse *files = hd_arena_alloc(&a->arena, sizeof *files);
    char import[256];

    if (!files)
        return;
    grpc__reflection__v1__file_descriptor_response__init(files);
    files->file_descriptor_proto =
        hd_arena_array(&a->arena, FILES_MAX, sizeof *files->file_descriptor_proto);
    if (!files->file_descriptor_proto)
        return;
    files->file_descriptor_proto[files->n_file_descriptor_proto++] =
        (ProtobufCBinaryData){file.size_bytes, (uint8_t *)file.data};
    for (size_t done = 0; done < files->n_file_descriptor_proto; done++) {
        const ProtobufCBinaryData *from = &files->file_descriptor_proto[done];

        for (size_t i = 0;
             hd_rpc_descriptor_import((struct hd_rpc_bytes){from->data, from->len}, i, import);
             i++) {
            bool known = !hd_rpc_descriptor_find_file(a->standard->descriptors, import, &file);

            for (size_t k = 0; !known && k < files->n_file_descriptor_proto; k++)
                known = files->file_descriptor_proto[k].data == file.data;
            if (!known && files->n_file_descriptor_proto < FILES_MAX)
                files->file_descriptor_proto[files->n_file_descriptor_proto++] =
                    (ProtobufCBinaryData){file.size_bytes, (uint8_t *)file.data};
        }
    }
    a->response.message_response_case = ANSWERS(FILE_DESCRIPTOR_RESPONSE);
    a->response.file_descriptor_response = files;
}

/* Adds an empty list of extensions, because proto3 has none. */
static void list_extensions(struct reflection_answer *a, const char *type)
{
    Grpc__Reflection__V1__ExtensionNumberResponse *none = hd_arena_alloc(&a->arena, sizeof *none);
    struct hd_rpc_bytes file;

    if (hd_rpc_descriptor_find_symbol(a->standard->descriptors, type, &file) !=
        HD_RPC_SYMBOL_MESSAGE) {
        refuse(a, HD_NOT_FOUND, "there is no message ", type);
        return;
    }
    if (!none)
        return;
    grpc__reflection__v1__extension_number_response__init(none);
    none->base_type_name = hd_arena_printf(&a->arena, "%s", type);
    a->response.message_response_case = ANSWERS(ALL_EXTENSION_NUMBERS_RESPONSE);
    a->response.all_extension_numbers_response = none;
}

static void answer(struct reflection_answer *a,
                   const Grpc__Reflection__V1__ServerReflectionRequest *asked)
{
    const struct hd_rpc_bytes set = a->standard->descriptors;
    struct hd_rpc_bytes file;

    switch (asked->message_request_case) {
    case ASKS(FILE_BY_FILENAME):
        if (hd_rpc_descriptor_find_file(set, asked->file_by_filename, &file))
            give_file(a, file);
        else
            refuse(a, HD_NOT_FOUND, "there is no file ", asked->file_by_filename);
        break;
    case ASKS(FILE_CONTAINING_SYMBOL):
        if (hd_rpc_descriptor_find_symbol(set, asked->file_containing_symbol, &file))
            give_file(a, file);
        else
            refuse(a, HD_NOT_FOUND, "there is no symbol ", asked->file_containing_symbol);
        break;
    case ASKS(FILE_CONTAINING_EXTENSION):
        refuse(a, HD_NOT_FOUND, "there is no such extension of ",
               asked->file_containing_extension->containing_type);
        break;
    case ASKS(ALL_EXTENSION_NUMBERS_OF_TYPE):
        list_extensions(a, asked->all_extension_numbers_of_type);
        break;
    case ASKS(LIST_SERVICES):
        list_services(a);
        break;
    default:
        refuse(a, HD_INVALID, "the request is empty or of an unknown kind", "");
        break;
    }
}

/* ---- the stream ---- */

static void on_msg(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Grpc__Reflection__V1__ServerReflectionRequest *asked = (const void *)message;
    struct reflection_answer a = {.standard = hd_rpc_call_user(call)};
    enum hd_status st;

    hd_arena_init(&a.arena, 0);
    grpc__reflection__v1__server_reflection_response__init(&a.response);
    a.response.valid_host = asked->host;
    a.response.original_request = (Grpc__Reflection__V1__ServerReflectionRequest *)asked;
    answer(&a, asked);
    if (hd_arena_failed(&a.arena))
        st = hd_err(HD_NO_MEMORY, "no memory for an answer");
    else
        st = hd_rpc_call_write(call, &a.response.base);
    if (st && st != HD_ABORTED)
        hd_rpc_call_fail(call, st);
    else if (hd_rpc_call_queued(call) >= ANSWERS_WAITING_MAX)
        hd_rpc_call_pause(call); /* on_drain resumes, when the client has read the replies */
    hd_arena_done(&a.arena);
}

enum hd_status hd_rpc_reflection_add(struct hd_rpc_standard *standard)
{
    static const char *const paths[] = {
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    };
    struct hd_rpc_method method = {
        .kind = HD_RPC_BIDI,
        .request = &grpc__reflection__v1__server_reflection_request__descriptor,
        .response = &grpc__reflection__v1__server_reflection_response__descriptor,
        .handler = {.on_msg = on_msg,
                    .on_drain = hd_rpc_call_resume,
                    .on_half_close = hd_rpc_call_finish},
        .user = standard,
    };
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < sizeof paths / sizeof paths[0]; i++) {
        method.path = paths[i];
        st = hd_rpc_server_add_method(standard->server, &method);
    }
    return st;
}

enum hd_status hd_rpc_server_add_standard(struct hd_rpc_server *server, const void *descriptors,
                                          size_t size_bytes)
{
    struct hd_rpc_standard *standard = calloc(1, sizeof *standard);
    enum hd_status st;

    if (!standard)
        return hd_err(HD_NO_MEMORY, "no memory for the standard services");
    *standard =
        (struct hd_rpc_standard){.server = server, .descriptors = {descriptors, size_bytes}};
    server->standard = standard; /* freed with the server, also after a failure here */
    st = hd_rpc_health_add(standard);
    return st ? st : hd_rpc_reflection_add(standard);
}
