/* epoch: decides which of several controllers of one cluster is the newest, and detects a database
 * that is older than the cluster's state.
 *
 * A copy of the database has the cluster's id, so nodes could follow both controllers. Each start
 * raises a number, the epoch, before anything is served; nodes keep the highest that they have seen
 * and refuse a lower one (services/fence.c). The epoch of a start on a copy, or on a restored
 * database, is a takeover: its number comes from the clock's seconds, so that of two takeovers from
 * one backup the later one leads, on whatever machines they run.
 *
 *   meta epoch, instance, place, inode   the newest start: its number, a random id, "DIR on HOST",
 *                                        and the inode of state.db
 *   meta progress                        a counter of commits, for nodes to compare (fence.c)
 *   meta takeover, taken_over_ms, copied_ms   the newest takeover: its epoch, its time, the time
 *                                             of the copy (0: unknown)
 *   meta copied                          in a backup: when it was made (ms); '' after a takeover
 *   meta fenced                          "EPOCH in PLACE" of the controller that has taken over
 *                                        from this one; '': none has
 *   meta take_over                       set by heddle-controller restore for the next start
 *   DIR/epoch                            epoch and place of the newest start in this directory,
 *                                        unaffected by copies of state.db; and the epoch in the
 *                                        header of state.db on the disk at that time
 *   application_id, in that header       the low 31 bits of the epoch
 *
 * The directory is locked, so an earlier controller of the same directory has ended: a database
 * restored there takes over without confirmation. A copy in another place is refused until a user
 * confirms that the first controller is gone.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/digits.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "controller/store/store_internal.h"
#include "pki/pki.h"

enum {
    EPOCH_FILE_BYTES_MAX = 4096,
    PLACE_DIR_MAX = 400, /* most bytes of the directory's path in a place ("DIR on HOST") */
    WAL_HEADER_BYTES = 32,
};
/* Distance of a takeover's epoch from the highest known one, for the case that the clock's seconds
 * are not higher: more starts than a controller makes after a backup. */
#define TAKEOVER_STRIDE ((uint64_t)1 << 20)
/* Origin of the seconds that are used as epochs of takeovers: 2020-01-01 UTC, so that 31 bits last
 * until 2088. */
#define TAKEOVER_BEGIN_MS INT64_C(1577836800000)

static const char epoch_format[] = "epoch %" PRIu64 "\nheader %u\ncluster %s\nplace %s\n";

/* ---- values -----------------------------------------------------------------------------------*/

enum hd_status store_db_get_meta(struct store_db *db, const char *key, char *ret_value, size_t size)
{
    char sql[96];

    (void)snprintf(sql, sizeof sql, "SELECT value FROM meta WHERE key = '%s'", key);
    return store_db_read_text(db, sql, ret_value, size);
}

enum hd_status store_db_put_meta(struct store_db *db, const char *key, const char *value)
{
    return store_db_run(db, STORE_PUT_META, "tt", key, value);
}

static enum hd_status get_number(struct store_db *db, const char *key, uint64_t *ret_number)
{
    char text[32];
    enum hd_status st = store_db_get_meta(db, key, text, sizeof text);

    *ret_number = st ? 0 : strtoull(text, NULL, 10);
    return st;
}

static enum hd_status put_number(struct store_db *db, const char *key, uint64_t number)
{
    char text[32];

    (void)snprintf(text, sizeof text, "%" PRIu64, number);
    return store_db_put_meta(db, key, text);
}

/* ---- the directory ----------------------------------------------------------------------------*/

static void name_place(const char *dir, char ret_place[HD_STORE_PLACE_MAX])
{
    char host[256] = "?", whole[HD_CTL_PATH_BYTES_MAX];
    const char *path = realpath(dir, whole) ? whole : dir;
    const size_t length = strlen(path);

    (void)gethostname(host, sizeof host - 1);
    (void)snprintf(ret_place, HD_STORE_PLACE_MAX, "%s%s on %.64s",
                   length > PLACE_DIR_MAX ? ".." : "",
                   length > PLACE_DIR_MAX ? path + length - PLACE_DIR_MAX : path, host);
    for (char *c = ret_place; *c; c++) /* the place is stored as one line of a file */
        if (*c == '\n')
            *c = '?';
}

static uint64_t find_inode(const struct store_db *db)
{
    struct stat info;

    return stat(db->path, &info) == 0 ? (uint64_t)info.st_ino : 0;
}

/* Reads the first bytes of a file. False: the file is missing, shorter, or not a regular file.
 * Never waits for a pipe. */
