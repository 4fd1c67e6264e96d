/* from: copies the settings in the folders of model.from, train.init_from and train.adapter.from
 * into the job, so that a stored spec is complete, and hashes their files, so that a later change
 * is detected. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"
#include "chat/date.h"
#include "chat/model.h"
#include "checkpoint/checkpoint.h"
#include "hf/hf.h"
#include "job/frozen_model.h"
#include "spec_internal.h"
#include "tokenizer/companions.h"
#include "tokenizer/count.h"

enum { BYTES_VOCAB = 256 }; /* tokens of the tokenizer `bytes` */

enum hd_status spec_make_absolute(struct hd_job *job, const char **path, const char *key,
                                  const char *folder)
{
    struct hd_text text = {0};
    enum hd_status st;

    hd_file_join(&text, folder, *path);
    st = hd_job_take_text(job, path, &text);
    return st == HD_LIMIT ? hd_err(HD_INVALID, "%s: longer than %d bytes; use a shorter path", key,
                                   HD_JOB_PATH_MAX - 1)
                          : st;
}

/* Puts "KEY: " in front of the error message. A missing or damaged folder is a mistake of the job
 * file: HD_INVALID. */
static enum hd_status at_key(const char *key, enum hd_status st)
{
    if (st == HD_NOT_FOUND || st == HD_CORRUPT || st == HD_LIMIT)
        st = HD_INVALID;
    return hd_err_prefix(st, "%s", key);
}

/* Returns whether the key describes the architecture, so that a given value must agree with
 * config.json. Not among these keys: model.context, which may be shorter; layers for further
 * tokens, which may be left out; the router's losses, the rate of its bias and dropout, which are
 * training settings: config.json gives only their defaults. */
static bool is_architecture(const struct hd_key *key)
{
    static const char *const others[] = {"model.family", "model.from", "model.context",
                                         "model.quantization"};

    if (strncmp(key->path, "model.", 6) != 0 || key->kind == HD_KEY_FORM)
        return false;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(key->path, others[i]) == 0)
            return false;
    return strcmp(key->path, "model.router.z_loss") != 0 &&
           strcmp(key->path, "model.router.capacity_factor") != 0 &&
           strcmp(key->path, "model.router.bias_rate") != 0 &&
           !hd_text_starts(key->path, "model.mtp.") && !hd_text_starts(key->path, "model.init.") &&
           strcmp(key->path, "model.router.balance") != 0;
}

static bool is_filled(const struct hd_key *key)
{
    return strcmp(key->path, "model.router.balance") == 0 ||
           strcmp(key->path, "model.quantization") == 0 ||
           strncmp(key->path, "train.dropout.", 14) == 0;
}

static enum hd_status differs_from_base(const struct hd_key *key, const struct hd_job *given,
                                        const struct hd_job *theirs, const char *of)
{
    struct hd_text a = {0}, b = {0};
    enum hd_status st;

    (void)hd_job_format(key, given, &a);
    (void)hd_job_format(key, theirs, &b);
    st = hd_err(HD_INVALID, "%s: %s is not the %s of %s; remove the line", key->path,
                a.data ? a.data : "", b.data ? b.data : "", of);
    hd_text_free(&a);
    hd_text_free(&b);
    return st;
}

/* Sets a key of the job to its value in `theirs`, the job read from a model or checkpoint folder;
 * HD_INVALID: the job file gives another value. of: name of the file or folder that `theirs` was
 * read from, for the message. */
static enum hd_status take_key(struct spec_draft *draft, size_t index, const struct hd_job *theirs,
                               const char *of)
{
    const struct hd_key *key = &hd_job_keys[index];

    if (draft->given[index] && !hd_job_members_equal(key, draft->job, theirs))
        return differs_from_base(key, draft->job, theirs, of);
    draft->given[index] = true;
    return hd_job_copy_member(key, theirs, draft->job);
}

/* Returns the number of positions that a prefix adapter takes before the first token; 0 without
 * one. The job's defaults need not be set yet. */
static int64_t first_position(const struct hd_job *job)
{
    struct hd_job filled = HD_JOB(.arena = NULL);

    hd_job_set_default(hd_job_find_key("train.adapter.tokens"), &filled);
    filled.adapter = job->adapter;
    if (job->adapter_tokens)
        filled.adapter_tokens = job->adapter_tokens;
    return hd_job_prefix(&filled);
}

/* Returns the context that a prefix leaves, rounded down so that tp and cp ranks can split it
 * evenly. */
