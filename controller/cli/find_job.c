/* find_job: which job a word of the command line names.
 *
 *     12         the job of this number; digits are never a name
 *     tiny       the job of this name: the only one, or the only one that has not ended if all are
 *                of one owner
 *     'tiny-*'   all jobs whose names match, for commands that take several (cli_find_jobs)
 *     runs/a     a run of heddle local, for commands that read (cli_find_job_or_run): job 1 of its
 *                own controller
 */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "controller/cli/cli.h"
#include "controller/cli/run_control.h"

enum {
    PAGE = 1000,    /* jobs asked for at a time, the largest number that the controller sends */
    NAMED_MAX = 20, /* most jobs that a message lists */
    RUN_JOB = 1,    /* number of the only job of a run of heddle local */
};

/* A job that matches a name. */
struct match {
    uint64_t job;
    Heddle__V1__JobState state;
    int64_t submitted_ms; /* Unix, ms, by the controller's clock */
    char name[HD_JOB_WORD_MAX], owner[HD_JOB_WORD_MAX];
};

struct matches {
    struct match *items; /* newest first */
    size_t count, capacity;
};

static enum hd_status no_memory_for_jobs(void)
{
    return hd_err(HD_NO_MEMORY, "no memory for a list of jobs");
}

static bool is_number(const char *word)
{
    return *word && word[strspn(word, "0123456789")] == '\0';
}

static bool is_pattern(const char *word)
{
    return strpbrk(word, "*?") != NULL;
}

/* Parses a job number, "7" -> 7. */
static int parse_number(const char *text, uint64_t *ret_job)
{
    int64_t job;

    if (hd_text_to_int64(text, 1, INT64_MAX, &job))
        return cli_usage("%s is not a job number; heddle jobs lists them", text);
    *ret_job = (uint64_t)job;
    return CLI_CONTINUE;
}

/* ---- jobs by name ---- */

static enum hd_status add_match(struct matches *m, const Heddle__V1__JobStatus *job)
{
    if (!hd_grow(&m->items, m->count, &m->capacity, sizeof *m->items))
        return no_memory_for_jobs();
    m->items[m->count] = (struct match){
        .job = job->job, .state = job->state, .submitted_ms = job->submitted_unix_ms};
    (void)snprintf(m->items[m->count].name, sizeof m->items[0].name, "%s", job->name);
    (void)snprintf(m->items[m->count].owner, sizeof m->items[0].owner, "%s", job->owner);
    m->count++;
    return HD_OK;
}

/* Lists the jobs whose names match a pattern, newest first. The names are compared here, too: an
 * older controller sends all jobs. */
static int list_matches(struct cli *cli, const char *pattern, struct matches *m)
{
    Heddle__V1__ListJobsRequest request = HEDDLE__V1__LIST_JOBS_REQUEST__INIT;
    Heddle__V1__ListJobsResponse *page = NULL;
    char next[32] = "";
    enum hd_status st = HD_OK;
    int code = cli_connect(cli);

    request.name = (char *)(uintptr_t)pattern;
    request.limit = PAGE;
    request.page = next;
    do {
        if (code == CLI_CONTINUE)
            code = cli_call(cli, "ListJobs", &request.base, &page);
        if (code != CLI_CONTINUE)
            return code;
        for (size_t i = 0; i < page->n_jobs && !st; i++)
            if (fnmatch(pattern, page->jobs[i]->name, 0) == 0 &&
                (!m->count || m->items[m->count - 1].job != page->jobs[i]->job))
                st = add_match(m, page->jobs[i]);
        (void)snprintf(next, sizeof next, "%s", page->n_jobs ? page->next_page : "");
        hd_rpc_message_free(&page->base);
    } while (*next && !st);
    return st ? cli_fail(st) : CLI_CONTINUE;
}

/* Prints the jobs that matched, a line each on stderr. */
static void note_matches(const struct cli *cli, const struct matches *m)
{
    char word[CLI_WORD_MAX], age[HD_CLOCK_TEXT_MAX];

    for (size_t i = 0; i < m->count && i < NAMED_MAX; i++) {
        cli_format_age(m->items[i].submitted_ms, cli_now_ms(cli), age);
        cli_note("  %llu  %s of %s  %s, submitted %s ago", (unsigned long long)m->items[i].job,
                 m->items[i].name, m->items[i].owner, cli_job_state(m->items[i].state, word), age);
    }
    if (m->count > NAMED_MAX)
        cli_note("  and %zu more", m->count - NAMED_MAX);
}

