/* fields: records as rows of their tables, by the descriptions in core/records.def.
 *
 * The text of a statement may contain, for a table TABLE of HD_TABLE_LIST:
 *   {TABLE}        its columns
 *   {TABLE?}       their parameters, ?1 the first
 *   {TABLE=PUT}    assignments "column=?n" of the columns that are PUT; =SPEC: that are SPEC
 *   {TABLE:COLUMN} the parameter of one column
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "controller/store/row.h"

/* ---- statements -------------------------------------------------------------------------------*/

static const struct hd_table *const tables[] = {
#define X(table, record) &hd_table_##table,
    HD_TABLE_LIST(X)
#undef X
};

static const struct hd_table *find_table(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        if (strncmp(tables[i]->name, name, len) == 0 && !tables[i]->name[len])
            return tables[i];
    }
    return NULL;
}

/* Appends the SQL that takes the place of `{TABLE...}` in a statement: columns, parameters or
 * assignments. form: the rest of the placeholder behind the table's name, with the closing brace. */
static void expand(const struct hd_table *table, const char *form, struct hd_text *sql)
{
    const enum hd_field_when when = form[1] == 'S' ? HD_FIELD_SPEC : HD_FIELD_PUT;
    const char *comma = "";

    for (size_t i = 0; i < table->count; i++) {
        const struct hd_field *field = &table->fields[i];

        if (*form == '=' && field->when == when)
            hd_text_add(sql, "%s%s=?%zu", comma, field->column, i + 1);
        else if (*form == '?')
            hd_text_add(sql, "%s?%zu", comma, i + 1);
        else if (*form == '}')
            hd_text_add(sql, "%s%s", comma, field->column);
        else if (*form == ':' && strncmp(form + 1, field->column, strcspn(form + 1, "}")) == 0 &&
                 !field->column[strcspn(form + 1, "}")])
            hd_text_add(sql, "?%zu", i + 1);
        else
            continue;
        comma = ", ";
    }
}

enum hd_status store_fields_sql(const char *text, struct hd_text *ret_sql)
{
    for (const char *brace; (brace = strchr(text, '{')) != NULL;) {
        const char *end = strchr(brace, '}');
        const size_t len = strcspn(brace + 1, "?=:}");
        const struct hd_table *table = find_table(brace + 1, len);

        if (!end || !table)
            return hd_err(HD_INTERNAL, "a statement names no table: %s", text);
        hd_text_add(ret_sql, "%.*s", (int)(brace - text), text);
        expand(table, brace + 1 + len, ret_sql);
        text = end + 1;
    }
    hd_text_add(ret_sql, "%s", text);
    return ret_sql->failed ? hd_err(HD_NO_MEMORY, "no memory for a statement") : HD_OK;
}

/* ---- writing ----------------------------------------------------------------------------------*/

static int bind_number(sqlite3_stmt *s, int i, int64_t number, bool or_null)
{
    return or_null && !number ? sqlite3_bind_null(s, i) : sqlite3_bind_int64(s, i, number);
}

static int bind_text(sqlite3_stmt *s, int i, const char *text)
{
    return sqlite3_bind_text(s, i, text ? text : "", -1, SQLITE_STATIC);
}

static int bind_blob(sqlite3_stmt *s, int i, const void *bytes, size_t count)
{
    return sqlite3_bind_blob64(s, i, bytes ? bytes : "", count, SQLITE_STATIC);
}

static int bind_layout(sqlite3_stmt *s, int i, const struct hd_layout_sizes *layout)
{
    struct hd_text text = {0};
    int code = SQLITE_NOMEM;

    if (hd_layout_write(layout, &text) == HD_OK && !text.failed)
        code = sqlite3_bind_text(s, i, text.data, -1, SQLITE_TRANSIENT);
    hd_text_free(&text);
    return code;
}

static int bind_metrics(sqlite3_stmt *s, int i, const struct hd_step_metrics *metrics)
{
    uint8_t bytes[HD_METRICS_BYTES_MAX];

    return sqlite3_bind_blob64(s, i, bytes, hd_metrics_pack(metrics, bytes), SQLITE_TRANSIENT);
}

static int bind_field(sqlite3_stmt *s, int i, const struct hd_field *field, const void *record)
{
    const void *at = (const char *)record + field->offset;
    const bool or_null =
        field->type == HD_FIELD_INT_OR_NULL || field->type == HD_FIELD_LONG_OR_NULL;

    switch (field->type) {
    case HD_FIELD_TEXT:
        return bind_text(s, i, *(const char *const *)at);
    case HD_FIELD_INT:
    case HD_FIELD_INT_OR_NULL:
        return bind_number(s, i, *(const int32_t *)at, or_null);
    case HD_FIELD_LONG:
    case HD_FIELD_LONG_OR_NULL:
        return bind_number(s, i, *(const int64_t *)at, or_null);
    case HD_FIELD_NUMBER:
        return bind_number(s, i, (int64_t) * (const uint64_t *)at, false);
    case HD_FIELD_BOOL:
        return bind_number(s, i, *(const bool *)at, false);
    case HD_FIELD_BITS:
    case HD_FIELD_REMOVAL:
        return bind_number(s, i, *(const uint32_t *)at, false);
    case HD_FIELD_REAL: /* SQLite stores NaN as NULL */
        return sqlite3_bind_double(s, i, *(const double *)at);
    case HD_FIELD_BYTES:
        return bind_blob(s, i, *(const void *const *)at, *hd_field_count((void *)at));
    case HD_FIELD_LOADS:
        return bind_blob(s, i, *(const void *const *)at,
                         *hd_field_count((void *)at) * sizeof(int64_t));
    case HD_FIELD_LAYOUT:
        return bind_layout(s, i, at);
    case HD_FIELD_METRICS:
        return bind_metrics(s, i, at);
    case HD_FIELD_SET:
        return bind_text(s, i, at);
    case HD_FIELD_HASH:
        return bind_blob(s, i, at, HD_CREDENTIAL_HASH_BYTES);
#define X(name) case HD_FIELD_##name:
        HD_FIELD_WORD_TYPES(X)
#undef X
        return bind_text(s, i, hd_field_word(field->type, *(const int *)at));
    }
    return SQLITE_MISUSE;
}

