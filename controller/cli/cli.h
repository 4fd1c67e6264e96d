/* cli: declarations shared by the files of the heddle command.
 *
 * A command (submit, watch ...) is a row of commands.def and a function in cmd_*.c, which parses its
 * flags, talks to the controller and returns an exit code. stdout gets results, stderr gets
 * progress, notes and errors. Text that comes from a job file, a controller or a rank is sanitized
 * before it is written to a terminal: control characters, and characters that reorder or hide text,
 * become '?'.
 *
 * Scripts rely on the exit codes, the JSON forms (rows.h) and the words for states: do not change
 * them.
 *
 * Used by: the heddle command.   Uses: base, rpc, spec, checkpoint, plan.
 * Threads: one, with one libuv loop.
 */
#ifndef HD_CLI_CLI_H
#define HD_CLI_CLI_H

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <uv.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"
#include "controller/cli/contexts.h"
#include "heddle/v1/control.pb-c.h"
#include "heddle/v1/job.pb-c.h"
#include "plan/choose.h"
#include "rpc/rpc.h"

enum cli_exit {
    CLI_OK = 0,
    /* exit code: the job failed or was cancelled; `heddle plan`: the job does not fit */
    CLI_JOB_FAILED = 1,
    CLI_USAGE = 2, /* exit code: wrong flags or arguments, or invalid input */
    CLI_UNREACHABLE = 3,
    CLI_NOT_FOUND = 4,
    CLI_DENIED = 5,
    CLI_FAILED = 6,
    CLI_NEVER_FITS = 7, /* exit code: the nodes that are known can never run the job (--must-fit) */
    CLI_INTERRUPTED = 130, /* exit code after Ctrl-C, or after the terminal hung up */
    CLI_TERMINATED = 143,  /* exit code after SIGTERM */
    CLI_CONTINUE = -1      /* no exit code yet: the command continues */
};

enum cli_format { CLI_TABLE, CLI_WIDE, CLI_JSON, CLI_JSONL };

struct cli_command;
struct cli_described;
struct run_control;

enum { CLI_FLAGS_MAX = 48 };
struct cli_given_flag {
    char flag[40];     /* "--top-k" */
    const char *value; /* its value; NULL: a flag without one */
    bool passes;       /* cli_pass_flags passes it on */
};

struct cli {
    const struct cli_command *command;
    /* verbs of the command, and other commands that are verbs of it: "drain" of node; flags.c, which
     * tells them, must not know the commands, because these call it */
    struct hd_text verbs;
    /* values of the flags that every command has; NULL: not given */
    const char *controller, *token_file, *tls_ca, *tls_cert, *context;
    enum cli_format format;
    bool colour; /* stdout gets colour */
    char **args; /* positional arguments */
    int arg_count;
    struct contexts contexts; /* values of flags, environment and files; set by cli_connect */
    /* connection to the controller, set by cli_connect */
    uv_loop_t loop;
    struct hd_rpc *rpc;
    struct hd_rpc_client *client;
    uv_timer_t notice; /* fires when the controller's first answer is slow to come */
    char address[512];
    char token[HD_RPC_TOKEN_MAX + 1]; /* token of the caller; "": none */
    struct run_control *run;          /* run of heddle local that is asked; NULL: none */
    bool looping;
    /* set on Ctrl-C. With a pointer here, cli_call retries for WATCH_PATIENCE_MS, or until the flag
     * is set, when a controller that has answered before becomes unreachable. NULL: no such retries
     */
    const volatile sig_atomic_t *interrupted;
    bool has_answered;
    /* the controller has answered a call on this connection, so it will not close it as
     * unauthenticated */
    bool is_known;
    bool wants_tls; /* the port speaks TLS, and the calls did not: it has taken none */
    /* controller's clock minus this machine's, ms, from the newest answer with a time */
    int64_t ahead_ms;
    struct cli_given_flag given[CLI_FLAGS_MAX]; /* flags of the command that were given */
    size_t given_count;
    /* Not NULL: cli_parse copies the flags to it and returns CLI_OK; nothing is parsed. */
    struct cli_described *described;
};

