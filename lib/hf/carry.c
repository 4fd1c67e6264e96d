/* carry: the files of an export besides its weights. One table lists them and their origins.
 * config.json is merged (merge.c), and tokenizer_config.json loses its template if the job has
 * another one; all other files are copied byte for byte.
 *
 * The base's folder may have changed or be gone when a checkpoint is exported. So each checkpoint
 * has copies of these files in its folder `base` (hd_hf_keep), from which an export takes them. A
 * checkpoint of an older build has no copies; then the files are read from their original folders.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/folder.h"
#include "hf/config_internal.h"

enum { CARRIED_BYTES_MAX = 256 << 20, CARRIED_NAME_MAX = 256, TEMPLATES_MAX = 256 };

#define KEPT_DIR      "base"
#define TEMPLATES_DIR HD_HF_TEMPLATES_DIR
#define TEMPLATE_FILE "chat_template.jinja"
#define TOKENIZER     "tokenizer.json"
#define PIECES        "tokenizer.model"
#define NAMES_FILE    "tokenizer_config.json"

/* The origin of a file: the base model; its processor of images; the folder with the chat format (hd_job_chat_folder); the
 * folder of the tokenizer; the adapter from which the run started. */
enum carried_owner { BY_MODEL, BY_IMAGES, BY_CHAT, BY_TOKENIZER, BY_ADAPTER };

static const struct carried_file {
    const char *name;
    enum carried_owner owner;
} carried_files[] = {
    {"config.json", BY_MODEL},
    {"adapter_config.json", BY_ADAPTER},
    {"generation_config.json", BY_MODEL},
    {"LICENSE", BY_MODEL},
    {"LICENSE.txt", BY_MODEL},
    {"LICENSE.md", BY_MODEL},
    {"NOTICE", BY_MODEL},
    {"NOTICE.txt", BY_MODEL},
    {"USE_POLICY.md", BY_MODEL},
    {"preprocessor_config.json", BY_IMAGES},
    {"processor_config.json", BY_IMAGES},
    {NAMES_FILE, BY_CHAT},
    {"special_tokens_map.json", BY_CHAT},
    {TEMPLATE_FILE, BY_CHAT},
    {"chat_template.json", BY_CHAT},
    {TOKENIZER, BY_TOKENIZER},
    {PIECES, BY_TOKENIZER},
    {"vocab.json", BY_TOKENIZER},
    {"vocab.txt", BY_TOKENIZER},
    {"merges.txt", BY_TOKENIZER},
    {"added_tokens.json", BY_TOKENIZER},
};
enum { CARRIED_COUNT = sizeof carried_files / sizeof carried_files[0] };

struct carrying {
    const struct hd_hf_carry *options;
    char model[HD_JOB_PATH_MAX], chat[HD_JOB_PATH_MAX], tokenizer[HD_JOB_PATH_MAX];
    char adapter[HD_JOB_PATH_MAX];
    /* folder of the checkpoint with copies of all files of the job; "": none */
    char kept[HD_JOB_PATH_MAX];
    bool own_template; /* true: the job's template is not the one of the chat folder */
    bool has_tokenizer, has_names;
};

/* ---- folders ---- */

static bool join_kept(const char *checkpoint, char ret_dir[HD_JOB_PATH_MAX])
{
    struct stat info;
    const int n = snprintf(ret_dir, HD_JOB_PATH_MAX, "%s/" KEPT_DIR, checkpoint);

    if (*checkpoint && n < HD_JOB_PATH_MAX && stat(ret_dir, &info) == 0 && S_ISDIR(info.st_mode))
        return true;
    ret_dir[0] = '\0';
    return false;
}

/* Sets ret_dir to the folder with the base's files: model.from, else the folder that the weights
 * came from. */
static void find_model(const struct hd_job *job, char ret_dir[HD_JOB_PATH_MAX])
{
    if (*job->from_dir)
        (void)snprintf(ret_dir, HD_JOB_PATH_MAX, "%s", job->from_dir);
    else if (*job->init_from && hd_source_is_checkpoint(job->init_from))
        (void)join_kept(job->init_from, ret_dir);
    else if (*job->init_from && hd_hf_has_config(job->init_from))
        (void)snprintf(ret_dir, HD_JOB_PATH_MAX, "%s", job->init_from);
}

/* Replaces `dir`, if it is the folder that the job names as base, by the folder given with
 * --base. */
