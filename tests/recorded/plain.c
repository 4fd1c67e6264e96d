#include "plain.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "heddle/v1/control.pb-c.h"
#include "heddle/v1/fleet.pb-c.h"
#include "heddle/v1/identity.pb-c.h"

enum { PATH_BYTES = 256 };

/* ---- a message without known fields ---- */

static const ProtobufCIntRange no_ranges[1];

const ProtobufCMessageDescriptor plain_message = {.magic = PROTOBUF_C__MESSAGE_DESCRIPTOR_MAGIC,
                                                  .name = "plain",
                                                  .short_name = "Plain",
                                                  .c_name = "Plain",
                                                  .package_name = "",
                                                  .sizeof_message = sizeof(ProtobufCMessage),
                                                  .field_ranges = no_ranges};

struct plain_bytes plain_pack(const ProtobufCMessage *message)
{
    struct plain_bytes bytes = {.size_bytes = protobuf_c_message_get_packed_size(message)};

    bytes.data = malloc(bytes.size_bytes + 1);
    if (!bytes.data)
        abort();
    (void)protobuf_c_message_pack(message, bytes.data);
    return bytes;
}

ProtobufCMessage *plain_unpack(const struct plain_bytes *bytes)
{
    ProtobufCMessage *message =
        protobuf_c_message_unpack(&plain_message, NULL, bytes->size_bytes, bytes->data);

    if (!message)
        abort();
    return message;
}

/* ---- writing the protocol of this build ---- */

static const char *type_name(const ProtobufCFieldDescriptor *field)
{
    static const char *const names[] = {"int32",    "sint32", "sfixed32", "int64",  "sint64",
                                        "sfixed64", "uint32", "fixed32",  "uint64", "fixed64",
                                        "float",    "double", "bool",     "enum",   "string",
                                        "bytes",    "message"};

    return names[field->type];
}

struct known {
    const void *seen[256];
    size_t count;
};

static bool is_new(struct known *known, const void *descriptor)
{
    for (size_t i = 0; i < known->count; i++)
        if (known->seen[i] == descriptor)
            return false;
    if (known->count == sizeof known->seen / sizeof known->seen[0])
        abort();
    known->seen[known->count++] = descriptor;
    return true;
}

static void write_enum(struct hd_text *text, struct known *known,
                       const ProtobufCEnumDescriptor *descriptor)
{
    if (!is_new(known, descriptor))
        return;
    hd_text_add(text, "enum %s\n", descriptor->name);
    for (unsigned i = 0; i < descriptor->n_values; i++)
        hd_text_add(text, " %d %s\n", descriptor->values[i].value, descriptor->values[i].name);
}

static void write_message(struct hd_text *text, struct known *known,
                          const ProtobufCMessageDescriptor *descriptor)
{
    if (!is_new(known, descriptor))
        return;
    hd_text_add(text, "message %s\n", descriptor->name);
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &descriptor->fields[i];
        const char *of = "";

        if (f->type == PROTOBUF_C_TYPE_MESSAGE)
            of = ((const ProtobufCMessageDescriptor *)f->descriptor)->name;
        else if (f->type == PROTOBUF_C_TYPE_ENUM)
            of = ((const ProtobufCEnumDescriptor *)f->descriptor)->name;
        hd_text_add(text, " %u %s %s%s%s %s\n", f->id,
                    f->label == PROTOBUF_C_LABEL_REPEATED ? "repeated" : "single", type_name(f),
                    *of ? ":" : "", of, f->name);
    }
    for (unsigned i = 0; i < descriptor->n_fields; i++)
        if (descriptor->fields[i].type == PROTOBUF_C_TYPE_MESSAGE)
            write_message(text, known, descriptor->fields[i].descriptor);
        else if (descriptor->fields[i].type == PROTOBUF_C_TYPE_ENUM)
            write_enum(text, known, descriptor->fields[i].descriptor);
}

void plain_write_protocol(struct hd_text *text)
{
    static const ProtobufCServiceDescriptor *const services[] = {&heddle__v1__control__descriptor,
                                                                 &heddle__v1__fleet__descriptor,
                                                                 &heddle__v1__identity__descriptor};
    struct known known = {.count = 0};

    for (size_t s = 0; s < sizeof services / sizeof services[0]; s++)
        for (unsigned m = 0; m < services[s]->n_methods; m++) {
            const ProtobufCMethodDescriptor *method = &services[s]->methods[m];

            hd_text_add(text, "rpc /%s/%s %s %s\n", services[s]->name, method->name,
                        method->input->name, method->output->name);
            write_message(text, &known, method->input);
            write_message(text, &known, method->output);
        }
}

