#include "train/prompt_rows.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/math.h"
#include "base/random.h"
#include "data/fingerprint.h"
#include "data/lines.h"
#include "job/choice_sets.h"

enum {
    ROW_BYTES_MAX = 16 << 20,
    ROWS_MAX = 1 << 24,
    ALIVE_EVERY = 256, /* rows between two calls of `alive` */
};

struct row_reader {
    const struct hd_job *job;
    struct hd_prompt_rows *rows;
    struct hd_prompt_encoder encoder;
    /* most tokens of a prompt, beside answers of as many tokens as the key says; how to make them fit */
    int64_t prompt_max, answer_max;
    const char *answer_key, *remedy;
    bool has_completions;
    int64_t rows_max; /* rows that are read; 0: all */
    const struct hd_job_file *files;
    int64_t file_count;
    const char *key; /* of the files */
    int capacity;
};

/* Returns the text of a completion: a text, or a list of one message. NULL: it is neither. */
static const char *text_of_completion(const struct hd_json *completion)
{
    const bool listed = completion && completion->kind == HD_JSON_ARRAY && completion->count == 1;
    const struct hd_json *text = listed ? hd_json_member(completion->first, "content") : completion;

    return text && text->kind == HD_JSON_STRING ? text->text : NULL;
}

/* Encodes the completion of the newest row. */
static enum hd_status keep_completion(struct row_reader *r, const struct hd_json *completion)
{
    const char *text = text_of_completion(completion);
    struct hd_prompt_row *row = &r->rows->rows[r->rows->count - 1];
    struct hd_id_list ids = {0};
    enum hd_status st;

    if (!text)
        return hd_err(
            HD_INVALID,
            "has no `completion`, a text or one message, on which steps train whose answers "
            "the student does not write (train.distill.on_policy); name its column in "
            "data.columns: {completion: NAME}, or set train.distill.on_policy to 1");
    st = hd_whole_encoder_plain(&r->encoder.whole, text, strlen(text), &ids);
    if (!st && r->encoder.end >= 0)
        st = hd_id_list_reserve(&ids, 1);
    if (!st && r->encoder.end >= 0)
        ids.ids[ids.count++] = r->encoder.end;
    row->is_ended = r->encoder.end >= 0 && (int64_t)ids.count <= r->answer_max;
    row->completion_count = hd_min((int64_t)ids.count, r->answer_max);
    row->completion =
        hd_arena_array(&r->rows->arena, (size_t)row->completion_count + 1, sizeof *row->completion);
    if (!st && !row->completion)
        st = hd_err(HD_NO_MEMORY, "no memory for completions");
    if (!st && ids.count)
        memcpy(row->completion, ids.ids, (size_t)row->completion_count * sizeof *row->completion);
    hd_id_list_free(&ids);
    return st;
}

/* Keeps a row with its ids. */
static enum hd_status keep_row(struct row_reader *r, const char *line, const char *shown,
                               const struct hd_id_list *ids)
{
    const int64_t most = r->prompt_max;
    struct hd_prompt_rows *p = r->rows;
    int32_t *own;

    if ((int64_t)ids->count > most && r->job->too_long == HD_JOB_TOO_LONG_DROP) {
        p->dropped++;
        return HD_OK;
    }
    if ((int64_t)ids->count > most)
        return hd_err(
            HD_INVALID,
            "the prompt has %lld tokens, and beside %s = %lld there is room for %lld; shorten it, "
            "set data.too_long: drop, or %s",
            (long long)ids->count, r->answer_key, (long long)r->answer_max, (long long)most,
            r->remedy);
    if (!ids->count)
        return hd_err(HD_INVALID, "the prompt has no token");
    if (p->count == ROWS_MAX)
        return hd_err(HD_INVALID, "more than %d prompts", ROWS_MAX);
    p->rows = hd_arena_grow(&p->arena, p->rows, (int)p->count, &r->capacity, sizeof *p->rows);
    own = hd_arena_array(&p->arena, ids->count, sizeof *own);
    line = hd_arena_strdup(&p->arena, line);
    shown = hd_arena_strdup(&p->arena, shown);
    if (hd_arena_failed(&p->arena))
        return hd_err(HD_NO_MEMORY, "no memory for prompts");
    memcpy(own, ids->ids, ids->count * sizeof *own);
    p->rows[p->count++] = (struct hd_prompt_row){
        .line = line, .shown = shown, .ids = own, .count = (int64_t)ids->count};
    p->longest = (int64_t)ids->count > p->longest ? (int64_t)ids->count : p->longest;
    return HD_OK;
}

