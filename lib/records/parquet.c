/* parquet: puts the entries of columns together to rows.
 *
 * The definition level of an entry says how much of its path is there, the repetition level at
 * which list it goes on (Dremel's striping). A row is written by a walk over the schema, with one
 * place in each column. A null member is left out, as writers fill structs with nulls.
 */
#include "parquet.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 24 };

enum row_node_kind { NODE_LEAF, NODE_GROUP, NODE_LIST, NODE_MAP };

struct row_node {
    enum row_node_kind kind;
    const struct parquet_element *element;
    int def;                     /* level from which the node is not null */
    int rep;                     /* list, map: level at which an element goes on */
    size_t first_leaf, leaf_end; /* the columns below the node */
    struct row_node **children;  /* group: its members; list: the element; map: key and value */
    size_t child_count;
};

struct parquet_rows {
    char *path;
    struct hd_arena arena;
    struct parquet_footer footer;
    struct row_node *root;          /* the columns that are read */
    struct parquet_column *columns; /* [column_count] */
    size_t *leaves;                 /* [column_count] number of the leaf in the schema */
    size_t column_count;
    /* building the tree: the next element of the schema, and its number as a leaf */
    size_t element, leaf;
    const struct records_columns *wanted;
    struct records_use use;
    size_t group;     /* number of the current row group, from 1; 0: none yet */
    int64_t row_left; /* rows left in it */
    int64_t rows;     /* rows so far */
};

/* ---- schema ---- */

static enum hd_status wrong_schema(void)
{
    return hd_err(HD_INVALID, "the schema in the footer is damaged; write the file again");
}

/* Skips the next element with all below it. */
static enum hd_status skip_element(struct parquet_rows *r, int depth)
{
    const struct parquet_element *e = &r->footer.elements[r->element];

    if (r->element >= r->footer.element_count || depth > DEPTH_MAX)
        return wrong_schema();
    r->element++;
    r->leaf += e->type >= 0;
    for (int64_t i = 0; e->type < 0 && i < e->children; i++)
        if (skip_element(r, depth + 1))
            return HD_INVALID;
    return HD_OK;
}

static bool is_named(const struct parquet_element *e, const char *name)
{
    return e->name_bytes == strlen(name) && memcmp(e->name, name, e->name_bytes) == 0;
}

/* Returns whether the repeated child of a list is its element itself, as old writers had it, not a
 * group around the element. */
static bool is_element_itself(const struct parquet_element *list,
                              const struct parquet_element *child,
                              const struct parquet_element *grandchild)
{
    const char *tuple = "_tuple";
    const size_t n = list->name_bytes;

    if (child->type >= 0 || child->children != 1)
        return true;
    if (grandchild->repetition == PARQUET_REPEATED || is_named(child, "array"))
        return true;
    return child->name_bytes == n + strlen(tuple) && memcmp(child->name, list->name, n) == 0 &&
           memcmp(child->name + n, tuple, strlen(tuple)) == 0;
}

static enum hd_status build(struct parquet_rows *r, int def, int rep, int depth, bool in_list,
                            struct row_node **ret_node);

static struct row_node *new_node(struct parquet_rows *r, enum row_node_kind kind,
                                 const struct parquet_element *e, int def, int rep, size_t children)
{
    struct row_node *n = hd_arena_alloc(&r->arena, sizeof *n);

    if (!n)
        return NULL;
    *n =
        (struct row_node){.kind = kind,
                          .element = e,
                          .def = def,
                          .rep = rep,
                          .first_leaf = r->column_count,
                          .children = hd_arena_array(&r->arena, children + 1, sizeof *n->children)};
    return n->children ? n : NULL;
}

static enum hd_status refuse_type(const struct parquet_element *e)
{
    return hd_err(HD_INVALID,
                  "column '%.*s' is of a type that is not read, as dates and decimals; write it as "
                  "text or as a number",
                  (int)(e->name_bytes < 80 ? e->name_bytes : 80), e->name);
}