/* ---- reading that of an old one ---- */

struct old_field {
    uint32_t number;
    bool repeated;
    char type[16], of[64], name[48];
};

struct old_message {
    char name[64];
    struct old_field *fields;
    size_t count;
};

struct protocol {
    struct old_message *messages;
    size_t message_count;
    struct protocol_rpc *rpcs;
    size_t rpc_count;
};

static void *grown(void *items, size_t count, size_t size_bytes)
{
    items = realloc(items, (count + 1) * size_bytes);
    if (!items)
        abort();
    memset((char *)items + count * size_bytes, 0, size_bytes);
    return items;
}

static void read_field(struct old_message *message, const char *line)
{
    struct old_field *f;
    char label[16], type[96], *colon;

    message->fields = grown(message->fields, message->count, sizeof *message->fields);
    f = &message->fields[message->count++];
    if (sscanf(line, " %" SCNu32 " %15s %95s %47s", &f->number, label, type, f->name) != 4) {
        fprintf(stderr, "no field of a protocol: %s\n", line);
        exit(2);
    }
    f->repeated = strcmp(label, "repeated") == 0;
    colon = strchr(type, ':');
    if (colon) {
        *colon = '\0';
        (void)snprintf(f->of, sizeof f->of, "%.63s", colon + 1);
    }
    (void)snprintf(f->type, sizeof f->type, "%.15s", type);
}

struct protocol *protocol_read(const char *path)
{
    struct protocol *p = calloc(1, sizeof *p);
    bool in_message = false;
    FILE *file = fopen(path, "re");
    char line[512];

    if (!p || !file) {
        perror(path);
        exit(2);
    }
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "rpc ", 4) == 0) {
            struct protocol_rpc *rpc;

            p->rpcs = grown(p->rpcs, p->rpc_count, sizeof *p->rpcs);
            rpc = &p->rpcs[p->rpc_count++];
            (void)sscanf(line, "rpc %95s %95s %95s", rpc->path, rpc->request, rpc->response);
            in_message = false;
        } else if (strncmp(line, "message ", 8) == 0) {
            p->messages = grown(p->messages, p->message_count, sizeof *p->messages);
            (void)sscanf(line, "message %63s", p->messages[p->message_count++].name);
            in_message = true;
        } else if (strncmp(line, "enum ", 5) == 0) {
            in_message = false;
        } else if (in_message) {
            read_field(&p->messages[p->message_count - 1], line);
        }
    }
    (void)fclose(file);
    return p;
}

void protocol_free(struct protocol *protocol)
{
    for (size_t i = 0; i < protocol->message_count; i++)
        free(protocol->messages[i].fields);
    free(protocol->messages);
    free(protocol->rpcs);
    free(protocol);
}

const struct protocol_rpc *protocol_find_rpc(const struct protocol *protocol, const char *path)
{
    for (size_t i = 0; i < protocol->rpc_count; i++)
        if (strcmp(protocol->rpcs[i].path, path) == 0)
            return &protocol->rpcs[i];
    return NULL;
}

const struct protocol_rpc *protocol_rpcs(const struct protocol *protocol, size_t *ret_count)
{
    *ret_count = protocol->rpc_count;
    return protocol->rpcs;
}

static const struct old_message *find_message(const struct protocol *protocol, const char *name)
{
    for (size_t i = 0; i < protocol->message_count; i++)
        if (strcmp(protocol->messages[i].name, name) == 0)
            return &protocol->messages[i];
    fprintf(stderr, "the protocol has no message %s\n", name);
    exit(2);
}

static const struct old_field *find_field(const struct old_message *message, uint32_t number)
{
    for (size_t i = 0; i < message->count; i++)
        if (message->fields[i].number == number)
            return &message->fields[i];
    return NULL;
}

/* ---- fields on the wire ---- */

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_SIZED = 2, WIRE_32 = 5 };

static int wire_of(const struct old_field *field)
{
    const char *t = field->type;

    if (strcmp(t, "string") == 0 || strcmp(t, "bytes") == 0 || strcmp(t, "message") == 0)
        return WIRE_SIZED;
    if (strcmp(t, "double") == 0 || strcmp(t, "fixed64") == 0 || strcmp(t, "sfixed64") == 0)
        return WIRE_64;
    if (strcmp(t, "float") == 0 || strcmp(t, "fixed32") == 0 || strcmp(t, "sfixed32") == 0)
        return WIRE_32;
    return WIRE_VARINT;
}

