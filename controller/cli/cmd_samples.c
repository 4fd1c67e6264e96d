/* samples: prints what a job wrote behind the prompts of validate.samples.
 *
 * They are its events of the kind `sample` (daemon/worker/rank_samples.c has the form of the
 * message). After a restart the samples of a step may be there twice; the newer ones count. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/cli/rows.h"

enum { SAMPLES_PAGE = 500 };

/* A text behind a prompt; from one event, or put together from several. */
struct job_sample {
    int64_t step;
    int prompt, prompts;     /* number of the prompt, from 1; of all prompts */
    struct hd_text question; /* the prompt, or its beginning */
    struct hd_text answer;
    char end[64];     /* stop, length, not finite, of answers that are rated with ", reward NUMBER"
                       * behind it; more: the rest is missing */
    bool begins_step; /* true: it is the first of its step that is printed */
};

struct samples_list {
    struct job_sample *list;
    size_t count, capacity;
};

static void free_samples(struct samples_list *all)
{
    for (size_t i = 0; i < all->count; i++) {
        hd_text_free(&all->list[i].question);
        hd_text_free(&all->list[i].answer);
    }
    free(all->list);
}

/* ---- reading ---- */

/* Appends the quoted text at the beginning of *at to *out, and sets *at to behind it. Returns false
 * if there is none. */
static bool take_quoted(const char **at, struct hd_text *out)
{
    static const struct hd_json_limits limits = {.values_max = 1, .depth_max = 2};
    const char *begin = *at, *end = begin + 1;
    const struct hd_json *value;
    struct hd_arena arena;
    bool taken;

    if (*begin != '"')
        return false;
    for (; *end && *end != '"'; end++)
        end += *end == '\\' && end[1];
    if (!*end)
        return false;
    end++;
    hd_arena_init(&arena, 0);
    taken = !hd_json_parse(&arena, begin, (size_t)(end - begin), &limits, &value) &&
            value->kind == HD_JSON_STRING;
    if (taken)
        hd_text_add(out, "%s", value->text);
    hd_arena_done(&arena);
    *at = end;
    return taken;
}

/* Returns the sample of this step and prompt; a new one at the end of the list if there is none.
 * NULL: no memory. */
static struct job_sample *find_sample(struct samples_list *all, int64_t step, int prompt)
{
    struct job_sample *list;

    for (size_t i = all->count; i > 0; i--)
        if (all->list[i - 1].step == step && all->list[i - 1].prompt == prompt)
            return &all->list[i - 1];
    if (all->count == all->capacity) {
        all->capacity = all->capacity ? 2 * all->capacity : 64;
        list = realloc(all->list, all->capacity * sizeof *list);
        if (!list)
            return NULL;
        all->list = list;
    }
    all->list[all->count] = (struct job_sample){.step = step, .prompt = prompt};
    return &all->list[all->count++];
}

/* Adds the sample, or the part of one, of an event's message; a message of another form is left
 * out. */
static void add_sample_message(struct samples_list *all, const char *message)
{
    struct hd_text first = {0}, second = {0};
    long long step;
    int prompt, prompts, at = 0, part = 1;
    struct job_sample *s = NULL;
    const char *c;

    if (sscanf(message, "step %lld, prompt %d of %d%n", &step, &prompt, &prompts, &at) != 3)
        return;
    c = message + at;
    at = 0;
    if (sscanf(c, ", part %d%n", &part, &at) == 1)
        c += at;
    c += strncmp(c, ": ", 2) == 0 ? 2 : 0;
    if (take_quoted(&c, &first)) {
        if (part == 1) {
            const char *arrow = strstr(c, " -> ");

            if (arrow > c)
                hd_text_add(&first, "...");
            c = arrow ? arrow + 4 : "";
        }
        if (part > 1 || take_quoted(&c, &second))
            s = find_sample(all, step, prompt);
        if (s && part == 1) {
            hd_text_free(&s->question);
            hd_text_free(&s->answer);
            s->question = first;
            first = (struct hd_text){0};
        }
        if (s) {
            const struct hd_text *text = part == 1 ? &second : &first;

            s->prompts = prompts;
            hd_text_add(&s->answer, "%s", text->data ? text->data : "");
            (void)snprintf(s->end, sizeof s->end, "%.*s",
                           strncmp(c, " (", 2) == 0 ? (int)strcspn(c + 2, ")") : 0, c + 2);
        }
    }
    hd_text_free(&first);
    hd_text_free(&second);
}

