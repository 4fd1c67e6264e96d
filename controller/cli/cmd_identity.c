/* whoami, token, audit, limits, node invite, node revoke: callers, credentials and permissions. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "controller/cli/rows.h"
#include "heddle/v1/identity.pb-c.h"
#include "pki/pki.h"

/* ---- whoami -----------------------------------------------------------------------------------*/

static void add_who(const struct cli *cli, struct hd_text *out, const void *item)
{
    const Heddle__V1__WhoAmIResponse *r = item;

    (void)cli;
    hd_text_add(out, "; sees %s\n",
                strcmp(r->sees, "own") == 0    ? "its own jobs"
                : strcmp(r->sees, "jobs") == 0 ? "its own jobs, and that others have some"
                                               : "all jobs");
}

static const struct rows_kind who_rows = {
    "CallerList", "caller", .json = "name role way sees credential expires=expires_unix_ms@",
    .text = "{name}, role {role}, by {way}[ {credential}][ until {expires_unix_ms:utc}]",
    .line = add_who};

static int cli_whoami(struct cli *cli, int argc, char **argv)
{
    const Heddle__V1__WhoAmIRequest request = HEDDLE__V1__WHO_AM_IREQUEST__INIT;
    int code = cli_parse(cli, argc, argv, NULL, 0, 0, 0);

    return code == CLI_CONTINUE ? rows_ask(cli, "Identity/WhoAmI", &request.base, NULL, &who_rows)
                                : code;
}

const struct cli_body cli_body_whoami = {
    .usage = "Usage: heddle whoami [-o FORMAT]\n",
    .about = "Says who you are to the controller: the name that your jobs belong to, your role\n"
             "(viewer, user, operator or admin), how you came, and whose jobs you see.\n",
    .examples = "heddle whoami -o json",
    .run = cli_whoami,
};

/* ---- token create and cert --------------------------------------------------------------------*/

/* Creates the token's output file before the token is requested: a token that could not be written
 * would be valid and lost. */
static int grow(const char *path)
{
    const int fd = path ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    char why[HD_FILE_WHY_MAX];

    if (!path)
        return CLI_CONTINUE;
    if (fd < 0 && errno == EEXIST)
        return cli_usage("token: --out: %s is there already; give another name, or remove it",
                         path);
    if (fd < 0)
        return cli_fail(hd_err(HD_IO, "--out: cannot create %s: %s%s", path,
                               hd_file_explain(errno, path, why),
                               errno == ENOENT ? "; make its folder first" : ""));
    (void)close(fd);
    return CLI_CONTINUE;
}

/* Removes the empty output file after a failed request for a token; returns `code`. */
static int give_up(const char *path, int code)
{
    if (path && code != CLI_CONTINUE)
        (void)unlink(path);
    return code;
}

/* Writes a secret to a file with mode 0600, or to standard output. */
static int give(const char *path, struct hd_text *secret, const char *what, int64_t expires_ms)
{
    char when[HD_CLOCK_TEXT_MAX];
    enum hd_status st = HD_OK;

    hd_clock_format_utc(expires_ms, when);
    if (!path) {
        (void)cli_out(secret);
        return cli_out_end(CLI_OK);
    }
    st = secret->failed ? hd_err(HD_NO_MEMORY, "no memory for %s", path)
                        : hd_file_write_atomic(path, secret->data, secret->len_bytes, 0600);
    if (st) {
        (void)unlink(path);
        cli_note(
            "heddle: %s was made and is lost: heddle token ls shows it, heddle token revoke ID "
            "ends it",
            what);
        return cli_fail(st);
    }
    cli_note("%s: %s, valid until %s", path, what, when);
    return cli_out_end(CLI_OK);
}

static int create_token(struct cli *cli, const char *role, int64_t ttl_ms, const char *out)
{
    Heddle__V1__CreateTokenRequest request = HEDDLE__V1__CREATE_TOKEN_REQUEST__INIT;
    Heddle__V1__CreateTokenResponse *response = NULL;
    struct hd_text text = {0};
    int code = grow(out);

    if (code != CLI_CONTINUE)
        return code;
    request.name = cli->args[1];
    request.role = (char *)(uintptr_t)role;
    request.ttl_ms = ttl_ms;
    code = cli_call(cli, "Identity/CreateToken", &request.base, &response);
    if (code != CLI_CONTINUE)
        return give_up(out, code);
    hd_text_add(&text, "%s\n", response->token);
    code = give(out, &text, "a token", response->expires_unix_ms);
    if (text.data)
        explicit_bzero(text.data, text.size_bytes);
    hd_text_free(&text);
    hd_rpc_message_free(&response->base);
    return code;
}