static int64_t round_down(int64_t context)
{
    const int64_t step = context >= 1024 ? 64 : context >= 8 ? 8 : 1;

    return context - context % step;
}

/* Sets the job's context, which may be shorter than the model's; with a prefix it must be. */
static enum hd_status take_context(struct spec_draft *draft, const struct hd_job *theirs)
{
    const int64_t prefix = first_position(draft->job), most = theirs->context - prefix;

    if (prefix && most < 2)
        return hd_err(HD_INVALID,
                      "train.adapter.tokens: %" PRId64 " of the %" PRId64
                      " positions of %s/config.json leave no room for tokens; give at most half, "
                      "%" PRId64,
                      prefix, theirs->context, draft->job->from_dir, theirs->context / 2);
    if (prefix && draft->job->context > most)
        return hd_err(HD_INVALID,
                      "model.context: %s/config.json has %" PRId64
                      " positions, and those of tokens "
                      "begin behind the %" PRId64 " of train.adapter.tokens; give at most %" PRId64,
                      draft->job->from_dir, theirs->context, prefix, most);
    if (draft->job->context > most)
        return hd_err(HD_INVALID,
                      "model.context: %" PRId64 " is more than the %" PRId64
                      " of %s/config.json; give at most that",
                      draft->job->context, theirs->context, draft->job->from_dir);
    if (!draft->job->context)
        draft->job->context = prefix ? round_down(most) : most;
    *spec_given(draft, "model.context") = true;
    return HD_OK;
}

/* Explains why a folder has no config.json, by the most likely reason. written: the value of the
 * job file. */
static enum hd_status no_model(const char *dir, const char *written, enum hd_status st)
{
    char hint[SPEC_PATH_TEXT_MAX];
    struct stat info;

    if (stat(dir, &info) < 0 && *spec_explain_name(written, false, hint))
        return hd_err(HD_INVALID, "model.from: there is no folder %s%s", dir, hint);

    if (stat(dir, &info) == 0 && !S_ISDIR(info.st_mode))
        return hd_err(HD_INVALID, "model.from: %s is a file; give the folder of a model", dir);
    if (st == HD_NOT_FOUND && hd_source_is_checkpoint(dir))
        return hd_err(
            HD_INVALID,
            "model.from: %s is a checkpoint of Heddle; name it as train.init_from, or make "
            "a model folder of it: heddle checkpoint export",
            dir);
    return at_key("model.from", st);
}

static enum hd_status take_model(struct spec_draft *draft, const char *written)
{
    const struct hd_key *family = hd_job_find_key("model.family");
    struct hd_job theirs = HD_JOB(.arena = draft->job->arena);
    char of[HD_JOB_PATH_MAX + 16];
    enum hd_status st = hd_hf_read_config(draft->job->from_dir, &theirs, NULL);

    if (st)
        return no_model(draft->job->from_dir, written, st);
    if (hd_job_is_reward(&theirs) && !hd_job_is_reward(draft->job))
        return hd_err(HD_INVALID,
                      "model.from: %s is a reward model, which has no head for tokens; add "
                      "train.objective: reward, or begin with the model that it was trained from",
                      draft->job->from_dir);
    if (!*draft->job->tokenizer && *theirs.tokenizer && hd_spec_has_text(draft->job))
        /* sets the tokenizer "bytes" */
        draft->job->tokenizer = theirs.tokenizer;
    (void)snprintf(of, sizeof of, "%s/config.json", draft->job->from_dir);
    st = take_key(draft, (size_t)(family - hd_job_keys), &theirs, of);
    if (!st)
        st = take_context(draft, &theirs);
    for (size_t i = 0; i < hd_job_key_count && !st; i++) {
        const struct hd_key *key = &hd_job_keys[i];

        if (is_architecture(key))
            st = take_key(draft, i, &theirs, of);
        else if (is_filled(key) && !draft->given[i])
            st = take_key(draft, i, &theirs, of);
    }
    return st;
}

/* Makes the error message for a job whose data is text, when neither the job nor the model's folder
 * has a tokenizer. Only a model of 256 tokens can read bytes. */
static enum hd_status no_tokenizer(const struct hd_job *job)
{
    struct hd_text text = {0};
    enum hd_status st;

    hd_companions_explain_missing(job->from_dir, &text);
    st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for a message")
                     : hd_err(HD_INVALID,
                              "model.from: %s; or name a tokenizer.json with this model's %lld "
                              "tokens in data.tokenizer",
                              text.data, (long long)job->vocab);
    hd_text_free(&text);
    return st;
}

/* Makes the path of data.tokenizer absolute; if the key is absent and the job has text, sets it to
 * the tokenizer of model.from. */
