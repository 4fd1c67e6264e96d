/* cluster_links: reads `links`, the links between the devices of a node if pairs differ, and
 * `nics`, the network adapters of a node:
 *
 *     links:
 *       rates: {nv2: 50GB/s, pix: {bandwidth: 13GB/s, latency: 6us}, sys: 9GB/s}
 *       matrix:                        # words of `nvidia-smi topo -m`, or rates
 *         - X   nv2 pix sys
 *         - nv2 X   sys pix
 *         - pix sys X   nv2
 *         - sys pix nv2 X
 *       shared: [{devices: [0, 1], bandwidth: 12GB/s}]
 *     nics: [{devices: [0, 1], bandwidth: 200Gb/s}]
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cluster_internal.h"

enum { RATES_MAX = 32, WORD_MAX = 24 };

static const double usual_latency_s = 3e-6;

/* ---- the matrix ---- */

struct rate {
    const char *word;
    struct hd_cluster_level link;
};

struct matrix_reader {
    const struct cluster_reader *r;
    struct rate rates[RATES_MAX];
    int rate_count;
    struct hd_node_links *links;
    /* by device: bit set of the other devices of the pairs that the matrix gives as a rate, not as
     * a word */
    uint64_t numbers[HD_NODE_LINKS_MAX];
};

static bool equal_words(const char *a, const char *b)
{
    while (*a && tolower((unsigned char)*a) == tolower((unsigned char)*b)) {
        a++;
        b++;
    }
    return !*a && !*b;
}

static enum hd_status read_rate(struct matrix_reader *m, const struct yaml_node *node)
{
    struct rate *rate = &m->rates[m->rate_count];

    if (m->rate_count == RATES_MAX)
        return cluster_fail(m->r, node, "links.rates", "at most %d are possible", RATES_MAX);
    *rate = (struct rate){.word = node->key, .link = {.latency_s = usual_latency_s}};
    m->rate_count++;
    if (node->kind == YAML_KIND_MAP) {
        static const char *const keys[] = {"bandwidth", "latency"};
        const enum hd_status st = cluster_check_keys(m->r, node, "links.rates", keys, 2);

        return st ? st : cluster_read_link(m->r, node, "links.rates", &rate->link);
    }
    return cluster_read_bandwidth(m->r, node, "links.rates", &rate->link.bytes_per_s);
}

static enum hd_status read_rates(struct matrix_reader *m, const struct yaml_node *map)
{
    enum hd_status st = HD_OK;

    if (!map)
        return HD_OK;
    if (map->kind != YAML_KIND_MAP)
        return cluster_fail(m->r, map, "links.rates",
                            "expected words of the matrix with their rates, such as {pix: 13GB/s}");
    for (const struct yaml_node *n = map->first; !st && n; n = n->next)
        st = read_rate(m, n);
    return st;
}

/* Reads one cell of the matrix: a word of links.rates, or a rate. */
static enum hd_status read_cell(struct matrix_reader *m, const struct yaml_node *row,
                                const char *word, struct hd_cluster_level *ret_link,
                                bool *ret_number, bool *ret_direct)
{
    struct yaml_node cell = *row;
    char quoted[SPEC_QUOTE_MAX];

    *ret_number = *ret_direct = false;
    for (int i = 0; i < m->rate_count; i++)
        if (equal_words(m->rates[i].word, word)) {
            *ret_link = m->rates[i].link;
            *ret_direct = tolower((unsigned char)word[0]) == 'n' &&
                          tolower((unsigned char)word[1]) == 'v' && isdigit((unsigned char)word[2]);
            return HD_OK;
        }
    if (!isdigit((unsigned char)word[0]))
        return cluster_fail(m->r, row, "links.matrix",
                            "%s is neither a word of links.rates nor a rate, such as 13GB/s",
                            spec_quote(word, quoted));
    cell.text = word;
    *ret_number = true;
    *ret_link = (struct hd_cluster_level){.latency_s = usual_latency_s};
    return cluster_read_bandwidth(m->r, &cell, "links.matrix", &ret_link->bytes_per_s);
}

/* Sets the rate of a pair of devices, or compares it with the rate that the other device's row
 * gives for the pair. */
