#include "train/token_cache.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/folder.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/fingerprint.h"
#include "data/tokenize.h"
#include "records/kind.h"
#include "train/job_chat.h"

enum { WAIT_NS = 20 * 1000 * 1000, NAMES_BYTES_MAX = 64 << 20 };
#define NAMES "names-of-attempt-"

struct fill_state {
    const struct hd_job *job;
    struct hd_job_tokenizer *opened;
    struct hd_job_chat chat;
    /* hashes of everything that tokens of conversations, and of texts, depend on */
    uint64_t chat_hash, text_hash;
    /* conversations tokenized by this rank whose text contains a special token's spelling */
    int64_t spelled;
    uint32_t forms; /* a bit for each form of the files with records that this rank tokenized */
    struct hd_bad_rule bad_rule;
    struct hd_bad_rows bad; /* records that cannot be used, of the files tokenized by this rank */
    const struct hd_token_cache_watch *watch;
    struct hd_arena *arena;
    const struct hd_tokenizer *tokenizer; /* the job's tokenizer */
    int64_t end_of_text;
    const char *folder;
    /* index: number of files seen so far that need tokenizing; made: number of them that this rank
     * tokenized */
    int64_t index, made;
    /* [files that need tokens], name of the token file, without folder and suffix */
    const char **names;
    /* [files that need tokens], index of the first file with the same token file name */
    int64_t *firsts;
};

static bool needs_tokens(const struct hd_job *job, const char *path)
{
    if (hd_data_is_tokens(path))
        return false;
    return strcmp(job->tokenizer, "bytes") != 0 || !hd_data_is_plain(path);
}

static bool any_needs_tokens(const struct hd_job *job)
{
    for (int64_t i = 0; i < job->train_count; i++)
        if (needs_tokens(job, job->train[i].path))
            return true;
    for (int64_t i = 0; i < job->val_count; i++)
        if (needs_tokens(job, job->val[i].path))
            return true;
    return false;
}

static enum hd_status check_data_file(const struct hd_job_file *file, struct stat *ret_info)
{
    struct stat info;

    if (stat(file->path, &info) < 0)
        return hd_err(errno == ENOENT ? HD_NOT_FOUND : HD_IO, "cannot examine the data file %s: %s",
                      file->path, strerror(errno));
    if (file->size_bytes >= 0 && info.st_size != file->size_bytes)
        return hd_err(HD_INVALID,
                      "%s has %" PRId64 " bytes now, but had %" PRId64 " when the job was "
                      "submitted; restore it, or submit the job again",
                      file->path, (int64_t)info.st_size, file->size_bytes);
    *ret_info = info;
    return hd_fingerprint_check(file->path, file->fingerprint);
}

/* Computes the name of the token file that belongs to a text file. */
static enum hd_status name_of(const struct fill_state *f, const struct hd_job_file *file,
                              char ret_name[HD_HASH_TEXT_MAX])
{
    struct hd_text key = {0};
    const bool has_records = hd_data_has_records(file->path);
    struct stat info;
    enum hd_status st = check_data_file(file, &info);

    if (st)
        return st;
    hd_text_add(&key, "5 %s%" PRIx64 " %" PRId64 " %" PRId64 " %" PRId64 ".%09ld %s",
                hd_job_is_unpaired(f->job) ? "unpaired "
                : hd_job_has_pairs(f->job) ? "pairs "
                                           : "",
                has_records ? f->chat_hash : f->text_hash, f->end_of_text, (int64_t)info.st_size,
                (int64_t)info.st_mtim.tv_sec, info.st_mtim.tv_nsec, file->path);
    if (*f->job->columns && has_records)
        hd_text_add(&key, " columns %s", f->job->columns);
    if (*f->job->roles && has_records)
        hd_text_add(&key, " roles %s", f->job->roles);
    if (f->bad_rule.skips && has_records)
        hd_text_add(&key, " bad rows %s", f->job->bad_rows);
    if (key.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for the name of the tokens of %s", file->path);
    else
        hd_hash_format(hd_hash_bytes(key.data, key.len_bytes), ret_name);
    hd_text_free(&key);
    return st;
}

/* ---- names ---- */

/* Removes partial files of killed ranks, and the names of former attempts. This attempt's ranks
 * write only after they have read the names. */
static void remove_partial_files(const char *folder)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;

    while (dir && (entry = readdir(dir)))
        if (strstr(entry->d_name, ".part.") || hd_text_starts(entry->d_name, NAMES))
            /* best effort: a leftover only uses disk space */
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        (void)closedir(dir);
}

