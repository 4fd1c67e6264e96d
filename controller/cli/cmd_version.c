/* version: shows this build's version and whether the cluster's programs have the same one. */
#include <stdio.h>
#include <string.h>

#include "controller/cli/show.h"
#include "controller/cli/table.h"
#include "version/version.h"

static const struct table_column columns[] = {{"PART", false}, {"BUILD", false}, {"SAME", false}};

struct parts {
    struct table table;
    struct show_list list;
    bool json, differ;
};

static void add_part(struct parts *p, const char *part, const char *build)
{
    const bool same = strcmp(build, hd_version_text) == 0;

    p->differ |= !same;
    if (p->json) {
        show_item_begin(&p->list);
        hd_json_add_string(&p->list.writer, "part", part);
        hd_json_add_string(&p->list.writer, "build", build);
        hd_json_add_bool(&p->list.writer, "same", same);
        show_item_end(&p->list);
        return;
    }
    table_begin_row(&p->table);
    table_add(&p->table, NULL, "%s", part);
    table_add(&p->table, NULL, "%s", build);
    table_add(&p->table, same ? "32" : "33", "%s", same ? "yes" : "no");
}

static int add_cluster_parts(struct cli *cli, struct parts *p)
{
    Heddle__V1__GetServerInfoRequest info_request = HEDDLE__V1__GET_SERVER_INFO_REQUEST__INIT;
    Heddle__V1__ListNodesRequest nodes_request = HEDDLE__V1__LIST_NODES_REQUEST__INIT;
    Heddle__V1__GetServerInfoResponse *info = NULL;
    Heddle__V1__ListNodesResponse *nodes = NULL;
    int code = cli_connect(cli);

    if (code == CLI_CONTINUE)
        code = cli_call(cli, "GetServerInfo", &heddle__v1__get_server_info_response__descriptor,
                        &info_request.base, &info);
    if (code != CLI_CONTINUE)
        return code;
    add_part(p, "controller", info->build);
    hd_rpc_message_free(&info->base);
    code = cli_call(cli, "ListNodes", &heddle__v1__list_nodes_response__descriptor,
                    &nodes_request.base, &nodes);
    if (code != CLI_CONTINUE)
        return code;
    for (size_t i = 0; i < nodes->n_nodes; i++) {
        char part[128];

        (void)snprintf(part, sizeof part, "node %s", nodes->nodes[i]->name);
        add_part(p, part, nodes->nodes[i]->build);
    }
    hd_rpc_message_free(&nodes->base);
    return CLI_CONTINUE;
}

int cli_version(struct cli *cli, int argc, char **argv)
{
    bool check = false;
    const struct cli_flag flags[] = {{"check", 0, CLI_FLAG_BOOL, &check, 0, 0}};
    int code = cli_parse(cli, argc, argv, flags, 1, 0, 0);
    struct parts p = {.json = cli->format >= CLI_JSON};
    struct hd_text out = {0};

    if (code != CLI_CONTINUE)
        return code;
    if (!check && !p.json) {
        (void)printf("heddle %s\n", hd_version_text);
        return cli_out_end(CLI_OK);
    }
    table_init(&p.table, columns, sizeof columns / sizeof columns[0]);
    if (p.json)
        show_list_begin(&p.list, &out, cli->format, "VersionList", "version");
    add_part(&p, "heddle", hd_version_text);
    if (check)
        code = add_cluster_parts(cli, &p);
    if (code == CLI_CONTINUE) {
        if (p.json)
            show_list_end(&p.list);
        else
            table_render(&p.table, cli->colour, 0, &out);
        (void)cli_out(&out);
        code = cli_out_end(p.differ ? CLI_JOB_FAILED : CLI_OK);
    }
    table_done(&p.table);
    hd_text_free(&out);
    return code;
}
