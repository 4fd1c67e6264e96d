/* topology: the switches and the links of nodes. Switches come from config.tree, by the names of
 * nodes; a node that is not in the tree shares no switch. Nodes that report equal links share one
 * copy. */
#include <stdlib.h>

#include "controller/core/state/state.h"

int32_t core_tiers(const struct hd_core *core)
{
    return core->config.tree ? core->config.tree->tier_count + 1 : 1;
}

void core_find_position(const struct hd_core *core, struct core_node *node)
{
    const struct hd_node_tree *tree = core->config.tree;

    node->position =
        tree && node->rec.name ? hd_node_tree_position(tree, node->rec.name) : NO_POSITION;
    node->leaf =
        node->position >= 0 && tree->tier_count ? hd_node_tree_switch(tree, 0, node->position) : -1;
}

void core_links_drop(struct hd_core *core, struct core_node *node)
{
    struct core_links *links = node->links;

    node->links = NULL;
    if (!links || --links->nodes > 0)
        return;
    for (size_t i = 0; i < core->link_count; i++)
        if (core->links[i] == links)
            core->links[i] = core->links[--core->link_count];
    free(links);
}

/* Returns whether the reported links describe all of the node's devices, and are not all equal. */
static bool is_of_use(const struct core_node *node, const struct hd_node_links *reported)
{
    return reported && reported->devices == node->rec.device_count &&
           !hd_node_links_are_even(reported);
}

void core_links_take(struct hd_core *core, struct core_node *node,
                     const struct hd_node_links *reported)
{
    struct core_links *links = NULL;

    core_links_drop(core, node);
    if (!is_of_use(node, reported))
        return;
    for (size_t i = 0; i < core->link_count && !links; i++)
        if (hd_node_links_equal(&core->links[i]->links, reported))
            links = core->links[i];
    if (!links) {
        links =
            core_new_item(core, &core->links, core->link_count, &core->link_size, sizeof *links);
        if (!links)
            return;
        links->links = *reported;
        core->links[core->link_count++] = links;
    }
    links->nodes++;
    node->links = links;
}
