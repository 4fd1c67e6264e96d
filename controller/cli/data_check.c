#include "controller/cli/data_check.h"

#include <stdio.h>
#include <string.h>

#include "controller/cli/cli.h"
#include "controller/cli/process.h"
#include "spec/spec.h"

/* Bytes of data files up to which all conversations are tokenized, and of the sample of more. */
#define WHOLE_BYTES  (INT64_C(1) << 30)
#define SAMPLE_BYTES (INT64_C(64) << 20)

/* Lists the job's data files, with the source of a mixture or the validation set of each. */
static void list_files(const struct hd_job *job, struct hd_text *list)
{
    for (int64_t i = 0; i < job->train_count; i++)
        hd_text_add(list, "train %lld %lld %s\n", (long long)job->train[i].source,
                    (long long)job->train[i].size_bytes, job->train[i].path);
    for (int64_t i = 0; i < job->val_count; i++)
        hd_text_add(list, "val %lld %lld %s\n", (long long)job->val[i].source,
                    (long long)job->val[i].size_bytes, job->val[i].path);
}

static enum hd_status parse_answer(const struct hd_text *answer, struct hd_arena *arena,
                                   const struct hd_json **ret_data)
{
    const struct hd_json_limits limits = {.values_max = 1 << 20, .depth_max = 8};
    const struct hd_json *list = NULL;
    enum hd_status st = hd_json_parse(arena, answer->data ? answer->data : "", answer->len_bytes,
                                      &limits, ret_data);

    if (!st)
        st = hd_json_need(*ret_data, "tokenizer", HD_JSON_OBJECT, &list);
    if (!st)
        st = hd_json_need(*ret_data, "sources", HD_JSON_ARRAY, &list);
    return st ? hd_err_prefix(st, "heddle-worker data") : HD_OK;
}

/* Runs heddle-worker on the tokenizer and, with `files`, on the job's files. */
static enum hd_status run_worker(const struct hd_job *job, bool files, struct hd_arena *arena,
                                 const struct hd_json **ret_data, struct hd_text *ret_errors,
                                 int *ret_exit)
{
    const char *argv[24] = {"heddle-worker", "data", "--tokenizer", job->tokenizer, "--vocab"};
    struct hd_text list = {0}, answer = {0};
    char vocab[24], end_of_text[24];
    size_t n = 5;
    enum hd_status st;

    (void)snprintf(vocab, sizeof vocab, "%lld", (long long)job->vocab);
    argv[n++] = vocab;
    argv[n++] = "--form";
    argv[n++] = hd_job_is_unpaired(job) ? "unpaired"
                : hd_job_has_pairs(job) ? "preference"
                                        : hd_job_data_format_words[job->data_format];
    if (*job->columns) {
        argv[n++] = "--columns";
        argv[n++] = job->columns;
    }
    if (*job->roles) {
        argv[n++] = "--roles";
        argv[n++] = job->roles;
    }
    argv[n++] = "--bad-rows";
    argv[n++] = job->bad_rows;
    if (*job->from_dir) {
        argv[n++] = "--model";
        argv[n++] = job->from_dir;
    }
    if (job->end_of_text != -2) { /* end_of_text was given by the job file, not by the tokenizer */
        (void)snprintf(end_of_text, sizeof end_of_text, "%lld", (long long)job->end_of_text);
        argv[n++] = "--end-of-text";
        argv[n++] = job->end_of_text == -1 ? "none" : end_of_text;
    }
    if (files)
        list_files(job, &list);
    st = list.failed ? hd_err(HD_NO_MEMORY, "no memory for a list of files")
                     : process_ask(argv, &list, 0, &answer, ret_errors, ret_exit);
    if (!st && !*ret_exit)
        st = parse_answer(&answer, arena, ret_data);
    hd_text_free(&list);
    hd_text_free(&answer);
    return st;
}

