/* files: finds the files of data.train and data.val: makes paths absolute, expands patterns in
 * bytewise order (independent of the locale), and records sizes. Opens each file as a rank will:
 * token files must be complete and their ids in the vocabulary, lines must be documents, and there
 * must be enough tokens. */
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/order.h"
#include "base/text.h"
#include "data/data.h"
#include "data/fingerprint.h"
#include "records/kind.h"
#include "records/saved_set.h"
#include "spec_internal.h"

enum {
    /* bytes of all paths of a job, which is sent in one message of at most 4 MiB */
    PATHS_BYTES_MAX = 3 << 20,
    /* files found by one entry of data.train or data.val whose ids or lines are read; later files
     * are only opened */
    FILES_READ_MAX = 16
};

struct file_facts {
    bool found;     /* true: a pattern found the file; false: the job file names it */
    int64_t tokens; /* tokens of a token file; for text its bytes, an upper bound */
    bool conversations;
    struct hd_data_facts look; /* of a file that was not read, the kind by its name */
};

/* A growing list of files; facts[i] describes items[i]. Paths live in the arena, the arrays on the
 * heap (list_done). */
struct list {
    struct hd_arena *arena;
    struct hd_job_file *items;
    struct file_facts *facts;
    size_t count, room;
    size_t *path_bytes; /* bytes of all paths in both lists of the job, at most PATHS_BYTES_MAX */
    const struct hd_job *job;
    bool is_train;  /* true: data.train; false: data.val */
    bool mixture;   /* data.train has sources with weights, or data.val has named sets */
    bool any_bytes; /* whether the job file says that text may be any bytes: tokenizer: bytes */
    int64_t source; /* index of the mixture's source, or of the set, of the files being added */
    const char *written; /* path of the current list entry in the job file */
    size_t first_new;    /* index of the first file of the current list entry */
};

static void list_done(struct list *list)
{
    free(list->items);
    free(list->facts);
}

static enum hd_status list_add(struct list *list, const char *key, const char *path,
                               int64_t size_bytes, struct file_facts facts)
{
    *list->path_bytes += strlen(path) + 16;
    if (list->count == HD_SPEC_FILES_MAX || *list->path_bytes > PATHS_BYTES_MAX)
        return hd_err(HD_INVALID, "%s: more than %d files, or names of more than 3 MiB; join files",
                      key, HD_SPEC_FILES_MAX);
    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 16;
        struct hd_job_file *items = realloc(list->items, room * sizeof *items);
        struct file_facts *more;

        if (!items)
            return hd_err(HD_NO_MEMORY, "no memory for the list of data files");
        list->items = items;
        more = realloc(list->facts, room * sizeof *more);
        if (!more)
            return hd_err(HD_NO_MEMORY, "no memory for the list of data files");
        list->facts = more;
        list->room = room;
    }
    list->facts[list->count] = facts;
    list->items[list->count++] = (struct hd_job_file){.path = hd_arena_strdup(list->arena, path),
                                                      .size_bytes = size_bytes,
                                                      .source = list->source};
    return hd_arena_failed(list->arena)
               ? hd_err(HD_NO_MEMORY, "no memory for the list of data files")
               : HD_OK;
}

bool hd_spec_has_text(const struct hd_job *job)
{
    for (int64_t i = 0; i < job->train_count; i++)
        if (!hd_data_is_tokens(job->train[i].path))
            return true;
    for (int64_t i = 0; i < job->val_count; i++)
        if (!hd_data_is_tokens(job->val[i].path))
            return true;
    return !job->train_count;
}

/* Returns whether the file is the index of a Megatron .bin file, which is read together with that
 * file. */
static bool is_index(const char *path)
{
    return hd_text_ends(path, ".idx");
}

/* Sets *ret_tokens to the number of tokens of a token file; if `read`, also checks some of its
 * ids. */