static bool are_of_one_owner(const struct matches *m)
{
    for (size_t i = 1; i < m->count; i++)
        if (strcmp(m->items[i].owner, m->items[0].owner) != 0)
            return false;
    return true;
}

/* Chooses the job of a name: the only one, or the only one that has not ended. Jobs of several owners
 * are ambiguous: the one that runs may be another person's. */
static int choose_match(const struct cli *cli, const char *name, const struct matches *m,
                        uint64_t *ret_job)
{
    const struct match *chosen = NULL;
    size_t unfinished = 0;

    for (size_t i = m->count; i-- > 0;)
        if (!cli_job_ended(m->items[i].state)) {
            chosen = &m->items[i];
            unfinished++;
        }
    if (!m->count)
        return cli_fail(
            hd_err(HD_NOT_FOUND,
                   "there is no job, and no run of heddle local, of the name %s; heddle "
                   "jobs lists jobs",
                   name));
    if (m->count > 1 && (unfinished != 1 || !are_of_one_owner(m))) {
        (void)cli_usage("%zu jobs have the name %s; give the number of one:", m->count, name);
        note_matches(cli, m);
        return CLI_USAGE;
    }
    *ret_job = m->count == 1 ? m->items[0].job : chosen->job;
    if (m->count > 1)
        cli_note("heddle: %zu jobs have the name %s; job %llu is taken, which has not ended",
                 m->count, name, (unsigned long long)*ret_job);
    return CLI_CONTINUE;
}

static int find_by_name(struct cli *cli, const char *name, uint64_t *ret_job)
{
    struct matches m = {.count = 0};
    int code = list_matches(cli, name, &m);

    if (code == CLI_UNREACHABLE)
        cli_note("heddle: %s is no number, and no folder of a run of heddle local: a controller is "
                 "asked for a job of this name",
                 name);
    if (code == CLI_CONTINUE)
        code = choose_match(cli, name, &m, ret_job);
    free(m.items);
    return code;
}

bool cli_names_run(const char *word)
{
    return !is_number(word) && (strchr(word, '/') || run_control_is_run(word));
}

int cli_find_job(struct cli *cli, const char *word, uint64_t *ret_job)
{
    if (is_number(word))
        return parse_number(word, ret_job);
    if (is_pattern(word))
        return cli_usage("%s: %s names any number of jobs, and one is needed; heddle jobs --name "
                         "'%s' lists them",
                         cli->command->name, word, word);
    if (cli_names_run(word))
        return cli_usage("%s: %s is a folder; give a job's number or name", cli->command->name,
                         word);
    return find_by_name(cli, word, ret_job);
}

int cli_find_job_or_run(struct cli *cli, const char *word, uint64_t *ret_job)
{
    int code;

    if (!cli_names_run(word))
        return cli_find_job(cli, word, ret_job);
    code = run_control_connect(cli, word);
    *ret_job = RUN_JOB;
    return code;
}

int cli_parse_job(struct cli *cli, int argc, char **argv, bool or_run, uint64_t *ret_job)
{
    const int code = cli_parse(cli, argc, argv, NULL, 0, 1, 1);

    if (code != CLI_CONTINUE)
        return code;
    return or_run ? cli_find_job_or_run(cli, cli->args[0], ret_job)
                  : cli_find_job(cli, cli->args[0], ret_job);
}

