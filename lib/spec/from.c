/* from: copies the settings of the directories of model.from and train.init_from into the job, so
 * that a stored spec is complete, and a hash, so that a later change of the directory is detected.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "hf/hf.h"
#include "spec_internal.h"

/* Relative paths in a job file are relative to its folder. */
static enum hd_status make_absolute(char path[HD_JOB_PATH_MAX], const char *key, const char *folder)
{
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    hd_file_join(&text, folder, path);
    if (text.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for the job file");
    else if (text.len_bytes >= HD_JOB_PATH_MAX)
        st = hd_err(HD_INVALID, "%s: longer than %d bytes; use a shorter path", key,
                    HD_JOB_PATH_MAX - 1);
    else
        memcpy(path, text.data, text.len_bytes + 1);
    hd_text_free(&text);
    return st;
}

/* Prefixes the key. A missing or damaged directory is a mistake of the job file: HD_INVALID. */
static enum hd_status at_key(const char *key, enum hd_status st)
{
    if (st == HD_NOT_FOUND || st == HD_CORRUPT || st == HD_LIMIT)
        st = HD_INVALID;
    return hd_err_prefix(st, "%s", key);
}

/* Keys that, if given, must agree with config.json. Not among them: model.context, which may be
 * shorter; the router's losses and dropout, which are settings of training: config.json gives only
 * their defaults. */
static bool is_architecture(const struct hd_key *key)
{
    static const char *const others[] = {"model.family", "model.from", "model.context",
                                         "model.weights"};

    if (strncmp(key->path, "model.", 6) != 0 || key->kind == HD_KEY_FORM)
        return false;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(key->path, others[i]) == 0)
            return false;
    return strcmp(key->path, "model.router.z") != 0 &&
           strcmp(key->path, "model.router.capacity") != 0 &&
           strcmp(key->path, "model.router.balance") != 0;
}

static bool is_filled(const struct hd_key *key)
{
    return strcmp(key->path, "model.router.balance") == 0 ||
           strcmp(key->path, "model.weights") == 0 ||
           strncmp(key->path, "train.dropout.", 14) == 0;
}

static enum hd_status differs(const struct hd_key *key, const struct hd_job *given,
                              const struct hd_job *theirs)
{
    struct hd_text a = {0}, b = {0};
    enum hd_status st;

    (void)hd_job_format(key, given, &a);
    (void)hd_job_format(key, theirs, &b);
    st = hd_err(HD_INVALID, "%s: %s is not the %s of %s/config.json; remove the line", key->path,
                a.data ? a.data : "", b.data ? b.data : "", given->from_dir);
    hd_text_free(&a);
    hd_text_free(&b);
    return st;
}

/* Sets a key from config.json; HD_INVALID if the job file gives another value. */
static enum hd_status take_key(struct spec_draft *draft, size_t index, const struct hd_job *theirs)
{
    const struct hd_key *key = &hd_job_keys[index];

    if (draft->given[index] && !hd_job_members_equal(key, draft->job, theirs))
        return differs(key, draft->job, theirs);
    hd_job_copy_member(key, theirs, draft->job);
    draft->given[index] = true;
    return HD_OK;
}

/* The context of the job may be shorter than that of the model. */
static enum hd_status take_context(struct spec_draft *draft, const struct hd_job *theirs)
{
    if (draft->job->context > theirs->context)
        return hd_err(HD_INVALID,
                      "model.context: %" PRId64 " is more than the %" PRId64
                      " of %s/config.json; give at most that",
                      draft->job->context, theirs->context, draft->job->from_dir);
    if (!draft->job->context)
        draft->job->context = theirs->context;
    *spec_given(draft, "model.context") = true;
    return HD_OK;
}

static enum hd_status take_model(struct spec_draft *draft)
{
    const struct hd_key *family = hd_job_find_key("model.family");
    struct hd_job theirs = {0};
    enum hd_status st = hd_hf_read_config(draft->job->from_dir, &theirs, NULL);

    if (st)
        return at_key("model.from", st);
    st = take_key(draft, (size_t)(family - hd_job_keys), &theirs);
    if (!st)
        st = take_context(draft, &theirs);
    for (size_t i = 0; i < hd_job_key_count && !st; i++) {
        const struct hd_key *key = &hd_job_keys[i];

        if (is_architecture(key))
            st = take_key(draft, i, &theirs);
        else if (is_filled(key) && !draft->given[i])
            st = take_key(draft, i, &theirs);
    }
    return st;
}

/* Makes the tokenizer's path absolute; if none is given and the job has text, model.from's. */
static enum hd_status find_tokenizer(struct spec_draft *draft, const char *folder)
{
    struct hd_job *job = draft->job;
    struct hd_text path = {0};
    enum hd_status st = HD_OK;

    if (!*job->tokenizer && *job->from_dir && hd_spec_has_text(job)) {
        hd_file_join(&path, job->from_dir, "tokenizer.json");
        if (path.failed)
            st = hd_err(HD_NO_MEMORY, "no memory for the job file");
        else if (path.len_bytes < HD_JOB_PATH_MAX && hd_file_exists(path.data))
            memcpy(job->tokenizer, path.data, path.len_bytes + 1);
        hd_text_free(&path);
    }
    if (st || !*job->tokenizer || strcmp(job->tokenizer, "bytes") == 0 ||
        strcmp(job->tokenizer, "none") == 0)
        return st;
    st = make_absolute(job->tokenizer, "data.tokenizer", folder);
    if (!st && !hd_file_exists(job->tokenizer))
        st = hd_err(HD_INVALID,
                    "data.tokenizer: there is no %s; write bytes, none, or the path of a "
                    "tokenizer.json",
                    job->tokenizer);
    return st;
}

enum hd_status spec_read_from(struct spec_draft *draft, const char *folder)
{
    struct hd_job *job = draft->job;
    const char *key = *job->init_from ? "train.init_from" : "model.from";
    char identity[HD_HASH_TEXT_MAX];
    uint64_t hash = 0;
    enum hd_status st = HD_OK;

    if (*job->from_dir) {
        st = make_absolute(job->from_dir, "model.from", folder);
        if (!st)
            st = take_model(draft);
        if (!st && !*job->init_from)
            memcpy(job->init_from, job->from_dir, sizeof job->init_from);
    }
    if (!st)
        st = find_tokenizer(draft, folder);
    if (st || !*job->init_from || strcmp(job->init_from, SPEC_INIT_NONE) == 0)
        return st;
    st = make_absolute(job->init_from, "train.init_from", folder);
    if (st)
        return st;
    st = hd_source_identity(job->init_from, &hash);
    if (st)
        return at_key(key, st);
    hd_hash_format(hash, identity);
    (void)snprintf(job->init_identity, sizeof job->init_identity, "%s", identity);
    *spec_given(draft, "train.init_identity") = true;
    return HD_OK;
}