static bool read_start(const char *dir, const char *name, unsigned char *ret_bytes, size_t count)
{
    char path[HD_CTL_PATH_BYTES_MAX];
    bool is_read;
    int fd;

    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path ||
        hd_file_open_regular("", path, &fd))
        return false;
    is_read = hd_file_pread_all(fd, ret_bytes, count, 0) == HD_OK;
    (void)close(fd);
    return is_read;
}

static unsigned int take_header(const unsigned char h[4])
{
    return (unsigned int)h[0] << 24 | (unsigned int)h[1] << 16 | (unsigned int)h[2] << 8 | h[3];
}

/* Returns the epoch in the header of state.db on the disk; 0: none. Call it only while the database
 * is not open in this process: closing the file would release SQLite's locks. */
static unsigned int read_header(const char *dir)
{
    unsigned char header[72];

    return read_start(dir, "state.db", header, sizeof header) ? take_header(header + 68) : 0;
}

/* Returns the epoch in the file header of an open database. */
static unsigned int read_open_header(struct store_db *db)
{
    unsigned char header[4];
    sqlite3_file *file = NULL;

    if (sqlite3_file_control(db->sqlite, "main", SQLITE_FCNTL_FILE_POINTER, &file) != SQLITE_OK ||
        !file || !file->pMethods ||
        file->pMethods->xRead(file, header, sizeof header, 68) != SQLITE_OK)
        return 0;
    return take_header(header);
}

/* Returns the epoch of the newest start in this directory, from DIR/epoch; 0: none, or the file
 * belongs to another directory. */
static uint64_t read_here(const struct store_db *db, const char *dir, const char *place)
{
    char path[HD_CTL_PATH_BYTES_MAX], expected[HD_STORE_PLACE_MAX + 128];
    struct hd_text text = {0};
    uint64_t number = 0;
    unsigned int header;

    (void)snprintf(path, sizeof path, "%s/epoch", dir);
    if (hd_file_read(path, EPOCH_FILE_BYTES_MAX, &text) == HD_OK && text.data &&
        sscanf(text.data, "epoch %" SCNu64 "\nheader %u", &number, &header) == 2) {
        (void)snprintf(expected, sizeof expected, epoch_format, number, header, db->cluster_id,
                       place);
        if (strcmp(expected, text.data) != 0)
            number = 0;
    }
    hd_text_free(&text);
    return number;
}

void store_read_epoch_cluster(const char *dir, char ret_id[HD_JOBS_SHARE_MAX])
{
    static const char word[] = "\ncluster ";
    char path[HD_CTL_PATH_BYTES_MAX];
    struct hd_text text = {0};
    const char *found = NULL;

    (void)snprintf(path, sizeof path, "%s/epoch", dir);
    if (hd_file_read(path, EPOCH_FILE_BYTES_MAX, &text) == HD_OK && text.data)
        found = strstr(text.data, word);
    found = found ? found + strlen(word) : "";
    (void)snprintf(ret_id, HD_JOBS_SHARE_MAX, "%.*s", (int)strcspn(found, "\n"), found);
    hd_text_free(&text);
}

/* Writes the file DIR/epoch: the epoch and the place ("DIR on HOST") of this start of the
 * controller. A failure is only logged, so that the controller starts on a full disk, too. */
static void write_here(struct store_db *db, const char *dir, const struct hd_store_epoch *e)
{
    char path[HD_CTL_PATH_BYTES_MAX];
    struct hd_text text = {0};

    (void)snprintf(path, sizeof path, "%s/epoch", dir);
    hd_text_add(&text, epoch_format, e->number, read_open_header(db), db->cluster_id, e->place);
    if (text.failed || hd_file_write_atomic(path, text.data, text.len_bytes, 0600))
        hd_log(HD_LOG_WARN, "cannot write %s: %s", path, hd_err_message());
    hd_text_free(&text);
}

/* ---- raising the epoch ------------------------------------------------------------------------*/

struct known_epoch {
    uint64_t number, takeover, inode, here; /* epochs that were found; here: the one in DIR/epoch;
                                             * 0: none */
    uint64_t copied_ms, taken_over_ms, asked, fenced;
    char place[HD_STORE_PLACE_MAX], fenced_by[HD_STORE_PLACE_MAX + 24];
};

static enum hd_status find_field(struct store_db *db, struct known_epoch *ret)
{
    enum hd_status st = get_number(db, "epoch", &ret->number);