/* Checks that model.vocab covers all tokens of the tokenizer. */
static enum hd_status check_vocab(const struct hd_job *job, const struct hd_json *data)
{
    const struct hd_json *tokenizer = hd_json_member(data, "tokenizer");
    const char *name = "";
    int64_t tokens = 0;

    if (hd_json_need_int64(tokenizer, "vocab", 0, INT64_MAX, &tokens) || job->vocab >= tokens ||
        hd_job_vocab_is_given(job))
        return HD_OK; /* null: no vocabulary to check */
    (void)hd_json_need_string(tokenizer, "name", &name);
    return hd_err(HD_INVALID,
                  "model.vocab: %lld is less than the %lld tokens of data.tokenizer = %s; write at "
                  "least that",
                  (long long)job->vocab, (long long)tokens, name);
}

/* Returns the exit code for a failure of heddle-worker, which has printed that tokenizer or files
 * are wrong. */
static int exit_of_worker(int status)
{
    if (status == PROCESS_KILLED)
        return cli_fail(hd_err(HD_IO, "heddle-worker was killed while it read the data files; "
                                      "the machine may have too little memory"));
    return status == CLI_USAGE || status == CLI_NOT_FOUND ? status : CLI_FAILED;
}

/* Returns a prefix that makes a message begin with a job key: "data.train: " if it begins with a
 * file of that key, "" if it begins with a data key already; NULL: it begins with neither. */
static const char *key_before(const struct hd_job *job, const char *message)
{
    if (strncmp(message, "data.", 5) == 0 || strncmp(message, "validate.", 9) == 0)
        return "";
    for (int64_t i = 0; i < job->train_count + job->val_count; i++) {
        const bool trains = i < job->train_count;
        const char *path = trains ? job->train[i].path : job->val[i - job->train_count].path;
        const size_t len = strlen(path);

        if (strncmp(message, path, len) == 0 && message[len] == ':')
            return !trains                   ? "data.val: "
                   : hd_job_stage_count(job) ? "data.stages: "
                                             : "data.train: ";
    }
    return NULL;
}

/* Prints the messages of heddle-worker, except a last line that reports a wrong file of the job,
 * which becomes *ret_problem. Returns whether there is one. */
static bool take_problem(const struct hd_job *job, const char *name, int status,
                         struct hd_text *errors, struct hd_text *ret_problem)
{
    const size_t name_len = strlen(name);
    const char *key = NULL;
    char *last;

    if (errors->failed || !errors->len_bytes)
        return false;
    if (errors->data[errors->len_bytes - 1] == '\n')
        errors->data[--errors->len_bytes] = '\0';
    last = strrchr(errors->data, '\n');
    last = last ? last + 1 : errors->data;
    if (status == CLI_USAGE && strncmp(last, name, name_len) == 0)
        key = key_before(job, last + name_len);
    if (key) {
        hd_text_add(ret_problem, "%s%s", key, last + name_len);
        *last = '\0';
    }
    (void)fprintf(stderr, "%s%s", errors->data, key ? "" : "\n");
    return key != NULL;
}

/* ---- an epoch and its samples ---- */

/* Runs heddle-worker samples with the job on its stdin. HD_IO: heddle-worker is not installed. */
static enum hd_status run_samples(const struct hd_job *job, const char *const *flags,
                                  struct hd_text *ret_answer, struct hd_text *ret_errors,
                                  int *ret_exit)
{
    const char *argv[12] = {"heddle-worker", "samples"};
    struct hd_text text = {0};
    size_t n = 2;
    enum hd_status st = hd_job_write(job, &text);

    while (*flags)
        argv[n++] = *flags++;
    if (!st)
        st = process_ask(argv, &text, 0, ret_answer, ret_errors, ret_exit);
    hd_text_free(&text);
    return st;
}

