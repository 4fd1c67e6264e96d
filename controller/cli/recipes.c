#include "controller/cli/recipes.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/order.h"

enum { DEPTH_MAX = 3 }; /* folders in one another in a recipe */

/* ---- the folder ---- */

/* Returns whether the folder holds a recipe. */
static bool has_recipes(const char *folder)
{
    char path[8192];
    DIR *dir = opendir(folder);
    bool found = false;

    for (struct dirent *e; dir && !found && (e = readdir(dir));) {
        (void)snprintf(path, sizeof path, "%s/%s/job.yaml", folder, e->d_name);
        found = e->d_name[0] != '.' && hd_file_exists(path);
    }
    if (dir)
        (void)closedir(dir);
    return found;
}

static enum hd_status find_recipes(char ret_path[4096])
{
    const char *given = getenv("HEDDLE_RECIPES");
    char self[2048];
    ssize_t n;
    char *slash;

    if (given && *given) {
        (void)snprintf(ret_path, 4096, "%s", given);
        return has_recipes(given) ? HD_OK
                                  : hd_err(HD_INVALID,
                                           "HEDDLE_RECIPES: %s has no folder with a job.yaml; "
                                           "correct it or unset it",
                                           given);
    }
    n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return hd_err(HD_IO, "cannot read /proc/self/exe to find this program's folder: %s",
                      strerror(errno));
    self[n] = '\0';
    slash = strrchr(self, '/');
    *slash = '\0';
    slash = strrchr(self, '/');
    (void)snprintf(ret_path, 4096, "%.*s/share/heddle/recipes", slash ? (int)(slash - self) : 0,
                   self);
    if (has_recipes(ret_path))
        return HD_OK;
    while ((slash = strrchr(self, '/'))) { /* PREFIX/build/dev/bin of a source tree */
        *slash = '\0';
        (void)snprintf(ret_path, 4096, "%s/recipes", self);
        if (has_recipes(ret_path))
            return HD_OK;
    }
    return hd_err(HD_NOT_FOUND, "there are no recipes in ../share/heddle/recipes beside this "
                                "program; HEDDLE_RECIPES=DIR names their folder, in the sources "
                                "recipes");
}

/* ---- a recipe ---- */

/* Adds the files of the folder `below` of the recipe; follows no links. */
static enum hd_status list_recipe_files(struct hd_arena *arena, struct recipe *recipe,
                                        const char *below, int depth)
{
    char path[8192];
    enum hd_status st = HD_OK;
    DIR *dir;

    (void)snprintf(path, sizeof path, "%s/%s", recipe->folder, below);
    dir = opendir(path);
    if (!dir)
        return hd_err(HD_IO, "cannot read %s: %s", path, strerror(errno));
    for (struct dirent *e; !st && (e = readdir(dir));) {
        const char *file = hd_arena_printf(arena, "%s%s%s", below, *below ? "/" : "", e->d_name);
        struct stat info;

        if (e->d_name[0] == '.' || strcmp(e->d_name, "expect.json") == 0) /* for the tests alone */
            continue;
        if (!file) {
            st = hd_err(HD_NO_MEMORY, "no memory for the files of a recipe");
            break;
        }
        (void)snprintf(path, sizeof path, "%s/%s", recipe->folder, file);
        if (lstat(path, &info) < 0)
            continue;
        if (S_ISDIR(info.st_mode) && depth < DEPTH_MAX)
            st = list_recipe_files(arena, recipe, file, depth + 1);
        else if (S_ISREG(info.st_mode) && recipe->file_count == RECIPE_FILES_MAX)
            st = hd_err(HD_LIMIT, "%s has more than %d files, too many for a recipe",
                        recipe->folder, RECIPE_FILES_MAX);
        else if (S_ISREG(info.st_mode))
            recipe->files[recipe->file_count++] = file;
    }
    (void)closedir(dir);
    return st;
}

/* Returns the lines of a paragraph, joined by blanks. */
static const char *paragraph(struct hd_arena *arena, const char *text)
{
    const char *end;
    char *copy;

    while (*text == '\n')
        text++;
    end = strstr(text, "\n\n");
    copy = hd_arena_printf(arena, "%.*s", end ? (int)(end - text) : (int)strlen(text), text);
    for (char *c = copy; c && *c; c++)
        if (*c == '\n')
            *c = c[1] ? ' ' : '\0';
    return copy;
}