/* A verb behind a command's name, such as set in heddle queue set NAME. */
struct cli_verb {
    const char *name;
    int min_args, max_args; /* words behind the verb */
    const char *missing;    /* "the queue's name": told if there are fewer */
};

/* The function of a command and its help text, in cmd_*.c. Its flags are the
 * rows that the function gives to cli_parse. */
struct cli_body {
    const char *usage;    /* forms of the command, lines that begin "Usage: heddle NAME" */
    const char *about;    /* paragraphs behind them */
    const char *notes;    /* paragraphs behind the flags; NULL: none */
    const char *examples; /* commands, one a line */
    int (*run)(struct cli *cli, int argc, char **argv);
    const struct cli_verb *verbs;
    size_t verb_count;
    bool is_raw; /* the command prints raw bytes, so it takes neither -o nor --color */
};
#define CLI_VERBS(verbs_) .verbs = verbs_, .verb_count = sizeof verbs_ / sizeof verbs_[0]

/* A command: a row of commands.def. */
struct cli_command {
    const char *group; /* heading above it in heddle --help */
    const char *name, *summary;
    const char *nouns; /* other names, a noun and a verb: "node drain", several with commas */
    const struct cli_body *body;
};

extern const struct cli_command cli_commands[];
extern const size_t cli_command_count;
void cli_overview(struct hd_text *out); /* appends the text of heddle --help */
/* Appends the help text of a command: its usage, a line for each flag, and the rest. */
void cli_add_help(const struct cli_command *command, struct hd_text *out);
/* Finds the flags of a command, and behind them those that every command has. */
void cli_describe(const struct cli_command *command, struct cli_described *ret_described);

/* ---- other names of commands (spelling.c) ---- */

/* Replaces a noun and a verb in words[0] and words[1], such as "node drain", by the words of the
 * command. Returns true if the command is words[1] alone: the caller skips words[0]. Returns false
 * if the command still begins at words[0], also where the two words are no known noun and verb. */
bool cli_replace_alias(char **words);
/* Appends the verbs of a noun such as "node", separated by blanks; nothing if it is not known. */
void cli_add_verbs(const char *noun, struct hd_text *out);
/* Returns what to write for a word of another tool, such as "scancel"; NULL: it is not known. */
const char *cli_habit(const char *word);
/* Finds the command, or the word of another tool, that is nearest to a mistyped word. Returns
 * ret_word, which holds it; NULL: none is near. */
enum { CLI_NEAREST_MAX = 64 };
const char *cli_nearest(const char *word, char ret_word[CLI_NEAREST_MAX]);

/* ---- flags (flags.c) ---- */

enum cli_flag_kind {
    CLI_FLAG_BOOL,
    /* flag with a text; an empty one is refused, because it usually comes from an unset variable of
     * a script */
    CLI_FLAG_TEXT,
    CLI_FLAG_WORDS, /* flag with a UTF-8 text, which may be empty */
    CLI_FLAG_INT,
    CLI_FLAG_REAL, /* flag with a number, double */
    CLI_FLAG_SPAN, /* flag with a time such as 30m, int64_t of ms */
    CLI_FLAG_LIST, /* flag with a text; the flag may be repeated */
    CLI_FLAG_NOTE  /* no flag: a line of help about one that every command has, "-o json" */
};

/* longest time of a flag such as --ttl, ms */
#define CLI_YEAR_MS (INT64_C(366) * 24 * 3600 * 1000)

struct cli_list { /* all values of a flag that may be repeated */
    const char *items[256];
    size_t count;
    /* name of each --set item in messages, for overrides only; NULL: "--set ITEM" */
    const char *origins[256];
};

struct cli_flag {
    const char *name; /* name of the flag, without leading dashes */
    char letter;      /* one-letter form of the flag; 0: none */
    enum cli_flag_kind kind;
    /* destination: bool, const char *, int64_t, double or struct cli_list, by `kind`; NULL: the value
     * is only checked, for cli_pass_flags */
    void *value;
    const char *word; /* name of the value in help texts, "NAME" */
    const char *help; /* meaning, each line behind a '\n'; NULL: the flag is in the usage alone */
    int64_t min, max; /* bounds of CLI_FLAG_INT and CLI_FLAG_REAL, and of CLI_FLAG_SPAN in ms */
    const char *choices; /* the only values, "fp32|bf16"; NULL: any */
    const char *of;      /* verbs that take it, "set|rm"; NULL: all */
    bool joins;          /* it shares the help line of the next flag */
};