static enum hd_status open_tokens(const struct list *list, const char *path, bool read,
                                  int64_t *ret_tokens)
{
    const struct hd_corpus_file file = {.path = path, .size_bytes = -1};
    struct hd_corpus *corpus = NULL;
    enum hd_status st = hd_corpus_open(&file, 1, &corpus);

    if (!st && read)
        st = hd_corpus_set_vocab(corpus, list->job->vocab);
    if (!st)
        *ret_tokens = hd_corpus_token_count(corpus);
    hd_corpus_close(corpus);
    return st;
}

/* Returns whether the file may hold more text than it has bytes: it is compressed, or its records
 * are no lines of JSON. */
static bool is_packed(const struct file_facts *f)
{
    return f->look.kind < HD_DATA_NPY &&
           (f->look.packing || (f->look.kind != HD_DATA_TEXT && f->look.kind != HD_DATA_LINES));
}

/* Opens a file as a rank will. Reads the contents of the first files of a list entry only: a wrong
 * tokenizer or form affects all of them, and an entry may have thousands of files on a slow
 * disk. */
static enum hd_status look_at(const struct list *list, const char *key, const char *path,
                              struct file_facts *facts)
{
    const bool read = list->count - list->first_new < FILES_READ_MAX;
    enum hd_status st = HD_OK;

    facts->look.kind = hd_data_name_kind(path);
    if (hd_data_is_tokens(path))
        st = open_tokens(list, path, read, &facts->tokens);
    else if (read)
        st = list->any_bytes ? hd_data_look(path, &facts->look)
                             : hd_data_check_text(path, &facts->look);
    if (!st && read)
        st = spec_look_at_form(list->job, path, facts->look.kind, &facts->conversations);
    if (!st && !read) { /* assume the form of the file before it */
        facts->conversations = list->facts[list->count - 1].conversations;
        facts->look.packing = list->facts[list->count - 1].look.packing;
    }
    if (st == HD_NOT_FOUND || st == HD_CORRUPT || st == HD_LIMIT)
        st = HD_INVALID;
    return st ? hd_err_prefix(st, "%s", key) : HD_OK;
}

static enum hd_status add_path(struct list *list, const char *key, const char *path, bool found);

/* Adds the files of a folder that save_to_disk of `datasets` wrote; refuses another folder. found:
 * a pattern found the folder, so another one is skipped. */
static enum hd_status add_folder(struct list *list, const char *key, const char *folder, bool found)
{
    const struct hd_json *files = NULL;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_records_read_saved_set(folder, &arena, &files);
    if (!files && (found || !st))
        st = found ? HD_OK
                   : hd_err(HD_INVALID, "%s is a folder; name the files in it, such as *.txt",
                            folder);
    if (st)
        st = hd_err_prefix(st, "%s", key);
    for (const struct hd_json *f = !st && files ? files->first : NULL; !st && f; f = f->next) {
        struct hd_text path = {0};

        hd_file_join(&path, folder, hd_json_member(f, "filename")->text);
        st = path.failed ? hd_err(HD_NO_MEMORY, "no memory for the list of data files")
                         : add_path(list, key, path.data, false);
        hd_text_free(&path);
    }
    hd_arena_done(&arena);
    return st;
}

/* Returns what to add to the message about a path that does not exist, by its characters. */
static const char *explain_pattern(const char *text)
{
    if (!text)
        return "";
    if (strstr(text, "\xe2\x80\x9c") || strstr(text, "\xe2\x80\x9d") ||
        strstr(text, "\xe2\x80\x98") || strstr(text, "\xe2\x80\x99"))
        return "; it has curly quotes: write straight ones, or none";
    if (*text == '~')
        return "; ~ is not replaced: write the path of the home folder";
    if (strchr(text, '$'))
        return "; variables are not replaced: write the path, or --set data.train=[\"$NAME/..\"]";
    if (strstr(text, "**"))
        return "; ** is not known: write */ for each folder in between";
    return "";
}

/* Adds one file by its absolute path. found: a pattern found the file, so a folder or an .idx file
 * is skipped. */
static enum hd_status add_path(struct list *list, const char *key, const char *path, bool found)
{
    struct file_facts facts = {.found = found};
    char quoted[SPEC_QUOTE_MAX], hint[SPEC_PATH_TEXT_MAX];
    enum hd_status st;
    struct stat info;

