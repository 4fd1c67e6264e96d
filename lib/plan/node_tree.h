/* node_tree: which network switches lie between two nodes, by the nodes' names.
 *
 * A cluster file (docs/planning.md) lists groups of nodes by name, "n[1-16,20]", and tiers of
 * switches by how many adjacent nodes each switch has. Names have positions in the order of the
 * file; each group begins at a new switch. A node that the file does not name has no position: it
 * is far from all others and shares no switch with them.
 *
 * Used by: spec (reads cluster files), core, services.   Uses: base, cluster.
 * Threads: any; a filled tree is only read. */
#ifndef HD_PLAN_NODE_TREE_H
#define HD_PLAN_NODE_TREE_H

#include "plan/cluster.h"

struct hd_node_tree {
    int tier_count; /* 0: the file describes no switches */
    /* links of each tier of switches, lowest tier first */
    struct hd_cluster_level tiers[HD_CLUSTER_TIERS_MAX];
    int64_t tier_nodes[HD_CLUSTER_TIERS_MAX]; /* nodes of one switch, by tier */
    int group_count;
    struct hd_node_group {
        const char *names; /* "n[1-16,20]"; NULL: the file gives only a number of nodes */
        int64_t first;     /* position of the group's first node among all nodes of the file */
    } groups[HD_CLUSTER_GROUPS_MAX];
};

/* Sets *ret_count to the number of node names that a pattern has: "n[1-16,20]" has 17, "a" has 1.
 * False: not a legal pattern, or more than HD_CLUSTER_NODES_MAX names. */
bool hd_node_names_count(const char *names, int64_t *ret_count);
/* Returns the index, from 0, of a node's name among those of a pattern; -1: the pattern lacks it.
 * Numbers are compared by value: "n007" is n7. */
int64_t hd_node_names_find(const char *names, const char *name);
/* Finds a node name that both patterns contain; false: none. The patterns must be legal; names of
 * HD_NODE_NAME_MAX bytes or more are not compared. */
enum { HD_NODE_NAME_MAX = 128 };
bool hd_node_names_meet(const char *a, const char *b, char ret_name[HD_NODE_NAME_MAX]);

/* Returns the position of a node in the cluster file; -1: the file does not name it. */
int64_t hd_node_tree_position(const struct hd_node_tree *tree, const char *name);

/* Returns the number of the switch of this tier to which the node at a position is connected. */
static inline int64_t hd_node_tree_switch(const struct hd_node_tree *tree, int tier,
                                          int64_t position)
{
    return position / tree->tier_nodes[tier];
}

#endif