struct cli_described {
    struct cli_flag flags[CLI_FLAGS_MAX];
    size_t own_count, count; /* flags of the command; with those of every command */
};

/* Parses argv, which begins after the command's name: the flags of the command and those that every
 * command has (--controller, -o, --color, --token-file, --tls-ca, --tls-cert, --help). The
 * remaining words become cli->args; there must be min_args to max_args of them, or those of a verb of
 * the command. Returns CLI_CONTINUE, or the exit code after --help or a mistake. */
enum { CLI_ARGS_ANY = INT_MAX }; /* max_args without a limit */
int cli_parse(struct cli *cli, int argc, char **argv, const struct cli_flag *flags,
              size_t flag_count, int min_args, int max_args);
/* Returns whether the first argument is this verb. */
bool cli_is_verb(const struct cli *cli, const char *verb);
/* Returns the value of a flag that was given, "" if it has none; NULL: it was not given. */
const char *cli_given(const struct cli *cli, const char *name);
/* Appends the flags that were given and have no destination to argv, for the program that does the
 * work and has flags of the same names. Returns the new number of words. */
size_t cli_pass_flags(const struct cli *cli, const char **argv, size_t count);
/* Returns what to write for a flag of other tools, such as "--json"; NULL: it is not known. */
const char *cli_flag_habit(const char *word);

/* ---- jobs by number and name (find_job.c) ---- */

/* Returns whether the word names a run of heddle local, and no job: a path, or the folder of a run. */
bool cli_names_run(const char *word);
/* Finds the job that a word names, by number or name; connects to the controller if it is a name.
 * Returns CLI_CONTINUE, or an exit code after printing a message. */
int cli_find_job(struct cli *cli, const char *word, uint64_t *ret_job);
/* Finds a job like cli_find_job, or the job of a run of heddle local, for commands that only read:
 * connects to the run's controller. */
int cli_find_job_or_run(struct cli *cli, const char *word, uint64_t *ret_job);

/* Parses a command whose only argument is a job, without flags of its own, and finds the job. or_run:
 * it may be a run of heddle local. */
int cli_parse_job(struct cli *cli, int argc, char **argv, bool or_run, uint64_t *ret_job);
struct hd_job;
/* Replaces the names in `after` of a job that is to be submitted by numbers; connects if there are
 * any. Returns CLI_CONTINUE, or an exit code after printing a message. */
int cli_find_after(struct cli *cli, struct hd_job *job);

/* Jobs that a pattern such as 'tiny-*' selects. */
enum cli_pick { CLI_PICK_LIVE, CLI_PICK_ENDED, CLI_PICK_ALL };
struct cli_picked {
    uint64_t *numbers;
    size_t count;
    bool shows;      /* set by the caller: lists on stderr what a pattern matches */
    bool by_pattern; /* a word was a pattern */
};
/* Finds the jobs of the arguments from `first` on, each a job or a pattern of names, and connects.
 * Nothing is found if one of them is wrong. Free `jobs` with cli_free_jobs in any case. */
int cli_find_jobs(struct cli *cli, int first, enum cli_pick pick, struct cli_picked *jobs);
/* Asks before a command acts on what a pattern matched, unless `yes`. Returns CLI_CONTINUE to go
 * on, or an exit code. */
int cli_confirm_jobs(const struct cli *cli, const struct cli_picked *jobs, bool yes);
void cli_free_jobs(struct cli_picked *jobs);

/* ---- messages (out.c) ---- */

/* Values of --color, for the whole process. AUTO, the default: colour on a terminal whose TERM is
 * not "dumb", unless NO_COLOR is set. JSON never has colour. */
enum cli_colour_when { CLI_COLOUR_AUTO, CLI_COLOUR_ALWAYS, CLI_COLOUR_NEVER };
void cli_set_colour(enum cli_colour_when when);
bool cli_has_colour(int fd); /* returns whether output to fd gets colour */

