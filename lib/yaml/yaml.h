/* yaml: a YAML document as a tree of nodes that know their lines.
 *
 * Features that a file of settings does not need and that could do harm are refused: aliases
 * (exponential growth), anchors, tags, deep nesting, more than one document, texts with NUL.
 *
 * Used by: spec (job and cluster files), config.   Uses: base, libyaml (yaml.h is included only
 * here).   Threads: one owner of an arena at a time.
 */
#ifndef HD_YAML_YAML_H
#define HD_YAML_YAML_H

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/status.h"

enum {
    HD_YAML_BYTES_MAX = 256 << 10, /* of a document */
    HD_YAML_DEPTH_MAX = 16,        /* of lists and maps within each other */
};

enum yaml_kind { YAML_KIND_SCALAR, YAML_KIND_LIST, YAML_KIND_MAP };

struct yaml_node {
    enum yaml_kind kind;
    bool plain;         /* a scalar without quotes */
    bool short_form;    /* a scalar that is written in place of its map */
    int line;           /* from 1; 0: from an override */
    const char *origin; /* the override, as the user typed it; NULL: from the file */
    const char *key;    /* in a map */
    const char *text;   /* of a scalar, without NUL inside */
    struct yaml_node *first, *last, *next;
};

struct hd_yaml_source {
    const char *name;   /* of the file, for messages */
    const char *origin; /* not NULL: the text is no file's but an override, as the user typed it */
    const char *kind;   /* what it is, for messages: "job file" */
    const char *empty;  /* what a text without any value is told; NULL: it is fine */
    const void *bytes;
    size_t size_bytes;
};

/* Parses one document. Error messages begin with "NAME:LINE: ", or with "ORIGIN: " if the source
 * has an origin. The nodes live in `arena`. *ret_root is NULL for a text without any value, where
 * that is fine. */
enum hd_status hd_yaml_parse(const struct hd_yaml_source *source, struct hd_arena *arena,
                             struct yaml_node **ret_root);

/* Of a map; NULL: it has no such key, or the node is no map. */
struct yaml_node *hd_yaml_find(const struct yaml_node *map, const char *key);
/* NULL: no memory. */
struct yaml_node *hd_yaml_new(struct hd_arena *arena, enum yaml_kind kind, const char *key,
                              int line, const char *origin);
void hd_yaml_append(struct yaml_node *parent, struct yaml_node *child);

#endif