    if (!st)
        st = get_number(db, "takeover", &ret->takeover);
    if (!st)
        st = get_number(db, "inode", &ret->inode);
    if (!st)
        st = get_number(db, "copied", &ret->copied_ms);
    if (!st)
        st = get_number(db, "taken_over_ms", &ret->taken_over_ms);
    if (!st)
        st = get_number(db, "take_over", &ret->asked);
    if (!st)
        st = store_db_get_meta(db, "place", ret->place, sizeof ret->place);
    if (!st)
        st = store_db_get_meta(db, "fenced", ret->fenced_by, sizeof ret->fenced_by);
    ret->fenced = strtoull(ret->fenced_by, NULL, 10);
    return st;
}

static enum hd_status refuse_fenced(const struct store_db *db, const char *dir,
                                    const struct known_epoch *f)
{
    return hd_err(
        HD_CONFLICT,
        "another controller of this cluster has taken over from the one of %s (epoch %s): "
        "two must not lead the same nodes. If that controller is gone for good: "
        "heddle-controller restore --state-dir %s, and start this one again",
        db->path, f->fenced_by, dir);
}

static enum hd_status refuse_copy(const struct store_db *db, const char *dir,
                                  const struct known_epoch *f)
{
    char when[HD_CLOCK_TEXT_MAX], made[HD_CLOCK_TEXT_MAX + 24] = "";

    hd_clock_format_utc((int64_t)f->copied_ms, when);
    if (f->copied_ms)
        (void)snprintf(made, sizeof made, ", made at %s", when);
    return hd_err(HD_CONFLICT,
                  "%s is a copy%s of the database of the controller in %s (epoch %" PRIu64
                  "): two must not lead the same nodes. If that controller is gone for good, or "
                  "its state directory has moved here: heddle-controller restore --state-dir %s, "
                  "and start this one again",
                  db->path, made, f->place[0] ? f->place : "another place", f->number, dir);
}

/* Decides whether the database may be used by this start. Sets *ret_takes_over to whether the start
 * is a takeover, because the database is a copy or was restored. */
static enum hd_status judge(const struct store_db *db, const char *dir, const struct known_epoch *f,
                            const char *place, bool take_over, bool *ret_takes_over)
{
    const uint64_t inode = find_inode(db);
    const bool same_place = strcmp(f->place, place) == 0, same_file = f->inode == inode;
    const bool is_copy = f->copied_ms || (f->number && !same_place && !same_file);

    *ret_takes_over =
        is_copy || take_over || f->here > f->number || (f->number && same_place && !same_file);
    if (take_over)
        return HD_OK;
    if (f->fenced && f->here <= f->number)
        return refuse_fenced(db, dir, f);
    return is_copy && !f->here && !same_place ? refuse_copy(db, dir, f) : HD_OK;
}

static uint64_t greatest(const struct known_epoch *f)
{
    uint64_t number = f->number > f->here ? f->number : f->here;

    return number > f->fenced ? number : f->fenced;
}

uint64_t store_takeover_epoch(uint64_t known, int64_t wall_ms)
{
    const int64_t seconds = (wall_ms - TAKEOVER_BEGIN_MS) / 1000;

    return seconds > 0 && (uint64_t)seconds > known && seconds <= INT32_MAX
               ? (uint64_t)seconds
               : known + TAKEOVER_STRIDE;
}

static enum hd_status make_ids(struct store_db *db, struct hd_store_epoch *e)
{
    char secret[HD_PKI_HASH_TEXT_MAX];
    enum hd_status st = hd_hex_make_id(e->instance);

    if (!st)
        st = store_db_get_meta(db, "secret", secret, sizeof secret);
    if (!st && !hd_pki_parse_hash(secret, e->secret)) { /* the database has no secret yet */
        st = hd_pki_make_secret(secret);
        if (!st)
            st = store_db_put_meta(db, "secret", secret);
        if (!st)
            (void)hd_pki_parse_hash(secret, e->secret);
    }
    explicit_bzero(secret, sizeof secret);
    return st;
}

static enum hd_status put_all(struct store_db *db, const struct hd_store_epoch *e, uint64_t inode)
{
    enum hd_status st = put_number(db, "epoch", e->number);

    if (!st)
        st = put_number(db, "takeover", e->takeover);
    if (!st)
        st = put_number(db, "taken_over_ms", (uint64_t)e->taken_over_ms);
    if (!st)
        st = put_number(db, "copied_ms", (uint64_t)e->copied_ms);
    if (!st)
        st = store_db_put_meta(db, "instance", e->instance);
    if (!st)
        st = store_db_put_meta(db, "place", e->place);
    if (!st)
        st = put_number(db, "inode", inode);
    if (!st)
        st = store_db_put_meta(db, "copied", ""); /* the database is no longer a copy */
    if (!st)
        st = store_db_put_meta(db, "fenced", "");
    return st ? st : store_db_put_meta(db, "take_over", "");
}