static enum hd_status write_names_of(const struct fill_state *f, const struct hd_job_file *files,
                                     int64_t count, struct hd_text *names)
{
    char name[HD_HASH_TEXT_MAX];
    enum hd_status st = HD_OK;

    for (int64_t i = 0; !st && i < count; i++) {
        if (!needs_tokens(f->job, files[i].path))
            continue;
        st = name_of(f, &files[i], name);
        if (!st)
            hd_text_add(names, "%s\n", name);
    }
    return st;
}

/* Sleeps for WAIT_NS. Returns false if the watch says to stop. */
static bool pause_alive(const struct hd_token_cache_watch *w)
{
    const struct timespec pause = {.tv_nsec = WAIT_NS};

    if (w->alive && !w->alive(w->context, 0, 0))
        return false;
    (void)nanosleep(&pause, NULL);
    return true;
}

static enum hd_status give_names(const struct fill_state *f, const char *path,
                                 struct hd_text *ret_names)
{
    enum hd_status st = write_names_of(f, f->job->train, f->job->train_count, ret_names);

    if (!st)
        st = write_names_of(f, f->job->val, f->job->val_count, ret_names);
    if (!st && ret_names->failed)
        st = hd_err(HD_NO_MEMORY, "no memory for the names of tokens");
    if (!st)
        remove_partial_files(f->folder);
    if (!st && f->watch->world > 1)
        st = hd_file_write_atomic(path, ret_names->data, ret_names->len_bytes, 0644);
    return st;
}

static enum hd_status read_names(const struct fill_state *f, const char *path,
                                 struct hd_text *ret_names)
{
    enum hd_status st;

    while ((st = hd_file_read(path, NAMES_BYTES_MAX, ret_names)) == HD_NOT_FOUND)
        if (!pause_alive(f->watch))
            return hd_err(HD_ABORTED, "stopped waiting for rank 0 to write the token file names");
    return st;
}

struct named {
    const char *name;
    int64_t index;
};

static int by_name(const void *left, const void *right)
{
    const struct named *a = left, *b = right;
    const int order = strcmp(a->name, b->name);

    return order ? order : a->index < b->index ? -1 : a->index > b->index;
}

/* Finds the first file with each name. A file that is listed twice has one name, and only one rank
 * tokenizes it. */
static enum hd_status find_firsts(struct fill_state *f, int64_t count)
{
    struct named *sorted = calloc((size_t)count + 1, sizeof *sorted);

    f->firsts = hd_arena_array(f->arena, (size_t)count + 1, sizeof *f->firsts);
    for (int64_t i = 0; sorted && i < count; i++)
        sorted[i] = (struct named){f->names[i], i};
    if (sorted)
        qsort(sorted, (size_t)count, sizeof *sorted, by_name);
    for (int64_t i = 0; sorted && f->firsts && i < count; i++)
        f->firsts[sorted[i].index] = i && strcmp(sorted[i].name, sorted[i - 1].name) == 0
                                         ? f->firsts[sorted[i - 1].index]
                                         : sorted[i].index;
    free(sorted);
    return sorted && f->firsts ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for the names of tokens");
}

static enum hd_status take_names(struct fill_state *f)
{
    const int64_t file_count = f->job->train_count + f->job->val_count;
    const char *path =
        hd_arena_printf(f->arena, "%s/" NAMES "%lld", f->folder, (long long)f->job->attempt);
    struct hd_text names = {0};
    int64_t count = 0;
    char *rest, *line;
    enum hd_status st = path ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for a path");

    if (!st)
        st = f->watch->rank ? read_names(f, path, &names) : give_names(f, path, &names);
    f->names = hd_arena_array(f->arena, (size_t)file_count + 1, sizeof *f->names);
    rest = st ? NULL : hd_arena_strdup(f->arena, names.data);
    while (f->names && (line = strsep(&rest, "\n")) && *line && count < file_count)
        f->names[count++] = line;
    if (!st && hd_arena_failed(f->arena))
        st = hd_err(HD_NO_MEMORY, "no memory for the names of tokens");
    if (!st)
        st = find_firsts(f, count);
    hd_text_free(&names);
    return st;
}

/* ---- tokens ---- */

static int threads_of(const struct hd_job *job)
{
    if (job->threads < 1)
        return 1;
    return job->threads < HD_TOKENIZE_THREADS_MAX ? (int)job->threads : HD_TOKENIZE_THREADS_MAX;
}

static bool is_alive(void *context, const struct hd_tokenize_counts *c)
{
    const struct hd_token_cache_watch *watch = context;

    return !watch->alive || watch->alive(watch->context, c->read_bytes, c->total_bytes);
}

