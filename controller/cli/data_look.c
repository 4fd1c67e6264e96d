#include "controller/cli/data_look.h"

#include <stdio.h>
#include <string.h>

#include "controller/cli/cli.h"
#include "controller/cli/process.h"
#include "spec/spec.h"

/* A mixture's validation files have no sources. */
static void list_files(const struct hd_job *job, struct hd_text *list)
{
    for (int64_t i = 0; i < job->train_count; i++)
        hd_text_add(list, "train %lld %lld %s\n", (long long)job->train[i].source,
                    (long long)job->train[i].size_bytes, job->train[i].path);
    for (int64_t i = 0; i < job->val_count; i++)
        hd_text_add(list, "val 0 %lld %s\n", (long long)job->val[i].size_bytes, job->val[i].path);
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

/* files: also those of the job; else the tokenizer alone. */
static enum hd_status run_worker(const struct hd_job *job, bool files, const char *program,
                                 struct hd_arena *arena, const struct hd_json **ret_data,
                                 int *ret_exit)
{
    const char *argv[10] = {program, "data", "--tokenizer", job->tokenizer, "--vocab"};
    struct hd_text list = {0}, answer = {0};
    char vocab[24], end_of_text[24];
    size_t n = 5;
    enum hd_status st;

    (void)snprintf(vocab, sizeof vocab, "%lld", (long long)job->vocab);
    argv[n++] = vocab;
    if (job->end_of_text != -2) { /* not the tokenizer's */
        (void)snprintf(end_of_text, sizeof end_of_text, "%lld", (long long)job->end_of_text);
        argv[n++] = "--end-of-text";
        argv[n++] = job->end_of_text == -1 ? "none" : end_of_text;
    }
    if (files)
        list_files(job, &list);
    st = list.failed ? hd_err(HD_NO_MEMORY, "no memory for a list of files")
                     : process_ask(argv, &list, &answer, ret_exit);
    if (!st && !*ret_exit)
        st = parse_answer(&answer, arena, ret_data);
    hd_text_free(&list);
    hd_text_free(&answer);
    return st;
}

/* Checks that the model has all tokens of the tokenizer that makes them. */
static enum hd_status check_vocab(const struct hd_job *job, const struct hd_json *data)
{
    const struct hd_json *tokenizer = hd_json_member(data, "tokenizer");
    const char *name = "";
    int64_t tokens = 0;

    if (hd_json_need_int64(tokenizer, "vocab", 0, INT64_MAX, &tokens) || job->vocab >= tokens)
        return HD_OK; /* none: null */
    (void)hd_json_need_string(tokenizer, "name", &name);
    return hd_err(HD_INVALID,
                  "model.vocab: %lld is less than the %lld tokens of data.tokenizer = %s; write at "
                  "least that",
                  (long long)job->vocab, (long long)tokens, name);
}

/* A failure of heddle-worker: the tokenizer or the files are wrong, and it has printed the
 * message. */
static int exit_of_worker(int status)
{
    if (status == PROCESS_KILLED)
        return cli_fail(hd_err(HD_IO, "heddle-worker was killed while it read the data files; "
                                      "the machine may have too little memory"));
    return status == CLI_USAGE || status == CLI_NOT_FOUND ? status : CLI_FAILED;
}

static int look(const struct hd_job *job, bool files, struct hd_arena *arena,
                const struct hd_json **ret_data)
{
    struct hd_text program = {0};
    int status = 0;
    enum hd_status st = process_find("heddle-worker", &program);

    if (!st)
        st = run_worker(job, files, program.data, arena, ret_data, &status);
    hd_text_free(&program);
    if (st == HD_IO) {
        if (files)
            cli_note("heddle: the data files were not checked: %s", hd_err_message());
        return CLI_CONTINUE;
    }
    if (!st && status)
        return exit_of_worker(status);
    if (!st && hd_spec_has_text(job))
        st = check_vocab(job, *ret_data);
    return st ? cli_fail(st) : CLI_CONTINUE;
}

int data_look_at_files(const struct hd_job *job, struct hd_arena *arena,
                       const struct hd_json **ret_data)
{
    return look(job, true, arena, ret_data);
}

int data_look_at_tokenizer(const struct hd_job *job)
{
    const struct hd_json *data = NULL;
    struct hd_arena arena;
    int code;

    if (job->tokenizer[0] != '/') /* bytes or none */
        return CLI_CONTINUE;
    hd_arena_init(&arena, 0);
    code = look(job, false, &arena, &data);
    hd_arena_done(&arena);
    return code;
}