static void follow_move(const struct hd_hf_carry *o, char dir[HD_JOB_PATH_MAX])
{
    const size_t n = strlen(o->job->from_dir);

    if (o->base_dir && n && strncmp(dir, o->job->from_dir, n) == 0 && (!dir[n] || dir[n] == '/'))
        (void)snprintf(dir, HD_JOB_PATH_MAX, "%s", o->base_dir);
}

/* Returns whether the job's template is the one that the chat folder's own files give. */
static bool is_of_chat(const struct hd_job *job)
{
    static const char *const names[] = {TEMPLATE_FILE, NAMES_FILE};
    char folder[HD_JOB_PATH_MAX];
    bool found = false;
    size_t n;

    hd_job_chat_folder(job, folder);
    n = strlen(folder);
    if (n > 1 && folder[n - 1] == '/')
        folder[n - 1] = '\0';
    for (int i = 0; i < 2 && *folder; i++) {
        struct hd_text path = {0};

        hd_file_join(&path, folder, names[i]);
        found = found || (!path.failed && strcmp(path.data, job->template) == 0);
        hd_text_free(&path);
    }
    return found;
}

static void find_folders(struct carrying *c)
{
    const struct hd_job *job = c->options->job;

    find_model(job, c->model);
    hd_job_chat_folder(job, c->chat);
    if (job->tokenizer[0] == '/')
        hd_job_chat_folder(job, c->tokenizer); /* the folder of the path */
    else if (strcmp(job->tokenizer, "none") == 0)
        (void)snprintf(c->tokenizer, sizeof c->tokenizer, "%s", c->model);
    if (*job->adapter_from && !hd_source_is_checkpoint(job->adapter_from))
        (void)snprintf(c->adapter, sizeof c->adapter, "%s", job->adapter_from);
    else
        (void)join_kept(job->adapter_from, c->adapter);
    follow_move(c->options, c->model);
    follow_move(c->options, c->chat);
    follow_move(c->options, c->tokenizer);
    c->own_template = *job->template && !is_of_chat(job);
}

static const char *folder_of(const struct carrying *c, enum carried_owner owner)
{
    if (*c->kept)
        return c->kept;
    switch (owner) {
    case BY_MODEL:
    case BY_IMAGES:
        return c->model;
    case BY_CHAT:
        return c->chat;
    case BY_TOKENIZER:
        return c->tokenizer;
    case BY_ADAPTER:
        break;
    }
    return c->adapter;
}

/* ---- templates ---- */

/* Returns the template in a tokenizer_config.json: a text, or in a list the one named "default". */
static const char *find_template(const struct hd_json *root)
{
    const struct hd_json *found = hd_json_member(root, "chat_template");

    if (found && found->kind == HD_JSON_STRING)
        return found->text;
    for (const struct hd_json *v = found ? found->first : NULL; v; v = v->next) {
        const struct hd_json *name = hd_json_member(v, "name");
        const struct hd_json *text = hd_json_member(v, "template");

        if (name && name->text && strcmp(name->text, "default") == 0 && text && text->text)
            return text->text;
    }
    return NULL;
}

static const struct hd_json_limits carried_limits = {.values_max = 1 << 20, .depth_max = 32};

/* Adds the job's own chat template to the export; it may have to be taken out of a
 * tokenizer_config.json. */
static enum hd_status put_template(struct carrying *c)
{
    const struct hd_hf_carry *o = c->options;
    struct hd_text file = {0}, text = {0};
    const struct hd_json *root = NULL;
    struct hd_arena arena;
    enum hd_status st = hd_file_read(o->job->template, CARRIED_BYTES_MAX, &file);

    hd_arena_init(&arena, 0);
    if (!st && hd_text_ends(o->job->template, ".json")) {
        const char *found;

        st = hd_json_parse_repeated(&arena, file.data, file.len_bytes, &carried_limits, &root);
        found = st ? NULL : find_template(root);
        if (found)
            hd_text_add(&text, "%s", found);
        st = st ? hd_err_prefix(st, "%s", o->job->template) : HD_OK;
    } else if (!st) {
        hd_text_add_bytes(&text, file.data, file.len_bytes);
    }
    if (!st)
        st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for the files of a model")
                         : o->put(o->context, TEMPLATE_FILE, &text);
    hd_arena_done(&arena);
    hd_text_free(&file);
    hd_text_free(&text);
    return st;
}

