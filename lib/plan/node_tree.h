/* node_tree: which network switches lie between two nodes, by the nodes' names.
 *
 * A cluster file (docs/planning.md) lists groups of nodes by names, "n[1-16,20]", and tiers of
 * switches by how many adjacent nodes each has. Names have positions in the order of the file; each
 * group begins at a switch of its own. A node that the file does not name has no position: it is
 * far from all others, and shares no switch.
 *
 * Used by: spec (reads cluster files), core, services.   Uses: base, cluster.
 * Threads: any; a tree that is filled is only read.
 */
#ifndef HD_PLAN_NODE_TREE_H
#define HD_PLAN_NODE_TREE_H

#include "plan/cluster.h"

struct hd_node_tree {
    int tier_count;                                      /* 0: no switches are known */
    struct hd_cluster_level tiers[HD_CLUSTER_TIERS_MAX]; /* from the nodes upwards */
    int64_t tier_nodes[HD_CLUSTER_TIERS_MAX];            /* of one switch */
    int group_count;
    struct hd_node_group {
        const char *names; /* "n[1-16,20]"; NULL: the file has no names, only a number */
        int64_t first;     /* position of its first node */
    } groups[HD_CLUSTER_GROUPS_MAX];
};

/* How many names a pattern has: "n[1-16,20]" has 17, "a" one. False: it is no pattern, or has more
 * than HD_CLUSTER_NODES_MAX names. */
bool hd_node_names_count(const char *names, int64_t *ret_count);
/* The place of a name in a pattern, from 0; -1: it is not one of them. Numbers are compared by
 * their values: "n007" is n7. */
int64_t hd_node_names_find(const char *names, const char *name);
/* A name that is in both patterns; false: there is none. The patterns are legal; names of
 * HD_NODE_NAME_MAX bytes or more are not compared. */
enum { HD_NODE_NAME_MAX = 128 };
bool hd_node_names_meet(const char *a, const char *b, char ret_name[HD_NODE_NAME_MAX]);

/* -1: the file does not name the node. */
int64_t hd_node_tree_position(const struct hd_node_tree *tree, const char *name);

/* The switch of this tier that a position is at. */
static inline int64_t hd_node_tree_switch(const struct hd_node_tree *tree, int tier,
                                          int64_t position)
{
    return position / tree->tier_nodes[tier];
}

#endif