static enum hd_status build_leaf(struct parquet_rows *r, const struct parquet_element *e, int def,
                                 int rep, struct row_node **ret_node)
{
    struct row_node *n = new_node(r, NODE_LEAF, e, def, rep, 0);

    if (!n)
        return hd_err(HD_NO_MEMORY, "no memory for the schema of a Parquet file");
    if (e->type == PARQUET_INT96 || e->type == PARQUET_FIXED || e->meaning == PARQUET_OTHER)
        return refuse_type(e);
    r->columns[r->column_count] = (struct parquet_column){
        .footer = &r->footer, .use = &r->use, .element = e, .def_max = def, .rep_max = rep};
    r->leaves[r->column_count++] = r->leaf++;
    n->leaf_end = r->column_count;
    *ret_node = n;
    return HD_OK;
}

/* Builds the children of a group. */
static enum hd_status build_members(struct parquet_rows *r, struct row_node *n, int64_t count,
                                    int def, int rep, int depth)
{
    enum hd_status st = HD_OK;

    for (int64_t i = 0; !st && i < count; i++) {
        st = build(r, def, rep, depth + 1, false, &n->children[n->child_count]);
        n->child_count += !st;
    }
    n->leaf_end = r->column_count;
    return st || n->leaf_end > n->first_leaf ? st : wrong_schema();
}

/* Builds a list or map with an annotation: r->element is at its repeated child. */
static enum hd_status build_list(struct parquet_rows *r, const struct parquet_element *e, int def,
                                 int rep, int depth, struct row_node **ret_node)
{
    const struct parquet_element *child = &r->footer.elements[r->element];
    struct row_node *n;
    enum hd_status st;

    if (r->element >= r->footer.element_count || e->children != 1 ||
        child->repetition != PARQUET_REPEATED)
        return wrong_schema();
    if (e->meaning == PARQUET_MAP && child->children == 2) {
        r->element++;
        n = new_node(r, NODE_MAP, e, def, rep + 1, 2);
        if (!n)
            return hd_err(HD_NO_MEMORY, "no memory for the schema of a Parquet file");
        st = build_members(r, n, 2, def + 1, rep + 1, depth);
        if (!st &&
            (n->children[0]->kind != NODE_LEAF || n->children[0]->element->type != PARQUET_BYTES))
            return refuse_type(e);
        *ret_node = n;
        return st;
    }
    n = new_node(r, NODE_LIST, e, def, rep + 1, 1);
    if (!n)
        return hd_err(HD_NO_MEMORY, "no memory for the schema of a Parquet file");
    if (child->children == 1 && r->element + 1 >= r->footer.element_count)
        return wrong_schema();
    if (is_element_itself(e, child, child->children == 1 ? child + 1 : child)) {
        st = build(r, def + 1, rep + 1, depth + 1, true, &n->children[0]);
    } else {
        r->element++;
        st = build(r, def + 1, rep + 1, depth + 1, false, &n->children[0]);
    }
    n->child_count = 1;
    n->leaf_end = r->column_count;
    *ret_node = n;
    return st;
}

/* Builds the node of the next element. def, rep: levels of the node above. in_list: the element is
 * repeated, and the node above is the list of it. */
static enum hd_status build(struct parquet_rows *r, int def, int rep, int depth, bool in_list,
                            struct row_node **ret_node)
{
    const struct parquet_element *e = &r->footer.elements[r->element];
    struct row_node *n;
    enum hd_status st;