static enum hd_status take_pair(struct matrix_reader *m, const struct yaml_node *row, int32_t a,
                                int32_t b, const char *word)
{
    struct hd_cluster_level link;
    bool number, direct;
    enum hd_status st = read_cell(m, row, word, &link, &number, &direct);

    if (st)
        return st;
    if (b > a) { /* device b's row comes later and is compared with this cell */
        hd_node_links_set(m->links, a, b, link.bytes_per_s, link.latency_s, direct);
        m->numbers[a] |= (uint64_t)number << b;
        return HD_OK;
    }
    if (hd_node_links_rate(m->links, a, b) == link.bytes_per_s &&
        hd_node_links_is_direct(m->links, a, b) == direct)
        return HD_OK;
    return cluster_fail(m->r, row, "links.matrix",
                        "devices %d and %d have other links in row %d than in row %d; write both "
                        "ways alike, of measured rates the slower",
                        (int)b, (int)a, (int)a, (int)b);
}

static enum hd_status read_row(struct matrix_reader *m, const struct yaml_node *row, int32_t device)
{
    const char *at = cluster_text(row);
    const int32_t count = m->links->devices;
    char word[WORD_MAX];
    int32_t other = 0;

    for (;; other++) {
        size_t len;
        enum hd_status st;

        at += strspn(at, " \t");
        len = strcspn(at, " \t");
        if (!len || other == count)
            break;
        (void)snprintf(word, sizeof word, "%.*s", (int)(len < WORD_MAX ? len : WORD_MAX - 1), at);
        at += len;
        if (other == device && equal_words(word, "x"))
            continue;
        if (other == device || equal_words(word, "x"))
            return cluster_fail(
                m->r, row, "links.matrix",
                "X marks the link of a device to itself: write it in row %d at position %d, "
                "and nowhere else",
                (int)device, (int)device);
        st = take_pair(m, row, device, other, word);
        if (st)
            return st;
    }
    if (other == count && !*at)
        return HD_OK;
    return cluster_fail(m->r, row, "links.matrix",
                        "row %d needs a word for each of the %d devices, in one text", (int)device,
                        (int)count);
}

static enum hd_status lacks_rows(const struct matrix_reader *m, const struct yaml_node *node)
{
    return cluster_fail(m->r, node, "links.matrix",
                        "needs a row for each of the %d devices of a node", (int)m->links->devices);
}

static enum hd_status read_matrix(struct matrix_reader *m, const struct yaml_node *links,
                                  const struct yaml_node *list)
{
    int32_t device = 0;
    enum hd_status st = HD_OK;

    if (!list || list->kind != YAML_KIND_LIST)
        return lacks_rows(m, list ? list : links);
    for (const struct yaml_node *n = list->first; !st && n; n = n->next, device++)
        st = device < m->links->devices ? read_row(m, n, device) : lacks_rows(m, n);
    return st || device == m->links->devices ? st : lacks_rows(m, list);
}

/* ---- shared links ---- */

/* Sets *ret_set to the bit set of a list of a node's device numbers, such as [0, 1, 2]. */
static enum hd_status read_set(const struct cluster_reader *r, const struct yaml_node *node,
                               const char *key, int64_t devices, uint64_t *ret_set)
{
    char quoted[SPEC_QUOTE_MAX];

    *ret_set = 0;
    if (!node || node->kind != YAML_KIND_LIST || !node->first)
        return cluster_fail(r, node, key, "needs devices: a list of their numbers, such as [0, 1]");
    for (const struct yaml_node *n = node->first; n; n = n->next) {
        int64_t device;

        if (!hd_text_to_int64(cluster_text(n), 0, devices - 1, &device) &&
            !(*ret_set >> device & 1)) {
            *ret_set |= 1ull << device;
            continue;
        }
        return cluster_fail(r, n, key,
                            "%s is no device, or is listed twice; give numbers from 0 to %lld",
                            spec_quote(cluster_text(n), quoted), (long long)devices - 1);
    }
    return HD_OK;
}

static enum hd_status read_shared(struct matrix_reader *m, const struct yaml_node *node)
{
    static const char *const keys[] = {"devices", "bandwidth"};
    struct hd_cluster_level link = {0};
    uint64_t set = 0;
    enum hd_status st = cluster_check_keys(m->r, node, "links.shared", keys, 2);

    if (!st)
        st = read_set(m->r, hd_yaml_find(node, "devices"), "links.shared", m->links->devices, &set);
    if (!st)
        st = cluster_read_link(m->r, node, "links.shared", &link);
    if (!st && hd_node_links_share(m->links, set, link.bytes_per_s))
        st = cluster_fail(m->r, node, "links.shared", "%s", hd_err_message());
    return st;
}

static enum hd_status read_all_shared(struct matrix_reader *m, const struct yaml_node *list)
{
    enum hd_status st = HD_OK;

    if (!list)
        return HD_OK;
    if (list->kind != YAML_KIND_LIST)
        return cluster_fail(m->r, list, "links.shared", "expected a list of {devices, bandwidth}");
    for (const struct yaml_node *n = list->first; !st && n; n = n->next)
        st = read_shared(m, n);
    return st;
}