    (void)spec_quote(path, quoted);
    if (spec_has_control(path))
        return hd_err(HD_INVALID,
                      "%s: %s has a control character in its name (a line break, an escape ...); "
                      "rename it",
                      key, quoted);
    if (strlen(path) >= HD_JOB_PATH_MAX)
        return hd_err(HD_INVALID, "%s: %s is longer than %d bytes; use a shorter path", key, quoted,
                      HD_JOB_PATH_MAX - 1);
    if (stat(path, &info) < 0)
        return hd_err(HD_INVALID,
                      "%s: cannot find %s: %s; check the path, which is relative to the job "
                      "file's folder%s%s",
                      key, path, strerror(errno), spec_explain_name(list->written, true, hint),
                      explain_pattern(list->written));
    if (S_ISDIR(info.st_mode))
        return add_folder(list, key, path, found);
    if (!S_ISREG(info.st_mode))
        return hd_err(HD_INVALID, "%s: %s is not a regular file; copy its data to one", key, path);
    if (is_index(path)) {
        if (found)
            return HD_OK;
        return hd_err(HD_INVALID, "%s: %s is an index; give its .bin file instead", key, path);
    }
    if (access(path, R_OK) < 0)
        return hd_err(HD_INVALID, "%s: cannot read %s: %s; change its permissions", key, path,
                      strerror(errno));
    facts.tokens = info.st_size;
    st = look_at(list, key, path, &facts);
    return st ? st : list_add(list, key, path, info.st_size, facts);
}

static enum hd_status add_pattern(struct list *list, const char *key, const char *pattern,
                                  const char *as_written)
{
    size_t before = list->count;
    char quoted[SPEC_QUOTE_MAX];
    enum hd_status st = HD_OK;
    glob_t paths = {0};
    int failed = glob(pattern, GLOB_NOSORT, NULL, &paths);

    if (failed == GLOB_NOSPACE)
        st = hd_err(HD_NO_MEMORY, "no memory for the list of data files");
    else if (failed && failed != GLOB_NOMATCH)
        st = hd_err(HD_INVALID, "%s: cannot search %s: %s", key, pattern, strerror(errno));
    if (!st && paths.gl_pathc)
        qsort(paths.gl_pathv, paths.gl_pathc, sizeof paths.gl_pathv[0], hd_order_texts);
    for (size_t i = 0; i < paths.gl_pathc && !st; i++)
        st = add_path(list, key, paths.gl_pathv[i], true);
    if (!st && list->count == before)
        st = hd_err(HD_INVALID, "%s: %s matches no file; it is searched as %s%s", key,
                    spec_quote(as_written, quoted), pattern, explain_pattern(as_written));
    globfree(&paths);
    return st;
}

/* Adds the files of the job's data.train or data.val. */
static enum hd_status expand(struct list *list, const char *folder)
{
    const struct hd_job_file *files = list->is_train ? list->job->train : list->job->val;
    const size_t count = (size_t)(list->is_train ? list->job->train_count : list->job->val_count);
    enum hd_status st = HD_OK;

    for (size_t i = 0; i < count && !st; i++) {
        struct hd_text path = {0};
        char key[SPEC_LIST_KEY_MAX];

        list->source = files[i].source;
        list->first_new = list->count;
        list->written = files[i].path;
        spec_list_key(list->job, list->is_train, (int64_t)i, key);
        hd_file_join(&path, folder, files[i].path);
        if (path.failed)
            st = hd_err(HD_NO_MEMORY, "no memory for the list of data files");
        else if (strpbrk(files[i].path, "*?["))
            st = hd_file_exists(path.data) ? add_path(list, key, path.data, false)
                                           : add_pattern(list, key, path.data, files[i].path);
        else
            st = add_path(list, key, path.data, false);
        hd_text_free(&path);
    }
    return st;
}

static int by_path(const void *a, const void *b)
{
    const struct hd_job_file *x = a, *y = b;

    return strcmp(x->path, y->path);
}