/* Adds tokenizer_config.json to the export without its chat template, which is not the job's. */
static enum hd_status put_without_template(struct carrying *c, const struct hd_text *file)
{
    const struct hd_json *root = NULL;
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_json_parse_repeated(&arena, file->data ? file->data : "", file->len_bytes,
                                &carried_limits, &root);
    if (!st && root->kind == HD_JSON_OBJECT && hd_json_member(root, "chat_template")) {
        hd_json_begin(&w, NULL, '{');
        for (const struct hd_json *v = root->first; v; v = v->next)
            if (strcmp(v->key, "chat_template") != 0)
                hd_json_add_value(&w, v->key, v);
        hd_json_end(&w, '}');
        st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for the files of a model")
                         : c->options->put(c->options->context, NAMES_FILE, &text);
    } else {
        st = c->options->put(c->options->context, NAMES_FILE, file);
    }
    hd_arena_done(&arena);
    hd_text_free(&text);
    return st;
}

/* ---- files ---- */

/* Adds a file of a folder to the export, if the folder has it. */
static enum hd_status put_file(struct carrying *c, const char *dir, const char *name)
{
    struct hd_text text = {0};
    enum hd_status st = hd_folder_read_any(dir, name, CARRIED_BYTES_MAX, &text);

    if (!st && text.data) {
        c->has_tokenizer =
            c->has_tokenizer || strcmp(name, TOKENIZER) == 0 || strcmp(name, PIECES) == 0;
        c->has_names = c->has_names || strcmp(name, NAMES_FILE) == 0;
        if (c->own_template && strcmp(name, NAMES_FILE) == 0)
            st = put_without_template(c, &text);
        else if (text.len_bytes)
            st = c->options->put(c->options->context, name, &text);
    }
    hd_text_free(&text);
    return st;
}

/* Returns whether the job's tokenizer is a SentencePiece model. */
static bool has_pieces(const struct carrying *c)
{
    return hd_text_ends(c->options->job->tokenizer, ".model");
}

/* Adds the job's tokenizer to the export as file `name`: tokenizer.json or tokenizer.model. If the
 * job names one, it must exist. */
static enum hd_status put_tokenizer(struct carrying *c, const char *name)
{
    const struct hd_hf_carry *o = c->options;
    const char *slash = strrchr(o->job->tokenizer, '/');
    char path[HD_JOB_PATH_MAX];
    struct hd_text text = {0};
    enum hd_status st;

    if (*c->kept || !slash)
        return put_file(c, folder_of(c, BY_TOKENIZER), name);
    (void)snprintf(path, sizeof path, "%s", o->job->tokenizer);
    follow_move(o, path);
    if (strcmp(path, o->job->tokenizer) != 0 && !hd_file_exists(path))
        return HD_OK; /* the folder of --base has another tokenizer */
    st = hd_file_read(path, CARRIED_BYTES_MAX, &text);
    if (!st && !text.len_bytes)
        st = hd_err(HD_INVALID,
                    "%s, the tokenizer of the job, is empty; restore it and export again", path);
    c->has_tokenizer = true;
    if (!st)
        st = o->put(o->context, name, &text);
    hd_text_free(&text);
    return st;
}

/* Adds the folder of named chat templates to the export. */
static enum hd_status put_named_templates(struct carrying *c)
{
    const char *folder = folder_of(c, BY_CHAT);
    char dir[HD_JOB_PATH_MAX + sizeof TEMPLATES_DIR], name[CARRIED_NAME_MAX + 32];
    const struct dirent *entry;
    enum hd_status st = HD_OK;
    DIR *d;

    if (!*folder)
        return HD_OK;
    (void)snprintf(dir, sizeof dir, "%s/" TEMPLATES_DIR, folder);
    d = opendir(dir);
    for (int i = 0; d && !st && i < TEMPLATES_MAX && (entry = readdir(d)); i++)
        if (entry->d_name[0] != '.' && hd_text_ends(entry->d_name, ".jinja") &&
            snprintf(name, sizeof name, TEMPLATES_DIR "/%s", entry->d_name) < (int)sizeof name)
            st = put_file(c, folder, name);
    if (d)
        (void)closedir(d);
    return st;
}

/* Returns whether the export of a model of bytes leaves the file out: names and classes of another
 * tokenizer do not fit a model of bytes. */
static bool is_left_out(const struct carrying *c, const struct carried_file *f)
{
    const bool bytes = strcmp(c->options->job->tokenizer, "bytes") == 0;

    if (c->options->adapter && (f->owner == BY_MODEL || f->owner == BY_IMAGES))
        return true;
    if (c->options->text_only && f->owner == BY_IMAGES)
        return true;
    if (f->owner == BY_CHAT && c->own_template && strcmp(f->name, TEMPLATE_FILE) == 0)
        return true;
    return bytes && !*c->kept && (f->owner == BY_CHAT || f->owner == BY_TOKENIZER) &&
           strcmp(f->name, TEMPLATE_FILE) != 0;
}

