/* keys: lists the keys of a job file. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "controller/cli/show.h"
#include "controller/cli/table.h"
#include "spec/spec.h"

/* Returns whether a key is listed: it equals `prefix` or is in the group of that name; "": all are
 * listed. */
static bool is_listed(const struct hd_key *key, const char *prefix)
{
    const size_t len = strlen(prefix);

    return !key->hidden && (!len || (strncmp(key->path, prefix, len) == 0 &&
                                     (!key->path[len] || key->path[len] == '.')));
}

static void add_keys_json(const struct cli *cli, const char *prefix, struct hd_text *out)
{
    struct show_list list;

    show_list_begin(&list, out, cli->format, "KeyList", "key");
    for (size_t i = 0; i < hd_job_key_count; i++) {
        struct hd_text value = {0};

        if (!is_listed(&hd_job_keys[i], prefix))
            continue;
        hd_spec_document_default(&hd_job_keys[i], &value);
        show_item_begin(&list);
        hd_json_add_string(&list.writer, "path", hd_job_keys[i].path);
        hd_json_add_bool(&list.writer, "required", hd_job_keys[i].required);
        hd_json_add_string(&list.writer, "default", value.data ? value.data : "");
        hd_json_add_string(&list.writer, "meaning", hd_job_keys[i].help);
        show_item_end(&list);
        hd_text_free(&value);
    }
    show_list_end(&list);
}

/* Appends each key of a job file with its default on one line and its meaning below. */
static void add_keys_text(const char *prefix, struct hd_text *out)
{
    for (size_t i = 0; i < hd_job_key_count; i++) {
        struct hd_text value = {0};

        if (!is_listed(&hd_job_keys[i], prefix))
            continue;
        hd_spec_document_default(&hd_job_keys[i], &value);
        hd_text_add(out, "%s  (%s%s)\n    %s\n", hd_job_keys[i].path,
                    hd_job_keys[i].required ? "" : "default: ", value.data ? value.data : "",
                    hd_job_keys[i].help);
        hd_text_free(&value);
    }
}

int cli_keys(struct cli *cli, int argc, char **argv)
{
    bool markdown = false, schema = false;
    const struct cli_flag flags[] = {{"markdown", 0, CLI_FLAG_BOOL, &markdown, 0, 0},
                                     {"schema", 0, CLI_FLAG_BOOL, &schema, 0, 0}};
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 0, 1);
    const char *prefix = cli->arg_count ? cli->args[0] : "";
    struct hd_text out = {0};

    if (code != CLI_CONTINUE)
        return code;
    if (schema && (markdown || *prefix))
        return cli_usage("keys: --schema is of the whole file, and takes no other argument");
    if (hd_spec_find_renamed(prefix)) {
        cli_note("heddle: %s is now called %s", prefix, hd_spec_find_renamed(prefix)->path);
        prefix = hd_spec_find_renamed(prefix)->path;
    }
    if (schema)
        hd_spec_add_schema(&out);
    else if (markdown)
        hd_spec_document(prefix, &out);
    else if (cli->format >= CLI_JSON)
        add_keys_json(cli, prefix, &out);
    else
        add_keys_text(prefix, &out);
    if (!out.len_bytes && hd_spec_suggest(prefix, &out) && !out.failed)
        return cli_usage("keys: %s is no key and no group of a job file; %s", prefix, out.data);
    if (!out.len_bytes)
        return cli_usage("keys: %s is no key and no group of a job file; `heddle keys` lists all",
                         prefix);
    (void)cli_out(&out);
    hd_text_free(&out);
    return cli_out_end(CLI_OK);
}
