/* version: shows this build's version and whether the cluster's programs have the same one. */
#include <stdio.h>
#include <string.h>

#include "controller/cli/rows.h"
#include "version/version.h"

struct version_part {
    const char *name, *build;
    bool same;
};

static void add_same_cell(struct cli_rows *rows, const void *item)
{
    const bool same = ((const struct version_part *)item)->same;

    rows_cell(rows, same ? "32" : "33", "%s", same ? "yes" : "no");
}

static const struct rows_column columns[] = {
    {"PART", ROWS_OF(struct version_part, name), .json = "part"},
    {"BUILD", ROWS_OF(struct version_part, build), .json = "build"},
    {"SAME", .cell = add_same_cell},
    {.json = "same", ROWS_OF(struct version_part, same)},
};
static const struct rows_kind part_rows = {"VersionList", "version", ROWS_COLUMNS(columns),
                                           .is_uncut = true};

struct parts {
    struct cli_rows rows;
    bool differ;
};

static void add_version(struct parts *p, const char *name, const char *build)
{
    const bool same = strcmp(build, hd_version_text) == 0;

    p->differ |= !same;
    rows_add(&p->rows, &(struct version_part){name, build, same});
}

static int add_cluster_parts(struct cli *cli, struct parts *p)
{
    Heddle__V1__GetServerInfoRequest info_request = HEDDLE__V1__GET_SERVER_INFO_REQUEST__INIT;
    Heddle__V1__ListNodesRequest nodes_request = HEDDLE__V1__LIST_NODES_REQUEST__INIT;
    Heddle__V1__GetServerInfoResponse *info = NULL;
    Heddle__V1__ListNodesResponse *nodes = NULL;
    int code = cli_call(cli, "GetServerInfo", &info_request.base, &info);

    if (code != CLI_CONTINUE)
        return code;
    add_version(p, "controller", info->build);
    hd_rpc_message_free(&info->base);
    code = cli_call(cli, "ListNodes", &nodes_request.base, &nodes);
    if (code != CLI_CONTINUE)
        return code;
    for (size_t i = 0; i < nodes->n_nodes; i++) {
        char part[128];

        (void)snprintf(part, sizeof part, "node %s", nodes->nodes[i]->name);
        add_version(p, part, nodes->nodes[i]->build);
    }
    hd_rpc_message_free(&nodes->base);
    return CLI_CONTINUE;
}

static int cli_version(struct cli *cli, int argc, char **argv)
{
    bool check = false;
    const struct cli_flag flags[] = {
        {"check", 0, CLI_FLAG_BOOL, &check,
         .help = "also those of controller and nodes; exit code 1 if one is\n"
                 "another build than this one"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 0, 0);
    struct parts p = {.differ = false};

    if (code != CLI_CONTINUE)
        return code;
    if (!check && cli->format < CLI_JSON) {
        (void)printf("heddle %s\n", hd_version_text);
        return cli_out_end(CLI_OK);
    }
    rows_begin(&p.rows, cli, &part_rows);
    add_version(&p, "heddle", hd_version_text);
    if (check)
        code = add_cluster_parts(cli, &p);
    code = rows_end(&p.rows, code);
    return code == CLI_OK && p.differ ? CLI_JOB_FAILED : code;
}

const struct cli_body cli_body_version = {
    .usage = "Usage: heddle version [--check] [-o FORMAT]\n",
    .about = "Prints version and commit of this build.\n",
    .examples = "heddle version --check",
    .run = cli_version,
};
