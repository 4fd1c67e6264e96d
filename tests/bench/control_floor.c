#include "control.h"

#include <stdio.h>
#include <stdlib.h>

#include <sqlite3.h>

#include "base/random.h"
#include "pki/pki.h"

struct floor {
    sqlite3 *db;
    sqlite3_stmt *begin, *job, *event, *audit, *commit, *rollback;
    unsigned char hash[HD_PKI_HASH_BYTES];
    const void *spec;
    size_t spec_bytes;
    int64_t last_job;
};

static void expect(struct floor *floor, int code, int wanted)
{
    if (code == wanted)
        return;
    (void)fprintf(stderr, "control: the floor's database: %s\n", sqlite3_errmsg(floor->db));
    exit(2);
}

static sqlite3_stmt *prepare(struct floor *floor, const char *sql)
{
    sqlite3_stmt *statement = NULL;

    expect(floor, sqlite3_prepare_v2(floor->db, sql, -1, &statement, NULL), SQLITE_OK);
    return statement;
}

static void run(struct floor *floor, sqlite3_stmt *statement)
{
    expect(floor, sqlite3_step(statement), SQLITE_DONE);
    expect(floor, sqlite3_reset(statement), SQLITE_OK);
}

struct floor *floor_open(const char *dir, const void *spec, size_t spec_bytes)
{
    struct floor *floor = calloc(1, sizeof *floor);
    char path[256];

    if (!floor)
        abort();
    floor->spec = spec;
    floor->spec_bytes = spec_bytes;
    (void)snprintf(path, sizeof path, "%s/floor.db", dir);
    expect(floor, sqlite3_open(path, &floor->db), SQLITE_OK);
    expect(floor,
           sqlite3_exec(floor->db,
                        "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL;"
                        "PRAGMA synchronous = FULL;"
                        "CREATE TABLE jobs (job INTEGER PRIMARY KEY, request_id TEXT,"
                        " owner TEXT, name TEXT, state TEXT, spec BLOB);"
                        "CREATE INDEX jobs_state ON jobs (state, job);"
                        "CREATE INDEX jobs_owner ON jobs (owner, state, job);"
                        "CREATE TABLE events (job INTEGER, seq INTEGER, time_ms INTEGER,"
                        " attempt INTEGER, rank INTEGER, kind TEXT, node TEXT, message TEXT,"
                        " PRIMARY KEY (job, seq)) WITHOUT ROWID;"
                        "CREATE TABLE audit (seq INTEGER PRIMARY KEY, time_ms INTEGER, who TEXT,"
                        " role TEXT, method TEXT, object TEXT, source TEXT, result TEXT,"
                        " hash BLOB);",
                        NULL, NULL, NULL),
           SQLITE_OK);
    floor->begin = prepare(floor, "BEGIN IMMEDIATE");
    floor->job = prepare(floor, "INSERT INTO jobs VALUES (?, ?, 'uid:1000', 'tiny', 'queued', ?)");
    floor->event = prepare(floor, "INSERT INTO events VALUES (?, 1, 1700000000000, 0, -1,"
                                  " 'submitted', '', 'submitted by uid:1000')");
    floor->audit = prepare(floor, "INSERT INTO audit VALUES (?,?,?,?,?,?,?,?,?)");
    floor->commit = prepare(floor, "COMMIT");
    floor->rollback = prepare(floor, "ROLLBACK");
    return floor;
}

static void insert(struct floor *floor)
{
    unsigned char bytes[16];
    char id[33];

    if (hd_random_bytes(bytes, sizeof bytes))
        abort();
    for (size_t i = 0; i < sizeof bytes; i++)
        (void)snprintf(id + 2 * i, 3, "%02x", bytes[i]);
    floor->last_job++;
    (void)sqlite3_bind_int64(floor->job, 1, floor->last_job);
    (void)sqlite3_bind_text(floor->job, 2, id, -1, SQLITE_STATIC);
    (void)sqlite3_bind_blob64(floor->job, 3, floor->spec, floor->spec_bytes, SQLITE_STATIC);
    run(floor, floor->job);
    (void)sqlite3_bind_int64(floor->event, 1, floor->last_job);
    run(floor, floor->event);
}

void floor_insert(struct floor *floor, int64_t count)
{
    while (count > 0) {
        run(floor, floor->begin);
        for (int i = 0; i < IN_FLIGHT && count > 0; i++, count--)
            insert(floor);
        run(floor, floor->commit);
    }
}

static void audit(struct floor *floor, int64_t number)
{
    char object[32];
    const char *const texts[] = {"ann", "user", "SubmitJob", object, "ipv4:127.0.0.1:40000", "ok"};

    (void)snprintf(object, sizeof object, "job %lld", (long long)number);
    hd_pki_chain(floor->hash, (uint64_t)number, 1700000000000, texts, 6, floor->hash);
    (void)sqlite3_bind_int64(floor->audit, 1, number);
    (void)sqlite3_bind_int64(floor->audit, 2, 1700000000000);
    for (int i = 0; i < 6; i++)
        (void)sqlite3_bind_text(floor->audit, 3 + i, texts[i], -1, SQLITE_STATIC);
    (void)sqlite3_bind_blob64(floor->audit, 9, floor->hash, sizeof floor->hash, SQLITE_STATIC);
    run(floor, floor->audit);
}

void floor_audit(struct floor *floor, int64_t count)
{
    int64_t number = 0;

    while (count > 0) {
        run(floor, floor->begin);
        for (int i = 0; i < IN_FLIGHT && count > 0; i++, count--)
            audit(floor, ++number);
        run(floor, floor->rollback);
        number = 0;
    }
}

void floor_close(struct floor *floor)
{
    (void)sqlite3_finalize(floor->begin);
    (void)sqlite3_finalize(floor->job);
    (void)sqlite3_finalize(floor->event);
    (void)sqlite3_finalize(floor->audit);
    (void)sqlite3_finalize(floor->commit);
    (void)sqlite3_finalize(floor->rollback);
    (void)sqlite3_close(floor->db);
    free(floor);
}