/* Checks that each source of a mixture has a file. */
static enum hd_status need_files(const struct list *list)
{
    char key[SPEC_LIST_KEY_MAX];
    int64_t source = 0;

    for (size_t i = 0; i < list->count && list->items[i].source <= source + 1; i++)
        source = list->items[i].source;
    if (source == list->source)
        return HD_OK;
    spec_source_key(list->job, list->is_train, source + 1, key);
    return hd_err(HD_INVALID, "%s: every file of it is in data.val; give other files", key);
}

/* Removes from `list` the files that a pattern found and that `others`, sorted by path, contains,
 * too. HD_INVALID: a file in both was given by name. */
static enum hd_status drop_others(struct list *list, const struct hd_job_file *others,
                                  size_t other_count)
{
    const char *key = hd_job_stage_count(list->job) ? "data.stages" : "data.train";
    enum hd_status st = HD_OK;
    size_t kept = 0;

    for (size_t i = 0; i < list->count; i++) {
        const struct hd_job_file file = list->items[i];
        bool in_both = other_count && bsearch(&file, others, other_count, sizeof file, by_path);

        if (in_both && !list->facts[i].found && !st)
            st =
                hd_err(HD_INVALID, "%s: %s is in data.val too; remove it from one", key, file.path);
        if (in_both && list->facts[i].found)
            continue;
        list->facts[kept] = list->facts[i];
        list->items[kept++] = file;
    }
    list->count = kept;
    if (!st && !kept)
        st = hd_err(HD_INVALID, "%s: every file of it is in data.val; give other files", key);
    return st ? st : need_files(list);
}

static enum hd_status drop_validation_files(struct list *train, const struct list *val)
{
    struct hd_job_file *sorted = calloc(val->count + 1, sizeof *sorted);
    enum hd_status st;

    if (!sorted)
        return hd_err(HD_NO_MEMORY, "no memory for the list of data files");
    for (size_t i = 0; i < val->count; i++)
        sorted[i] = val->items[i];
    qsort(sorted, val->count, sizeof sorted[0], by_path);
    st = drop_others(train, sorted, val->count);
    free(sorted);
    return st;
}

/* Checks that the files of a source have at least one whole sequence, and are all conversations or
 * all text. */
static enum hd_status need_sequence(const struct list *list, const char *key, int64_t source,
                                    int64_t context)
{
    const struct file_facts *first = NULL;
    int64_t total = 0;
    bool tokens = false, packed = false;

    for (size_t i = 0; i < list->count; i++) {
        if (list->items[i].source != source)
            continue;
        packed = packed || is_packed(&list->facts[i]);
        first = first ? first : &list->facts[i];
        if (first->conversations != list->facts[i].conversations)
            return hd_err(
                HD_INVALID,
                "%s: %s holds %s, and files in front of it do not; conversations and text "
                "are two sources of a mixture: [{path: A, weight: 1}, {path: B, weight: "
                "1}]",
                key, list->items[i].path, list->facts[i].conversations ? "conversations" : "text");
        tokens = tokens || hd_data_is_tokens(list->items[i].path);
        total += list->facts[i].tokens;
    }
    /* enough for one sequence and the token after it */
    if (total > context || packed || (first && first->conversations))
        return HD_OK;
    return hd_err(HD_INVALID,
                  "%s: %lld %s are less than one sequence of model.context + 1 = %lld; give more "
                  "text or lower model.context",
                  key, (long long)total, tokens ? "tokens" : "bytes", (long long)context + 1);
}

static enum hd_status need_sequences(const struct list *list, int64_t context)
{
    enum hd_status st = HD_OK;
    char key[SPEC_LIST_KEY_MAX];

    for (int64_t source = 0; !st && source <= list->source; source++) {
        spec_source_key(list->job, list->is_train, source, key);
        st = need_sequence(list, key, source, context);
    }
    return st;
}

/* Checks that both parts of data.val_split, training and validation, have a whole sequence. Skipped
 * if the number of tokens is unknown: that of lines, and of text with a tokenizer.json, until it is
 * tokenized. */
static enum hd_status need_parts(const struct list *train, const struct hd_job *job)
{
    int64_t total = 0, cut;

