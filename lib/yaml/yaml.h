/* yaml: a YAML document as a tree of nodes that know their lines.
 *
 * Features that a file of settings does not need and that could do harm are refused: aliases
 * (exponential growth), anchors, tags, deep nesting, more than one document, texts with NUL.
 *
 * Used by: spec (job and cluster files), config.
 * Uses: base, libyaml (only this folder includes its yaml.h).
 * Threads: one owner of an arena at a time.
 */
#ifndef HD_YAML_YAML_H
#define HD_YAML_YAML_H

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/status.h"

enum {
    HD_YAML_BYTES_MAX = 256 << 10, /* size of a document */
    HD_YAML_DEPTH_MAX = 16,        /* nesting depth of lists and maps */
};

enum yaml_kind { YAML_KIND_SCALAR, YAML_KIND_LIST, YAML_KIND_MAP };

struct yaml_node {
    enum yaml_kind kind;
    bool plain;         /* a scalar without quotes */
    bool flow;          /* a list or map in brackets */
    bool short_form;    /* a scalar written in place of its map */
    int line;           /* line in the file, from 1; 0: the node is from an override */
    const char *origin; /* the override, as the user typed it; NULL: the node is from the file */
    const char *key;    /* key of the node in its map */
    const char *text;   /* text of a scalar, without NUL inside */
    /* characters of the document in front of the value, and up to its end; the end of a list or map
     * without brackets is that of its last value */
    size_t begin, end;
    struct yaml_node *first, *last, *next;
};

struct hd_yaml_source {
    const char *name; /* file name, for messages */
    /* the override that the text comes from, as the user typed it; NULL: the text is a file's */
    const char *origin;
    const char *kind;  /* kind of the text, for messages: "job file" */
    const char *empty; /* error message for a text without any value; NULL: it is allowed */
    const void *bytes;
    size_t size_bytes;
};

/* Parses one document; the nodes live in `arena`. Error messages begin with "NAME:LINE: ", or with
 * "ORIGIN: " if the source has an origin. *ret_root is NULL for a text without any value, if the
 * source allows it. */
enum hd_status hd_yaml_parse(const struct hd_yaml_source *source, struct hd_arena *arena,
                             struct yaml_node **ret_root);

/* Returns the member of a map with this key; NULL: no such key, or the node is not a map. */
struct yaml_node *hd_yaml_find(const struct yaml_node *map, const char *key);
/* Makes a node; NULL: no memory. */
struct yaml_node *hd_yaml_new(struct hd_arena *arena, enum yaml_kind kind, const char *key,
                              int line, const char *origin);
void hd_yaml_append(struct yaml_node *parent, struct yaml_node *child);

#endif