static enum hd_status find_tokenizer(struct spec_draft *draft, const char *folder)
{
    struct hd_job *job = draft->job;
    struct hd_text path = {0};
    struct stat info;
    enum hd_status st = HD_OK;

    if (!*job->tokenizer && *job->from_dir && hd_spec_has_text(job)) {
        const bool found = hd_companions_find_tokenizer(job->from_dir, &path);

        st = found || path.failed ? hd_job_take_text(job, &job->tokenizer, &path) : HD_LIMIT;
        if (st == HD_LIMIT)
            st = job->vocab != BYTES_VOCAB ? no_tokenizer(job) : HD_OK;
        hd_text_free(&path);
    }
    if (st || !*job->tokenizer || strcmp(job->tokenizer, "bytes") == 0 ||
        strcmp(job->tokenizer, "none") == 0)
        return st;
    st = spec_make_absolute(job, &job->tokenizer, "data.tokenizer", folder);
    if (!st && stat(job->tokenizer, &info) < 0) {
        st = hd_err(HD_INVALID,
                    "data.tokenizer: there is no %s; write bytes, none, or the path of a "
                    "tokenizer.json or tokenizer.model",
                    job->tokenizer);
        if (draft->missing_data && job->vocab) { /* a plan needs the number of its ids alone */
            if (!draft->missing_data->len_bytes)
                hd_text_add(draft->missing_data, "%s", hd_err_message());
            st = HD_OK;
        }
    } else if (!st && !S_ISREG(info.st_mode)) { /* a pipe cannot be read twice */
        st = hd_err(HD_INVALID,
                    "data.tokenizer: %s is %s; write bytes, none, or the path of a tokenizer.json "
                    "or tokenizer.model",
                    job->tokenizer, S_ISDIR(info.st_mode) ? "a folder" : "no regular file");
    }
    return st;
}

static enum hd_status set_identity(struct spec_draft *draft, const char *path, uint64_t hash,
                                   const char **member)
{
    char text[HD_HASH_TEXT_MAX];

    hd_hash_format(hash, text);
    *spec_given(draft, path) = true;
    return hd_job_set_text(draft->job, member, text);
}

static enum hd_status take_adapter(struct spec_draft *draft, const char *folder)
{
    struct hd_job *job = draft->job, theirs = HD_JOB(.arena = job->arena);
    uint64_t hash = 0;
    enum hd_status st = spec_make_absolute(job, &job->adapter_from, "train.adapter.from", folder);

    if (!st)
        st = at_key("train.adapter.from", hd_adapter_read(job->adapter_from, &theirs, &hash));
    for (size_t i = 0; !st && i < hd_job_key_count; i++)
        if (hd_job_keys[i].adapter_form &&
            hd_job_key_is_of_adapter(&hd_job_keys[i], theirs.adapter))
            st = take_key(draft, i, &theirs, job->adapter_from);
    if (!st)
        st = set_identity(draft, "train.adapter.identity", hash, &job->adapter_identity);
    return st;
}

/* Sets checkpoint.frozen. Checkpoints may leave out the weights that do not train if these can be
 * read again from a model folder, but not from a checkpoint: another job deletes its checkpoints as
 * it goes on. */
static enum hd_status choose_base(struct spec_draft *draft)
{
    struct hd_job *job = draft->job;
    bool *given = spec_given(draft, "checkpoint.frozen");
    const bool has_folder = *job->init_from && strcmp(job->init_from, SPEC_INIT_NONE) != 0 &&
                            !hd_source_is_checkpoint(job->init_from);

    if (hd_source_is_checkpoint(job->init_from) && job->model_weights &&
        job->model_weights != HD_JOB_MODEL_WEIGHTS_PLAIN)
        return hd_err(
            HD_INVALID,
            "model.quantization: %s is made again from what the run began with, and the job of "
            "the checkpoint %s may delete it; export that (heddle checkpoint export), and "
            "begin with the folder by model.from",
            hd_job_model_weights_words[job->model_weights], job->init_from);
    if (*given && job->checkpoint_base == HD_JOB_CHECKPOINT_BASE_OMIT && !has_folder)
        return hd_err(
            HD_INVALID,
            "checkpoint.frozen: omit needs a model folder to read again what a checkpoint "
            "leaves out, and %s; set save, or begin with model.from",
            hd_source_is_checkpoint(job->init_from)
                ? "another job may delete the checkpoint of train.init_from"
                : "the job begins with random weights");
    if (*given && job->checkpoint_base != HD_JOB_CHECKPOINT_BASE_AUTO)
        return HD_OK;
    job->checkpoint_base = has_folder ? HD_JOB_CHECKPOINT_BASE_OMIT : HD_JOB_CHECKPOINT_BASE_SAVE;
    *given = true;
    return HD_OK;
}