static enum hd_status put_bytes(struct carrying *c)
{
    const struct hd_hf_carry *o = c->options;
    struct hd_text tokenizer = {0}, names = {0};
    enum hd_status st = HD_OK;

    if (strcmp(o->job->tokenizer, "bytes") != 0)
        return HD_OK;
    hd_hf_write_byte_tokenizer(&tokenizer);
    hd_hf_write_byte_tokenizer_config(&names);
    if (tokenizer.failed || names.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for the files of a model");
    if (!st && !c->has_tokenizer)
        st = o->put(o->context, TOKENIZER, &tokenizer);
    if (!st && !c->has_names)
        st = o->put(o->context, NAMES_FILE, &names);
    hd_text_free(&tokenizer);
    hd_text_free(&names);
    return st;
}

/* Adds a tokenizer_config.json to the export if the tokenizer has none: without it AutoTokenizer
 * guesses a class by the model, and knows no token that ends a text. */
static enum hd_status put_names(struct carrying *c)
{
    const struct hd_hf_carry *o = c->options;
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    if (!o->ends || !c->has_tokenizer || c->has_names)
        return HD_OK;
    hd_hf_write_names(o->ends, has_pieces(c), &text);
    st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for the files of a model")
                     : o->put(o->context, NAMES_FILE, &text);
    hd_text_free(&text);
    return st;
}

enum hd_status hd_hf_carry_files(const struct hd_hf_carry *options)
{
    struct carrying c = {.options = options};
    enum hd_status st = HD_OK;

    if (options->checkpoint_dir)
        (void)join_kept(options->checkpoint_dir, c.kept);
    find_folders(&c);
    if (*c.kept)
        c.own_template = false; /* the template is already among the copied files */
    for (int i = 0; !st && i < CARRIED_COUNT; i++) {
        const struct carried_file *f = &carried_files[i];
        const char *dir = folder_of(&c, f->owner);

        if (!*dir && strcmp(f->name, "generation_config.json") == 0)
            dir = c.chat; /* a new model: its end tokens are those of its tokenizer's model */
        if (is_left_out(&c, f) || !*dir)
            continue;
        if (has_pieces(&c) && strcmp(f->name, TOKENIZER) == 0)
            continue; /* the job used the folder's SentencePiece model */
        st = strcmp(f->name, has_pieces(&c) ? PIECES : TOKENIZER) == 0 ? put_tokenizer(&c, f->name)
                                                                       : put_file(&c, dir, f->name);
    }
    if (!st)
        st = put_named_templates(&c);
    if (!st && c.own_template)
        st = put_template(&c);
    if (!st && strcmp(options->job->tokenizer, "bytes") != 0)
        return put_names(&c);
    return st ? st : put_bytes(&c);
}

/* ---- copies in a checkpoint ---- */

/* Stores in the checkpoint the base's rows of learned positions after those of the job, from the
 * folder from which the run started. Files linked from an earlier checkpoint already include
 * them. */
static enum hd_status keep_positions(const struct hd_job *job, const char *dir)
{
    struct hd_hf_positions p;
    struct hd_text path = {0};
    enum hd_status st = hd_hf_find_positions(job, job->init_from, &p);

    if (!st && p.rows)
        st = hd_folder_path(&path, dir, HD_HF_POSITIONS_FILE);
    if (!st && p.rows)
        st = hd_hf_write_positions(&p, path.data);
    hd_hf_close_positions(&p);
    hd_text_free(&path);
    return st;
}

struct keeping {
    char dir[HD_JOB_PATH_MAX];
};

static enum hd_status keep_file(void *context, const char *name, const struct hd_text *text)
{
    const struct keeping *k = context;
    struct hd_text path = {0}, parent = {0};
    enum hd_status st = hd_folder_path(&path, k->dir, name);

    hd_text_add(&parent, "%s/%.*s", k->dir,
                (int)(strrchr(name, '/') ? strrchr(name, '/') - name : 0), name);
    if (parent.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for the files of a model");
    if (!st)
        st = hd_file_make_dirs(parent.data, HD_FILE_JOB_DIR_MODE);
    if (!st)
        st = hd_file_write_atomic(path.data, text->data ? text->data : "", text->len_bytes, 0644);
    hd_text_free(&path);
    hd_text_free(&parent);
    return st;
}

/* Hard-links a file of an earlier checkpoint of the job, which has the same contents; copies it if
 * linking fails. */
static enum hd_status link_file(const char *from_dir, const char *to_dir, const char *name)
{
    struct hd_text from = {0}, to = {0}, text = {0};
    enum hd_status st = hd_folder_path(&from, from_dir, name);

