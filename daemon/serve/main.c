/* heddle-serve: serves a model by HTTP; `heddle serve` executes this program. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/process.h"
#include "flags/flags.h"
#include "kernels/plugin.h"
#include "serve/serve.h"
#include "version/version.h"

enum {
    EXIT_USAGE = 2,
    EXIT_NOT_FOUND = 4,
    EXIT_DENIED = 5,
    EXIT_FAILED = 6, /* exit code for failures, as of the heddle command */
    SLOTS_DEFAULT = 8,
    QUEUE_DEFAULT = 256,
    HOSTS_MAX = 8,
    STREAM_BYTES = 1 << 20,
    CONNECTIONS = 256,
};

#define FLAG_LIST(X)                   \
    X(MODEL, "--checkpoint", true)     \
    X(LISTEN, "--listen", false)       \
    X(NAME, "--name", false)           \
    X(BASE, "--base", false)           \
    X(ADAPTER, "--adapter", false)     \
    X(PRECISION, "--precision", false) \
    X(WEIGHTS, "--weights", false)     \
    X(DEVICE, "--device", false)       \
    X(TP, "--tp", false)               \
    X(PP, "--pp", false)               \
    X(DRAFT, "--draft", false)         \
    X(CONTEXT, "--context", false)     \
    X(SEQUENCES, "--sequences", false) \
    X(TEMPLATE, "--template", false)   \
    X(DATE, "--date", false)           \
    X(THREADS, "--threads", false)     \
    X(CERT, "--cert", false)           \
    X(KEY, "--key", false)             \
    X(TOKENS, "--tokens", false)       \
    X(HTTP_HOST, "--http-host", false) \
    X(QUEUE, "--queue", false)         \
    X(BODY, "--body-max", false)       \
    X(TIMEOUT, "--timeout", false)     \
    X(GRACE, "--grace", false)

enum flag {
#define X(code, name, required) FLAG_##code,
    FLAG_LIST(X)
#undef X
        FLAG_COUNT
};

static const char usage[] =
    "heddle-serve: serves a trained model by HTTP, with OpenAI's API\n"
    "\n"
    "  heddle-serve --checkpoint DIR [options]\n"
    "\n"
    "heddle serve finds the folder of a job's checkpoint, then executes this program;\n"
    "it takes the same options, which heddle serve --help describes.\n"
    "\n"
    "  --checkpoint DIR     the model: a checkpoint, or a model of Hugging Face\n"
    "  --listen HOST:PORT   or unix:PATH (default: 127.0.0.1:8000)\n"
    "  --help, --version\n"
    "\n"
    "example: heddle-serve --checkpoint /srv/models/small --listen 127.0.0.1:8000\n";

struct settings {
    struct serve_options serve;
    char *hosts;
    const char *host_list[HOSTS_MAX];
};

/* Parses the value of --http-host, "NAME,NAME". */
static enum hd_status choose_hosts(struct settings *s, const char *list)
{
    struct hd_http_options *o = &s->serve.http;
    char *rest;

    if (!list)
        return HD_OK;
    s->hosts = strdup(list);
    if (!s->hosts)
        return hd_err(HD_NO_MEMORY, "no memory for names");
    for (char *name = strtok_r(s->hosts, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        if (o->host_count == HOSTS_MAX)
            return hd_err(HD_INVALID, "--http-host: at most %d names", HOSTS_MAX);
        s->host_list[o->host_count++] = name;
    }
    o->hosts = s->host_list;
    return HD_OK;
}

static enum hd_status read_numbers(const struct hd_flag *f, struct settings *s)
{
    struct hd_decoder_options *d = &s->serve.work.decoder;
    int64_t slots = 0, threads = 0, tp = 1, pp = 1, body = 0, timeout = 0, grace = 0, drafts = 0;
    enum hd_status st = hd_flag_int(&f[FLAG_CONTEXT], 1, 1 << 24, 0, &d->context);