/* Returns the second cell of the table's row that begins with `title`; "": there is none. */
static const char *cell(struct hd_arena *arena, const char *readme, const char *title)
{
    char begin[64];
    const char *at;
    size_t n;

    (void)snprintf(begin, sizeof begin, "\n| %s | ", title);
    at = strstr(readme, begin);
    if (!at)
        return "";
    at += strlen(begin);
    n = strcspn(at, "|\n");
    while (n && at[n - 1] == ' ')
        n--;
    return hd_arena_printf(arena, "%.*s", (int)n, at);
}

/* Returns the first command of the first code block, without its comment. */
static const char *first_command(struct hd_arena *arena, const char *readme)
{
    const char *at = strstr(readme, "\n```"), *comment;
    size_t n;

    at = at ? strchr(at + 1, '\n') : NULL;
    if (!at)
        return "";
    n = strcspn(++at, "\n");
    comment = strstr(at, " # ");
    if (comment && comment < at + n)
        n = (size_t)(comment - at);
    while (n && at[n - 1] == ' ')
        n--;
    return hd_arena_printf(arena, "%.*s", (int)n, at);
}

static enum hd_status read_recipe(struct hd_arena *arena, const char *folder, const char *name,
                                  struct recipe *ret_recipe)
{
    struct recipe *r = ret_recipe;
    struct hd_text readme = {0};
    const char *text, *body;

    *r = (struct recipe){.name = hd_arena_strdup(arena, name),
                         .folder = hd_arena_printf(arena, "%s/%s", folder, name)};
    if (!r->name || !r->folder)
        return hd_err(HD_NO_MEMORY, "no memory for a recipe");
    if (recipe_read_file(r, "README.md", &readme))
        hd_text_clear(&readme); /* a recipe of one's own need not have one */
    text = readme.data ? readme.data : "";
    body = *text == '#' ? text + strcspn(text, "\n") : text;
    r->what = paragraph(arena, body);
    r->model = cell(arena, text, "model");
    r->hardware = cell(arena, text, "hardware");
    r->first_command = first_command(arena, text);
    hd_text_free(&readme);
    return r->what && r->model && r->hardware && r->first_command
               ? HD_OK
               : hd_err(HD_NO_MEMORY, "no memory for a recipe");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct recipe *)a)->name, ((const struct recipe *)b)->name);
}

enum hd_status recipes_read(struct hd_arena *arena, struct recipes *ret_recipes)
{
    char folder[4096], path[8192];
    enum hd_status st = find_recipes(folder);
    DIR *dir = st ? NULL : opendir(folder);

    *ret_recipes = (struct recipes){.folder = hd_arena_strdup(arena, folder)};
    ret_recipes->items = hd_arena_array(arena, RECIPES_MAX, sizeof *ret_recipes->items);
    if (st)
        return st;
    if (!dir)
        return hd_err(HD_IO, "cannot read %s: %s", folder, strerror(errno));
    if (!ret_recipes->items || !ret_recipes->folder)
        st = hd_err(HD_NO_MEMORY, "no memory for recipes");
    for (struct dirent *e; !st && ret_recipes->count < RECIPES_MAX && (e = readdir(dir));) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] == '.' || !hd_file_is_dir(path))
            continue;
        (void)snprintf(path, sizeof path, "%s/%s/job.yaml", folder, e->d_name);
        if (hd_file_exists(path))
            st = read_recipe(arena, folder, e->d_name, &ret_recipes->items[ret_recipes->count++]);
    }
    (void)closedir(dir);
    if (!st)
        qsort(ret_recipes->items, ret_recipes->count, sizeof *ret_recipes->items, by_name);
    return st;
}

enum hd_status recipes_find(const struct recipes *recipes, const char *name, struct hd_arena *arena,
                            const struct recipe **ret_recipe)
{
    const char *names[RECIPES_MAX], *nearest;

    for (size_t i = 0; i < recipes->count; i++) {
        struct recipe *r = &recipes->items[i];

        names[i] = r->name;
        if (strcmp(names[i], name) == 0) {
            enum hd_status st = list_recipe_files(arena, r, "", 0);

            qsort(r->files, r->file_count, sizeof r->files[0], hd_order_texts);
            *ret_recipe = r;
            return st;
        }
    }
    nearest = hd_text_nearest(name, names, recipes->count);
    return hd_err(HD_NOT_FOUND, "there is no recipe %s%s%s; heddle recipe ls lists all", name,
                  nearest ? "; did you mean " : "", nearest ? nearest : "");
}

enum hd_status recipe_read_file(const struct recipe *recipe, const char *file,
                                struct hd_text *ret_text)
{
    char path[8192];

    (void)snprintf(path, sizeof path, "%s/%s", recipe->folder, file);
    return hd_file_read(path, RECIPE_FILE_BYTES, ret_text);
}
