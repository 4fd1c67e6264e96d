/* config: the settings of a program, declared once: as flags, as keys of a configuration file, and
 * as what --help, the manual page and the commented example file say of them.
 *
 *     struct hd_program_table   the table: one row per setting
 *     struct hd_config    what flags and file say, and where each value came from
 *
 * `--state-dir DIR` is `state_dir: DIR` in the file. A flag wins over the file; of two equal flags
 * the last one wins. An unknown key or flag is an error that names file, line and the nearest key.
 *
 * Used by: the controller and the daemon (their command lines), deploy/manual.
 * Uses: base, yaml.   Threads: one owner at a time.
 */
#ifndef HD_CONFIG_CONFIG_H
#define HD_CONFIG_CONFIG_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"

enum { HD_SETTINGS_MAX = 64, HD_CONFIG_ARGS_MAX = 8 };

enum hd_setting_use {
    HD_SETTING_FILE = 1, /* may be a key of the configuration file */
    HD_SETTING_LIVE = 2, /* a new value is in force after a reload; others wait for a restart */
    HD_SETTING_PATH = 4, /* a path: absolute, where it is in the file */
};

/* A row of a program's table. */
struct hd_setting {
    int key;              /* the program's own, not 0 */
    const char *name;     /* of the flag, without the dashes */
    char letter;          /* -o VALUE is the same; 0: none */
    const char *value;    /* what the value is called: "DIR"; NULL: a switch, true or false */
    unsigned use;         /* of enum hd_setting_use */
    const char *fallback; /* the value where nothing is given; NULL: none, or help says it */
    const char *help;     /* one or more sentences, without line breaks */
};

struct hd_program_table {
    const char *name;          /* "heddle-controller" */
    const char *summary;       /* "accepts jobs ...": a line */
    const char *const *usages; /* what follows the name, a line each; NULL ends the list */
    const struct hd_setting *settings;
    size_t setting_count;
    const char *notes;       /* paragraphs behind the settings */
    const char *example;     /* a command, lines of at most 76 columns */
    const char *config_path; /* where the packages have its file */
};

enum hd_setting_source { HD_SETTING_UNSET, HD_SETTING_BY_FILE, HD_SETTING_BY_FLAG };

struct hd_setting_value {
    const char *text; /* NULL: not given; a switch has "true" or "false" */
    enum hd_setting_source source;
    int line;             /* of the file */
    const char *replaced; /* by a flag: what the same flag said before it; NULL: nothing else */
};

struct hd_config {
    const struct hd_program_table *program;
    struct hd_setting_value values[HD_SETTINGS_MAX]; /* by index in program->settings */
    const char *path;                                /* of the file; NULL: none was read */
    const char *args[HD_CONFIG_ARGS_MAX];            /* words that are not flags */
    int arg_count;
    struct hd_arena arena;
};

/* Reads the flags (argv without the program's name; not changed) and the file that the flag
 * --config names. HD_INVALID: a mistake; the message says which flag, or which line of the file,
 * and what helps. Call hd_config_done also after a failure. The program outlives the config. */
enum hd_status hd_config_read(struct hd_config *ret_config, const struct hd_program_table *program,
                              int argc, char *const *argv);
/* The same for the text of a file `name` alone, without flags: for tests. */
enum hd_status hd_config_read_text(struct hd_config *ret_config,
                                   const struct hd_program_table *program, const char *name,
                                   const void *bytes, size_t size_bytes);
void hd_config_done(struct hd_config *config);

/* The value of the setting with this key of the program; NULL: not given. */
const char *hd_config_get(const struct hd_config *config, int key);
bool hd_config_is_on(const struct hd_config *config, int key); /* of a switch */

/* Calls `take` for each setting that is given, in the table's order; a switch that is false is not
 * given. The message of a failure, which ends it, is put behind the place of the value:
 * "/etc/heddle/controller.yaml:7: node_lost_after: MESSAGE" or "--node-lost-after: MESSAGE". */
enum hd_status hd_config_apply(const struct hd_config *config,
                               enum hd_status (*take)(void *user, int key, const char *value),
                               void *user);

/* What a reload means: one line per setting that differs, which says whether the new value is in
 * force (HD_SETTING_LIVE) or waits for a restart; one line if none differs. Returns how many wait.
 */
int hd_config_compare(const struct hd_config *before, const struct hd_config *after,
                      void (*log)(void *user, const char *line), void *user);

/* A `log` that logs the line as information, after the text `user`; NULL: none. */
void hd_config_log_line(void *user, const char *line);

/* One line per flag that was given twice with different values: which one counts. */
void hd_config_log_replaced(const struct hd_config *config,
                            void (*log)(void *user, const char *line), void *user);

/* ---- texts for people (page.c) ---- */

/* `config show`: each setting of the file with its value and where it came from. */
void hd_config_show(const struct hd_config *config, bool json, struct hd_text *out);
/* What --help prints; at most 80 columns. */
void hd_program_help(const struct hd_program_table *program, struct hd_text *out);
/* An example of the configuration file: every key with what it is, commented out. */
void hd_program_example_file(const struct hd_program_table *program, struct hd_text *out);
/* Prints the page that the command line asks for, if it does: --help, --version (`version` behind
 * the name), `config show [-o json]`, `config example`. False: it asks for none. *ret_code: 0, 2
 * for a mistake in the words, 6 if the page could not be written; what failed is on standard error.
 */
bool hd_config_page(const struct hd_config *config, int help_key, int version_key, int output_key,
                    const char *version, int *ret_code);
/* `state_dir` of `state-dir`. */
void hd_setting_key_name(const struct hd_setting *setting, char ret_name[64]);

#endif