/* Prints "heddle: MESSAGE" of the latest failure (hd_err_message) on stderr and returns its exit
 * code. */
int cli_fail(enum hd_status st);
int cli_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Prints a line on stderr. */
void cli_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Prints "heddle: TEXT" on stderr, a warning of the controller; for "" prints nothing. */
void cli_warn(const char *text);
/* Prints a text of any length as a line on stderr and frees it. cli_note would cut a command with a
 * long path. */
void cli_note_text(struct hd_text *text);
/* Asks a yes/no question on the terminal. Returns CLI_CONTINUE for yes. For no it says what was
 * left, such as "nothing was removed", and returns CLI_OK. Where standard input or error is no
 * terminal nothing is asked: it prints `left` with `remedy`, such as "add --yes", and returns
 * CLI_USAGE. */
int cli_confirm(const char *question, const char *left, const char *remedy);
int cli_exit_of(enum hd_status st);
int cli_exit_of_state(Heddle__V1__JobState state);
/* Signal that was caught (cli_catch_stop), for the whole process; 0: none. */
extern volatile sig_atomic_t cli_stopped_by;
/* Has a signal set cli_stopped_by from now on, and end a system call that waits. ret_before: what it did
 * before; may be NULL. */
void cli_catch_stop(int number, struct sigaction *ret_before);
int cli_exit_of_signal(int number); /* returns CLI_INTERRUPTED or CLI_TERMINATED */
bool cli_is_interrupted(int code);

/* Writes the text to stdout and empties it. Returns false when the pipe's reader has closed it or
 * the disk is full: the command should then return cli_out_end's exit code. */
bool cli_out(struct hd_text *text);
int cli_out_end(int code);
/* Writes the text to stdout and frees it. Returns the exit code of the command: `code`, unless
 * standard output cannot be written. */
int cli_print(struct hd_text *text, int code);

/* ---- words and numbers for people (words.c) ---- */

/* Return lower-case words for the values of protocol enums, such as "running"; for an unknown value
 * "unknown(7)". */
enum { CLI_WORD_MAX = 24 };
const char *cli_job_state(Heddle__V1__JobState state, char ret_word[CLI_WORD_MAX]);
const char *cli_node_state(Heddle__V1__NodeState state, char ret_word[CLI_WORD_MAX]);
const char *cli_device_kind(Heddle__V1__DeviceKind kind, char ret_word[CLI_WORD_MAX]);
const char *cli_precision(Heddle__V1__Precision precision, char ret_word[CLI_WORD_MAX]);
/* Appends a job's parallel layout: "tp 2 x cp 1 x dp 4 x pp 1, sequence parallel". */
void cli_add_layout(const struct hd_layout_sizes *sizes, struct hd_text *out);
bool cli_job_ended(Heddle__V1__JobState state);
/* Returns the colour of a job's state as an SGR code such as "32"; NULL: no colour. Output never
 * marks a state by colour alone. */
const char *cli_state_colour(Heddle__V1__JobState state);

/* Returns the controller's time (Unix, ms) as estimated from its newest answer. Compute ages of the
 * controller's timestamps from it. */
int64_t cli_now_ms(const struct cli *cli);
/* Formats the time from unix_ms to now_ms as "3m05s"; "0ms" if unix_ms is later. */
void cli_format_age(int64_t unix_ms, int64_t now_ms, char ret_text[HD_CLOCK_TEXT_MAX]);
/* Formats the age of unix_ms by the controller's clock, or with CLI_WIDE the timestamp; "" if
 * unix_ms is 0. */
void cli_format_when(const struct cli *cli, int64_t unix_ms, enum cli_format format,
                     char ret_text[HD_CLOCK_TEXT_MAX]);