    if (r->element >= r->footer.element_count || depth > DEPTH_MAX || e->children < 0 ||
        (size_t)e->children > r->footer.element_count)
        return wrong_schema();
    if (e->repetition == PARQUET_REPEATED && !in_list) { /* a list without annotation */
        n = new_node(r, NODE_LIST, e, def, rep + 1, 1);
        if (!n)
            return hd_err(HD_NO_MEMORY, "no memory for the schema of a Parquet file");
        st = build(r, def + 1, rep + 1, depth + 1, true, &n->children[0]);
        n->child_count = 1;
        n->leaf_end = r->column_count;
        *ret_node = n;
        return st;
    }
    def += e->repetition == PARQUET_OPTIONAL;
    r->element++;
    if (e->type >= 0)
        return build_leaf(r, e, def, rep, ret_node);
    if ((e->meaning == PARQUET_LIST || e->meaning == PARQUET_MAP) && !in_list)
        return build_list(r, e, def, rep, depth, ret_node);
    n = new_node(r, NODE_GROUP, e, def, rep, (size_t)e->children);
    if (!n)
        return hd_err(HD_NO_MEMORY, "no memory for the schema of a Parquet file");
    *ret_node = n;
    return build_members(r, n, e->children, def, rep, depth);
}

/* Builds the tree of the columns that are read: those with a meaning, or all if none has one. */
static enum hd_status build_root(struct parquet_rows *r, bool all)
{
    const struct parquet_element *root = &r->footer.elements[0];
    enum hd_status st = HD_OK;

    r->element = 1;
    r->leaf = r->column_count = 0;
    if (root->type >= 0 || root->children < 0 || (size_t)root->children >= r->footer.element_count)
        return wrong_schema();
    r->root = new_node(r, NODE_GROUP, root, 0, 0, (size_t)root->children);
    if (!r->root)
        return hd_err(HD_NO_MEMORY, "no memory for the schema of a Parquet file");
    for (int64_t i = 0; !st && i < root->children; i++) {
        const size_t element = r->element, leaf = r->leaf, columns = r->column_count;
        const struct parquet_element *e = &r->footer.elements[element];

        if (element >= r->footer.element_count)
            return wrong_schema();
        st = records_columns_refuse_media(r->wanted, e->name, e->name_bytes);
        if (st)
            return st;
        if (!all && !records_columns_want(r->wanted, e->name, e->name_bytes)) {
            st = skip_element(r, 0);
            continue;
        }
        st = build(r, 0, 0, 0, false, &r->root->children[r->root->child_count]);
        if (!st) {
            r->root->child_count++;
        } else if (all && st == HD_INVALID) { /* it only names the column: leave out its values */
            r->element = element;
            r->leaf = leaf;
            r->column_count = columns;
            st = skip_element(r, 0);
        }
    }
    r->root->leaf_end = r->column_count;
    return st;
}

/* ---- opening ---- */

static enum hd_status open_schema(struct parquet_rows *r, const struct records_columns *columns)
{
    enum hd_status st;

    r->columns = calloc(r->footer.leaf_count + 1, sizeof *r->columns);
    r->leaves = calloc(r->footer.leaf_count + 1, sizeof *r->leaves);
    if (!r->columns || !r->leaves)
        return hd_err(HD_NO_MEMORY, "no memory for the schema of a Parquet file");
    r->wanted = columns;
    st = build_root(r, false);
    if (!st && !r->column_count)
        st = build_root(r, true);
    r->wanted = NULL;
    if (!st && !r->column_count)
        st = hd_err(HD_INVALID, "it has no column with text or numbers");
    return st;
}

static void close_parquet(void *reader)
{
    struct parquet_rows *r = reader;

    for (size_t i = 0; r->columns && i < r->column_count; i++)
        parquet_end(&r->columns[i]);
    free(r->columns);
    free(r->leaves);
    hd_arena_done(&r->arena);
    free(r->path);
    free(r);
}

enum hd_status records_parquet_open(const char *path, const unsigned char *bytes, int64_t count,
                                    const struct records_columns *columns, void **ret_reader)
{
    struct parquet_rows *r = calloc(1, sizeof *r);
    enum hd_status st;

    if (!r || !(r->path = strdup(path))) {
        free(r);
        return hd_err(HD_NO_MEMORY, "no memory to read %s", path);
    }
    hd_arena_init(&r->arena, 0);
    r->use.file_bytes = count;
    st = parquet_read_footer(bytes, count, &r->arena, &r->footer);
    if (!st)
        st = open_schema(r, columns);
    if (st) {
        close_parquet(r);
        return hd_err_prefix(st, "%s", path);
    }
    *ret_reader = r;
    return HD_OK;
}

