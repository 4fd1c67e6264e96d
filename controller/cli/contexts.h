/* contexts: the configuration files of the heddle command: which controller, token and authority.
 *
 *     context: prod                         the context that is taken where none is named
 *     contexts:
 *       prod:
 *         controller: 10.0.0.1:7070
 *         token_file: ~/.config/heddle/prod-token
 *         tls_ca: /etc/heddle/ca.pem
 *         tls_cert: ~/.config/heddle/prod.pem
 *     controller: unix:/run/heddle/x.sock   beside contexts: what holds without one
 *
 * The files are ~/.config/heddle/client.yaml (or $XDG_CONFIG_HOME/heddle/) and, where that says
 * nothing, /etc/heddle/client.yaml; HEDDLE_CONFIG names one file in place of both, "none": no file.
 * Order for each value: flag, environment, context, the file outside contexts. Where flag or
 * environment gives the controller and no flag a context, the files give no token and no authority:
 * a token goes to no controller but its own.
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
    const char *text; /* NULL: not given */
    const char *from; /* "flag", "HEDDLE_TOKEN_FILE", "FILE:LINE", "default" */
};

struct contexts {
    struct context_value context;
    struct context_value values[CONTEXT_KEY_COUNT];
    struct hd_arena arena; /* of all texts but those of flags and environment */
};

extern const char *const context_key_names[CONTEXT_KEY_COUNT];

/* context, given: what the flags say, in the order of context_key; NULL: not given. HD_INVALID: a
 * mistake in a file, with its line, or an unknown context. Call contexts_done in any case. */
enum hd_status contexts_find(const char *context, const char *const given[CONTEXT_KEY_COUNT],
                             struct contexts *ret_contexts);
void contexts_done(struct contexts *contexts);

#endif
