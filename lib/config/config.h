/* config: the settings of a program, declared once: as flags, as keys of a configuration file, and
 * as texts of --help, the manual page and the commented example file.
 *
 *     struct hd_program_table   the table: one row per setting
 *     struct hd_config          values of flags and file, and the origin of each
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

enum {
    HD_SETTINGS_MAX = 64,
    HD_CONFIG_ARGS_MAX = 8,
    HD_CONFIG_MISTAKES_MAX = 20, /* most mistakes that are told at a time */
};

enum hd_setting_use {
    HD_SETTING_FILE = 1, /* allowed as a key of the configuration file */
    HD_SETTING_LIVE = 2, /* a reload applies a new value; other settings wait for a restart */
    HD_SETTING_PATH = 4, /* a path; in the file it must be absolute */
};

/* A row of a program's table: one setting. */
struct hd_setting {
    int key;              /* the program's own number for the setting, not 0 */
    const char *name;     /* name of the flag, without the dashes */
    char letter;          /* short form: -o VALUE; 0: none */
    const char *value;    /* name of the value in help: "DIR"; NULL: a switch, true or false */
    unsigned use;         /* bits of enum hd_setting_use */
    const char *fallback; /* default value; NULL: none, or the help text says it */
    const char *help;     /* one or more sentences, without line breaks */
};

struct hd_program_table {
    const char *name;    /* "heddle-controller" */
    const char *summary; /* one line: "accepts jobs ..." */
    /* words after the program's name, one line each; NULL ends the list */
    const char *const *usages;
    const struct hd_setting *settings;
    size_t setting_count;
    const char *notes;       /* paragraphs after the settings */
    const char *example;     /* an example command, lines of at most 76 columns */
    const char *config_path; /* path of the file in the packages */
};

enum hd_setting_source { HD_SETTING_UNSET, HD_SETTING_BY_FILE, HD_SETTING_BY_FLAG };

struct hd_setting_value {
    const char *text; /* the value; NULL: not given; a switch has "true" or "false" */
    enum hd_setting_source source;
    int line;             /* line in the file */
    const char *replaced; /* value of an earlier, equal flag that this one replaced; NULL: none */
};

struct hd_config_mistake {
    int line;         /* line in the file; 0: the mistake is in a flag */
    const char *text; /* message with file or flag, line and key */
};

struct hd_config {
    const struct hd_program_table *program;
    struct hd_setting_value values[HD_SETTINGS_MAX]; /* [index in program->settings] */
    const char *path;                                /* path of the file; NULL: none was read */
    const char *args[HD_CONFIG_ARGS_MAX]; /* words of the command line that are not flags */
    int arg_count;
    struct hd_config_mistake mistakes[HD_CONFIG_MISTAKES_MAX]; /* in the order of their lines */
    size_t mistake_count, mistakes_left_out; /* kept ones; later ones that found no room */
    struct hd_arena arena;
};

/* Reads the flags (argv without the program's name; not changed) and the file that the flag
 * --config names. HD_INVALID: a mistake; the message says which flag, or which line of the file,
 * and what helps. Keeps all mistakes in keys of the file; a flag's mistake, or text that is no YAML,
 * ends reading, and is not kept. Call hd_config_done also after a failure. The program must outlive
 * the config. */
enum hd_status hd_config_read(struct hd_config *ret_config, const struct hd_program_table *program,
                              int argc, char *const *argv);
/* Reads the text of a file `name` alone, without flags. For tests. */
enum hd_status hd_config_read_text(struct hd_config *ret_config,
                                   const struct hd_program_table *program, const char *name,
                                   const void *bytes, size_t size_bytes);
void hd_config_done(struct hd_config *config);

/* Returns the value of the setting with this key; NULL: not given. */
const char *hd_config_get(const struct hd_config *config, int key);
bool hd_config_is_on(const struct hd_config *config, int key); /* the setting must be a switch */

/* Calls `take` for each given setting, in the table's order; a switch that is false is not given.
 * Keeps each failure as a mistake (hd_config_pass). HD_NO_MEMORY. */
enum hd_status hd_config_apply(struct hd_config *config,
                               enum hd_status (*take)(void *user, int key, const char *value),
                               void *user);

/* ---- several mistakes ---- */

/* Keeps the failure `st` of a check of this setting's value, with the value's origin in front of the
 * error message: "/etc/heddle/controller.yaml:7: node_lost_after: MESSAGE" or "--node-lost-after:
 * MESSAGE". Returns HD_OK, so that the caller checks the other settings too; HD_NO_MEMORY. */
enum hd_status hd_config_pass(struct hd_config *config, int key, enum hd_status st);
/* Returns HD_OK if no mistake is kept, else HD_INVALID with the message of the first one. */
enum hd_status hd_config_verdict(const struct hd_config *config);
/* Logs all kept mistakes as errors, a line each after the text `prefix`, and how many more there
 * are. Without a kept mistake logs the error message. */
void hd_config_log_mistakes(const struct hd_config *config, const char *prefix);

/* Logs the effect of a reload: one line per setting that differs, which says whether the new value
 * is applied (HD_SETTING_LIVE) or waits for a restart; one line if none differs. Returns how many
 * wait. */
int hd_config_compare(const struct hd_config *before, const struct hd_config *after,
                      void (*log)(void *user, const char *line), void *user);

/* Logs the line as information, after the text `user` (NULL: none). A callback for the two
 * functions that take a `log`. */
void hd_config_log_line(void *user, const char *line);

/* Logs one line per flag that was given twice with different values, which says which one
 * counts. */
void hd_config_log_replaced(const struct hd_config *config,
                            void (*log)(void *user, const char *line), void *user);

/* ---- texts for users (page.c) ---- */

/* Writes `config show`: each setting of the file with its value and the value's origin. */
void hd_config_show(const struct hd_config *config, bool json, struct hd_text *out);
/* Writes the text of --help; at most 80 columns. */
void hd_program_help(const struct hd_program_table *program, struct hd_text *out);
/* Writes an example of the configuration file: every key with its help, commented out. */
void hd_program_example_file(const struct hd_program_table *program, struct hd_text *out);
/* Prints the page that the command line asks for: --help, --version (`version` after the name),
 * `config show [-o json]` or `config example`. False: it asks for none. *ret_code: 0; 2 for a
 * mistake in the words; 6 if the page could not be written. Errors are printed on standard
 * error. */
bool hd_config_page(const struct hd_config *config, int help_key, int version_key, int output_key,
                    const char *version, int *ret_code);
/* Converts a flag's name to a key: `state_dir` for `state-dir`. */
void hd_setting_key_name(const struct hd_setting *setting, char ret_name[64]);

#endif