/* Returns whether the sequences of an epoch are counted, for which its texts are tokenized. */
static bool counts_epoch(const struct hd_job *job)
{
    /* prompts that a model answers are checked with the questions (data_check_questions) */
    return !hd_job_has_policy(job) && (job->epochs > 0 || hd_spec_has_conversations(job));
}

/* Returns N where one of N conversations is checked: 1, or more if the job has too many bytes to
 * tokenize all of them and train.epochs, which needs their count, is not given. */
static int64_t sample_of(const struct hd_job *job)
{
    int64_t bytes = 0;

    for (int64_t i = 0; i < job->train_count; i++)
        bytes += job->train[i].size_bytes;
    for (int64_t i = 0; i < job->val_count; i++)
        bytes += job->val[i].size_bytes;
    return job->epochs > 0 || bytes <= WHOLE_BYTES ? 1 : 1 + bytes / SAMPLE_BYTES;
}

/* Runs heddle-worker samples for a check. Returns CLI_CONTINUE with *ret_ran if it has answered, and
 * without if it is not installed; CLI_USAGE if a file of the job is wrong (*ret_problem); or another
 * exit code after a message. */
static int check_samples(const struct hd_job *job, const char *const *flags,
                         struct hd_text *ret_answer, struct hd_text *ret_problem, bool *ret_ran)
{
    struct hd_text errors = {0};
    int status = 0;
    const enum hd_status st = run_samples(job, flags, ret_answer, &errors, &status);
    const bool has_problem =
        take_problem(job, "heddle-worker samples: ", status, &errors, ret_problem);

    hd_text_free(&errors);
    *ret_ran = !st && !status;
    if (st)
        return st == HD_IO ? CLI_CONTINUE : cli_fail(st);
    return !status ? CLI_CONTINUE : has_problem ? CLI_USAGE : exit_of_worker(status);
}

int data_check_epoch(const struct hd_job *job, struct hd_arena *arena,
                     const struct hd_json **ret_epoch, struct hd_text *ret_problem)
{
    static const struct hd_json_limits limits = {.values_max = 1 << 16, .depth_max = 8};
    const int64_t every = sample_of(job);
    char number[24];
    const char *const flags[] = {every > 1 ? "--sample" : "--facts", every > 1 ? number : NULL,
                                 NULL};
    const struct hd_json *root = NULL;
    struct hd_text answer = {0};
    enum hd_status st = HD_OK;
    bool ran;
    int code;

    *ret_epoch = NULL;
    if (!counts_epoch(job))
        return CLI_CONTINUE;
    (void)snprintf(number, sizeof number, "%lld", (long long)every);
    code = check_samples(job, flags, &answer, ret_problem, &ran);
    if (code == CLI_CONTINUE && ran) {
        st = hd_json_parse(arena, answer.data ? answer.data : "", answer.len_bytes, &limits, &root);
        *ret_epoch = st ? NULL : hd_json_member(root, "epoch");
    } else if (code == CLI_CONTINUE && job->epochs > 0) {
        st = hd_err(HD_UNAVAILABLE,
                    "train.epochs: heddle-worker counts what an epoch is, and could "
                    "not be started: %s; give train.steps",
                    hd_err_message());
    }
    hd_text_free(&answer);
    return st ? cli_fail(st) : code;
}

int data_check_questions(const struct hd_job *job, struct hd_text *ret_lines,
                         struct hd_text *ret_problem)
{
    static const char *const flags[] = {"--questions", NULL};
    bool ran = true;
    int code = CLI_CONTINUE;

    if (*job->choices || *job->tasks || *job->samples || hd_job_has_policy(job))
        code = check_samples(job, flags, ret_lines, ret_problem, &ran);
    if (code != CLI_CONTINUE)
        hd_text_clear(ret_lines);
    return code;
}

static int64_t fact(const struct hd_json *epoch, const char *name)
{
    int64_t value = 0;

    return hd_json_need_int64(epoch, name, 0, INT64_MAX, &value) ? 0 : value;
}

