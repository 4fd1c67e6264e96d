/* recipes: the folders of whole jobs that users begin with.
 *
 * A recipe is a folder with job.yaml and README.md. The README's first line is its name, its first
 * paragraph says what it does, and rows "| model | .. |" and "| hardware | .. |" of a table what it
 * takes; the first command of its first code block is the one to type first.
 *
 * Used by: heddle recipe.   Uses: base.   Threads: any; no state is shared.
 */
#ifndef HD_CLI_RECIPES_H
#define HD_CLI_RECIPES_H

#include <stddef.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"

enum {
    RECIPES_MAX = 256,           /* recipes of a folder */
    RECIPE_FILES_MAX = 64,       /* files of a recipe */
    RECIPE_FILE_BYTES = 4 << 20, /* largest file of a recipe */
};

struct recipe {
    const char *name;
    const char *folder;                  /* absolute path, or below HEDDLE_RECIPES as it is given */
    const char *what, *model, *hardware; /* "": the README does not say */
    const char *first_command;           /* "": the README has none */
    /* files by their paths below the folder, in bytewise order; none before recipes_find */
    const char *files[RECIPE_FILES_MAX];
    size_t file_count;
};

struct recipes {
    const char *folder;
    struct recipe *items; /* in bytewise order of names */
    size_t count;
};

/* Finds the folder of the recipes: HEDDLE_RECIPES, else share/heddle/recipes of the prefix that this
 * program is installed in, else `recipes` of the source tree that it was built in; and reads them.
 * HD_NOT_FOUND: there is none. HD_INVALID: HEDDLE_RECIPES names no folder of recipes. */
enum hd_status recipes_read(struct hd_arena *arena, struct recipes *ret_recipes);

/* Finds a recipe by its name, and lists its files. HD_NOT_FOUND, with the nearest name: there is
 * none. */
enum hd_status recipes_find(const struct recipes *recipes, const char *name, struct hd_arena *arena,
                            const struct recipe **ret_recipe);

/* Appends a file of a recipe. */
enum hd_status recipe_read_file(const struct recipe *recipe, const char *file,
                                struct hd_text *ret_text);

#endif
