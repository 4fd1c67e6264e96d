/* recipe: lists, shows and copies whole jobs to begin with. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/folder.h"
#include "controller/cli/recipes.h"
#include "controller/cli/rows.h"
#include "spec/spec.h"

#define SCHEMA_FILE "job.schema.json" /* the name in the first line of each job.yaml */

static void add_members(struct hd_json_writer *writer, const struct recipe *r)
{
    hd_json_add_string(writer, "name", r->name);
    hd_json_add_string(writer, "what", r->what);
    hd_json_add_string(writer, "hardware", r->hardware);
    hd_json_add_string(writer, "model", r->model);
    hd_json_add_string(writer, "folder", r->folder);
}

/* ---- ls ---- */

static void show_recipe(struct hd_json_writer *w, const void *item)
{
    add_members(w, item);
}

static const struct rows_column recipe_columns[] = {
    {"NAME", ROWS_OF(struct recipe, name)},
    {"HARDWARE", ROWS_OF(struct recipe, hardware)},
    {"MODEL", ROWS_OF(struct recipe, model)},
    {"WHAT", ROWS_OF(struct recipe, what)},
};
static const struct rows_kind recipe_rows = {"RecipeList", "recipe", ROWS_COLUMNS(recipe_columns),
                                             .show = show_recipe};

/* ---- show ---- */

struct whole_recipe {
    const struct recipe *recipe;
    struct hd_text readme, job;
};

static void show_whole_recipe(struct hd_json_writer *w, const void *item)
{
    const struct whole_recipe *whole = item;

    add_members(w, whole->recipe);
    hd_json_begin(w, "files", '[');
    for (size_t i = 0; i < whole->recipe->file_count; i++)
        hd_json_add_string(w, NULL, whole->recipe->files[i]);
    hd_json_end(w, ']');
    hd_json_add_string(w, "readme", whole->readme.data ? whole->readme.data : "");
    hd_json_add_string(w, "job", whole->job.data ? whole->job.data : "");
}

static void add_whole_recipe(const struct cli *cli, struct hd_text *out, const void *item)
{
    const struct whole_recipe *whole = item;

    (void)cli;
    cli_add_clean_lines(out, "", whole->readme.data ? whole->readme.data : "");
    hd_text_add(out, "\n---- job.yaml ----\n\n");
    cli_add_clean_lines(out, "", whole->job.data ? whole->job.data : "");
}

static const struct rows_kind whole_recipe_rows = {
    "RecipeList", "recipe", .show = show_whole_recipe, .line = add_whole_recipe};

static int print_recipe(const struct cli *cli, const struct recipe *r)
{
    struct whole_recipe whole = {.recipe = r};
    enum hd_status st = recipe_read_file(r, "job.yaml", &whole.job);
    int code;

    if (!st && recipe_read_file(r, "README.md", &whole.readme))
        hd_text_clear(&whole.readme);
    code = st ? cli_fail(st) : rows_print_one(cli, &whole_recipe_rows, &whole);
    hd_text_free(&whole.readme);
    hd_text_free(&whole.job);
    return code;
}

/* ---- copy ---- */

struct recipe_copy {
    const struct recipe *recipe;
    const char *to; /* the folder to make */
    const struct cli_list *overrides;
};

static void path_in(const struct recipe_copy *copy, const char *file, char ret_path[4096])
{
    (void)snprintf(ret_path, 4096, "%s/%s", copy->to, file);
}

/* Fails if the folder has a file of this name already. */
static enum hd_status check_free(const struct recipe_copy *copy, const char *file)
{
    char path[4096];
    struct stat info;

    path_in(copy, file, path);
    if (lstat(path, &info) < 0)
        return errno == ENOENT ? HD_OK
                               : hd_err(HD_IO, "%s: %s; give the name of a folder to make", path,
                                        strerror(errno));
    return hd_err(HD_CONFLICT,
                  "%s exists, and a copy replaces nothing; remove it or give another folder", path);
}

static enum hd_status write_copied(const struct recipe_copy *copy, const char *file,
                                   const struct hd_text *text)
{
    char path[4096];
    enum hd_status st;

    if (text->failed)
        return hd_err(HD_NO_MEMORY, "no memory to copy %s", file);
    path_in(copy, file, path);
    st = hd_folder_make_of(path, 0777);
    return st ? st
              : hd_file_write_atomic(path, text->data ? text->data : "", text->len_bytes, 0666);
}

/* Makes the text of the copied job file. */
static enum hd_status change_job(const struct recipe_copy *copy, struct hd_text *ret_text)
{
    struct hd_text job = {0};
    enum hd_status st = recipe_read_file(copy->recipe, "job.yaml", &job);
    const struct hd_spec_source source = {.name = "job.yaml",
                                          .folder = "/",
                                          .bytes = job.data ? job.data : "",
                                          .size_bytes = job.len_bytes,
                                          .overrides = copy->overrides->items,
                                          .override_count = copy->overrides->count};