/* Marks pairs as direct: a pair whose own rate is above that of a shared link between its two
 * devices does not pass through that link. */
static void find_direct(struct matrix_reader *m)
{
    struct hd_node_links *l = m->links;

    for (int32_t a = 0; a < l->devices; a++)
        for (int32_t b = a + 1; b < l->devices; b++)
            for (int32_t s = 0; s < l->shared_count && (m->numbers[a] >> b & 1); s++)
                if (((l->shared[s].devices >> a ^ l->shared[s].devices >> b) & 1) &&
                    hd_node_links_rate(l, a, b) > l->shared[s].bytes_per_s)
                    hd_node_links_set(l, a, b, hd_node_links_rate(l, a, b),
                                      hd_node_links_latency(l, a, b), true);
}

/* ---- the group ---- */

static void set_level(const struct hd_node_links *links, struct hd_cluster_level *node)
{
    for (int32_t a = 0; a < links->devices; a++)
        for (int32_t b = 0; b < a; b++) {
            const double rate = hd_node_links_rate(links, a, b),
                         latency = hd_node_links_latency(links, a, b);

            node->bytes_per_s = a == 1 || rate < node->bytes_per_s ? rate : node->bytes_per_s;
            node->latency_s = a == 1 || latency > node->latency_s ? latency : node->latency_s;
        }
}

enum hd_status cluster_read_links(const struct cluster_reader *r, const struct yaml_node *group,
                                  struct hd_cluster *c, struct hd_cluster_level *node)
{
    static const char *const keys[] = {"rates", "matrix", "shared"};
    const struct yaml_node *links = cluster_find(r, group, "links");
    struct matrix_reader m = {.r = r};
    enum hd_status st;

    if (!links)
        return HD_OK;
    if (cluster_find(r, group, "intra_node") || cluster_find(r, group, "islands"))
        return cluster_fail(
            r, links, "links",
            "is given together with intra_node or islands, which describe the same in another "
            "way; remove one of the two");
    m.links = hd_arena_alloc(r->kept, sizeof *m.links);
    if (!m.links)
        return hd_err(HD_NO_MEMORY, "no memory for the links of a node");
    *m.links = (struct hd_node_links){.devices = (int32_t)c->devices_per_node};
    st = cluster_check_keys(r, links, "links", keys, 3);
    if (!st)
        st = read_rates(&m, hd_yaml_find(links, "rates"));
    if (!st)
        st = read_matrix(&m, links, hd_yaml_find(links, "matrix"));
    if (!st)
        st = read_all_shared(&m, hd_yaml_find(links, "shared"));
    if (st)
        return st;
    find_direct(&m);
    if (c->devices_per_node > 1)
        set_level(m.links, node);
    c->links = m.links;
    return HD_OK;
}

enum hd_status cluster_read_nics(const struct cluster_reader *r, const struct yaml_node *group,
                                 const struct hd_cluster *c, struct hd_cluster_level *network)
{
    static const char *const keys[] = {"devices", "bandwidth", "latency"};
    const struct yaml_node *list = cluster_find(r, group, "nics");
    double least = 0;
    uint64_t all = 0;
    enum hd_status st = HD_OK;

    if (!list)
        return HD_OK;
    if (list->kind != YAML_KIND_LIST || !list->first)
        return cluster_fail(r, list, "nics", "expected a list of {devices, bandwidth}");
    if (cluster_find(r, group, "inter_node"))
        return cluster_fail(
            r, list, "nics",
            "is given together with inter_node, which follows from it; remove one of the "
            "two");
    for (const struct yaml_node *n = list->first; !st && n; n = n->next) {
        struct hd_cluster_level link = *network;
        uint64_t set = 0;
        double each;

        st = cluster_check_keys(r, n, "nics", keys, 3);
        if (!st)
            st = read_set(r, hd_yaml_find(n, "devices"), "nics", c->devices_per_node, &set);
        if (!st && all & set)
            st = cluster_fail(r, n, "nics", "has a device that another adapter has");
        if (!st)
            st = cluster_read_link(r, n, "nics", &link);
        if (st)
            return st;
        each = link.bytes_per_s / (double)__builtin_popcountll(set);
        least = all && least < each ? least : each;
        network->latency_s = link.latency_s;
        all |= set;
    }
    if (all + 1 != (c->devices_per_node < 64 ? 1ull << c->devices_per_node : 0))
        return cluster_fail(r, list, "nics", "needs an adapter for each device of a node");
    network->bytes_per_s = least;
    return HD_OK;
}