static enum hd_status read_row(struct row_reader *r, const char *line, size_t bytes)
{
    static const struct hd_json_limits limits = {.values_max = 1 << 16, .depth_max = 32};
    const struct hd_json *root, *prompt, *messages;
    struct hd_id_list ids = {0};
    const int64_t before = r->rows->count;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_json_parse_line(&arena, line, bytes, &limits, &root);
    prompt = st ? NULL : hd_json_member(root, "prompt");
    messages = st ? NULL : hd_json_member(root, "messages");
    if (prompt && prompt->kind == HD_JSON_ARRAY) { /* TRL writes messages into `prompt` */
        messages = prompt;
        prompt = NULL;
    }
    if (!st && messages && messages->kind != HD_JSON_ARRAY)
        st = hd_err(HD_INVALID, "messages: expected a list of {\"role\": .., \"content\": ..}");
    if (!st && !messages && (!prompt || prompt->kind != HD_JSON_STRING))
        st = hd_err(HD_INVALID, "has neither a text `prompt` nor `messages`");
    if (!st)
        st = hd_prompt_encode(&r->encoder, messages, messages ? "" : prompt->text, &ids);
    if (!st)
        st = keep_row(r, line, messages ? hd_prompt_last_message(messages) : prompt->text, &ids);
    if (!st && r->has_completions && r->rows->count > before)
        st = keep_completion(r, hd_json_member(root, "completion"));
    hd_id_list_free(&ids);
    hd_arena_done(&arena);
    return st;
}

static enum hd_status read_file(struct row_reader *r, const struct hd_job_file *file,
                                void (*alive)(void *user), void *user)
{
    struct hd_lines lines;
    struct stat info;
    bool there = true;
    enum hd_status st = HD_OK;

    if (stat(file->path, &info) < 0)
        return hd_err(HD_NOT_FOUND, "cannot find %s", file->path);
    if (file->size_bytes >= 0 && info.st_size != file->size_bytes)
        return hd_err(HD_INVALID,
                      "%s has %lld bytes, and had %lld when the job was submitted; restore it, or "
                      "submit the job again",
                      file->path, (long long)info.st_size, (long long)file->size_bytes);
    st = hd_fingerprint_check(file->path, file->fingerprint);
    if (st)
        return st;
    st = hd_lines_open(&lines, file->path, r->job->columns, ROW_BYTES_MAX);
    while (!st && !(r->rows_max && r->rows->count >= r->rows_max)) {
        st = hd_lines_next(&lines, &there);
        if (st || !there)
            break;
        if (alive && lines.number % ALIVE_EVERY == 0)
            alive(user);
        if (hd_lines_is_blank(&lines))
            continue;
        st = read_row(r, lines.line.data, lines.line.len_bytes);
        if (st)
            st = hd_err_prefix(st, "%s:%s%lld", lines.path, hd_lines_unit(&lines),
                               (long long)lines.number);
    }
    hd_lines_close(&lines);
    return st;
}

/* Adds the tokens of train.rollout.stop. */
static enum hd_status add_stops(struct row_reader *r)
{
    const char *at = r->job->rollout_stop;
    char text[HD_JOB_PATH_MAX];
    enum hd_status st = HD_OK;

    while (!st && *at) {
        const size_t bytes = strcspn(at, ",");
        struct hd_id_list ids = {0};
        int32_t special;

        (void)snprintf(text, sizeof text, "%.*s", (int)bytes, at);
        special = hd_tokenizer_find(r->encoder.whole.tokenizer, text);
        st = special >= 0 ? hd_id_list_reserve(&ids, 1)
                          : hd_whole_encoder_plain(&r->encoder.whole, at, bytes, &ids);
        if (!st && special >= 0)
            ids.ids[ids.count++] = special;
        if (!st && ids.count != 1)
            st = hd_err(HD_INVALID, "train.rollout.stop: '%.*s' is %zu tokens, and must be one",
                        (int)bytes, at, ids.count);
        if (!st && r->rows->stops.count == HD_STOPS_MAX)
            st = hd_err(HD_INVALID, "train.rollout.stop: more than %d tokens end an answer",
                        HD_STOPS_MAX);
        if (!st)
            hd_stops_add(&r->rows->stops, ids.ids[0]);
        hd_id_list_free(&ids);
        at += bytes + (at[bytes] == ',');
    }
    return st;
}

/* Reads the files, whose key a failure names. */
static enum hd_status read_files(struct row_reader *r, void (*alive)(void *user), void *user)
{
    enum hd_status st = HD_OK;

