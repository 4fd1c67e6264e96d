/* cli: what the files of the heddle command share.
 *
 * A command (submit, watch ...) is a row of cli_commands and a function in cmd_*.c, which parses
 * its flags, talks to the controller and returns an exit code. stdout gets results, stderr gets
 * progress, notes and errors. Text that comes from a job file, a controller or a rank is never
 * written to a terminal as it is: characters that control it, or reorder or hide text, become '?'.
 *
 * Scripts rely on the exit codes, the JSON forms (show.h) and the words for states: they do not
 * change.
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
    CLI_JOB_FAILED = 1, /* or was cancelled; of a plan: it does not fit */
    CLI_USAGE = 2,      /* or bad input */
    CLI_UNREACHABLE = 3,
    CLI_NOT_FOUND = 4,
    CLI_DENIED = 5,
    CLI_FAILED = 6,
    CLI_INTERRUPTED = 130, /* by Ctrl-C, or because the terminal hung up */
    CLI_TERMINATED = 143,  /* by SIGTERM */
    CLI_CONTINUE = -1      /* of functions that may end the command: they did not */
};

enum cli_format { CLI_TABLE, CLI_WIDE, CLI_JSON, CLI_JSONL };

struct cli_command;
struct cli_flag;

struct cli {
    const struct cli_command *command;
    /* from flags; NULL: not given */
    const char *controller, *token_file, *tls_ca, *tls_cert, *context;
    enum cli_format format;
    bool colour; /* on stdout */
    char **args; /* the words that are not flags */
    int arg_count;
    struct contexts contexts; /* flags, environment and files, once cli_connect was called */
    /* the connection, once cli_connect was called */
    uv_loop_t loop;
    struct hd_rpc *rpc;
    struct hd_rpc_client *client;
    uv_timer_t notice; /* of a wait for an answer */
    char address[512];
    bool looping;
    /* Not NULL: the command goes on asking until it is interrupted, so that cli_call bears a
     * controller that was there and has gone, for WATCH_PATIENCE_MS. */
    const volatile sig_atomic_t *interrupted;
    bool has_answered;
    bool is_known;    /* the controller has answered a call on this connection, so it keeps it */
    int64_t ahead_ms; /* the controller's clock less this one's, by its newest answer */
    /* Not NULL: cli_parse does nothing but call it with the flags that the command takes, without
     * those that all have, and returns CLI_OK. For tests. */
    void (*print_flags)(const struct cli_flag *flags, size_t count);
};

struct cli_command {
    const char *name, *summary;
    const char *help; /* usage, flags, an example */
    int (*run)(struct cli *cli, int argc, char **argv);
    bool is_raw; /* prints bytes as they are: takes neither -o nor --color */
};

extern const struct cli_command cli_commands[];
extern const size_t cli_command_count;
void cli_overview(struct hd_text *out); /* what heddle --help says */

/* ---- flags (flags.c) ---- */

enum cli_flag_kind {
    CLI_FLAG_BOOL,
    CLI_FLAG_TEXT,  /* not "", the value of a script's variable that is not set */
    CLI_FLAG_WORDS, /* a text of UTF-8 that may be "" */
    CLI_FLAG_INT,
    CLI_FLAG_LIST /* of texts */
};

struct cli_list { /* of a flag that may be repeated */
    const char *items[256];
    size_t count;
    const char *origins[256]; /* of overrides: what messages call an item; NULL: "--set ITEM" */
};

struct cli_flag {
    const char *name; /* without the dashes */
    char letter;      /* 0: none */
    enum cli_flag_kind kind;
    void *value;      /* bool, const char *, int64_t, struct cli_list */
    int64_t min, max; /* of CLI_FLAG_INT */
};

/* Takes the flags of a command and those that all have (--controller, -o, --color, --token-file,
 * --tls-ca, --tls-cert, --help) out of argv, which begins behind the command's name; what is left
 * are cli->args, between min_args and max_args. CLI_CONTINUE, or the exit code after --help or a
 * mistake. */
enum { CLI_ARGS_ANY = INT_MAX }; /* max_args of a command that takes a list */
int cli_parse(struct cli *cli, int argc, char **argv, const struct cli_flag *flags,
              size_t flag_count, int min_args, int max_args);

/* "7" -> 7, with a message and CLI_USAGE otherwise. */
int cli_parse_job(const char *text, uint64_t *ret_job);

/* ---- messages (out.c) ---- */