    if (job->val_split == 0)
        return HD_OK;
    for (size_t i = 0; i < train->count; i++) {
        const char *path = train->items[i].path;

        if (train->facts[i].conversations || is_packed(&train->facts[i]) ||
            hd_data_kind_has_records(train->facts[i].look.kind) ||
            (!hd_data_is_tokens(path) && strcmp(job->tokenizer, "bytes") != 0))
            return HD_OK;
        total += train->facts[i].tokens;
    }
    return hd_data_split(total, job->val_split, job->context, &cut);
}

/* Copies the expanded list of files into the job's arena, in place of the list that the job file
 * gave. */
static enum hd_status replace(const struct list *list, struct hd_job_file **ret_items,
                              int64_t *ret_count)
{
    struct hd_job_file *items = hd_arena_array(list->arena, list->count + 1, sizeof *items);

    if (!items)
        return hd_err(HD_NO_MEMORY, "no memory for the list of data files");
    if (list->count)
        memcpy(items, list->items, list->count * sizeof *items);
    *ret_items = items;
    *ret_count = (int64_t)list->count;
    return HD_OK;
}

/* Returns the number of places at which a file is read for its fingerprint: `share`, or, if
 * `whole`, as many as cover the file. */
static int64_t places_of(const struct hd_job_file *file, int64_t share, bool whole)
{
    const int64_t all =
        (file->size_bytes + HD_FINGERPRINT_PLACE_BYTES - 1) / HD_FINGERPRINT_PLACE_BYTES;

    return whole && all > share ? all : share;
}

static int64_t add_sizes(const struct hd_job_file *files, int64_t count)
{
    int64_t sum = 0;

    for (int64_t i = 0; i < count && sum <= HD_FINGERPRINT_WHOLE_BYTES; i++)
        sum += files[i].size_bytes;
    return sum;
}

/* Records fingerprints of the files: of every stride-th one, at `places` places each, few enough in
 * total for a slow disk. */
static enum hd_status add_fingerprints(struct hd_arena *arena, const char *key,
                                       struct hd_job_file *files, int64_t count, int64_t stride,
                                       int64_t places, bool whole)
{
    enum hd_status st = HD_OK;

    for (int64_t i = 0; !st && i < count; i += stride) {
        char text[HD_FINGERPRINT_TEXT_MAX];

        st = hd_fingerprint(files[i].path, places_of(&files[i], places, whole), text);
        if (st)
            return hd_err_prefix(HD_INVALID, "%s", key);
        files[i].fingerprint = hd_arena_strdup(arena, text);
        if (!files[i].fingerprint)
            st = hd_err(HD_NO_MEMORY, "no memory for the list of data files");
    }
    return st;
}

static enum hd_status take_fingerprints(struct hd_arena *arena, struct hd_job *job)
{
    const int64_t count = job->train_count + job->val_count;
    const int64_t stride = (count + HD_FINGERPRINT_FILES_MAX - 1) / HD_FINGERPRINT_FILES_MAX;
    const int64_t share = count ? HD_FINGERPRINT_JOB_PLACES * stride / count : 0;
    const int64_t places = share < HD_FINGERPRINT_SHARE_MIN   ? HD_FINGERPRINT_SHARE_MIN
                           : share > HD_FINGERPRINT_SHARE_MAX ? HD_FINGERPRINT_SHARE_MAX
                                                              : share;
    const bool whole =
        add_sizes(job->train, job->train_count) + add_sizes(job->val, job->val_count) <=
        HD_FINGERPRINT_WHOLE_BYTES;
    const enum hd_status st =
        add_fingerprints(arena, "data.train", job->train, job->train_count, stride, places, whole);

    return st ? st
              : add_fingerprints(arena, "data.val", job->val, job->val_count, stride, places,
                                 whole);
}

static bool has_records(const struct list *list)
{
    for (size_t i = 0; i < list->count; i++)
        if (hd_data_kind_has_records(list->facts[i].look.kind))
            return true;
    return false;
}