static enum hd_status take_weights(struct spec_draft *draft, const char *key, const char *folder)
{
    struct hd_job *job = draft->job;
    uint64_t hash = 0;
    enum hd_status st = spec_make_absolute(job, &job->init_from, "train.init_from", folder);

    if (!st)
        st = at_key(key, hd_source_identity(job->init_from, &hash));
    if (!st && *job->adapter_from)
        st = at_key("train.adapter.from", hd_adapter_check_base(job->adapter_from, job->init_from));
    if (!st)
        st = set_identity(draft, "train.init_identity", hash, &job->init_identity);
    return st;
}

/* Refuses a teacher whose tokenizer gives other texts to the ids of the job's. theirs: the job of a
 * checkpoint; NULL: a model folder. Without the files of both it cannot be told. */
static enum hd_status compare_tokenizers(const struct hd_job *job, const struct hd_job *theirs)
{
    uint64_t own = 0, other = 0;
    struct hd_text path = {0};
    int32_t ids = 0;
    enum hd_status st = HD_OK;

    if (theirs && theirs->tokenizer[0] == '/')
        hd_text_add(&path, "%s", theirs->tokenizer);
    else if (!theirs)
        (void)hd_companions_find_tokenizer(job->distill_teacher, &path);
    if (path.len_bytes && !path.failed && job->tokenizer[0] == '/' &&
        !hd_tokenizer_count_ids(job->tokenizer, &ids) &&
        !hd_tokenizer_hash_ids(job->tokenizer, ids, &own) &&
        !hd_tokenizer_hash_ids(path.data, ids, &other) && own != other)
        st =
            hd_err(HD_INVALID,
                   "train.distill.teacher: its tokenizer %s has other tokens than data.tokenizer = "
                   "%s; a teacher and its student need one tokenizer",
                   path.data, job->tokenizer);
    hd_text_free(&path);
    return st;
}

/* Reads the job of a frozen model's folder into *ret_theirs, if it is of the kind that `key` needs. */
static enum hd_status read_frozen(const char *key, const char *dir, bool rates, bool stored,
                                  struct hd_arena *arena, struct hd_job *ret_theirs)
{
    const enum hd_status st = at_key(key, stored ? hd_stored_job_in(dir, arena, ret_theirs)
                                                 : hd_hf_read_config(dir, ret_theirs, NULL));

    if (!st && stored && ret_theirs->adapter != HD_JOB_ADAPTER_NONE)
        return hd_err(
            HD_INVALID,
            "%s: %s is a checkpoint with an adapter; export it first, which adds the adapter: "
            "heddle checkpoint export",
            key, dir);
    if (!st && hd_job_is_reward(ret_theirs) != rates)
        return hd_err(HD_INVALID,
                      rates ? "%s: %s is no reward model, but one that predicts tokens; train one "
                              "with train.objective: reward"
                            : "%s: %s is a reward model, which predicts no tokens",
                      key, dir);
    return st;
}

/* Takes the architecture of a teacher whose folder has weights; any other path is a teacher's file. */
static enum hd_status take_teacher(struct spec_draft *draft)
{
    static const char key[] = "train.distill.teacher";
    struct hd_job *job = draft->job, theirs = HD_JOB(.arena = job->arena);
    const char *dir = job->distill_teacher;
    const bool stored = hd_source_is_checkpoint(dir);
    struct hd_arena arena;
    uint64_t hash = 0;
    enum hd_status st;

    job->distill_model = job->distill_identity = "";
    if (!stored && !hd_hf_has_config(dir))
        return HD_OK;
    hd_arena_init(&arena, 0);
    st = read_frozen(key, dir, false, stored, &arena, &theirs);
    if (!st && job->context > theirs.context)
        st = hd_err(HD_INVALID,
                    "model.context: %" PRId64 " is more than the %" PRId64
                    " of the teacher %s; give at most that",
                    job->context, theirs.context, dir);
    if (!st)
        st = compare_tokenizers(job, stored ? &theirs : NULL);
    if (!st)
        st = hd_job_set_teacher_model(&theirs, job);
    if (!st)
        st = at_key(key, hd_source_identity(dir, &hash));
    if (!st) {
        *spec_given(draft, "train.distill.model") = true;
        st = set_identity(draft, "train.distill.identity", hash, &job->distill_identity);
    }
    hd_arena_done(&arena);
    return st;
}