    if (!st)
        st = hd_folder_path(&to, to_dir, name);
    if (!st && link(from.data, to.data) < 0 && errno != EEXIST) {
        st = hd_file_read(from.data, CARRIED_BYTES_MAX, &text);
        if (!st)
            st = hd_file_write_atomic(to.data, text.data, text.len_bytes, 0644);
    }
    hd_text_free(&from);
    hd_text_free(&to);
    hd_text_free(&text);
    return st;
}

static enum hd_status link_all(const char *from_dir, const char *to_dir, bool below)
{
    const struct dirent *entry;
    DIR *d = opendir(from_dir);
    enum hd_status st = d ? hd_file_make_dirs(to_dir, HD_FILE_JOB_DIR_MODE)
                          : hd_err(HD_NOT_FOUND, "cannot read %s", from_dir);

    while (!st && (entry = readdir(d))) {
        char from[HD_JOB_PATH_MAX], to[HD_JOB_PATH_MAX];

        if (entry->d_name[0] == '.')
            continue;
        if (strcmp(entry->d_name, TEMPLATES_DIR) != 0) {
            st = link_file(from_dir, to_dir, entry->d_name);
        } else if (below &&
                   snprintf(from, sizeof from, "%s/" TEMPLATES_DIR, from_dir) < HD_JOB_PATH_MAX &&
                   snprintf(to, sizeof to, "%s/" TEMPLATES_DIR, to_dir) < HD_JOB_PATH_MAX) {
            st = link_all(from, to, false);
        }
    }
    if (d)
        (void)closedir(d);
    return st ? st : hd_file_sync_dir(to_dir);
}

enum hd_status hd_hf_keep(const char *checkpoint_dir, const struct hd_job *job, const char *earlier)
{
    struct keeping k;
    char from[HD_JOB_PATH_MAX];
    const struct hd_hf_carry all = {.job = job, .put = keep_file, .context = &k};
    struct stat info;
    enum hd_status st = HD_NOT_FOUND;

    if (snprintf(k.dir, sizeof k.dir, "%s/" KEPT_DIR, checkpoint_dir) >= HD_JOB_PATH_MAX)
        return hd_err(HD_LIMIT, "the path %s is too long", checkpoint_dir);
    if (stat(k.dir, &info) == 0)
        return HD_OK;
    if (join_kept(earlier, from) || join_kept(job->base_checkpoint, from))
        st = link_all(from, k.dir, true);
    if (st) {
        st = hd_hf_carry_files(&all);
        if (!st)
            st = keep_positions(job, k.dir);
    }
    if (!st || st == HD_STORAGE)
        return st;
    /* after a failure removes the folder, so that it has all files or none */
    (void)hd_file_remove_tree(k.dir);
    return HD_OK;
}

enum hd_status hd_hf_carry_positions(const struct hd_hf_carry *options,
                                     struct hd_hf_positions *ret_positions)
{
    const struct hd_job *job = options->job;
    char dir[HD_JOB_PATH_MAX] = "", file[HD_JOB_PATH_MAX];

    *ret_positions = (struct hd_hf_positions){.rows = 0};
    if (options->checkpoint_dir && join_kept(options->checkpoint_dir, dir)) {
        if (snprintf(file, sizeof file, "%s/" HD_HF_POSITIONS_FILE, dir) >= HD_JOB_PATH_MAX ||
            !hd_file_exists(file))
            return HD_OK;
        return hd_hf_open_positions(file, ret_positions);
    }
    (void)snprintf(dir, sizeof dir, "%s", job->init_from);
    follow_move(options, dir);
    return hd_hf_find_positions(job, dir, ret_positions);
}

bool hd_hf_has_kept(const char *checkpoint_dir)
{
    char dir[HD_JOB_PATH_MAX];

    return join_kept(checkpoint_dir, dir);
}

enum hd_status hd_hf_read_carried(const struct hd_hf_carry *options, const char *name,
                                  struct hd_text *ret_text)
{
    struct carrying c = {.options = options};
    const char *dir = "";

    if (options->checkpoint_dir)
        (void)join_kept(options->checkpoint_dir, c.kept);
    find_folders(&c);
    for (int i = 0; i < CARRIED_COUNT; i++)
        if (strcmp(carried_files[i].name, name) == 0)
            dir = folder_of(&c, carried_files[i].owner);
    return *dir ? hd_folder_read_any(dir, name, HD_HF_CONFIG_BYTES_MAX, ret_text) : HD_OK;
}
