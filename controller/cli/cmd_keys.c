/* keys: lists the keys of a job file. */
#include <string.h>

#include "base/json.h"
#include "controller/cli/rows.h"
#include "spec/spec.h"

/* Returns whether a key is listed: it equals `prefix` or is in the group of that name; "": all are
 * listed. */
static bool is_listed(const struct hd_key *key, const char *prefix)
{
    const size_t len = strlen(prefix);

    return !key->hidden && (!len || (strncmp(key->path, prefix, len) == 0 &&
                                     (!key->path[len] || key->path[len] == '.')));
}

static void show_key(struct hd_json_writer *w, const void *item)
{
    const struct hd_key *key = item;
    struct hd_text value = {0};

    hd_spec_document_default(key, &value);
    hd_json_add_string(w, "path", key->path);
    hd_json_add_bool(w, "required", key->required);
    hd_json_add_string(w, "default", value.data ? value.data : "");
    hd_json_add_string(w, "meaning", key->help);
    hd_text_free(&value);
}

/* Appends a key of a job file with its default on one line and its meaning below. */
static void add_key(const struct cli *cli, struct hd_text *out, const void *item)
{
    const struct hd_key *key = item;
    struct hd_text value = {0};

    (void)cli;
    hd_spec_document_default(key, &value);
    hd_text_add(out, "%s  (%s%s)\n    %s\n", key->path,
                key->required ? "" : "default: ", value.data ? value.data : "", key->help);
    hd_text_free(&value);
}

static const struct rows_kind key_rows = {"KeyList", "key", .show = show_key, .line = add_key};

static void add_keys(const struct cli *cli, const char *prefix, struct hd_text *out)
{
    struct cli_rows rows;

    rows_begin(&rows, cli, &key_rows);
    for (size_t i = 0; i < hd_job_key_count; i++)
        if (is_listed(&hd_job_keys[i], prefix))
            rows_add(&rows, &hd_job_keys[i]);
    rows_end_in(&rows, out);
}

static int cli_keys(struct cli *cli, int argc, char **argv)
{
    bool markdown = false, schema = false;
    const struct cli_flag flags[] = {
        {"markdown", 0, CLI_FLAG_BOOL, &markdown,
         .help = "as the rows of the table in docs/job-file.md"},
        {"schema", 0, CLI_FLAG_BOOL, &schema, .help = "as a JSON Schema of the whole file"},
    };
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
    else
        add_keys(cli, prefix, &out);
    if (!out.len_bytes && hd_spec_suggest(prefix, &out) && !out.failed)
        return cli_usage("keys: %s is no key and no group of a job file; %s", prefix, out.data);
    if (!out.len_bytes)
        return cli_usage("keys: %s is no key and no group of a job file; `heddle keys` lists all",
                         prefix);
    return cli_print(&out, CLI_OK);
}

const struct cli_body cli_body_keys = {
    .usage = "Usage: heddle keys [KEY | GROUP] [--markdown | --schema] [-o FORMAT]\n",
    .about = "Lists the keys of a job file with their defaults and meanings. Of a name that\n"
             "another tool has for a setting, says what it is here. With a schema, editors\n"
             "complete and check keys; the first line of a job file then is\n"
             "  # yaml-language-server: $schema=job.schema.json\n",
    .examples = "heddle keys train.lr",
    .run = cli_keys,
};