/* Generates a key pair here, has it certified and writes certificate and key to one file. The
 * private key is never sent. */
static int create_cert(struct cli *cli, const char *role, const char *out)
{
    Heddle__V1__SignPersonRequest request = HEDDLE__V1__SIGN_PERSON_REQUEST__INIT;
    Heddle__V1__SignPersonResponse *response = NULL;
    struct hd_text asked = {0}, key = {0}, both = {0};
    int code = grow(out);

    if (code != CLI_CONTINUE)
        return code;
    code =
        hd_pki_make_request(cli->args[1], &asked, &key) ? cli_fail(HD_INTERNAL) : cli_connect(cli);
    request.name = cli->args[1];
    request.role = (char *)(uintptr_t)role;
    request.request = asked.data;
    if (code == CLI_CONTINUE)
        code = give_up(out, cli_call(cli, "Identity/SignPerson", &request.base, &response));
    else
        (void)give_up(out, code);
    if (code == CLI_CONTINUE) {
        hd_text_add(&both, "%s%s", response->certificate, key.data);
        code = give(out, &both, "a certificate and its key", response->expires_unix_ms);
        hd_rpc_message_free(&response->base);
    }
    if (key.data)
        explicit_bzero(key.data, key.size_bytes);
    if (both.data)
        explicit_bzero(both.data, both.size_bytes);
    hd_text_free(&asked);
    hd_text_free(&key);
    hd_text_free(&both);
    return code;
}

/* ---- token ls and revoke ----------------------------------------------------------------------*/

static const struct rows_column credential_columns[] = {
    {"ID", ROWS_OF(Heddle__V1__Credential, id)},
    {"KIND", ROWS_OF(Heddle__V1__Credential, kind)},
    {"NAME", ROWS_OF(Heddle__V1__Credential, name)},
    {"ROLE", ROWS_OF(Heddle__V1__Credential, role)},
    {"EXPIRES", ROWS_OF(Heddle__V1__Credential, expires_unix_ms), .form = ROWS_TIME},
    {"MADE BY", ROWS_OF(Heddle__V1__Credential, made_by)},
    {"ENDED", .text = "[{ended_unix_ms:utc} by ]{ended_by}"},
};
static const struct rows_kind credential_rows = {
    "CredentialList", "credential", ROWS_COLUMNS(credential_columns),
    .json = "id kind name role made_by made=made_unix_ms@ expires=expires_unix_ms@ "
            "ended=ended_unix_ms@ ended_by"};

static int list_credentials(struct cli *cli, bool all)
{
    Heddle__V1__ListCredentialsRequest request = HEDDLE__V1__LIST_CREDENTIALS_REQUEST__INIT;
    Heddle__V1__ListCredentialsResponse *page = NULL;
    struct cli_rows rows;
    int code;

    request.ended = all;
    request.limit = 1000;
    rows_begin(&rows, cli, &credential_rows);
    do {
        code = cli_call(cli, "Identity/ListCredentials", &request.base, &page);
        if (code != CLI_CONTINUE)
            break;
        for (size_t i = 0; i < page->n_credentials; i++)
            rows_add(&rows, page->credentials[i]);
        request.after = page->next;
        hd_rpc_message_free(&page->base);
    } while (request.after);
    return rows_end(&rows, code);
}

/* Revokes one credential, if the argument is its number such as "7"; else all credentials of a
 * person. */
static int revoke_token(struct cli *cli)
{
    Heddle__V1__RevokeTokenRequest request = HEDDLE__V1__REVOKE_TOKEN_REQUEST__INIT;
    Heddle__V1__RevokeTokenResponse *response = NULL;
    struct hd_text out = {0};
    int64_t id = 0;
    int code;

    if (hd_text_to_int64(cli->args[1], 1, INT64_MAX, &id))
        request.name = cli->args[1];
    request.id = (uint64_t)id;
    code = cli_call(cli, "Identity/RevokeToken", &request.base, &response);
    if (code != CLI_CONTINUE)
        return code;
    hd_text_add(&out, "%d revoked\n", response->count);
    hd_rpc_message_free(&response->base);
    return cli_print(&out, CLI_OK);
}

