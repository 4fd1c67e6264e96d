/* translate: writes a job file from a file of another tool (spec/translate.c). */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "controller/cli/cli.h"
#include "spec/spec.h"

static enum hd_status already_there(const char *path)
{
    return hd_err(HD_INVALID, "%s is there already; name another file, or remove it", path);
}

/* Writes a new file; one with this text may be there. */
static enum hd_status write_new(const char *path, const char *text)
{
    struct hd_text had = {0};
    const bool same = hd_file_read(path, HD_SPEC_FILE_BYTES_MAX, &had) == HD_OK && had.data &&
                      strcmp(had.data, text) == 0;

    hd_text_free(&had);
    if (same)
        return HD_OK;
    if (access(path, F_OK) == 0)
        return already_there(path);
    return hd_file_write_atomic(path, text, strlen(text), 0644);
}

/* Writes the job file and the chat template beside it; appends the path of the latter. */
static enum hd_status write_files(const struct hd_spec_translation *made, const char *out_path,
                                  struct hd_text *ret_template)
{
    const char *slash = strrchr(out_path, '/');
    enum hd_status st;

    if (made->template_file)
        hd_text_add(ret_template, "%.*s%s", slash ? (int)(slash - out_path) + 1 : 0, out_path,
                    made->template_file);
    if (ret_template->failed)
        return hd_err(HD_NO_MEMORY, "no memory for a path");
    if (access(out_path, F_OK) == 0)
        return already_there(out_path); /* both files or none */
    st = made->template_file ? write_new(ret_template->data, made->template_text) : HD_OK;
    return st ? st : write_new(out_path, made->job.data);
}

/* Appends the table as comments of a job file, so that the standard output is a job file. */
static void add_notes(const struct hd_spec_translation *made, struct hd_text *out)
{
    hd_text_add(out, "\n");
    for (const char *at = made->table.data; *at; at += strcspn(at, "\n"), at += *at == '\n')
        hd_text_add(out, "# %.*s\n", (int)strcspn(at, "\n"), at);
}

/* Returns the folder of the user's file, or the working directory; NULL: no memory. */
static char *folder_of_file(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : getcwd(NULL, 0);
}

static enum hd_status translate_file(const char *path, struct hd_arena *arena,
                                     struct hd_spec_translation *made)
{
    const bool from_stdin = strcmp(path, "-") == 0;
    char *folder = from_stdin ? getcwd(NULL, 0) : folder_of_file(path);
    struct hd_text bytes = {0};
    enum hd_status st = hd_file_read_stream(from_stdin ? "/dev/stdin" : path,
                                            HD_SPEC_FILE_BYTES_MAX, HD_FILE_PATIENCE_MS, &bytes);

    if (!st && (bytes.failed || !folder))
        st = hd_err(HD_NO_MEMORY, "no memory to read %s", path);
    if (st == HD_LIMIT)
        st = hd_err(HD_INVALID, "%s: larger than 256 KiB", path);
    if (!st)
        st = hd_spec_translate(from_stdin ? "job" : path, folder, bytes.data ? bytes.data : "",
                               bytes.len_bytes, arena, made);
    hd_text_free(&bytes);
    free(folder);
    return st;
}

static int cli_translate(struct cli *cli, int argc, char **argv)
{
    const char *out_path = NULL;
    const struct cli_flag flags[] = {
        {"out", 0, CLI_FLAG_TEXT, &out_path, "JOB.yaml",
         .help = "write the job file there, with a chat template beside it if\n"
                 "the data needs one; else to standard output, with the table\n"
                 "as comments. A file that is there is not replaced"},
    };
    struct hd_spec_translation made = {0};
    struct hd_text out = {0}, template = {0};
    struct hd_arena arena;
    enum hd_status st = HD_OK;
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);

    hd_arena_init(&arena, 0);
    if (code == CLI_CONTINUE)
        st = translate_file(cli->args[0], &arena, &made);
    if (code == CLI_CONTINUE && !st && out_path)
        st = write_files(&made, out_path, &template);
    if (st)
        code = st == HD_NOT_FOUND || st == HD_INVALID ? cli_usage("%s", hd_err_message())
                                                      : cli_fail(st);
    if (code == CLI_CONTINUE) {
        hd_text_add(&out, "%s", out_path ? made.table.data : made.job.data);
        if (!out_path)
            add_notes(&made, &out);
        code = cli_print(&out, CLI_OK);
    }
    if (code == CLI_OK && made.tool && out_path)
        cli_note("heddle: %s of %s: %s%s%s is written; next: heddle validate %s", cli->args[0],
                 made.tool, out_path, made.template_file ? " with " : "",
                 made.template_file ? template.data : "", out_path);
    else if (code == CLI_OK && made.tool)
        cli_note("heddle: a file of %s; --out job.yaml writes the job file%s%s", made.tool,
                 made.template_file ? ", and beside it " : "",
                 made.template_file ? made.template_file : "");
    hd_text_free(&template);
    hd_text_free(&made.job);
    hd_text_free(&made.table);
    hd_arena_done(&arena);
    return code;
}

const struct cli_body cli_body_translate = {
    .usage = "Usage: heddle translate FILE|- [--out JOB.yaml]\n",
    .about = "Writes a job file from a file of axolotl, TRL, torchtune, LLaMA-Factory, from\n"
             "TrainingArguments of transformers as JSON, or from arguments of Megatron-LM or a\n"
             "script with them, and says of each of their settings what it is here. What\n"
             "Heddle does not have is a comment in the job file. Nothing of theirs is run.\n",
    .examples = "heddle translate qlora.yml --out job.yaml && heddle validate job.yaml",
    .run = cli_translate,
};