static enum hd_status make(struct fill_state *f, const struct hd_job_file *file, const char *stem)
{
    struct hd_token_cache_watch watch = *f->watch;
    struct hd_tokenize_counts counts = {.spelled = 0};
    struct hd_bad_rows bad = {.count = 0};
    struct hd_conversation_rules rules;
    enum hd_chat_form form = HD_CHAT_TEXT;
    struct hd_tokenize what = {.tokenizer = f->tokenizer,
                               .end_of_text = f->end_of_text,
                               .vocab = f->job->vocab,
                               .inputs = &file->path,
                               .input_count = 1,
                               .rows = hd_job_rows(f->job),
                               .bad = f->bad_rule.skips || f->watch->bad ? &bad : NULL,
                               .out = stem,
                               .format = HD_TOKEN_FORMAT_MEGATRON,
                               .threads = threads_of(f->job),
                               .progress = is_alive,
                               .context = &watch};
    struct stat info;
    enum hd_status st = check_data_file(file, &info);

    f->made++;
    if (!st)
        st = hd_job_form(f->job, file->path, &form);
    if (!st && hd_data_has_records(file->path))
        f->forms |= 1u << form;
    if (!st && form != HD_CHAT_TEXT) {
        st = hd_job_chat_rules(&f->chat, f->opened, f->job, form, &rules);
        what.conversations = &rules;
        what.format = HD_TOKEN_FORMAT_COUNTS;
    }
    if (!st)
        st = hd_tokenize_run(&what, &counts);
    f->spelled += counts.spelled;
    hd_bad_rows_join(f->watch->bad ? f->watch->bad : &f->bad, &bad);
    hd_bad_rows_free(&bad);
    return st;
}

/* Returns true if both parts of a token file exist, .bin and .idx. The .bin is checked first: a
 * rank that rewrites them removes the .idx before it renames the .bin, and renames the .idx
 * last. */
static bool are_there(const char *bin, const char *idx)
{
    return hd_file_exists(bin) && hd_file_exists(idx);
}

/* Fills `list` with the token files to read; tokenizes the files that are assigned to this rank and
 * have no token file yet. */
static enum hd_status fill_list(struct fill_state *f, const struct hd_job_file *files,
                                int64_t count, struct hd_corpus_file *list)
{
    enum hd_status st = HD_OK;

    for (int64_t i = 0; !st && i < count; i++) {
        const char *name, *stem, *bin, *idx;

        list[i] = (struct hd_corpus_file){.path = files[i].path,
                                          .size_bytes = files[i].size_bytes,
                                          .fingerprint = files[i].fingerprint};
        if (!needs_tokens(f->job, files[i].path))
            continue;
        name = f->names[f->index];
        stem = name ? hd_arena_printf(f->arena, "%s/%s", f->folder, name) : NULL;
        if (!stem)
            return hd_err(HD_CORRUPT, "%s has no name in the list of tokens", files[i].path);
        bin = hd_arena_printf(f->arena, "%s.bin", stem);
        idx = hd_arena_printf(f->arena, "%s.idx", stem);
        if (!bin || !idx)
            return hd_err(HD_NO_MEMORY, "no memory for a path");
        if (f->firsts[f->index++] % f->watch->world == f->watch->rank && !are_there(bin, idx))
            st = make(f, &files[i], stem);
        list[i] = (struct hd_corpus_file){
            .path = bin, .size_bytes = -1, .source = files[i].path, .has_gaps = f->bad_rule.skips};
    }
    return st;
}

static enum hd_status wait_for(const struct fill_state *f, const struct hd_job_file *files,
                               int64_t count, const struct hd_corpus_file *list)
{
    for (int64_t i = 0; i < count; i++) {
        const char *idx;

        if (!needs_tokens(f->job, files[i].path))
            continue;
        idx = hd_arena_printf(f->arena, "%.*sidx", (int)strlen(list[i].path) - 3, list[i].path);
        if (!idx)
            return hd_err(HD_NO_MEMORY, "no memory for a path");
        while (!are_there(list[i].path, idx))
            if (!pause_alive(f->watch))
                return hd_err(HD_ABORTED, "stopped waiting for the tokens of %s", files[i].path);
    }
    return HD_OK;
}

/* Fails if the tokenizer or template has changed since submission, so that a later attempt trains
 * on the same tokens as the first. */
static enum hd_status check_identity(const struct fill_state *f, struct hd_text_origin origin)
{
    const struct hd_job *job = f->job;
    char is[HD_TEXT_IDENTITY_MAX];
    bool same = false;
    enum hd_status st;

