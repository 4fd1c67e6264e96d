/* heddle-serve: serves a model by HTTP; `heddle serve` executes this program. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static enum hd_status read_settings(int argc, char **argv, struct settings *s)
{
    struct hd_decoder_options *d = &s->serve.work.decoder;
    struct hd_http_options *o = &s->serve.http;
    const char *device = "cpu", *hosts = NULL;
    int64_t body_kib = 4096, timeout_s = 600, grace_s = 30;
    struct hd_flag f[] = {HD_FLAGS_OF_DECODER(*d),
                          HD_FLAG_INT("--draft", d->drafts, 0, HD_DECODER_DRAFTS_MAX),
                          HD_FLAG_INT64("--context", d->context, 1, 1 << 24),
                          HD_FLAG_INT("--sequences", d->slots, 1, HD_DECODER_SLOTS_MAX),
                          HD_FLAG_TEXT("--device", device),
                          HD_FLAG_TEXT("--listen", o->address),
                          HD_FLAG_TEXT("--name", s->serve.name),
                          HD_FLAG_TEXT("--template", s->serve.work.template_path),
                          HD_FLAG_TEXT("--date", s->serve.work.date),
                          HD_FLAG_TEXT("--cert", o->cert_path),
                          HD_FLAG_TEXT("--key", o->key_path),
                          HD_FLAG_TEXT("--tokens", s->serve.token_file),
                          HD_FLAG_TEXT("--http-host", hosts),
                          HD_FLAG_INT64("--queue", s->serve.queue_max, 1, 1 << 20),
                          HD_FLAG_INT64("--body-max", body_kib, 1, 1 << 20),
                          HD_FLAG_INT64("--timeout", timeout_s, 1, 86400),
                          HD_FLAG_INT64("--grace", grace_s, 0, 86400)};
    enum hd_status st;

    d->threads = hd_flags_threads(HD_FLAG_THREADS_MAX);
    d->slots = SLOTS_DEFAULT;
    o->address = "127.0.0.1:8000";
    s->serve.work.date = "";
    s->serve.queue_max = QUEUE_DEFAULT;
    st = HD_FLAGS_READ(argc, argv, f);
    if (!st)
        st = choose_hosts(s, hosts);
    if (st)
        return st;
    o->body_bytes_max = (size_t)body_kib * 1024;
    s->serve.timeout_ms = timeout_s * 1000;
    s->serve.grace_ms = grace_s * 1000;
    o->stream_bytes_max = STREAM_BYTES;
    o->connections_max = CONNECTIONS;
    return hd_plugin_backend(device, &d->backend);
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
    int answered;

    if (!hd_process_prepare_or_tell("heddle serve",
                                    &(struct hd_process_needs){.files = 64, .threads = 8}))
        return EXIT_FAILED;
    hd_log_init("heddle-serve", HD_LOG_INFO);
    hd_file_ignore_size_signal();
    answered = hd_flags_answer(argc, argv, usage, "heddle-serve", hd_version_text);
    if (answered) {
        free(s);
        return answered < 0 ? EXIT_FAILED : EXIT_SUCCESS;
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
