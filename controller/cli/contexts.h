/* contexts: the configuration files of the heddle command: which controller, token and CA.
 *
 *     context: prod                         the default context
 *     contexts:
 *       prod:
 *         controller: 10.0.0.1:7070
 *         token_file: ~/.config/heddle/prod-token
 *         tls_ca: /etc/heddle/ca.pem
 *         tls_cert: ~/.config/heddle/prod.pem
 *     controller: unix:/run/heddle/x.sock   outside contexts: values used without a context
 *
 * The files are ~/.config/heddle/client.yaml (or $XDG_CONFIG_HOME/heddle/) and, for values missing
 * there, /etc/heddle/client.yaml; HEDDLE_CONFIG names one file in place of both, "none": no file.
 * Precedence of each value: flag, environment, context, the file outside contexts. If a flag or the
 * environment gives the controller and no flag gives a context, token and CA of the files are not
 * used: a token is sent only to the controller it belongs to.
 *
 * Used by: connect, config.   Uses: base, yaml.   Threads: one.
 */
#ifndef HD_CLI_CONTEXTS_H
#define HD_CLI_CONTEXTS_H

#include "base/arena.h"
#include "base/status.h"

enum context_key {
    CONTEXT_CONTROLLER,
    CONTEXT_TOKEN_FILE,
    CONTEXT_TLS_CA,
    CONTEXT_TLS_CERT,
    CONTEXT_KEY_COUNT
};

struct context_value {
    const char *text; /* text of the value; NULL: not given */
    /* origin of the value: "flag", "HEDDLE_TOKEN_FILE", "FILE:LINE" or "default" */
    const char *from;
};

struct contexts {
    struct context_value context;
    struct context_value values[CONTEXT_KEY_COUNT];
    struct hd_arena arena; /* owns all texts except those of flags and environment */
};

extern const char *const context_key_names[CONTEXT_KEY_COUNT];

/* Finds the value of each key. context, given: values of flags, `given` in the order of
 * context_key; NULL: not given. Returns HD_INVALID for a mistake in a file (the message has its
 * line) or an unknown context. Call contexts_done in any case. */
enum hd_status contexts_find(const char *context, const char *const given[CONTEXT_KEY_COUNT],
                             struct contexts *ret_contexts);
void contexts_done(struct contexts *contexts);

#endif
