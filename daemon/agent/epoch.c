#include "daemon/agent/epoch.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/digits.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

enum { EPOCH_FILE_BYTES_MAX = 4096 };

/* Finds the text behind `word` and a blank at the beginning of a line. Returns false if there is
 * no such line. */
static bool find_value(const char *text, const char *word, char *ret_value, size_t size)
{
    const size_t length = strlen(word);

    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, word, length) == 0 && line[length] == ' ') {
            (void)snprintf(ret_value, size, "%.*s", (int)strcspn(line + length + 1, "\n"),
                           line + length + 1);
            return true;
        }
    }
    return false;
}

static bool read_proof(const char *hex, uint8_t ret_proof[AGENT_EPOCH_PROOF_BYTES])
{
    for (size_t i = 0; i < AGENT_EPOCH_PROOF_BYTES; i++) {
        unsigned int byte;

        if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
            return false;
        ret_proof[i] = (uint8_t)byte;
    }
    return true;
}

static bool parse(const char *text, struct agent_epoch *ret)
{
    char number[32], progress[32], proof[2 * AGENT_EPOCH_PROOF_BYTES + 1];

    if (!find_value(text, "cluster", ret->cluster, sizeof ret->cluster) ||
        !find_value(text, "number", number, sizeof number) ||
        !find_value(text, "instance", ret->instance, sizeof ret->instance) ||
        !find_value(text, "progress", progress, sizeof progress) ||
        !find_value(text, "proof", proof, sizeof proof) ||
        !find_value(text, "place", ret->place, sizeof ret->place))
        return false;
    ret->number = strtoull(number, NULL, 10);
    ret->progress = strtoull(progress, NULL, 10);
    return ret->number && strlen(proof) == sizeof proof - 1 && read_proof(proof, ret->proof);
}

void agent_epoch_read(const char *state_dir, struct agent_epoch *ret_epoch)
{
    char path[PATH_MAX + 16];
    struct agent_epoch epoch = {0};
    struct hd_text text = {0};
    enum hd_status st;

    *ret_epoch = epoch;
    (void)snprintf(path, sizeof path, "%s/epoch", state_dir);
    st = hd_file_read(path, EPOCH_FILE_BYTES_MAX, &text);
    if (!st && text.data && parse(text.data, &epoch))
        *ret_epoch = epoch;
    else if (st != HD_NOT_FOUND)
        hd_log(HD_LOG_WARN,
               "%s cannot be read: until the next connection this node does not know which "
               "controller it has obeyed",
               path);
    hd_text_free(&text);
}

enum hd_status agent_epoch_compare(struct agent_epoch *known, const struct agent_epoch *seen,
                                   bool *ret_changed)
{
    const bool same_cluster = strcmp(known->cluster, seen->cluster) == 0;
    const bool same_start = strcmp(known->instance, seen->instance) == 0;
    const int64_t written_ms = known->written_ms;

    *ret_changed = false;
    if (same_cluster &&
        (seen->number < known->number || (seen->number == known->number && !same_start)))
        return hd_err(HD_CONFLICT,
                      "it is the controller in %s with epoch %" PRIu64
                      ", but this node has obeyed the one in %s with epoch %" PRIu64
                      ": two controllers of one cluster run, or one was started on an old copy of "
                      "the database. Stop the wrong one; to have this one lead: heddle-controller "
                      "restore --state-dir DIR on its machine, and start it again",
                      seen->place, seen->number, known->place, known->number);
    *ret_changed = !same_cluster || !same_start || seen->number != known->number;
    *known = *seen;
    known->written_ms = written_ms;
    return HD_OK;
}

enum hd_status agent_epoch_write(const char *state_dir, struct agent_epoch *epoch)
{
    char path[PATH_MAX + 16], proof[2 * AGENT_EPOCH_PROOF_BYTES + 1];
    struct hd_text text = {0};
    enum hd_status st;

    (void)snprintf(path, sizeof path, "%s/epoch", state_dir);
    hd_text_add(&text, "cluster %s\nnumber %" PRIu64 "\ninstance %s\nprogress %" PRIu64 "\nproof ",
                epoch->cluster, epoch->number, epoch->instance, epoch->progress);
    hd_hex_format(epoch->proof, sizeof epoch->proof, proof);
    hd_text_add(&text, "%s\nplace %s\n", proof, epoch->place);
    st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for %s", path)
                     : hd_file_write_atomic(path, text.data, text.len_bytes, 0600);
    hd_text_free(&text);
    epoch->written_ms = hd_clock_now_ms();
    return st;
}