/* Appends the deadline of a drain: "its jobs leave it by TIME", in the past tense after TIME. */
void cli_add_deadline(const struct cli *cli, int64_t deadline_unix_ms, struct hd_text *out);
/* Formats a rate or count: 98123.4 -> "98.1k". */
void cli_format_count(double count, char ret_text[32]);
/* Appends text; each character that is unsafe on a terminal (hd_text_character) becomes '?'. */
void cli_add_clean(struct hd_text *out, const char *text);
/* Appends the lines of a text behind `indent`, each cleaned and ended by a line break. */
void cli_add_clean_lines(struct hd_text *out, const char *indent, const char *text);
/* Appends a message of the controller like cli_add_clean, with "uid:1000", the controller's name
 * for a user of its Unix socket, replaced by "uid 1000 (alice)", or by "uid 1000" if this machine
 * has no name for the uid. */
void cli_add_people(struct hd_text *out, const char *text);
/* Appends `word` for a shell command line, in quotes if needed. */
void cli_add_quoted(struct hd_text *out, const char *word);
/* Returns the number of columns that text takes on a terminal. */
int cli_text_width(const char *text);
/* Appends text, cut to at most `columns` columns; a cut text ends in "...". */
void cli_add_cut(struct hd_text *out, const char *text, int columns);
/* Appends text in a colour (SGR code such as "31"); colour NULL: without colour. */
void cli_add_coloured(struct hd_text *out, const char *colour, const char *text);

/* ---- the controller (connect.c) ---- */

/* Finds and checks the controller's address, and prepares the connection to it, once. Returns
 * CLI_CONTINUE, or an exit code after printing a message. */
int cli_connect(struct cli *cli);
/* Makes one unary call by the name of its method, "GetJob" (of Control) or "Identity/WhoAmI";
 * connects first where that is still to do. The caller frees the response (hd_rpc_message_free).
 * Returns CLI_CONTINUE, or the exit code after printing a message; CLI_INTERRUPTED:
 * *cli->interrupted was set while the controller was unreachable. */
int cli_call(struct cli *cli, const char *method, const ProtobufCMessage *request,
             void *ret_response);
/* Returns `st`, the error of a stream that has brought nothing, or what explains it, as calls do: a
 * port that speaks TLS, a certificate. */
enum hd_status cli_explain_stream(struct cli *cli, enum hd_status st);
/* Makes a call like cli_call on a connection that is there, but prints no message on failure. */
enum hd_status cli_try_call(struct cli *cli, const char *method, const ProtobufCMessage *request,
                            void *ret_response);
/* Enclose a wait for the controller's first answer: after one second, a line on the terminal says
 * what the command waits for. cli_call and cli_try_call do this themselves. */
void cli_wait_begin(struct cli *cli);
void cli_wait_end(struct cli *cli);
/* Begins a call by the name of its method, on a connection that is there; handler and user: as of
 * hd_rpc_client_call, which makes it. */
enum hd_status cli_begin_call(struct cli *cli, const char *method, enum hd_rpc_kind kind,
                              const ProtobufCMessage *request, const struct hd_rpc_handler *handler,
                              void *user, struct hd_rpc_call **ret_call);
/* Closes a timer or signal watcher of the command's loop, whose data it replaces, and runs the loop
 * until it is closed. */
void cli_close_handle(struct cli *cli, void *handle);
/* Fetches a job like cli_call. */
int cli_get_job(struct cli *cli, uint64_t job, Heddle__V1__GetJobResponse **ret_response);
void cli_disconnect(struct cli *cli);
/* Returns how long a call that was made `tries` times may connect in its next try, ms: longer with
 * each one, and at most left_ms, the rest of the time for all tries. */
int64_t cli_connect_timeout_ms(int tries, int64_t left_ms);

struct cli_removal { /* a request to remove a job, or one checkpoint of it (cmd_rm.c) */
    uint64_t job;
    int64_t step; /* 0: the job */
    bool check;   /* true: the answer says what would be removed, and nothing is */
};
int cli_remove(struct cli *cli, const struct cli_removal *removal,
               Heddle__V1__RemoveJobResponse **ret_response);
/* Runs `heddle node invite`; args[1] is the node. address: HOST:PORT at which the node reaches the
 * controller; NULL: the controller's own answer. ttl_ms: lifetime of the line; 0: an hour. */
int cli_node_invite(struct cli *cli, const char *address, int64_t ttl_ms);
int cli_node_revoke(struct cli *cli);

#endif