/* Colour of the process's output, as --color says. AUTO, the default: on a terminal that is not
 * dumb, unless NO_COLOR is set. JSON never has colour. */
enum cli_colour_when { CLI_COLOUR_AUTO, CLI_COLOUR_ALWAYS, CLI_COLOUR_NEVER };
void cli_set_colour(enum cli_colour_when when);
bool cli_has_colour(int fd); /* whether what is written there has colour */

/* Prints "heddle: STORY" of the latest failure on stderr and returns its exit code. */
int cli_fail(enum hd_status st);
int cli_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void cli_note(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* a line on stderr */
void cli_warn(const char *text); /* "heddle: TEXT", what the controller warns of; "": nothing */
/* cli_note for a text of any length, which it frees: a command with a long path must be whole. */
void cli_note_text(struct hd_text *text);
/* Asks a question on the terminal. CLI_ANSWER_NONE: standard input or error is no terminal. */
enum cli_answer { CLI_ANSWER_NO, CLI_ANSWER_YES, CLI_ANSWER_NONE };
enum cli_answer cli_ask(const char *question);
int cli_exit_of(enum hd_status st);
int cli_exit_of_state(Heddle__V1__JobState state);
int cli_exit_of_signal(int number); /* CLI_INTERRUPTED or CLI_TERMINATED */
bool cli_is_interrupted(int code);

/* Writes the text to stdout and empties it. False when the reader of a pipe is gone or the disk is
 * full: the command should end, with cli_out_end's exit code. */
bool cli_out(struct hd_text *text);
int cli_out_end(int code);

/* ---- words and numbers for people (words.c) ---- */

/* Lower-case names of the enum values, as DESIGN's states; unknown ones give "unknown(7)". */
enum { CLI_WORD_MAX = 24 };
const char *cli_job_state(Heddle__V1__JobState state, char ret_word[CLI_WORD_MAX]);
const char *cli_attempt_state(Heddle__V1__AttemptState state, char ret_word[CLI_WORD_MAX]);
const char *cli_node_state(Heddle__V1__NodeState state, char ret_word[CLI_WORD_MAX]);
const char *cli_end_cause(Heddle__V1__EndCause cause, char ret_word[CLI_WORD_MAX]);
const char *cli_device_kind(Heddle__V1__DeviceKind kind, char ret_word[CLI_WORD_MAX]);
const char *cli_precision(Heddle__V1__Precision precision, char ret_word[CLI_WORD_MAX]);
/* "tp 2 x cp 1 x dp 4 x pp 1, sequence parallel" */
void cli_add_layout(const struct hd_layout_sizes *sizes, struct hd_text *out);
bool cli_job_ended(Heddle__V1__JobState state);
/* SGR code such as "32", or NULL: colour is never the only sign of a state. */
const char *cli_state_colour(Heddle__V1__JobState state);

/* The controller's clock, from which ages of its times count. */
int64_t cli_now_ms(const struct cli *cli);
/* "3m05s", how long before now_ms it was; "0ms" if it was later. */
void cli_format_age(int64_t unix_ms, int64_t now_ms, char ret_text[HD_CLOCK_TEXT_MAX]);
/* The same by the controller's clock, or with CLI_WIDE the time itself; "" for 0. */
void cli_format_when(const struct cli *cli, int64_t unix_ms, enum cli_format format,
                     char ret_text[HD_CLOCK_TEXT_MAX]);
/* Adds "its jobs leave it by TIME", or in the past if that is over: the deadline of a drain. */
void cli_add_deadline(const struct cli *cli, int64_t deadline_unix_ms, struct hd_text *out);
/* "n1,n2": the nodes that a job holds. */
void cli_add_nodes(struct hd_text *out, const Heddle__V1__JobStatus *job);
/* 98123.4 -> "98.1k"; for rates and counts. */
void cli_format_count(double count, char ret_text[32]);
/* Adds text; each character that is not harmless (hd_text_character) becomes '?'. */
void cli_add_clean(struct hd_text *out, const char *text);
/* The same for a message of the controller, which calls a user of its socket "uid:1000": people
 * read "uid 1000 (alice)", or "uid 1000" if this machine has no name for it. */
void cli_add_people(struct hd_text *out, const char *text);
/* Adds a word as a shell reads it: in quotes if it needs them. */
void cli_add_quoted(struct hd_text *out, const char *word);
/* Columns that text takes on a terminal. */
int cli_text_width(const char *text);
/* Adds as much of the text as fits in so many columns, with "..." at the end if something is cut.
 */
void cli_add_cut(struct hd_text *out, const char *text, int columns);
/* Adds text in a colour (SGR code such as "31"), or with NULL as it is. */
void cli_add_coloured(struct hd_text *out, const char *colour, const char *text);

/* ---- the controller (connect.c) ---- */

/* Finds and checks the controller's address; calls follow. CLI_CONTINUE or an exit code. */
int cli_connect(struct cli *cli);
/* One unary call by its name, such as "GetJob" of Control or "Identity/WhoAmI"; the response is the
 * caller's (hd_rpc_message_free). CLI_CONTINUE, or the exit code after the message was printed;
 * CLI_INTERRUPTED: *cli->interrupted while the controller was away. */
int cli_call(struct cli *cli, const char *method, const ProtobufCMessageDescriptor *response,
             const ProtobufCMessage *request, void *ret_response);
/* All that a command does whose one argument is a job, up to the answer: parses, connects, calls.
 * request_job: the member of the request that gets the job's number. */
int cli_call_about_job(struct cli *cli, int argc, char **argv, const char *method,
                       const ProtobufCMessageDescriptor *response, const ProtobufCMessage *request,
                       uint64_t *request_job, void *ret_response);
/* cli_call without a message on failure. */
enum hd_status cli_try_call(struct cli *cli, const char *method,
                            const ProtobufCMessageDescriptor *response,
                            const ProtobufCMessage *request, void *ret_response);
/* Around a wait for the controller's first answer to a call: on a terminal, a line says after a
 * second what is waited for. cli_call and cli_try_call do it themselves. */
void cli_wait_begin(struct cli *cli);
void cli_wait_end(struct cli *cli);
/* "/heddle.v1.Control/" + method */
const char *cli_method_path(const char *method, char ret_path[64]);
void cli_disconnect(struct cli *cli);

/* Of `checkpoint rm` (checkpoint_rm.c). step: 0: not given. yes: do not ask. An exit code. */
int cli_remove_checkpoint(struct cli *cli, const char *job, int64_t step, bool yes);

/* ---- the verbs ---- */

int cli_submit(struct cli *cli, int argc, char **argv);
int cli_validate(struct cli *cli, int argc, char **argv);
int cli_plan(struct cli *cli, int argc, char **argv);
int cli_keys(struct cli *cli, int argc, char **argv);
int cli_jobs(struct cli *cli, int argc, char **argv);
int cli_show(struct cli *cli, int argc, char **argv);
int cli_events(struct cli *cli, int argc, char **argv);
int cli_cancel(struct cli *cli, int argc, char **argv);
int cli_resume(struct cli *cli, int argc, char **argv);
int cli_requeue(struct cli *cli, int argc, char **argv);
int cli_rm(struct cli *cli, int argc, char **argv);
int cli_queue(struct cli *cli, int argc, char **argv);
int cli_probe(struct cli *cli, int argc, char **argv);
int cli_topo(struct cli *cli, int argc, char **argv);
int cli_hold(struct cli *cli, int argc, char **argv);
int cli_release(struct cli *cli, int argc, char **argv);
int cli_explain(struct cli *cli, int argc, char **argv);
int cli_nodes(struct cli *cli, int argc, char **argv);
int cli_drain(struct cli *cli, int argc, char **argv);
int cli_undrain(struct cli *cli, int argc, char **argv);
int cli_node(struct cli *cli, int argc, char **argv);
int cli_watch(struct cli *cli, int argc, char **argv);
int cli_wait(struct cli *cli, int argc, char **argv);
int cli_logs(struct cli *cli, int argc, char **argv);
int cli_local(struct cli *cli, int argc, char **argv);
int cli_eval(struct cli *cli, int argc, char **argv);
int cli_generate(struct cli *cli, int argc, char **argv);
int cli_serve(struct cli *cli, int argc, char **argv);
int cli_checkpoint(struct cli *cli, int argc, char **argv);
int cli_version(struct cli *cli, int argc, char **argv);
int cli_show_node(struct cli *cli, int argc, char **argv);
int cli_top(struct cli *cli, int argc, char **argv);
int cli_du(struct cli *cli, int argc, char **argv);
int cli_debug(struct cli *cli, int argc, char **argv);
int cli_config(struct cli *cli, int argc, char **argv);
int cli_completion(struct cli *cli, int argc, char **argv);
int cli_data(struct cli *cli, int argc, char **argv);

#endif
