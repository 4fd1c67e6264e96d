/* cluster_internal: declarations that the files that read a cluster file share. */
#ifndef HD_SPEC_CLUSTER_INTERNAL_H
#define HD_SPEC_CLUSTER_INTERNAL_H

#include "plan/node_tree.h"
#include "spec_internal.h"

/* A cluster file while it is read. A value at the top of the file applies to all groups of nodes
 * that do not give it themselves. */
struct cluster_reader {
    const char *name;
    struct hd_arena arena; /* memory of the file's text */
    struct hd_arena *kept; /* memory of the links and names in the result; the caller's */
    const struct yaml_node *root;
    struct hd_cluster_level tiers[HD_CLUSTER_TIERS_MAX];
    int64_t tier_nodes[HD_CLUSTER_TIERS_MAX]; /* nodes of one switch, by tier */
    int tier_count;
};

/* ---- cluster_values.c ---- */

enum hd_status cluster_fail(const struct cluster_reader *r, const struct yaml_node *node,
                            const char *key, const char *problem, ...)
    __attribute__((format(printf, 4, 5)));
/* Checks that `map` is a map with no other keys than these. */
enum hd_status cluster_check_keys(const struct cluster_reader *r, const struct yaml_node *map,
                                  const char *what, const char *const *keys, size_t count);
/* returns the text of a YAML scalar; "" if the node is no scalar */
const char *cluster_text(const struct yaml_node *node);
/* Returns the value of a key in a group of nodes, else at the top of the file; NULL: neither has
 * it. */
const struct yaml_node *cluster_find(const struct cluster_reader *r, const struct yaml_node *group,
                                     const char *key);
enum hd_status cluster_read_bandwidth(const struct cluster_reader *r, const struct yaml_node *node,
                                      const char *key, double *ret_bytes_per_s);
enum hd_status cluster_read_time(const struct cluster_reader *r, const struct yaml_node *node,
                                 const char *key, double *ret_seconds);
enum hd_status cluster_read_flops(const struct cluster_reader *r, const struct yaml_node *node,
                                  const char *key, double *ret_flops);
enum hd_status cluster_read_memory(const struct cluster_reader *r, const struct yaml_node *node,
                                   const char *key, int64_t *ret_bytes);
enum hd_status cluster_read_count(const struct cluster_reader *r, const struct yaml_node *node,
                                  const char *key, int64_t max, int64_t *ret_count);
/* Reads a link {bandwidth, latency} into `level`; if the latency is absent, level's stays
 * unchanged. */
enum hd_status cluster_read_link(const struct cluster_reader *r, const struct yaml_node *node,
                                 const char *what, struct hd_cluster_level *level);

/* ---- cluster_links.c ---- */

/* Reads the key `links` of a group of nodes: sets c->links, and the rates of the node's level to
 * those of its slowest pair of devices. Does nothing if the key is absent. */
enum hd_status cluster_read_links(const struct cluster_reader *r, const struct yaml_node *group,
                                  struct hd_cluster *c, struct hd_cluster_level *node);
/* Reads the key `nics` of a group of nodes: sets the network bandwidth that one device gets while
 * all devices of the node send. Does nothing if the key is absent. */
enum hd_status cluster_read_nics(const struct cluster_reader *r, const struct yaml_node *group,
                                 const struct hd_cluster *c, struct hd_cluster_level *network);

#endif
