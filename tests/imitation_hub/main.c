/* imitation-hub: serves the folders below DIR as repositories, for scenarios and for trying by hand.
 *
 *     imitation-hub PORT_FILE DIR [PACE_MS]
 *
 * DIR/models/ORG/NAME/FILE, DIR/datasets/ORG/NAME/FILE. Files of 4 KiB and more are large. Writes
 * the port to PORT_FILE and answers until it is killed; then, by SIGTERM, prints the bytes of files
 * that it has sent.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "tests/imitation_hub/imitation.h"

enum { LARGE_BYTES = 4096, FILE_BYTES_MAX = 1 << 30 };

static void add_folder(struct imitation_repo *repo, const char *folder, const char *below)
{
    char path[4096];
    const struct dirent *entry;
    DIR *dir;

    (void)snprintf(path, sizeof path, "%s/%s", folder, below);
    dir = opendir(path);
    while (dir && (entry = readdir(dir))) {
        struct hd_text bytes = {0};
        char name[1024];
        struct stat info;

        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(name, sizeof name, "%s%s%s", below, *below ? "/" : "", entry->d_name);
        (void)snprintf(path, sizeof path, "%s/%s", folder, name);
        if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
            add_folder(repo, folder, name);
        else if (hd_file_read(path, FILE_BYTES_MAX, &bytes) == HD_OK)
            imitation_add(repo, strdup(name), bytes.data ? bytes.data : "", bytes.len_bytes,
                          bytes.len_bytes >= LARGE_BYTES);
    }
    if (dir)
        (void)closedir(dir);
}

static void add_kind(struct imitation *hub, const char *root, const char *kind, bool is_dataset)
{
    char orgs[1024], names[2048], folder[4096];
    const struct dirent *org, *name;
    DIR *outer, *inner;

    (void)snprintf(orgs, sizeof orgs, "%s/%s", root, kind);
    outer = opendir(orgs);
    while (outer && (org = readdir(outer))) {
        if (org->d_name[0] == '.')
            continue;
        (void)snprintf(names, sizeof names, "%s/%s", orgs, org->d_name);
        inner = opendir(names);
        while (inner && (name = readdir(inner))) {
            struct imitation_repo *repo = &hub->repos[hub->repo_count];
            char id[600];

            if (name->d_name[0] == '.' || hub->repo_count == IMITATION_REPOS_MAX)
                continue;
            (void)snprintf(id, sizeof id, "%s/%s", org->d_name, name->d_name);
            (void)snprintf(folder, sizeof folder, "%s/%s", names, name->d_name);
            repo->id = strdup(id);
            repo->is_dataset = is_dataset;
            repo->commit = "0123456789abcdef0123456789abcdef01234567";
            add_folder(repo, folder, "");
            hub->repo_count++;
        }
        if (inner)
            (void)closedir(inner);
    }
    if (outer)
        (void)closedir(outer);
}

int main(int argc, char **argv)
{
    static struct imitation hub;
    sigset_t set;
    int number;
    char port[16];

    if (argc < 3)
        return 2;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    hub.pace_ms = argc > 3 ? atoi(argv[3]) : 0;
    add_kind(&hub, argv[2], "models", false);
    add_kind(&hub, argv[2], "datasets", true);
    imitation_start(&hub);
    (void)snprintf(port, sizeof port, "%d\n", hub.port);
    if (hd_file_write_atomic(argv[1], port, strlen(port), 0644))
        return 1;
    (void)sigwait(&set, &number);
    (void)printf("%lld\n", (long long)hub.sent_bytes);
    return 0;
}