int cli_find_after(struct cli *cli, struct hd_job *job)
{
    uint64_t numbers[HD_JOB_AFTER_MAX];
    struct hd_text text = {0};
    char names[HD_JOB_WORD_MAX], *rest = names, *name;
    uint64_t number = 0;
    int count, code = CLI_CONTINUE;

    if (!hd_after_read(job->after, numbers, &count))
        return CLI_CONTINUE;
    (void)snprintf(names, sizeof names, "%s", job->after);
    while (code == CLI_CONTINUE && (name = strsep(&rest, ","))) {
        code = is_number(name) ? parse_number(name, &number) : find_by_name(cli, name, &number);
        hd_text_add(&text, "%s%llu", text.len_bytes ? "," : "", (unsigned long long)number);
    }
    if (code != CLI_CONTINUE)
        cli_note("heddle: a job of this name is in the job file, at after:");
    else if (text.failed || text.len_bytes >= HD_JOB_WORD_MAX)
        code = cli_usage("after: %s: too many jobs", job->after);
    else if (hd_job_take_text(job, &job->after, &text))
        code = cli_fail(HD_NO_MEMORY);
    hd_text_free(&text);
    return code;
}

/* ---- several jobs ---- */

static bool is_wanted(enum cli_pick pick, Heddle__V1__JobState state)
{
    return pick == CLI_PICK_ALL || cli_job_ended(state) == (pick == CLI_PICK_ENDED);
}

/* Keeps the matches that the command acts on. */
static void keep_wanted(struct matches *m, enum cli_pick pick)
{
    size_t kept = 0;

    for (size_t i = 0; i < m->count; i++)
        if (is_wanted(pick, m->items[i].state))
            m->items[kept++] = m->items[i];
    m->count = kept;
}

static enum hd_status add_number(struct cli_picked *jobs, uint64_t job)
{
    uint64_t *numbers;

    for (size_t i = 0; i < jobs->count && jobs->by_pattern; i++)
        if (jobs->numbers[i] == job)
            return HD_OK; /* two patterns match it */
    numbers = realloc(jobs->numbers, (jobs->count + 1) * sizeof *numbers);
    if (!numbers)
        return no_memory_for_jobs();
    jobs->numbers = numbers;
    jobs->numbers[jobs->count++] = job;
    return HD_OK;
}

/* Adds the jobs that match a pattern, and prints them. */
static int add_pattern(struct cli *cli, const char *pattern, enum cli_pick pick,
                       struct cli_picked *jobs)
{
    struct matches m = {.count = 0};
    enum hd_status st = HD_OK;
    int code = list_matches(cli, pattern, &m);

    keep_wanted(&m, pick);
    if (code == CLI_CONTINUE && !m.count)
        code = cli_fail(hd_err(HD_NOT_FOUND,
                               "no job %smatches %s; heddle jobs --name '%s' lists "
                               "all that do",
                               pick == CLI_PICK_LIVE    ? "that has not ended "
                               : pick == CLI_PICK_ENDED ? "that has ended "
                                                        : "",
                               pattern, pattern));
    jobs->by_pattern = true;
    for (size_t i = m.count; i-- > 0 && code == CLI_CONTINUE && !st;) /* oldest first */
        st = add_number(jobs, m.items[i].job);
    if (code == CLI_CONTINUE && jobs->shows)
        note_matches(cli, &m);
    free(m.items);
    return st ? cli_fail(st) : code;
}

int cli_find_jobs(struct cli *cli, int first, enum cli_pick pick, struct cli_picked *jobs)
{
    uint64_t job = 0;
    int code = CLI_CONTINUE;

    for (int i = first; i < cli->arg_count && code == CLI_CONTINUE; i++) {
        if (is_pattern(cli->args[i])) {
            code = add_pattern(cli, cli->args[i], pick, jobs);
            continue;
        }
        code = cli_find_job(cli, cli->args[i], &job);
        if (code == CLI_CONTINUE && add_number(jobs, job))
            code = cli_fail(HD_NO_MEMORY);
    }
    return code == CLI_CONTINUE ? cli_connect(cli) : code;
}

int cli_confirm_jobs(const struct cli *cli, const struct cli_picked *jobs, bool yes)
{
    char question[96];

    if (!jobs->by_pattern || yes)
        return CLI_CONTINUE;
    (void)snprintf(question, sizeof question, "%s %s%zu?", cli->command->name,
                   jobs->count == 1 ? "this " : "all ", jobs->count);
    return cli_confirm(question, "nothing was changed", "add --yes for what a pattern matches");
}

void cli_free_jobs(struct cli_picked *jobs)
{
    free(jobs->numbers);
}