/* One field of a message's bytes. */
struct entry {
    uint32_t number;
    int wire;
    uint64_t value;       /* of VARINT, 32 and 64 */
    const uint8_t *bytes; /* of SIZED */
    size_t size_bytes;
    const uint8_t *begin, *end; /* key and all */
};

static bool take_varint(const uint8_t **at, const uint8_t *end, uint64_t *ret_value)
{
    *ret_value = 0;
    for (int shift = 0; *at < end && shift < 70; shift += 7) {
        const uint8_t byte = *(*at)++;

        *ret_value |= shift < 64 ? (uint64_t)(byte & 0x7f) << shift : 0;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

static bool take_fixed(const uint8_t **at, const uint8_t *end, int count, uint64_t *ret_value)
{
    *ret_value = 0;
    if (end - *at < count)
        return false;
    for (int i = 0; i < count; i++)
        *ret_value |= (uint64_t)(*at)[i] << 8 * i;
    *at += count;
    return true;
}

static bool take_entry(const uint8_t **at, const uint8_t *end, struct entry *e)
{
    uint64_t key, size;

    e->begin = *at;
    if (!take_varint(at, end, &key))
        return false;
    e->number = (uint32_t)(key >> 3);
    e->wire = (int)(key & 7);
    switch (e->wire) {
    case WIRE_VARINT:
        if (!take_varint(at, end, &e->value))
            return false;
        break;
    case WIRE_64:
    case WIRE_32:
        if (!take_fixed(at, end, e->wire == WIRE_64 ? 8 : 4, &e->value))
            return false;
        break;
    case WIRE_SIZED:
        if (!take_varint(at, end, &size) || size > (uint64_t)(end - *at))
            return false;
        e->bytes = *at;
        e->size_bytes = (size_t)size;
        *at += size;
        break;
    default:
        return false;
    }
    e->end = *at;
    return true;
}

/* ---- as text ---- */

static void print_value(const struct old_field *field, uint64_t value, struct hd_text *text)
{
    double real;
    float single;

    if (strcmp(field->type, "double") == 0) {
        memcpy(&real, &value, sizeof real);
        hd_text_add(text, "%.17g", real);
    } else if (strcmp(field->type, "float") == 0) {
        const uint32_t bits = (uint32_t)value;

        memcpy(&single, &bits, sizeof single);
        hd_text_add(text, "%.9g", (double)single);
    } else {
        hd_text_add(text, "%" PRId64, (int64_t)value);
    }
}

static void print_bytes(const uint8_t *bytes, size_t size_bytes, struct hd_text *text)
{
    for (size_t i = 0; i < size_bytes; i++)
        if (bytes[i] == '\n')
            hd_text_add(text, "\\n");
        else if (bytes[i] >= ' ' && bytes[i] != '\\')
            hd_text_add_bytes(text, &bytes[i], 1);
        else
            hd_text_add(text, "\\x%02x", bytes[i]);
}

static void print_message(const struct protocol *protocol, const char *message, const char *path,
                          const uint8_t *bytes, size_t size_bytes, struct hd_text *text);

/* Packed numbers: several values in one entry. */
static void print_packed(const struct old_field *field, const char *path, const struct entry *e,
                         struct hd_text *text)
{
    const uint8_t *at = e->bytes, *end = e->bytes + e->size_bytes;
    const int wire = wire_of(field);
    uint64_t value;

    hd_text_add(text, "%s=[", path);
    while (at < end &&
           (wire == WIRE_VARINT ? take_varint(&at, end, &value)
                                : take_fixed(&at, end, wire == WIRE_64 ? 8 : 4, &value))) {
        print_value(field, value, text);
        hd_text_add(text, " ");
    }
    hd_text_add(text, at < end ? "(malformed)]\n" : "]\n");
}

static void print_entry(const struct protocol *protocol, const struct old_field *field,
                        const char *path, const struct entry *e, struct hd_text *text)
{
    const int wire = wire_of(field);

    if (strcmp(field->type, "message") == 0 && e->wire == WIRE_SIZED) {
        if (!e->size_bytes)
            hd_text_add(text, "%s={}\n", path);
        print_message(protocol, field->of, path, e->bytes, e->size_bytes, text);
    } else if (field->repeated && wire != WIRE_SIZED && e->wire == WIRE_SIZED) {
        print_packed(field, path, e, text);
    } else if (e->wire != wire) {
        hd_text_add(text, "%s=(wire type %d)\n", path, e->wire);
    } else if (wire == WIRE_SIZED) {
        hd_text_add(text, "%s=", path);
        print_bytes(e->bytes, e->size_bytes, text);
        hd_text_add(text, "\n");
    } else {
        hd_text_add(text, "%s=", path);
        print_value(field, e->value, text);
        hd_text_add(text, "\n");
    }
}

static void print_message(const struct protocol *protocol, const char *message, const char *path,
                          const uint8_t *bytes, size_t size_bytes, struct hd_text *text)
{
    const struct old_message *old = find_message(protocol, message);
    const uint8_t *end = bytes + size_bytes;

    for (size_t f = 0; f < old->count; f++) {
        const struct old_field *field = &old->fields[f];
        const uint8_t *at = bytes;
        struct entry e = {0};
        int n = 0;

        while (at < end && take_entry(&at, end, &e)) {
            char below[PATH_BYTES];

            if (e.number != field->number)
                continue;
            if (field->repeated)
                (void)snprintf(below, sizeof below, "%s%s%s[%d]", path, *path ? "." : "",
                               field->name, n++);
            else
                (void)snprintf(below, sizeof below, "%s%s%s", path, *path ? "." : "", field->name);
            print_entry(protocol, field, below, &e, text);
        }
        if (at < end && f == 0)
            hd_text_add(text, "%s=(malformed)\n", path);
    }
}

void plain_print(const struct protocol *protocol, const char *message,
                 const struct plain_bytes *bytes, struct hd_text *text)
{
    print_message(protocol, message, "", bytes->data, bytes->size_bytes, text);
}

/* ---- changed ---- */

static void put_varint(struct hd_text *out, uint64_t value)
{
    uint8_t byte;

    for (; value > 0x7f; value >>= 7) {
        byte = (uint8_t)(value & 0x7f) | 0x80;
        hd_text_add_bytes(out, &byte, 1);
    }
    byte = (uint8_t)value;
    hd_text_add_bytes(out, &byte, 1);
}

struct editor {
    const struct protocol *protocol;
    void (*edit)(void *user, struct plain_field *field);
    void *user;
};

static void edit_message(const struct editor *editor, const char *message, const char *path,
                         const uint8_t *bytes, size_t size_bytes, struct hd_text *out);

static void edit_entry(const struct editor *editor, const struct old_field *field, const char *path,
                       const struct entry *e, struct hd_text *out)
{
    struct plain_field changed = {.path = path, .number = e->value};
    const bool is_message = strcmp(field->type, "message") == 0;

    if (is_message) {
        edit_message(editor, field->of, path, e->bytes, e->size_bytes, &changed.text);
    } else if (e->wire == WIRE_SIZED) {
        changed.is_text = true;
        hd_text_add_bytes(&changed.text, e->bytes, e->size_bytes);
        editor->edit(editor->user, &changed);
    } else {
        editor->edit(editor->user, &changed);
    }
    put_varint(out, (uint64_t)e->number << 3 | (uint64_t)e->wire);
    if (e->wire == WIRE_SIZED) {
        put_varint(out, changed.text.len_bytes);
        if (changed.text.len_bytes)
            hd_text_add_bytes(out, changed.text.data, changed.text.len_bytes);
    } else {
        put_varint(out, changed.number);
    }
    hd_text_free(&changed.text);
}

static void edit_message(const struct editor *editor, const char *message, const char *path,
                         const uint8_t *bytes, size_t size_bytes, struct hd_text *out)
{
    const struct old_message *old = find_message(editor->protocol, message);
    const uint8_t *at = bytes, *end = bytes + size_bytes;
    struct entry e = {0};

    while (at < end) {
        const struct old_field *field;
        char below[PATH_BYTES];

        if (!take_entry(&at, end, &e)) {
            fprintf(stderr, "%s: a recorded %s is malformed\n", path, message);
            exit(2);
        }
        field = find_field(old, e.number);
        if (!field || (e.wire != WIRE_VARINT && e.wire != WIRE_SIZED) ||
            (e.wire == WIRE_SIZED && wire_of(field) != WIRE_SIZED)) {
            hd_text_add_bytes(out, e.begin, (size_t)(e.end - e.begin));
            continue;
        }
        (void)snprintf(below, sizeof below, "%s%s%s", path, *path ? "." : "", field->name);
        edit_entry(editor, field, below, &e, out);
    }
}

struct plain_bytes plain_edit(const struct protocol *protocol, const char *message,
                              const struct plain_bytes *bytes,
                              void (*edit)(void *user, struct plain_field *field), void *user)
{
    const struct editor editor = {protocol, edit, user};
    struct hd_text out = {0};

    edit_message(&editor, message, "", bytes->data, bytes->size_bytes, &out);
    return (struct plain_bytes){(uint8_t *)out.data, out.len_bytes};
}