/* Gives a model folder whose template asks for the date that of the job file, else that of today. */
static enum hd_status set_reward_date(const struct hd_job *job, struct hd_job *theirs)
{
    struct hd_chat *chat = NULL;
    char today[HD_CHAT_DATE_MAX];
    enum hd_status st = hd_chat_open(theirs->template, theirs->from_dir, &chat);

    hd_chat_date_today(today);
    if (!st && hd_chat_asks_date(chat))
        st = hd_job_set_text(theirs, &theirs->date, *job->date ? job->date : today);
    hd_chat_close(chat);
    return st;
}

/* Finds in a model folder what says how a reward model reads a text: tokenizer, template and date. */
static enum hd_status find_reward_texts(const struct hd_job *job, const char *dir,
                                        struct hd_job *theirs)
{
    struct hd_text path = {0};
    enum hd_status st = HD_OK;

    hd_job_set_default(hd_job_find_key("data.end_of_text"), theirs);
    theirs->from_dir = dir;
    if (hd_companions_find_tokenizer(dir, &path))
        st = hd_job_take_text(theirs, &theirs->tokenizer, &path);
    if (!st)
        st = hd_chat_find(dir, &path);
    if (!st)
        st = hd_job_take_text(theirs, &theirs->template, &path);
    hd_text_free(&path);
    if (st == HD_LIMIT)
        return hd_err(HD_INVALID,
                      "paths of files in %s are longer than %d bytes; use a shorter one", dir,
                      HD_JOB_PATH_MAX - 1);
    return st ? st : set_reward_date(job, theirs);
}

/* Takes architecture, tokenizer and template of the reward model. */
static enum hd_status take_reward_model(struct spec_draft *draft)
{
    static const char key[] = "train.rewards.model";
    struct hd_job *job = draft->job, theirs = HD_JOB(.arena = job->arena);
    const char *dir = job->reward_dir;
    const bool stored = hd_source_is_checkpoint(dir);
    struct hd_arena arena;
    uint64_t hash = 0;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = read_frozen(key, dir, true, stored, &arena, &theirs);
    if (!st && !stored)
        st = at_key(key, find_reward_texts(job, dir, &theirs));
    if (!st && (!*theirs.tokenizer || strcmp(theirs.tokenizer, "none") == 0))
        st = hd_err(HD_INVALID,
                    "%s: %s has no tokenizer, with which answers would be read; put its "
                    "tokenizer.json into the folder",
                    key, dir);
    if (!st)
        st = hd_job_set_reward_model(&theirs, job);
    if (!st)
        st = at_key(key, hd_source_identity(dir, &hash));
    if (!st) {
        *spec_given(draft, key) = true;
        st = set_identity(draft, "train.rewards.identity", hash, &job->reward_identity);
    }
    hd_arena_done(&arena);
    return st;
}

enum hd_status spec_read_from(struct spec_draft *draft, const char *folder)
{
    struct hd_job *job = draft->job;
    const char *key = *job->continue_from ? "train.continue_from"
                      : *job->init_from   ? "train.init_from"
                                          : "model.from";
    enum hd_status st = HD_OK;

    if (*job->continue_from) {
        st = spec_make_absolute(job, &job->continue_from, "train.continue_from", folder);
        if (!st)
            st = spec_take_continued(job);
    }
    if (!st && *job->distill_teacher)
        st = spec_make_absolute(job, &job->distill_teacher, "train.distill.teacher", folder);
    if (!st && *job->reward_dir)
        st = spec_make_absolute(job, &job->reward_dir, "train.rewards.model", folder);
    if (!st && *job->adapter_from)
        st = take_adapter(draft, folder);
    if (!st && *job->from_dir) { /* after the adapter is read, since the context depends on it */
        const char *written = job->from_dir;

        st = spec_make_absolute(job, &job->from_dir, "model.from", folder);
        if (!st)
            st = take_model(draft, written);
        if (!st && !*job->init_from)
            job->init_from = job->from_dir;
    }
    if (!st)
        st = find_tokenizer(draft, folder);
    if (!st && *job->distill_teacher)
        st = take_teacher(draft);
    job->reward_model = job->reward_identity = "";
    if (!st && *job->reward_dir)
        st = take_reward_model(draft);
    if (!st && *job->init_from && strcmp(job->init_from, SPEC_INIT_NONE) != 0)
        st = take_weights(draft, key, folder);
    return st ? st : choose_base(draft);
}