enum hd_status store_put(struct store_db *db, enum store_statement statement,
                         const struct hd_table *table, const void *record, const char *owner)
{
    sqlite3_stmt *s = db->statements[statement];
    const int count = sqlite3_bind_parameter_count(s);
    int code = SQLITE_OK;
    bool row;

    (void)sqlite3_reset(s);
    for (int i = 1; code == SQLITE_OK && i <= (int)table->count && i <= count; i++)
        code = bind_field(s, i, &table->fields[i - 1], record);
    if (code == SQLITE_OK && owner)
        code = bind_text(s, count, owner);
    return code == SQLITE_OK ? store_db_step(db, s, &row)
                             : store_db_error(db, "cannot bind values");
}

/* ---- reading ----------------------------------------------------------------------------------*/

const char *store_row_text(struct hd_arena *arena, sqlite3_stmt *s, int column)
{
    const char *text = (const char *)sqlite3_column_text(s, column);
    const char *copy = text && *text ? hd_arena_strdup(arena, text) : "";

    return copy ? copy : "";
}

bool store_row_hash(sqlite3_stmt *s, int column, unsigned char ret_hash[HD_CREDENTIAL_HASH_BYTES])
{
    if (sqlite3_column_bytes(s, column) != HD_CREDENTIAL_HASH_BYTES)
        return false;
    memcpy(ret_hash, sqlite3_column_blob(s, column), HD_CREDENTIAL_HASH_BYTES);
    return true;
}

static void *blob_at(struct hd_arena *arena, sqlite3_stmt *s, int column, size_t *ret_bytes)
{
    const size_t bytes = (size_t)sqlite3_column_bytes(s, column);
    void *copy = hd_arena_alloc(arena, bytes + 1);

    if (copy && bytes)
        memcpy(copy, sqlite3_column_blob(s, column), bytes);
    *ret_bytes = copy ? bytes : 0;
    return copy;
}

static enum hd_status read_field(struct hd_arena *arena, sqlite3_stmt *s, int column,
                                 const struct hd_field *field, void *record)
{
    void *at = (char *)record + field->offset;
    const char *text;

    switch (field->type) {
    case HD_FIELD_TEXT:
        *(const char **)at = store_row_text(arena, s, column);
        return HD_OK;
    case HD_FIELD_INT:
    case HD_FIELD_INT_OR_NULL:
        *(int32_t *)at = sqlite3_column_int(s, column);
        return HD_OK;
    case HD_FIELD_LONG:
    case HD_FIELD_LONG_OR_NULL:
        *(int64_t *)at = sqlite3_column_int64(s, column);
        return HD_OK;
    case HD_FIELD_NUMBER:
        *(uint64_t *)at = (uint64_t)sqlite3_column_int64(s, column);
        return HD_OK;
    case HD_FIELD_BOOL:
        *(bool *)at = sqlite3_column_int(s, column) != 0;
        return HD_OK;
    case HD_FIELD_BITS:
    case HD_FIELD_REMOVAL:
        *(uint32_t *)at = (uint32_t)sqlite3_column_int64(s, column);
        return HD_OK;
    case HD_FIELD_REAL:
        *(double *)at =
            sqlite3_column_type(s, column) == SQLITE_NULL ? NAN : sqlite3_column_double(s, column);
        return HD_OK;
    case HD_FIELD_BYTES:
        *(void **)at = blob_at(arena, s, column, hd_field_count(at));
        return HD_OK;
    case HD_FIELD_LOADS:
        *(void **)at = blob_at(arena, s, column, hd_field_count(at));
        *hd_field_count(at) /= sizeof(int64_t);
        return HD_OK;
    case HD_FIELD_LAYOUT:
        text = (const char *)sqlite3_column_text(s, column);
        return hd_layout_read(text ? text : "", at);
    case HD_FIELD_METRICS:
        return hd_metrics_unpack(sqlite3_column_blob(s, column),
                                 (size_t)sqlite3_column_bytes(s, column), at);
    case HD_FIELD_SET:
        text = (const char *)sqlite3_column_text(s, column);
        (void)snprintf(at, HD_JOB_VAL_REPORT_MAX, "%s", text ? text : "");
        return HD_OK;
    case HD_FIELD_HASH:
        return store_row_hash(s, column, at)
                   ? HD_OK
                   : hd_err(HD_CORRUPT, "%s has another length", field->column);
#define X(name) case HD_FIELD_##name:
        HD_FIELD_WORD_TYPES(X)
#undef X
        text = (const char *)sqlite3_column_text(s, column);
        *(int *)at = text ? hd_field_number(field->type, text) : 0;
        return HD_OK;
    }
    return HD_INTERNAL;
}

enum hd_status store_get(struct hd_arena *arena, sqlite3_stmt *s, int first,
                         const struct hd_table *table, void *ret_record)
{
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < (int)table->count; i++)
        st = read_field(arena, s, first + i, &table->fields[i], ret_record);
    return st;
}
