/* Which controller, token and authority a command uses: flags, environment, files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "controller/cli/contexts.h"
#include "tests/program/test.h"

static char home[128], path[256];

static int make_home(void **state)
{
    (void)snprintf(home, sizeof home, "%.40s/contexts-XXXXXX",
                   getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(home))
        return -1;
    (void)snprintf(path, sizeof path, "%s/client.yaml", home);
    (void)setenv("HOME", home, 1);
    return 0;
}

static int drop_home(void **state)
{
    return hd_file_remove_tree(home) ? -1 : 0;
}

static void set_file(const char *text)
{
    assert_int_equal(hd_file_write_atomic(path, text, strlen(text), 0600), HD_OK);
    (void)setenv("HEDDLE_CONFIG", path, 1);
    (void)unsetenv("HEDDLE_CONTROLLER");
    (void)unsetenv("HEDDLE_TOKEN_FILE");
    (void)unsetenv("HEDDLE_TLS_CA");
    (void)unsetenv("HEDDLE_TLS_CERT");
    (void)unsetenv("HEDDLE_CONTEXT");
}

static const char two[] = "context: prod\n"
                          "contexts:\n"
                          "  prod:\n"
                          "    controller: 10.0.0.1:7070\n"
                          "    token_file: ~/prod-token\n"
                          "  lab: {controller: 10.0.0.2:7070, tls_ca: /lab.pem}\n"
                          "tls_ca: /other.pem\n";

static const char *const none[CONTEXT_KEY_COUNT];

static void assert_value(const struct contexts *c, enum context_key key, const char *text,
                         const char *from)
{
    if (text)
        assert_string_equal(c->values[key].text, text);
    else
        assert_null(c->values[key].text);
    assert_string_equal(c->values[key].from, from);
}

static void each_value_knows_where_it_came_from(void **state)
{
    char token[256], from[300];
    struct contexts c;

    set_file(two);
    assert_int_equal(contexts_find(NULL, none, &c), HD_OK);
    (void)snprintf(from, sizeof from, "%s:4", path);
    assert_value(&c, CONTEXT_CONTROLLER, "10.0.0.1:7070", from);
    (void)snprintf(token, sizeof token, "%s/prod-token", home);
    (void)snprintf(from, sizeof from, "%s:5", path);
    assert_value(&c, CONTEXT_TOKEN_FILE, token, from);
    assert_value(&c, CONTEXT_TLS_CA, NULL, "default"); /* of another than the context's */
    contexts_done(&c);

    (void)setenv("HEDDLE_CONTEXT", "lab", 1);
    assert_int_equal(contexts_find(NULL, none, &c), HD_OK);
    (void)snprintf(from, sizeof from, "%s:6", path);
    assert_value(&c, CONTEXT_TLS_CA, "/lab.pem", from);
    assert_string_equal(c.context.from, "HEDDLE_CONTEXT");
    contexts_done(&c);
    assert_int_equal(contexts_find("prod", none, &c), HD_OK); /* the flag wins */
    assert_string_equal(c.context.text, "prod");
    contexts_done(&c);
}

static void a_token_goes_to_no_other_controller(void **state)
{
    const char *const elsewhere[CONTEXT_KEY_COUNT] = {"127.0.0.1:1"};
    struct contexts c;

    set_file(two);
    assert_int_equal(contexts_find(NULL, elsewhere, &c), HD_OK);
    assert_value(&c, CONTEXT_CONTROLLER, "127.0.0.1:1", "flag");
    assert_value(&c, CONTEXT_TOKEN_FILE, NULL, "default");
    contexts_done(&c);
    (void)setenv("HEDDLE_CONTROLLER", "127.0.0.1:2", 1);
    (void)setenv("HEDDLE_TOKEN_FILE", "/mine", 1);
    assert_int_equal(contexts_find(NULL, none, &c), HD_OK);
    assert_value(&c, CONTEXT_CONTROLLER, "127.0.0.1:2", "HEDDLE_CONTROLLER");
    assert_value(&c, CONTEXT_TOKEN_FILE, "/mine", "HEDDLE_TOKEN_FILE");
    contexts_done(&c);
}

static void assert_refused(const char *text, const char *message)
{
    char expected[512];
    struct contexts c;

    set_file(text);
    assert_int_equal(contexts_find(NULL, none, &c), HD_INVALID);
    (void)snprintf(expected, sizeof expected, "%s:%s", path, message);
    assert_string_equal(hd_err_message(), expected);
    contexts_done(&c);
}

static void mistakes_have_their_line(void **state)
{
    struct contexts c;
    char expected[512];

    assert_refused("contexts:\n  a:\n    controler: x\n",
                   "3: unknown key controler; did you mean controller?");
    assert_refused("token: abc\n", "1: unknown key token; did you mean token_file?");
    assert_refused("colour: on\n", "1: unknown key colour; remove this line (heddle config example "
                                   "lists the keys)");
    assert_refused("contexts: [a]\n", "1: contexts: expected NAME: {controller: ADDR, ..}");
    assert_refused("controller: a\ncontroller: b\n",
                   "2: controller is given twice, first in line 1");
    set_file(two);
    assert_int_equal(contexts_find("labb", none, &c), HD_INVALID);
    (void)snprintf(expected, sizeof expected,
                   "there is no context labb (flag); the files have prod, lab");
    assert_string_equal(hd_err_message(), expected);
    contexts_done(&c);
}

/* A pipe at the place where each command looks would make each command wait. */
static void a_pipe_is_no_configuration_file(void **state)
{
    char config[192], file[256];
    struct contexts c;

    set_file(two);
    (void)unsetenv("HEDDLE_CONFIG");
    (void)snprintf(config, sizeof config, "%s/config/heddle", home);
    assert_int_equal(hd_file_make_dirs(config, 0700), HD_OK);
    (void)snprintf(file, sizeof file, "%s/client.yaml", config);
    assert_int_equal(mkfifo(file, 0600), 0);
    (void)snprintf(config, sizeof config, "%s/config", home);
    (void)setenv("XDG_CONFIG_HOME", config, 1);
    assert_int_equal(contexts_find(NULL, none, &c), HD_INVALID);
    assert_true(hd_text_starts(hd_err_message(), file));
    contexts_done(&c);
    (void)unsetenv("XDG_CONFIG_HOME");
}

RUN_CASES_BETWEEN(make_home, drop_home)