    for (int64_t i = 0; !st && i < r->file_count; i++)
        st = read_file(r, &r->files[i], alive, user);
    if (!st && !r->rows->count)
        st = r->rows->dropped
                 ? hd_err(HD_INVALID,
                          "all prompts, %lld, are longer than the %lld tokens for which there is "
                          "room beside %s = %lld; shorten them, or %s",
                          (long long)r->rows->dropped, (long long)r->prompt_max, r->answer_key,
                          (long long)r->answer_max, r->remedy)
                 : hd_err(HD_INVALID, "there is no prompt; write {\"prompt\": TEXT} into a line");
    return st ? hd_err_prefix(st, "%s", r->key) : HD_OK;
}

static enum hd_status open_prompt_rows(struct row_reader *r, struct hd_job_tokenizer *tokenizer,
                                       void (*alive)(void *user), void *user)
{
    struct hd_job_tokenizer own = {.opened = NULL};
    struct hd_prompt_rows *ret_rows = r->rows;
    const struct hd_job *job = r->job;
    enum hd_status st;

    *ret_rows = (struct hd_prompt_rows){.shuffled = job->order != HD_JOB_ORDER_SEQUENTIAL,
                                        .seed = (uint64_t)job->seed};
    hd_arena_init(&ret_rows->arena, 0);
    st = hd_prompt_encoder_open(job, tokenizer ? tokenizer : &own, job->roles, &r->encoder);
    ret_rows->stops = r->encoder.stops;
    ret_rows->drawn_max = r->encoder.drawn_max;
    if (!st)
        st = add_stops(r);
    if (!st)
        st = read_files(r, alive, user);
    hd_prompt_encoder_close(&r->encoder);
    hd_job_tokenizer_close(&own);
    return st;
}

enum hd_status hd_prompt_rows_open(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                                   void (*alive)(void *user), void *user,
                                   struct hd_prompt_rows *ret_rows)
{
    struct row_reader r = {.job = job,
                           .rows = ret_rows,
                           .files = job->train,
                           .file_count = job->train_count,
                           .key = "data.train",
                           .prompt_max = hd_job_rollout_prompt_max(job),
                           .answer_max = job->rollout_max_tokens,
                           .answer_key = "train.rollout.max_tokens",
                           .has_completions =
                               job->objective == HD_JOB_OBJECTIVE_GKD && job->distill_on_policy < 1,
                           .remedy = "raise train.global_batch or model.context"};

    return open_prompt_rows(&r, tokenizer, alive, user);
}

enum hd_status hd_prompt_rows_open_tasks(const struct hd_job *job, int64_t index,
                                         struct hd_job_tokenizer *tokenizer,
                                         void (*alive)(void *user), void *user,
                                         struct hd_prompt_rows *ret_rows)
{
    struct row_reader r = {.job = job,
                           .rows = ret_rows,
                           .prompt_max = job->context - job->tasks_tokens,
                           .answer_max = job->tasks_tokens,
                           .answer_key = "validate.tasks.tokens",
                           .remedy = "lower the latter",
                           .rows_max = job->tasks_limit};
    struct hd_choice_set set;
    struct hd_job_file file;
    char key[2 * HD_JOB_VAL_NAME_MAX];
    enum hd_status st = hd_choice_set_read(job, HD_QUESTIONS_TASKS, index, &set);

    *ret_rows = (struct hd_prompt_rows){.count = 0};
    if (st)
        return st;
    file = (struct hd_job_file){.path = set.path,
                                .size_bytes = set.size_bytes,
                                .fingerprint = *set.fingerprint ? set.fingerprint : NULL};
    (void)snprintf(key, sizeof key, "%s.%s", hd_choice_set_key(HD_QUESTIONS_TASKS), set.name);
    r.files = &file;
    r.file_count = 1;
    r.key = key;
    return open_prompt_rows(&r, tokenizer, alive, user);
}

void hd_prompt_rows_close(struct hd_prompt_rows *rows)
{
    hd_arena_done(&rows->arena);
    *rows = (struct hd_prompt_rows){.count = 0};
}

const struct hd_prompt_row *hd_prompt_rows_draw(const struct hd_prompt_rows *p, int64_t draw)
{
    const uint64_t count = (uint64_t)p->count;
    const uint64_t pass = (uint64_t)draw / count, place = (uint64_t)draw % count;
    const uint64_t key = hd_random_key(hd_random_key(p->seed, hd_random_hash("prompts")), pass);

    return &p->rows[p->shuffled ? hd_random_permute(key, count, place) : place];
}