int64_t data_check_sequences(const struct hd_json *epoch)
{
    return epoch ? fact(epoch, "sequences") : 0;
}

/* Appends how many answers are rated as what, and what that means for train.preference. */
static void add_ratings(const struct hd_job *job, const struct hd_json *epoch, struct hd_text *out)
{
    const double good = (double)fact(epoch, "desirable"), bad = (double)fact(epoch, "undesirable");
    const double ratio =
        bad > 0 && job->preference_undesirable > 0
            ? job->preference_desirable * good / (job->preference_undesirable * bad)
            : 0;
    const int64_t windows = fact(epoch, "packed_sequences"), lone = fact(epoch, "lone_sequences");

    if (!hd_job_is_unpaired(job) || good + bad == 0)
        return;
    hd_text_add(out, "rated answers: %.0f desirable, %.0f undesirable", good, bad);
    if (good == 0 || bad == 0)
        hd_text_add(out, "; all are %s: kto learns from both kinds\n",
                    good > 0 ? "desirable" : "undesirable");
    else if (job->preference_desirable == 0 || job->preference_undesirable == 0)
        hd_text_add(out, "; only those with a weight above 0 are trained on\n");
    else if (ratio >= 0.95 && ratio <= 1.4)
        hd_text_add(out, "; with the weights of train.preference %.2f : 1\n", ratio);
    else
        hd_text_add(out,
                    "; with the weights of train.preference %.2f : 1, and 1 to 1.33 is advised "
                    "(Ethayarajh et al. 2024): for 1 set %s_weight: %.3g\n",
                    ratio, ratio < 1 ? "desirable" : "undesirable",
                    ratio < 1 ? job->preference_undesirable * bad / good
                              : job->preference_desirable * good / bad);
    if (hd_job_has_kl(job) && lone)
        hd_text_add(out,
                    "%lld of %lld sequences hold one record, whose prompt gets no other answer for "
                    "the KL term%s\n",
                    (long long)lone, (long long)windows,
                    lone == windows ? ", which is 0 therefore: raise model.context, or use "
                                      "train.preference.loss: apo_zero_unpaired"
                                    : "");
}

void data_check_describe(const struct hd_job *job, const struct hd_json *epoch, struct hd_text *out)
{
    const struct hd_json *forms = hd_json_member(epoch, "forms");
    const int64_t rows = fact(epoch, "rows");
    const char *what = hd_job_has_pairs(job) ? "pairs" : "conversations";

    if (rows) {
        hd_text_add(out, "%s: ", hd_job_is_unpaired(job) ? "records" : what);
        for (const struct hd_json *f = forms ? forms->first : NULL; f; f = f->next)
            hd_text_add(out, "%s%s", f->text, f->next ? ", " : "; ");
        hd_text_add(out,
                    "%lld in %lld sequences an epoch, %.1f%% of their rows filled; %lld of %lld "
                    "tokens count for the loss, the longest has %lld\n",
                    (long long)fact(epoch, what), (long long)fact(epoch, "packed_sequences"),
                    100.0 * (double)fact(epoch, "tokens") / (double)rows,
                    (long long)fact(epoch, "targets"), (long long)fact(epoch, "tokens"),
                    (long long)fact(epoch, "longest"));
    }
    add_ratings(job, epoch, out);
    if (fact(epoch, "sampled_one_in") > 1)
        hd_text_add(out,
                    "%s: 1 in %lld was written by the template and tokenized; a job with "
                    "train.epochs has all of them counted\n",
                    what, (long long)fact(epoch, "sampled_one_in"));
    if (*job->date)
        hd_text_add(out, "data.date: the chat template gets %s as the day that it is\n", job->date);
    if (fact(epoch, "dropped") || fact(epoch, "cut"))
        hd_text_add(out, "data.too_long: %s: %lld %s are left out, %lld are cut\n",
                    hd_job_too_long_words[job->too_long], (long long)fact(epoch, "dropped"), what,
                    (long long)fact(epoch, "cut"));
    if (fact(epoch, "left_out"))
        hd_text_add(out, "data.bad_rows: %lld record%s cannot be used and %s left out\n",
                    (long long)fact(epoch, "left_out"), fact(epoch, "left_out") == 1 ? "" : "s",
                    fact(epoch, "left_out") == 1 ? "is" : "are");
    if (fact(epoch, "spell_special_tokens"))
        hd_text_add(out,
                    "in %lld conversations a message spells a special token: that is ordinary "
                    "text\n",
                    (long long)fact(epoch, "spell_special_tokens"));
    if (job->epochs > 0)
        hd_text_add(out, "train.epochs: %g times %lld sequences are %lld steps of %s%lld\n",
                    job->epochs, (long long)fact(epoch, "sequences"), (long long)job->steps,
                    *job->batch_schedule ? "up to " : "", (long long)job->global_batch);
}

