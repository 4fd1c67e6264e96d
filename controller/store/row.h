/* row: columns and rows of the database as values and records; for the files of controller/store.
 *
 * A string or array that a function returns lives in the arena; a string is never NULL. Columns are
 * numbered from 0.
 *
 * Used by: read.c, load.c, identity.c.   Uses: db.c.
 */
#ifndef HEDDLE_STORE_ROW_H
#define HEDDLE_STORE_ROW_H

#include "controller/store/store_internal.h"

/* Returns a copy of a text column; "": empty, NULL, or out of memory (then the arena has failed). */
const char *store_row_text(struct hd_arena *arena, sqlite3_stmt *s, int column);
double store_row_real(sqlite3_stmt *s, int column); /* a column of NULL is NaN */
int32_t store_row_int(sqlite3_stmt *s, int column);
int64_t store_row_long(sqlite3_stmt *s, int column);

/* Returns the enum number of a stored word; 0: this build has no such word. */
int store_row_job_state(sqlite3_stmt *s, int column);
int store_row_node_state(sqlite3_stmt *s, int column);
int store_row_device_kind(sqlite3_stmt *s, int column);
int store_row_credential_kind(sqlite3_stmt *s, int column);

/* Returns an array that holds at least one item more than `count`; NULL: out of memory. */
void *store_row_grow(struct hd_arena *arena, void *array, size_t count, size_t item_bytes);
/* Sets the message for lack of memory and returns HD_NO_MEMORY. */
enum hd_status store_row_no_memory(void);

/* Returns the job in a row of STORE_JOB_COLUMNS; with_spec: the column `spec` follows them. */
struct hd_job_record store_row_job(struct hd_arena *arena, sqlite3_stmt *s, bool with_spec);
struct hd_checkpoint_record store_row_checkpoint(struct hd_arena *arena, sqlite3_stmt *s,
                                                 uint64_t job);
struct hd_position_record store_row_position(sqlite3_stmt *s, uint64_t job);
/* Sets *ret_step to the step in a row. HD_CORRUPT: its metrics cannot be unpacked. */
enum hd_status store_row_step(struct hd_arena *arena, sqlite3_stmt *s, uint64_t job,
                              struct hd_step_record *ret_step);
/* Sets *ret_attempts to the attempts of a job, by number, each with its ranks. HD_CORRUPT: this
 * build cannot read the layout of one. */
enum hd_status store_row_attempts(struct store_db *db, struct hd_arena *arena, uint64_t job,
                                  struct hd_attempt_record **ret_attempts, size_t *ret_count);
/* Sets *ret_number to the single number that a statement about a job returns; 0: no row, or NULL. */
enum hd_status store_row_number(struct store_db *db, enum store_statement statement, uint64_t job,
                                int64_t *ret_number);

#endif