/* ---- rows ---- */

static enum hd_status disagree(void)
{
    return hd_err(HD_INVALID, "its columns do not agree; the file is damaged, write it again");
}

static void add_number(const struct parquet_element *e, struct parquet_bytes v, struct hd_text *out)
{
    int64_t i = 0;
    int32_t small;
    double real;
    float single;

    if (e->type == PARQUET_BOOLEAN) {
        hd_text_add(out, "%s", *v.at ? "true" : "false");
    } else if (e->type == PARQUET_FLOAT) {
        memcpy(&single, v.at, sizeof single);
        records_add_real(out, (double)single);
    } else if (e->type == PARQUET_DOUBLE) {
        memcpy(&real, v.at, sizeof real);
        records_add_real(out, real);
    } else if (e->type == PARQUET_INT32) {
        memcpy(&small, v.at, sizeof small);
        records_add_int(out, e->meaning == PARQUET_UNSIGNED ? (int64_t)(uint32_t)small : small);
    } else {
        memcpy(&i, v.at, sizeof i);
        if (e->meaning == PARQUET_UNSIGNED)
            records_add_unsigned(out, (uint64_t)i);
        else
            records_add_int(out, i);
    }
}

/* Appends the value of a column's current entry, and moves on. */
static enum hd_status add_leaf(struct parquet_column *c, const struct row_node *n,
                               struct hd_text *out, bool *ret_null)
{
    struct parquet_bytes v;
    enum hd_status st = HD_OK;

    if (!c->has)
        return disagree();
    *ret_null = c->def < n->def;
    if (!*ret_null) {
        st = parquet_value(c, &v);
        if (st)
            return st;
        if (c->element->type != PARQUET_BYTES)
            add_number(c->element, v, out);
        else if (c->element->meaning != PARQUET_JSON)
            records_add_string(out, (const char *)v.at, v.count);
        else if (v.count)
            records_add_json(out, (const char *)v.at, v.count);
        else
            *ret_null = true;
    }
    return parquet_advance(c);
}

/* Moves over the one entry that each column below a null or empty node has. */
static enum hd_status skip_entries(struct parquet_rows *r, const struct row_node *n, int def_max)
{
    enum hd_status st = HD_OK;

    for (size_t i = n->first_leaf; !st && i < n->leaf_end; i++)
        st = r->columns[i].has && r->columns[i].def <= def_max ? parquet_advance(&r->columns[i])
                                                               : disagree();
    return st;
}

static enum hd_status add_node(struct parquet_rows *r, const struct row_node *n,
                               struct hd_text *out, bool *ret_null);

/* Appends the members of an object that are not null. */
static enum hd_status add_members(struct parquet_rows *r, const struct row_node *n,
                                  struct hd_text *out)
{
    bool any = false;
    enum hd_status st = HD_OK;

    hd_text_add_bytes(out, "{", 1);
    for (size_t i = 0; !st && i < n->child_count; i++) {
        const struct row_node *m = n->children[i];
        const size_t before = out->len_bytes;
        bool null = false;

        if (any)
            hd_text_add_bytes(out, ",", 1);
        records_add_string(out, m->element->name, m->element->name_bytes);
        hd_text_add_bytes(out, ":", 1);
        st = add_node(r, m, out, &null);
        if (null && !out->failed)
            out->len_bytes = before;
        any |= !null;
    }
    hd_text_add_bytes(out, "}", 1);
    return st;
}