static int read_samples(struct cli *cli, uint64_t job, struct samples_list *all)
{
    Heddle__V1__ListEventsRequest request = HEDDLE__V1__LIST_EVENTS_REQUEST__INIT;
    Heddle__V1__ListEventsResponse *page = NULL;
    bool more = true;
    int code = CLI_CONTINUE;

    request.job = job;
    request.limit = SAMPLES_PAGE;
    while (more && code == CLI_CONTINUE) {
        code = cli_call(cli, "ListEvents", &request.base, &page);
        if (code != CLI_CONTINUE)
            break;
        for (size_t i = 0; i < page->n_events; i++) {
            request.after_sequence = page->events[i]->sequence;
            if (strcmp(page->events[i]->kind, "sample") == 0)
                add_sample_message(all, page->events[i]->message);
        }
        more = page->more && page->n_events;
        hd_rpc_message_free(&page->base);
    }
    return code;
}

/* ---- printing ---- */

static int by_step_and_prompt(const void *a, const void *b)
{
    const struct job_sample *x = a, *y = b;

    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return x->prompt - y->prompt;
}

/* Returns what is said of a sample that ends as `end` says. */
static const char *text_of_end(const char *end)
{
    const size_t len = strcspn(end, ",");
    static const char *const ends[][2] = {{"stop", ""},
                                          {"length", ", cut at its most tokens"},
                                          {"not finite", ", cut where the output was not finite"}};

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (strlen(ends[i][0]) == len && strncmp(end, ends[i][0], len) == 0)
            return ends[i][1];
    return ", of which the rest is not known yet";
}

static void add_sample_lines(const struct cli *cli, struct hd_text *out, const void *item)
{
    const struct job_sample *s = item;
    const char *rated =
        strstr(s->end, ", reward "); /* NULL: it is no answer of train.objective: grpo */

    (void)cli;
    if (s->begins_step)
        hd_text_add(out, "step %lld\n", (long long)s->step);
    hd_text_add(out, "  %s %d", rated ? "answer" : "prompt", s->prompt);
    cli_add_clean(out, rated ? rated : "");
    hd_text_add(out, "%s\n", text_of_end(s->end));
    cli_add_clean_lines(out, "    > ", s->question.data ? s->question.data : "");
    cli_add_clean_lines(out, "    ", s->answer.data ? s->answer.data : "");
}

static void show_sample(struct hd_json_writer *w, const void *item)
{
    const struct job_sample *s = item;

    hd_json_add_int64(w, "step", s->step);
    hd_json_add_int64(w, "prompt_number", s->prompt);
    hd_json_add_string(w, "prompt", s->question.data ? s->question.data : "");
    hd_json_add_string(w, "text", s->answer.data ? s->answer.data : "");
    hd_json_add_string(w, "end", s->end);
}

static const struct rows_kind sample_rows = {"SampleList", "sample", .show = show_sample,
                                             .line = add_sample_lines};

/* step: the step whose samples are printed; -1: all of them. */
static int print_samples(const struct cli *cli, struct samples_list *all, int64_t step, int code)
{
    struct cli_rows rows;
    const struct job_sample *before = NULL;

    rows_begin(&rows, cli, &sample_rows);
    for (size_t i = 0; code == CLI_CONTINUE && i < all->count; i++) {
        struct job_sample *s = &all->list[i];

        if (step >= 0 && s->step != step)
            continue;
        s->begins_step = !before || before->step != s->step;
        rows_add(&rows, s);
        before = s;
    }
    return rows_end(&rows, code);
}

static int cli_samples(struct cli *cli, int argc, char **argv)
{
    int64_t step = -1;
    bool last = false;
    const struct cli_flag flags[] = {
        {"step", 0, CLI_FLAG_INT, &step, "N", .min = 0, .max = INT64_MAX,
         .help = "only those of the weights after step N; 0: the first weights"},
        {"last", 0, CLI_FLAG_BOOL, &last, .help = "only the newest"},
    };
    struct samples_list all = {0};
    uint64_t job = 0;
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);

    if (code == CLI_CONTINUE)
        code = cli_find_job_or_run(cli, cli->args[0], &job);
    if (code != CLI_CONTINUE)
        return code;
    code = read_samples(cli, job, &all);
    if (code == CLI_CONTINUE && all.count) {
        qsort(all.list, all.count, sizeof *all.list, by_step_and_prompt);
        if (last)
            step = all.list[all.count - 1].step;
    }
    if (code == CLI_CONTINUE && !all.count && cli->format < CLI_JSON)
        (void)fprintf(stderr, "heddle: the job has written no samples; one with validate.samples "
                              "writes some at each validation\n");
    code = print_samples(cli, &all, step, code);
    free_samples(&all);
    return code;
}

const struct cli_body cli_body_samples = {
    .usage = "Usage: heddle samples JOB|RUN [--step N | --last] [-o FORMAT]\n",
    .about = "Prints what the model wrote behind the prompts of validate.samples, by step, the\n"
             "oldest first: the prompt behind >, then the text; with train.objective: grpo the\n"
             "best and the worst answer to a prompt of some steps. They are events of the job,\n"
             "so heddle watch shows them as they come; TensorBoard has them under Text.\n",
    .examples = "heddle samples 7 --last",
    .run = cli_samples,
};
