/* descriptor: finds files and symbols in a serialised google.protobuf.FileDescriptorSet, without
 * unpacking it. Only for lib/rpc.
 *
 * protoc generates the set, and it is linked into the program. Malformed entries are treated as
 * absent; no other error exists. Results point into the set. */
#ifndef HD_RPC_DESCRIPTOR_H
#define HD_RPC_DESCRIPTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hd_rpc_bytes {
    const uint8_t *data;
    size_t size_bytes;
};

/* Sets *at to the next file of the set; to the first if *at is {0}. Returns false after the last
 * file. */
bool hd_rpc_descriptor_next(struct hd_rpc_bytes set, struct hd_rpc_bytes *at,
                            struct hd_rpc_bytes *ret_file);

bool hd_rpc_descriptor_find_file(struct hd_rpc_bytes set, const char *name,
                                 struct hd_rpc_bytes *ret_file);

/* Kind of a symbol that was looked up; NONE: not found. */
enum hd_rpc_symbol { HD_RPC_SYMBOL_NONE, HD_RPC_SYMBOL_MESSAGE, HD_RPC_SYMBOL_OTHER };

/* Finds the file that declares a message, field, enum, enum value, service or method, given its
 * full name. Returns the symbol's kind. */
enum hd_rpc_symbol hd_rpc_descriptor_find_symbol(struct hd_rpc_bytes set, const char *symbol,
                                                 struct hd_rpc_bytes *ret_file);

/* Copies the name of the index-th file that a file imports. Returns false if it has no index-th
 * import. */
bool hd_rpc_descriptor_import(struct hd_rpc_bytes file, size_t index, char ret_name[256]);

#endif