int64_t hd_spec_source_tokens(const struct hd_job *job, int64_t source)
{
    int64_t sum = 0;

    for (int64_t i = 0; i < job->train_count; i++) {
        const char *path = job->train[i].path;
        struct hd_corpus *corpus = NULL;
        enum hd_status st;

        if (job->train[i].source != source)
            continue;
        if (!hd_data_is_tokens(path) &&
            (strcmp(job->tokenizer, "bytes") != 0 || !hd_data_is_plain(path)))
            return -1;
        st = hd_corpus_open(&(struct hd_corpus_file){.path = path, .size_bytes = -1}, 1, &corpus);
        sum += st ? 0 : hd_corpus_token_count(corpus);
        hd_corpus_close(corpus);
        if (st)
            return -1;
    }
    return sum;
}

static bool has_conversations(const struct list *list)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->facts[i].conversations)
            return true;
    return false;
}

enum hd_status spec_find_files(struct spec_draft *draft, const char *folder)
{
    struct hd_job *job = draft->job;
    size_t path_bytes = 0;
    const bool any_bytes =
        *spec_given(draft, "data.tokenizer") && strcmp(job->tokenizer, "bytes") == 0;
    struct list train = {.arena = draft->arena,
                         .path_bytes = &path_bytes,
                         .job = job,
                         .any_bytes = any_bytes,
                         .is_train = true,
                         .mixture = job->weight_count > 0};
    struct list val = {.arena = draft->arena,
                       .path_bytes = &path_bytes,
                       .job = job,
                       .any_bytes = any_bytes,
                       .mixture = *job->val_sets != '\0'};
    enum hd_status st;

    st = expand(&train, folder);
    if (!st)
        st = expand(&val, folder);
    if (!st)
        st = drop_validation_files(&train, &val);
    if (!st)
        st = need_sequences(&train, job->context);
    if (!st)
        st = need_parts(&train, job);
    if (!st && val.count)
        st = need_sequences(&val, job->context);
    if (!st && has_records(&train) && !*spec_given(draft, "data.documents"))
        job->documents = HD_JOB_DOCUMENTS_BOUNDED; /* whatever the names of the files promise */
    if (!st)
        st = has_conversations(&train) || has_conversations(&val)
                 ? spec_check_conversations(draft, folder)
                 : spec_refuse_unused(draft);
    if (!st && strcmp(job->bad_rows, "error") != 0 && !has_records(&train) && !has_records(&val))
        st =
            hd_err(HD_INVALID, "data.bad_rows: no file of this job has records, so it would change "
                               "nothing; remove the line");
    if (!st)
        st = spec_set_text_identity(draft);
    if (!st)
        st = replace(&train, &job->train, &job->train_count);
    if (!st)
        st = replace(&val, &job->val, &job->val_count);
    if (!st)
        spec_join_data_stages(job);
    if (!st)
        st = take_fingerprints(draft->arena, job);
    if (!st)
        st = spec_find_choices(draft, folder, true);
    if (!st)
        st = spec_find_samples(draft, folder, true);
    if (!st)
        st = spec_find_rewards(draft, folder, true);
    list_done(&train);
    list_done(&val);
    return st;
}

static enum hd_status make_absolute(struct hd_arena *arena, const char *folder,
                                    struct hd_job_file *files, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        struct hd_text path = {0};

        hd_file_join(&path, folder, files[i].path);
        files[i].path = path.failed ? NULL : hd_arena_strdup(arena, path.data);
        hd_text_free(&path);
        if (!files[i].path)
            return hd_err(HD_NO_MEMORY, "no memory for names of files");
    }
    return HD_OK;
}

enum hd_status spec_leave_files(struct spec_draft *draft, const char *folder)
{
    struct hd_job *job = draft->job;
    enum hd_status st = make_absolute(draft->arena, folder, job->train, job->train_count);

    if (!st)
        st = make_absolute(draft->arena, folder, job->val, job->val_count);
    if (!st)
        st = spec_find_choices(draft, folder, false);
    if (!st)
        st = spec_find_samples(draft, folder, false);
    return st ? st : spec_find_rewards(draft, folder, false);
}