int data_check_show(const struct hd_job *job, const char *first, const char *count, bool as_json,
                    bool colour)
{
    const char *flags[8] = {"--first", first, "--count", count};
    struct hd_text answer = {0};
    size_t n = 4;
    int status = 0;
    enum hd_status st;

    if (as_json)
        flags[n++] = "--json";
    if (colour)
        flags[n++] = "--colour";
    st = run_samples(job, flags, &answer, NULL, &status);
    if (!st && !status)
        return cli_print(&answer, CLI_OK);
    hd_text_free(&answer);
    return st ? cli_fail(st) : exit_of_worker(status);
}

/* Prints gaps and contradictions in the tokenizer's files. */
static void print_notes(const struct hd_json *data)
{
    const char *notes = "";

    (void)hd_json_need_string(hd_json_member(data, "tokenizer"), "notes", &notes);
    while (*notes) {
        const size_t len = strcspn(notes, "\n");

        cli_note("heddle: note: %.*s", (int)len, notes);
        notes += len + (notes[len] == '\n');
    }
}

static int check_data(const struct hd_job *job, bool files, struct hd_arena *arena,
                      const struct hd_json **ret_data, struct hd_text *ret_problem)
{
    struct hd_text errors = {0};
    bool has_problem;
    int status = 0;
    enum hd_status st = run_worker(job, files, arena, ret_data, files ? &errors : NULL, &status);

    /* records that are left out are listed by the worker that makes an epoch, if one does */
    if (!st && !status && counts_epoch(job))
        hd_text_clear(&errors);
    has_problem = take_problem(job, "heddle-worker data: ", status, &errors, ret_problem);
    hd_text_free(&errors);
    if (st == HD_IO) {
        if (files)
            cli_note("heddle: the data files were not checked: %s", hd_err_message());
        return CLI_CONTINUE;
    }
    if (!st && status)
        return has_problem ? CLI_USAGE : exit_of_worker(status);
    if (!st && hd_spec_has_text(job))
        st = check_vocab(job, *ret_data);
    if (!st && hd_spec_has_text(job))
        print_notes(*ret_data);
    return st ? cli_fail(st) : CLI_CONTINUE;
}

int data_check_files(const struct hd_job *job, struct hd_arena *arena,
                     const struct hd_json **ret_data, struct hd_text *ret_problem)
{
    /* prompts have none of the forms that heddle-worker knows; reading the spec has looked at them */
    return check_data(job, !hd_job_has_policy(job), arena, ret_data, ret_problem);
}

int data_check_tokenizer(const struct hd_job *job)
{
    const struct hd_json *data = NULL;
    struct hd_arena arena;
    int code;

    if (job->tokenizer[0] != '/') /* the tokenizer is `bytes` or `none` */
        return CLI_CONTINUE;
    hd_arena_init(&arena, 0);
    code = check_data(job, false, &arena, &data, NULL);
    hd_arena_done(&arena);
    return code;
}