static int cli_token(struct cli *cli, int argc, char **argv)
{
    const char *role = "user", *out = NULL;
    bool all = false;
    int64_t ttl_ms = 0;
    const struct cli_flag flags[] = {
        {"role", 0, CLI_FLAG_TEXT, &role, "ROLE",
         .help = "viewer, user, operator or admin; else user", .of = "create|cert"},
        {"ttl", 0, CLI_FLAG_SPAN, &ttl_ms, "TIME", .min = 60000, .max = 10 * CLI_YEAR_MS,
         .help = "how long a token lives, such as 12h or 30d; else 90 days", .of = "create|cert"},
        {"out", 0, CLI_FLAG_TEXT, &out, "FILE",
         .help = "write it there, readable for you alone; else standard output",
         .of = "create|cert"},
        {"all", 'a', CLI_FLAG_BOOL, &all, .help = "also those that have ended or expired",
         .of = "ls"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 2);

    if (code != CLI_CONTINUE)
        return code;
    if (cli_is_verb(cli, "ls"))
        return list_credentials(cli, all);
    if (cli_is_verb(cli, "revoke"))
        return revoke_token(cli);
    if (cli_is_verb(cli, "create"))
        return create_token(cli, role, ttl_ms, out);
    if (ttl_ms)
        return cli_usage("token cert: --ttl: a certificate lives for 30 days");
    return create_cert(cli, role, out);
}

static const struct cli_verb token_verbs[] = {
    {"create", 1, 1, "a name"},
    {"cert", 1, 1, "a name"},
    {"ls", 0, 0, NULL},
    {"revoke", 1, 1, "a number or a name"},
};

const struct cli_body cli_body_token = {
    .usage = "Usage: heddle token create NAME [--role ROLE] [--ttl TIME] [--out FILE]\n"
             "       heddle token cert NAME [--role ROLE] [--out FILE]\n"
             "       heddle token ls [-a] [-o FORMAT]\n"
             "       heddle token revoke ID|NAME\n",
    .about = "create makes a token for a person; it is shown once. cert makes a certificate\n"
             "with its key, for --tls-cert. ls lists tokens, certificates and invitations,\n"
             "without secrets. revoke ends one, or all of a person, at once. For admins.\n",
    .examples = "heddle token create ann --ttl 30d --out ann.token",
    CLI_VERBS(token_verbs),
    .run = cli_token,
};

/* ---- audit ------------------------------------------------------------------------------------*/

static void add_result_cell(struct cli_rows *rows, const void *item)
{
    const Heddle__V1__AuditRow *r = item;

    rows_cell(rows, strcmp(r->result, "ok") == 0 ? NULL : "33", "%s", r->result);
}

static void show_audit_row(struct hd_json_writer *w, const void *item)
{
    const Heddle__V1__AuditRow *r = item;
    char hash[HD_PKI_HASH_TEXT_MAX] = "";

    if (r->hash.len == HD_PKI_HASH_BYTES)
        hd_pki_format_hash(r->hash.data, hash);
    show_members(w, &r->base, "sequence time=time_unix_ms@ who role method object source result");
    hd_json_add_string(w, "hash", hash);
}

static const struct rows_column audit_columns[] = {
    {"SEQ", ROWS_OF(Heddle__V1__AuditRow, sequence)},
    {"TIME", ROWS_OF(Heddle__V1__AuditRow, time_unix_ms), .form = ROWS_TIME},
    {"WHO", ROWS_OF(Heddle__V1__AuditRow, who)},
    {"ROLE", ROWS_OF(Heddle__V1__AuditRow, role)},
    {"METHOD", ROWS_OF(Heddle__V1__AuditRow, method)},
    {"OBJECT", ROWS_OF(Heddle__V1__AuditRow, object)},
    {"RESULT", .cell = add_result_cell},
    {"FROM", ROWS_OF(Heddle__V1__AuditRow, source)},
};
static const struct rows_kind audit_rows = {"AuditList", "audit", ROWS_COLUMNS(audit_columns),
                                            .show = show_audit_row};

struct audit_walk {
    struct cli *cli;
    struct cli_rows rows; /* rows of a page, or with JSON of the whole log */
    bool verify;
    uint64_t count, head; /* number of audit rows read; number of the newest row */
    unsigned char hash[HD_PKI_HASH_BYTES];
};

static int check_link(struct audit_walk *walk, const Heddle__V1__AuditRow *r)
{
    const char *const texts[] = {r->who, r->role, r->method, r->object, r->source, r->result};

    hd_pki_chain(walk->hash, r->sequence, r->time_unix_ms, texts, sizeof texts / sizeof texts[0],
                 walk->hash);
    if (r->sequence != walk->head + 1)
        return cli_fail(hd_err(HD_CORRUPT,
                               "the audit log was changed: behind row %llu comes row "
                               "%llu",
                               (unsigned long long)walk->head, (unsigned long long)r->sequence));
    if (r->hash.len != sizeof walk->hash || memcmp(r->hash.data, walk->hash, r->hash.len) != 0)
        return cli_fail(hd_err(HD_CORRUPT,
                               "the audit log was changed: row %llu does not follow "
                               "from the rows before it",
                               (unsigned long long)r->sequence));
    return CLI_CONTINUE;
}

static int take_rows(struct audit_walk *walk, const Heddle__V1__ListAuditResponse *page)
{
    int code = CLI_CONTINUE;

    for (size_t i = 0; i < page->n_rows && code == CLI_CONTINUE; i++) {
        if (walk->verify)
            code = check_link(walk, page->rows[i]);
        else
            rows_add(&walk->rows, page->rows[i]);
        walk->head = page->rows[i]->sequence;
        walk->count++;
    }
    return code;
}

/* Reads all audit rows after row `after`, page by page; prints each page as it comes, a table for
 * each. */
static int walk_rows(struct audit_walk *walk, uint64_t after)
{
    const bool pages = !walk->verify && walk->cli->format < CLI_JSON;
    Heddle__V1__ListAuditRequest request = HEDDLE__V1__LIST_AUDIT_REQUEST__INIT;
    Heddle__V1__ListAuditResponse *page = NULL;
    bool more = true;
    int code = CLI_CONTINUE;

    request.after_sequence = after;
    request.limit = 1000;
    while (more && code == CLI_CONTINUE && !ferror(stdout)) {
        code = cli_call(walk->cli, "Identity/ListAudit", &request.base, &page);
        if (code != CLI_CONTINUE)
            break;
        code = take_rows(walk, page);
        more = page->more;
        request.after_sequence = walk->head;
        hd_rpc_message_free(&page->base);
        if (pages && more) {
            code = rows_end(&walk->rows, code) == CLI_OK ? CLI_CONTINUE : CLI_FAILED;
            rows_begin(&walk->rows, walk->cli, &audit_rows);
        } else {
            (void)rows_flush(&walk->rows);
        }
    }
    return code;
}

static int cli_audit(struct cli *cli, int argc, char **argv)
{
    char hash[HD_PKI_HASH_TEXT_MAX];
    struct audit_walk walk = {.cli = cli};
    int64_t after = 0;
    const struct cli_flag flags[] = {
        {"after", 0, CLI_FLAG_INT, &after, "SEQ", .min = 0, .max = INT64_MAX,
         .help = "only rows after this one"},
        {"verify", 0, CLI_FLAG_BOOL, &walk.verify,
         .help = "check that no row was changed or left out, and print the number\n"
                 "of rows and the last hash; keep both elsewhere, and a later run\n"
                 "shows whether rows are missing at the end. Exit code 6: changed"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 0, 0);

    if (code == CLI_CONTINUE && walk.verify && after)
        code = cli_usage("audit: --verify reads the whole log; it goes without --after");
    if (code != CLI_CONTINUE)
        return code;
    if (!walk.verify) {
        rows_begin(&walk.rows, cli, &audit_rows);
        return rows_end(&walk.rows, walk_rows(&walk, (uint64_t)after));
    }
    code = walk_rows(&walk, 0);
    if (code != CLI_CONTINUE)
        return code;
    hd_pki_format_hash(walk.hash, hash);
    (void)printf("%llu rows, each follows from the one before; the last has %s\n",
                 (unsigned long long)walk.count, hash);
    return cli_out_end(CLI_OK);
}

const struct cli_body cli_body_audit = {
    .usage = "Usage: heddle audit [--after SEQ] [--verify] [-o FORMAT]\n",
    .about = "Prints the audit log, oldest first: each call that changed something, or that\n"
             "was refused, with who made it, from where, and what came of it. For admins.\n",
    .examples = "heddle audit --verify",
    .run = cli_audit,
};

/* ---- limits -----------------------------------------------------------------------------------*/

struct limit_row {
    const char *who, *name, *unit;
    int64_t used, most;
};

static void add_used_cell(struct cli_rows *rows, const void *item)
{
    const struct limit_row *l = item;

    rows_cell(rows, l->most && l->used >= l->most ? "33" : NULL, "%lld", (long long)l->used);
}

static const struct rows_column limit_columns[] = {
    {.json = "who", ROWS_OF(struct limit_row, who)},
    {"LIMIT", ROWS_OF(struct limit_row, name), .json = "limit"},
    {"USED", ROWS_OF(struct limit_row, used), .json = "used", .cell = add_used_cell},
    {"MOST", ROWS_OF(struct limit_row, most), .json = "most", .form = ROWS_SOME},
    {"OF", ROWS_OF(struct limit_row, unit)},
};
static const struct rows_kind limit_rows = {"LimitList", "limit", ROWS_COLUMNS(limit_columns)};

static int cli_limits(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__GetLimitsRequest request = HEDDLE__V1__GET_LIMITS_REQUEST__INIT;
    Heddle__V1__GetLimitsResponse *response = NULL;
    struct cli_rows rows;
    int code = cli_parse(cli, argc, argv, NULL, 0, 0, 1);

    if (code == CLI_CONTINUE && cli->arg_count)
        request.name = cli->args[0];
    if (code == CLI_CONTINUE)
        code = cli_call(cli, "Identity/GetLimits", &request.base, &response);
    if (code != CLI_CONTINUE)
        return code;
    rows_begin(&rows, cli, &limit_rows);
    for (size_t i = 0; i < response->n_limits; i++) {
        const Heddle__V1__LimitUse *l = response->limits[i];

        rows_add(&rows, &(struct limit_row){.who = response->name,
                                            .name = l->name,
                                            .unit = l->unit,
                                            .used = l->used,
                                            .most = l->most});
    }
    hd_rpc_message_free(&response->base);
    return rows_end(&rows, CLI_CONTINUE);
}

const struct cli_body cli_body_limits = {
    .usage = "Usage: heddle limits [NAME] [-o FORMAT]\n",
    .about = "Shows what you use of each limit, or with NAME, for admins, what another one\n"
             "does. The policy file sets them (docs/operations.md). What is over a limit is\n"
             "refused with exit code 6, and the limit is named.\n",
    .examples = "heddle limits ann",
    .run = cli_limits,
};

/* ---- nodes ------------------------------------------------------------------------------------*/

/* Prints only the invitation line to standard output, so that it can be redirected to the file that
 * the node reads. */
static int print_invitation(const Heddle__V1__InviteNodeResponse *r, const char *node,
                            const char *address)
{
    struct hd_pki_invitation made = {.node = ""};
    char until[HD_CLOCK_TEXT_MAX];
    struct hd_text line = {0};

    if (r->ca_hash.len != sizeof made.ca_hash || strlen(r->secret) >= sizeof made.secret ||
        strlen(node) >= sizeof made.node || strlen(address) >= sizeof made.address)
        return cli_fail(hd_err(HD_INTERNAL, "the controller's invitation has no usable form"));
    memcpy(made.ca_hash, r->ca_hash.data, sizeof made.ca_hash);
    (void)snprintf(made.secret, sizeof made.secret, "%s", r->secret);
    (void)snprintf(made.node, sizeof made.node, "%s", node);
    (void)snprintf(made.address, sizeof made.address, "%s", address);
    hd_pki_invitation_write(&made, &line);
    hd_text_add(&line, "\n");
    (void)cli_out(&line);
    hd_text_free(&line);
    explicit_bzero(&made, sizeof made);
    hd_clock_format_utc(r->expires_unix_ms, until);
    if (hd_pki_is_node_pattern(node))
        cli_note(
            "heddle: valid until %s, for all nodes called %s that have not joined; on each run: "
            "heddled join LINE --state-dir DIR --node-name NAME",
            until, node);
    else
        cli_note(
            "heddle: valid until %s and for one node; on %s run: heddled join LINE --state-dir "
            "DIR",
            until, node);
    return cli_out_end(CLI_OK);
}

int cli_node_invite(struct cli *cli, const char *address, int64_t ttl_ms)
{
    Heddle__V1__InviteNodeRequest request = HEDDLE__V1__INVITE_NODE_REQUEST__INIT;
    Heddle__V1__InviteNodeResponse *response = NULL;
    int code;

    request.node = cli->args[1];
    request.ttl_ms = ttl_ms;
    code = cli_call(cli, "Identity/InviteNode", &request.base, &response);
    if (code != CLI_CONTINUE)
        return code;
    code = print_invitation(response, cli->args[1], address ? address : response->address);
    hd_rpc_message_free(&response->base);
    return code;
}

int cli_node_revoke(struct cli *cli)
{
    Heddle__V1__RevokeNodeRequest request = HEDDLE__V1__REVOKE_NODE_REQUEST__INIT;
    Heddle__V1__RevokeNodeResponse *response = NULL;
    struct hd_text out = {0};
    int code;

    request.node = cli->args[1];
    code = cli_call(cli, "Identity/RevokeNode", &request.base, &response);
    if (code != CLI_CONTINUE)
        return code;
    hd_text_add(&out, "node %s: %d revoked\n", cli->args[1], response->count);
    hd_rpc_message_free(&response->base);
    return cli_print(&out, CLI_OK);
}