    if (!st && copy->overrides->count)
        st = hd_spec_write_overrides(&source, ret_text);
    else if (!st)
        hd_text_add_bytes(ret_text, source.bytes, source.size_bytes);
    hd_text_free(&job);
    return st;
}

/* Copies everything but the job file, which comes last: a folder that has it is whole. */
static enum hd_status copy_files(const struct recipe_copy *copy)
{
    const struct recipe *r = copy->recipe;
    struct hd_text schema = {0};
    enum hd_status st;

    hd_spec_add_schema(&schema);
    st = write_copied(copy, SCHEMA_FILE, &schema);
    hd_text_free(&schema);
    for (size_t i = 0; i < r->file_count && !st; i++) {
        struct hd_text text = {0};

        if (strcmp(r->files[i], "job.yaml") == 0)
            continue;
        st = recipe_read_file(r, r->files[i], &text);
        if (!st)
            st = write_copied(copy, r->files[i], &text);
        hd_text_free(&text);
    }
    return st;
}

static void tell_copy(const struct recipe_copy *copy)
{
    struct hd_text line = {0};
    const char *first =
        *copy->recipe->first_command ? copy->recipe->first_command : "heddle validate job.yaml";

    hd_text_add(&line, "  next: ");
    if (strcmp(copy->to, ".") != 0) {
        hd_text_add(&line, "cd ");
        cli_add_quoted(&line, copy->to);
        hd_text_add(&line, " && ");
    }
    cli_add_clean(&line, first);
    cli_note_text(&line);
}

static int copy_recipe(const struct recipe *r, const char *to, const struct cli_list *overrides)
{
    const struct recipe_copy copy = {.recipe = r, .to = to, .overrides = overrides};
    struct hd_text job = {0}, line = {0};
    enum hd_status st = strlen(to) < 3072
                            ? change_job(&copy, &job)
                            : hd_err(HD_INVALID, "the name of the folder has more than 3071 bytes");

    for (size_t i = 0; i < r->file_count && !st; i++)
        st = check_free(&copy, r->files[i]);
    if (!st)
        st = check_free(&copy, SCHEMA_FILE);
    if (!st)
        st = copy_files(&copy);
    if (!st)
        st = write_copied(&copy, "job.yaml", &job);
    hd_text_free(&job);
    if (st)
        return st == HD_INVALID ? cli_usage("recipe copy: %s", hd_err_message()) : cli_fail(st);
    hd_text_add(&line, "%s: the recipe %s; README.md there has its commands\n", to, r->name);
    (void)cli_print(&line, CLI_OK);
    tell_copy(&copy);
    return cli_out_end(CLI_OK);
}

static int cli_recipe(struct cli *cli, int argc, char **argv)
{
    struct cli_list overrides = {.count = 0};
    const struct cli_flag flags[] = {
        {"set", 0, CLI_FLAG_LIST, &overrides, "KEY=VALUE",
         .help = "written into the copied job file, such as train.steps=100", .of = "copy"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 3);
    const struct recipe *recipe = NULL;
    struct recipes recipes;
    struct hd_arena arena;
    enum hd_status st;

    if (code != CLI_CONTINUE)
        return code;
    hd_arena_init(&arena, 0);
    st = recipes_read(&arena, &recipes);
    if (!st && !cli_is_verb(cli, "ls"))
        st = recipes_find(&recipes, cli->args[1], &arena, &recipe);
    if (st)
        code = cli_fail(st);
    else if (cli_is_verb(cli, "ls"))
        code = rows_print_array(cli, &recipe_rows, recipes.items, recipes.count,
                                sizeof recipes.items[0]);
    else if (cli_is_verb(cli, "copy"))
        code = copy_recipe(recipe, cli->args[2], &overrides);
    else
        code = print_recipe(cli, recipe);
    hd_arena_done(&arena);
    return code;
}

static const struct cli_verb recipe_verbs[] = {
    {"ls", 0, 0, NULL},
    {"show", 1, 1, "the name of a recipe"},
    {"copy", 2, 2, "the name of a recipe, or the folder to make,"},
};

const struct cli_body cli_body_recipe = {
    .usage = "Usage: heddle recipe ls [-o FORMAT]\n"
             "       heddle recipe show NAME [-o FORMAT]\n"
             "       heddle recipe copy NAME DIR [--set KEY=VALUE]...\n",
    .about = "Whole jobs to begin with: pretraining, full tunes, LoRA, QLoRA, preferences,\n"
             "reward models. Each has a job file that says why its values are as they are,\n"
             "machines for heddle plan, 20 rows in the form of its data, and a README with\n"
             "commands, licences, memory and time.\n"
             "\n"
             "ls lists them. show prints README and job file. copy makes a folder of your own,\n"
             "with a schema for editors; nothing that is in DIR is replaced.\n",
    .notes = "They are in share/heddle/recipes beside this program, or HEDDLE_RECIPES names\n"
             "the folder.\n",
    .examples = "heddle recipe copy lora-qwen2.5-0.5b my-tune --set train.steps=300",
    CLI_VERBS(recipe_verbs),
    .run = cli_recipe,
};