/* Appends the elements of a list, or the keys and values of a map. */
static enum hd_status add_elements(struct parquet_rows *r, const struct row_node *n,
                                   struct hd_text *out)
{
    const struct parquet_column *first = &r->columns[n->first_leaf];
    enum hd_status st = HD_OK;
    bool any = false, null;

    hd_text_add_bytes(out, n->kind == NODE_MAP ? "{" : "[", 1);
    do {
        if (any)
            hd_text_add_bytes(out, ",", 1);
        any = true;
        for (size_t i = 0; !st && i < n->child_count; i++) {
            if (i)
                hd_text_add_bytes(out, ":", 1);
            st = add_node(r, n->children[i], out, &null);
            if (!st && null)
                hd_text_add_bytes(out, i || n->kind == NODE_LIST ? "null" : "\"\"",
                                  i || n->kind == NODE_LIST ? 4 : 2);
        }
        if (!st && out->len_bytes > (size_t)RECORDS_BYTES_MAX + (1 << 20))
            st = hd_err(HD_INVALID, "it has more than " RECORDS_MAX_TEXT);
    } while (!st && first->has && first->rep >= n->rep);
    hd_text_add_bytes(out, n->kind == NODE_MAP ? "}" : "]", 1);
    return st;
}

/* Appends a node's value; sets *ret_null, and appends nothing, if it is null. */
static enum hd_status add_node(struct parquet_rows *r, const struct row_node *n,
                               struct hd_text *out, bool *ret_null)
{
    const struct parquet_column *first = &r->columns[n->first_leaf];

    *ret_null = false;
    if (n->kind == NODE_LEAF)
        return add_leaf(&r->columns[n->first_leaf], n, out, ret_null);
    if (!first->has)
        return disagree();
    if (first->def < n->def) {
        *ret_null = true;
        return skip_entries(r, n, n->def - 1);
    }
    if (n->kind == NODE_GROUP)
        return add_members(r, n, out);
    if (first->def > n->def)
        return add_elements(r, n, out);
    hd_text_add(out, "%s", n->kind == NODE_MAP ? "{}" : "[]");
    return skip_entries(r, n, n->def);
}

/* Begins row groups until one has rows; sets *ret_there to false behind the last. */
static enum hd_status next_group(struct parquet_rows *r, bool *ret_there)
{
    enum hd_status st = HD_OK;

    while (!st && !r->row_left && r->group < r->footer.group_count) {
        const struct parquet_group *g = &r->footer.groups[r->group++];

        r->row_left = g->rows;
        for (size_t i = 0; !st && g->rows && i < r->column_count; i++)
            st = parquet_begin(&r->columns[i], &g->chunks[r->leaves[i]]);
    }
    *ret_there = !st && r->row_left;
    return st;
}

static enum hd_status add_row(struct parquet_rows *r, struct hd_text *out)
{
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < r->column_count; i++)
        if (!r->columns[i].has || r->columns[i].rep)
            st = disagree();
    if (!st)
        st = add_members(r, r->root, out);
    hd_text_add_bytes(out, "\n", 1);
    r->row_left--;
    for (size_t i = 0; !st && !r->row_left && i < r->column_count; i++)
        if (r->columns[i].has)
            st = disagree();
    return st;
}

static enum hd_status next_parquet(void *reader, struct hd_text *out, bool *ret_there)
{
    struct parquet_rows *r = reader;
    enum hd_status st = next_group(r, ret_there);

    if (!st && *ret_there)
        st = add_row(r, out);
    if (st)
        return hd_err_prefix(st, "%s: row %" PRId64, r->path, r->rows + 1);
    r->rows += *ret_there;
    return HD_OK;
}

/* Returns the share of the file that the rows so far are of all rows. */
static int64_t place_in_parquet(const void *reader)
{
    const struct parquet_rows *r = reader;

    return r->footer.rows
               ? (int64_t)((double)r->footer.file_bytes * (double)r->rows / (double)r->footer.rows)
               : 0;
}

const struct records_reader records_parquet = {next_parquet, close_parquet, place_in_parquet};
