/* imitation-s3: an object store of the files below DIR, for scenarios and for trying by hand.
 *
 *     imitation-s3 PORT_FILE DIR [PACE_MS]
 *
 * DIR/BUCKET/KEY; what is uploaded is written there, too. The keys are those of AWS_ACCESS_KEY_ID
 * and AWS_SECRET_ACCESS_KEY. Writes the port to PORT_FILE and answers until it is killed; then, by
 * SIGTERM, prints bytes sent, bytes received, and uploads in parts that are left.
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
#include "tests/imitation_s3/s3.h"

enum { OBJECT_BYTES_MAX = 1 << 30 };

static void add_below(struct imitation_s3 *s3, const char *root, const char *bucket,
                      const char *below)
{
    char path[4096], name[1025];
    const struct dirent *entry;
    DIR *dir;

    (void)snprintf(path, sizeof path, "%s/%s/%s", root, bucket, below);
    dir = opendir(path);
    while (dir && (entry = readdir(dir))) {
        struct hd_text bytes = {0};
        struct stat info;

        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(name, sizeof name, "%s%s%s", below, *below ? "/" : "", entry->d_name);
        (void)snprintf(path, sizeof path, "%s/%s/%s", root, bucket, name);
        if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
            add_below(s3, root, bucket, name);
        else if (hd_file_read(path, OBJECT_BYTES_MAX, &bytes) == HD_OK)
            imitation_s3_put(s3, bucket, name, bytes.data ? bytes.data : "", bytes.len_bytes);
        hd_text_free(&bytes);
    }
    if (dir)
        (void)closedir(dir);
}

int main(int argc, char **argv)
{
    static struct imitation_s3 s3;
    const struct dirent *bucket;
    sigset_t set;
    int number;
    char port[16];
    DIR *dir;

    if (argc < 3)
        return 2;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    s3.id = getenv("AWS_ACCESS_KEY_ID");
    s3.secret = getenv("AWS_SECRET_ACCESS_KEY");
    dir = opendir(argv[2]);
    while (dir && (bucket = readdir(dir)))
        if (bucket->d_name[0] != '.')
            add_below(&s3, argv[2], bucket->d_name, "");
    if (dir)
        (void)closedir(dir);
    s3.root = argv[2];
    s3.pace_ms = argc > 3 ? atoi(argv[3]) : 0;
    imitation_s3_start(&s3);
    (void)snprintf(port, sizeof port, "%d\n", s3.port);
    if (hd_file_write_atomic(argv[1], port, strlen(port), 0644))
        return 1;
    (void)sigwait(&set, &number);
    (void)printf("%lld %lld %d\n", (long long)s3.sent_bytes, (long long)s3.received_bytes,
                 imitation_s3_uploads(&s3));
    return 0;
}