    if (!*job->text_identity)
        return HD_OK;
    origin.template = *job->template ? job->template : NULL;
    st = hd_text_identity_is(&origin, origin.template ? f->chat_hash : f->text_hash,
                             job->text_identity, &same, is);
    if (st || same)
        return st;
    return hd_err(
        HD_INVALID,
        "the tokenizer %s%s%s, or a special token that the files beside it name, has changed "
        "since the job was submitted: its identity is %s, was %s; restore the files, or "
        "submit the job again",
        job->tokenizer, *job->template ? ", the template " : "", job->template, is,
        job->text_identity);
}

static enum hd_status find_hashes(struct fill_state *f)
{
    char folder[HD_JOB_PATH_MAX];
    struct hd_text_origin origin = {.tokenizer = f->job->tokenizer,
                                    .template = f->job->template,
                                    .folder = folder,
                                    .model_dir = f->job->from_dir,
                                    .format = hd_job_data_format_words[f->job->data_format],
                                    .loss = hd_job_data_loss_words[f->job->data_loss],
                                    .date = f->job->date};
    enum hd_status st;

    hd_job_chat_folder(f->job, folder);
    st = hd_text_identities(&origin, &f->chat_hash, &f->text_hash);
    return st ? st : check_identity(f, origin);
}

enum hd_status hd_token_cache_add_path(const struct hd_job *job, const char *suffix,
                                       struct hd_text *ret_path)
{
    hd_folder_of(job->attempt_dir, ret_path);
    hd_text_add(ret_path, "/tokens%s", suffix);
    return ret_path->failed ? hd_err(HD_NO_MEMORY, "no memory for a path") : HD_OK;
}

/* Prepares the folder `tokens` in the job's folder, which is the parent of the attempt's. */
static enum hd_status prepare_folder(struct fill_state *f)
{
    const struct hd_job *job = f->job;
    struct hd_text folder = {0};
    enum hd_status st = hd_job_tokenizer_need(f->opened, job, &f->tokenizer);

    if (!st)
        st = hd_job_tokenizer_end_of_text(f->opened, job, &f->end_of_text);
    if (st)
        return st;
    st = hd_token_cache_add_path(job, "", &folder);
    f->folder = st ? NULL : hd_arena_strdup(f->arena, folder.data);
    hd_text_free(&folder);
    if (!f->folder)
        return hd_err(HD_NO_MEMORY, "no memory for a path");
    st = find_hashes(f);
    if (!st)
        st = hd_file_make_dirs(f->folder, HD_FILE_JOB_DIR_MODE);
    return st ? st : take_names(f);
}

enum hd_status hd_token_cache_fill(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                                   const struct hd_token_cache_watch *watch, struct hd_arena *arena,
                                   struct hd_token_cache *ret_cache)
{
    struct fill_state f = {.job = job, .opened = tokenizer, .watch = watch, .arena = arena};
    struct hd_corpus_file *train, *val;
    uint32_t train_forms;
    enum hd_status st;

    *ret_cache = (struct hd_token_cache){.made = 0};
    if (hd_job_has_policy(job) || !any_needs_tokens(job)) /* prompts are encoded by each rank */
        return HD_OK;
    train = hd_arena_array(arena, (size_t)job->train_count + 1, sizeof *train);
    val = hd_arena_array(arena, (size_t)job->val_count + 1, sizeof *val);
    st = train && val ? hd_bad_rule_read(job->bad_rows, &f.bad_rule)
                      : hd_err(HD_NO_MEMORY, "no memory for a list of files");
    if (!st)
        st = prepare_folder(&f);
    if (!st)
        st = fill_list(&f, job->train, job->train_count, train);
    train_forms = f.forms;
    if (!st)
        st = fill_list(&f, job->val, job->val_count, val);
    if (!st)
        st = wait_for(&f, job->train, job->train_count, train);
    if (!st)
        st = wait_for(&f, job->val, job->val_count, val);
    hd_job_chat_close(&f.chat);
    if (!st)
        *ret_cache = (struct hd_token_cache){.train = train,
                                             .val = val,
                                             .made = f.made,
                                             .train_forms = train_forms,
                                             .spelled = f.spelled,
                                             .records = f.bad.records,
                                             .left_out = f.bad.count};
    if (!st && f.bad.count)
        (void)hd_bad_rows_first(&f.bad, ret_cache->first_left_out,
                                sizeof ret_cache->first_left_out);
    hd_bad_rows_free(&f.bad);
    return st;
}