    if (!st)
        st = hd_flag_int(&f[FLAG_SEQUENCES], 1, HD_DECODER_SLOTS_MAX, SLOTS_DEFAULT, &slots);
    if (!st)
        st = hd_flag_int(&f[FLAG_THREADS], 1, 4096, sysconf(_SC_NPROCESSORS_ONLN), &threads);
    if (!st)
        st = hd_flag_int(&f[FLAG_TP], 1, HD_DECODER_RANKS_MAX, 1, &tp);
    if (!st)
        st = hd_flag_int(&f[FLAG_PP], 1, HD_DECODER_RANKS_MAX, 1, &pp);
    if (!st)
        st = hd_flag_int(&f[FLAG_QUEUE], 1, 1 << 20, QUEUE_DEFAULT, &s->serve.queue_max);
    if (!st)
        st = hd_flag_int(&f[FLAG_BODY], 1, 1 << 20, 4096, &body); /* unit: KiB */
    if (!st)
        st = hd_flag_int(&f[FLAG_TIMEOUT], 1, 86400, 600, &timeout);
    if (!st)
        st = hd_flag_int(&f[FLAG_GRACE], 0, 86400, 30, &grace);
    if (!st)
        st = hd_flag_int(&f[FLAG_DRAFT], 0, HD_DECODER_DRAFTS_MAX, 0, &drafts);
    d->drafts = (int)drafts;
    d->slots = (int)slots;
    d->threads = (int)threads;
    d->tp = (int)tp;
    d->pp = (int)pp;
    s->serve.http.body_bytes_max = (size_t)body * 1024;
    s->serve.timeout_ms = timeout * 1000;
    s->serve.grace_ms = grace * 1000;
    return st;
}

static enum hd_status read_settings(int argc, char **argv, struct settings *s)
{
    struct hd_flag f[] = {
#define X(code, name, required) {name, required, false, NULL},
        FLAG_LIST(X)
#undef X
    };
    struct hd_decoder_options *d = &s->serve.work.decoder;
    struct hd_http_options *o = &s->serve.http;
    enum hd_status st = hd_flags_read(argc, argv, f, FLAG_COUNT);

    if (!st)
        st = read_numbers(f, s);
    if (!st)
        st = choose_hosts(s, f[FLAG_HTTP_HOST].value);
    if (st)
        return st;
    d->dirs =
        (struct hd_source_dirs){f[FLAG_MODEL].value, f[FLAG_BASE].value, f[FLAG_ADAPTER].value};
    d->precision = f[FLAG_PRECISION].value;
    d->weights = f[FLAG_WEIGHTS].value;
    s->serve.work.template_path = f[FLAG_TEMPLATE].value;
    s->serve.work.date = f[FLAG_DATE].value ? f[FLAG_DATE].value : "";
    s->serve.token_file = f[FLAG_TOKENS].value;
    o->address = f[FLAG_LISTEN].value ? f[FLAG_LISTEN].value : "127.0.0.1:8000";
    o->cert_path = f[FLAG_CERT].value;
    o->key_path = f[FLAG_KEY].value;
    o->stream_bytes_max = STREAM_BYTES;
    o->connections_max = CONNECTIONS;
    s->serve.name = f[FLAG_NAME].value;
    return hd_plugin_backend(f[FLAG_DEVICE].value ? f[FLAG_DEVICE].value : "cpu", &d->backend);
}

static int exit_code(enum hd_status st)
{
    switch (st) {
    case HD_OK:
        return 0;
    case HD_INVALID:
    case HD_UNSUPPORTED:
        return EXIT_USAGE;
    case HD_NOT_FOUND:
        return EXIT_NOT_FOUND;
    case HD_DENIED:
        return EXIT_DENIED;
    default:
        return EXIT_FAILED;
    }
}

int main(int argc, char **argv)
{
    struct settings *s = calloc(1, sizeof *s);
    enum hd_status st;

    if (!hd_process_prepare_or_tell("heddle serve",
                                    &(struct hd_process_needs){.files = 64, .threads = 8}))
        return EXIT_FAILED;
    hd_log_init("heddle-serve", HD_LOG_INFO);
    hd_file_ignore_size_signal();
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        free(s);
        return hd_file_print(usage) ? EXIT_FAILED : EXIT_SUCCESS;
    }
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        free(s);
        return printf("heddle-serve %s\n", hd_version_text) < 0 ? EXIT_FAILED : EXIT_SUCCESS;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    st = s ? read_settings(argc - 1, argv + 1, s) : hd_err(HD_NO_MEMORY, "no memory");
    if (!st)
        st = serve_run(&s->serve);
    if (st)
        (void)fprintf(stderr, "heddle serve: %s\n", hd_err_message());
    if (s)
        free(s->hosts);
    free(s);
    return exit_code(st);
}
