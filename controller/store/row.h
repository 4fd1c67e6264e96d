/* row: columns and rows of the database as values and records; for the files of controller/store.
 *
 * A string or array that a function returns lives in the arena; a string is never NULL. Columns are
 * numbered from 0.
 *
 * fields.c has single columns and records, row.c what is made of them.
 *
 * Used by: read.c, load.c, identity.c.   Uses: db.c.
 */
#ifndef HEDDLE_STORE_ROW_H
#define HEDDLE_STORE_ROW_H

#include "controller/store/store_internal.h"

/* Returns a copy of a text column; "": empty, NULL, or out of memory (then the arena has failed). */
const char *store_row_text(struct hd_arena *arena, sqlite3_stmt *s, int column);
/* Copies a hash; false: the column has another length. */
bool store_row_hash(sqlite3_stmt *s, int column, unsigned char ret_hash[HD_CREDENTIAL_HASH_BYTES]);

/* Returns an array that holds at least one item more than `count`; NULL: out of memory. */
void *store_row_grow(struct hd_arena *arena, void *array, size_t count, size_t item_bytes);
/* Sets the message for lack of memory and returns HD_NO_MEMORY. */
enum hd_status store_row_no_memory(void);

/* Sets the fields of a record (zeroed) from the columns {TABLE}, of which `first` is the first one.
 * HD_CORRUPT: this build cannot read one of them. */
enum hd_status store_get(struct hd_arena *arena, sqlite3_stmt *s, int first,
                         const struct hd_table *table, void *ret_record);
/* Does so with a job; with_spec false: leaves its spec out. */
enum hd_status store_row_job(struct hd_arena *arena, sqlite3_stmt *s, bool with_spec,
                             struct hd_job_record *ret_job);
/* Does so with the step in a row of a history; the message names it. */
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