static enum hd_status write_epoch(struct store_db *db, struct hd_store_epoch *e, uint64_t inode)
{
    char sql[64];
    struct hd_error first;
    enum hd_status st = store_db_run(db, STORE_BEGIN, "");

    (void)snprintf(sql, sizeof sql, "PRAGMA application_id = %u",
                   (unsigned int)(e->number & 0x7fffffff));
    if (!st)
        st = make_ids(db, e);
    if (!st)
        st = put_all(db, e, inode);
    if (!st && sqlite3_exec(db->sqlite, sql, NULL, NULL, NULL) != SQLITE_OK)
        st = store_db_error(db, "cannot set the epoch");
    if (!st)
        st = store_db_run(db, STORE_COMMIT, "");
    if (st && !sqlite3_get_autocommit(db->sqlite)) {
        hd_err_save(st, &first);
        (void)store_db_run(db, STORE_ROLLBACK, "");
        st = hd_err_restore(&first);
    }
    return st;
}

enum hd_status store_begin_epoch(struct store_db *db, const char *dir, bool on_disk, bool take_over,
                                 struct hd_store_epoch *ret_epoch)
{
    struct hd_store_epoch *e = ret_epoch;
    struct known_epoch f = {0};
    uint64_t copied_ms = 0, settled_ms = 0;
    enum hd_status st = find_field(db, &f);

    *e = (struct hd_store_epoch){.takeover = f.takeover};
    if (!st)
        st = get_number(db, "progress", &e->progress);
    if (!st)
        st = get_number(db, "settled_ms", &settled_ms);
    if (!st)
        st = get_number(db, "copied_ms", &copied_ms);
    e->settled_ms = (int64_t)settled_ms;
    name_place(dir, e->place);
    f.here = on_disk ? read_here(db, dir, e->place) : 0;
    if (!st && on_disk)
        st = judge(db, dir, &f, e->place, take_over || f.asked, &e->restored);
    if (st)
        return st;
    e->taken_over_ms = e->restored ? hd_clock_wall_ms() : (int64_t)f.taken_over_ms;
    e->number =
        e->restored ? store_takeover_epoch(greatest(&f), e->taken_over_ms) : greatest(&f) + 1;
    e->copied_ms = (int64_t)(e->restored ? f.copied_ms : copied_ms);
    if (e->restored)
        e->takeover = e->number;
    st = write_epoch(db, e, on_disk ? find_inode(db) : 0);
    if (!st && on_disk) {
        /* checkpoints the log, so that the header with the new epoch is on the disk; a running
         * backup may prevent it */
        (void)sqlite3_wal_checkpoint_v2(db->sqlite, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
        write_here(db, dir, e);
    }
    return st;
}

/* ---- the log beside the database --------------------------------------------------------------*/

/* Returns the epoch of the database header that was recorded in DIR/epoch; 0: none. */
static unsigned int read_kept_header(const char *dir)
{
    char text[64] = "";
    unsigned char bytes[sizeof text - 1];
    unsigned int header = 0;
    uint64_t number;

    if (!read_start(dir, "epoch", bytes, sizeof bytes))
        return 0;
    memcpy(text, bytes, sizeof bytes);
    return sscanf(text, "epoch %" SCNu64 "\nheader %u", &number, &header) == 2 ? header : 0;
}

/* Refuses a write-ahead log that belongs to another database. Bytes 18 and 19 of the database
 * header are 2 if it keeps a log, and 1 in a backup, into which SQLite would still write the log's
 * pages. A database file of an earlier epoch has a lower epoch in its header than DIR/epoch
 * recorded. */
enum hd_status store_check_log(const char *dir)
{
    unsigned char header[20], log[WAL_HEADER_BYTES + 1];
    char path[HD_CTL_PATH_BYTES_MAX];

    if ((size_t)snprintf(path, sizeof path, "%s/state.db-wal", dir) >= sizeof path)
        return hd_err(HD_INVALID, "the path %s is too long", dir);
    if (hd_file_check_regular(path))
        return HD_INVALID; /* SQLite would wait for a pipe */
    if (!read_start(dir, "state.db", header, sizeof header) ||
        !read_start(dir, "state.db-wal", log, sizeof log) || log[0] != 0x37 || log[1] != 0x7f ||
        (header[18] != 1 && read_header(dir) >= read_kept_header(dir)))
        return HD_OK;
    return hd_err(
        HD_CONFLICT,
        "%s/state.db was put there beside state.db-wal, the log of the database that was there "
        "before: together they would be a mixture of both. To use this state.db, move state.db-wal "
        "and state.db-shm to another folder and start again; to use the former one, put its "
        "state.db "
        "back",
        dir);
}
