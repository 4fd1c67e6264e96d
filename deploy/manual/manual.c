/* heddle-manual: writes the manual pages and what shells complete by, when Heddle is built.
 *
 *   heddle-manual FOLDER PROGRAM SUMMARY...     for heddle itself, and for each daemon PROGRAM with
 *                                               the line SUMMARY, whose --help is asked
 *
 * The pages are made of the help texts alone (controller/cli/page.h). Used by: the build.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "controller/cli/cli.h"
#include "controller/cli/page.h"
#include "version/version.h"

static void die(const char *what)
{
    (void)fprintf(stderr, "heddle-manual: %s: %s\n", what, hd_err_message());
    exit(EXIT_FAILURE);
}

static void write_page(const char *folder, const char *name, int section, const char *summary,
                       const char *help, const char *see_also)
{
    char path[4096];
    struct hd_text text = {0};

    page_manual(name, section, summary, help, see_also, hd_version, &text);
    (void)snprintf(path, sizeof path, "%s/%s.%d", folder, name, section);
    if (text.failed || hd_file_write_atomic(path, text.data, text.len_bytes, 0644))
        die(path);
    hd_text_free(&text);
}

static void write_commands(const char *folder)
{
    char name[64];

    for (size_t i = 0; i < cli_command_count; i++) {
        struct hd_text help = {0};

        cli_add_help(&cli_commands[i], &help);
        if (help.failed)
            die("no memory");
        (void)snprintf(name, sizeof name, "heddle-%s", cli_commands[i].name);
        write_page(folder, name, 1, cli_commands[i].summary, help.data, "heddle(1)");
        hd_text_free(&help);
    }
}

/* heddle(1): what `heddle --help` says, and a list of the pages of the commands. */
static void write_overview(const char *folder)
{
    struct hd_text help = {0}, also = {0};

    cli_overview(&help);
    for (size_t i = 0; i < cli_command_count; i++)
        hd_text_add(&also, "heddle-%s(1), ", cli_commands[i].name);
    hd_text_add(&also, "heddle-controller(8), heddled(8)");
    if (help.failed || also.failed)
        die("no memory");
    write_page(folder, "heddle", 1, "train language models on a cluster", help.data, also.data);
    hd_text_free(&help);
    hd_text_free(&also);
}

static void write_daemon(const char *folder, const char *program, const char *summary)
{
    const char *slash = strrchr(program, '/'), *name = slash ? slash + 1 : program;
    struct hd_text help = {0};
    char command[4096], bytes[4096];
    FILE *pipe;
    size_t n;

    (void)snprintf(command, sizeof command, "'%s' --help", program);
    pipe = popen(command, "r");
    while (pipe && (n = fread(bytes, 1, sizeof bytes, pipe)) > 0)
        hd_text_add_bytes(&help, bytes, n);
    if (!pipe || pclose(pipe) != 0 || help.failed || !help.len_bytes)
        die(program);
    write_page(folder, name, 8, summary, help.data, "heddle(1), heddle-controller(8), heddled(8)");
    hd_text_free(&help);
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc % 2 != 0) {
        (void)fputs("Usage: heddle-manual FOLDER [PROGRAM SUMMARY]...\n", stderr);
        return EXIT_FAILURE;
    }
    if (hd_file_make_dirs(argv[1], 0755))
        die(argv[1]);
    write_overview(argv[1]);
    write_commands(argv[1]);
    for (int i = 2; i < argc; i += 2)
        write_daemon(argv[1], argv[i], argv[i + 1]);
    return EXIT_SUCCESS;
}
