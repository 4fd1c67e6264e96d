/* reward_files: finds the programs of train.rewards and validate.tasks.check, and the files that their
 * arguments name. */
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "job/rewards.h"
#include "spec_internal.h"

enum hd_status spec_keep_rewards(const char *path, const struct hd_text *text, struct hd_job *job,
                                 const char **member)
{
    if (text->failed)
        return hd_err(HD_NO_MEMORY, "no memory for %s", path);
    if (text->len_bytes >= HD_JOB_PATH_MAX || strchr(text->data, '\n'))
        return hd_err(HD_INVALID,
                      "%s: together longer than %d bytes; put arguments into a file of the "
                      "program",
                      path, HD_JOB_PATH_MAX - 1);
    return hd_job_set_text(job, member, text->data);
}

/* Appends the argument, as an absolute path if it is a file relative to the folder. */
static void add_argument(const char *argument, const char *folder, struct hd_json_writer *w)
{
    struct hd_text path = {0};
    struct stat info;

    if (*argument && *argument != '-' && *argument != '/')
        hd_file_join(&path, folder, argument);
    hd_json_add_string(w, NULL,
                       path.len_bytes && !path.failed && stat(path.data, &info) == 0 &&
                               S_ISREG(info.st_mode)
                           ? path.data
                           : argument);
    hd_text_free(&path);
}

/* Refuses a program whose path names nothing that can be run. A name without / is looked for in
 * PATH on the node. */
static enum hd_status check_program(const char *key, const char *name, const char *path, bool look)
{
    struct stat info;

    if (!strchr(path, '/') || !look)
        return HD_OK;
    if (stat(path, &info) < 0 || !S_ISREG(info.st_mode))
        return hd_err(HD_INVALID,
                      "%s: %s: cannot find the program %s; paths are relative to the "
                      "job file's folder",
                      key, name, path);
    return info.st_mode & 0111 ? HD_OK
                               : hd_err(HD_INVALID,
                                        "%s: %s: %s may not be executed; chmod +x it, or give its "
                                        "interpreter first: [python3, %s]",
                                        key, name, path, path);
}

/* Makes the files of a list absolute; look: refuses programs that cannot be run. */
static enum hd_status find_list(struct spec_draft *draft, const char *key, const char **list,
                                const char *folder, bool look)
{
    static const struct hd_json_limits limits = {.values_max = 4096, .depth_max = 4};
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};
    const struct hd_json *root;
    enum hd_status st;

    if (!**list)
        return HD_OK;
    st = hd_json_parse(draft->arena, *list, strlen(*list), &limits, &root);
    if (st)
        return hd_err_prefix(HD_INVALID, "%s", key);
    hd_json_begin(&w, NULL, '[');
    for (const struct hd_json *r = root->first; !st && r; r = r->next) {
        hd_json_begin(&w, NULL, '{');
        for (const struct hd_json *m = r->first; m; m = m->next) {
            const struct hd_json *const program = strcmp(m->key, "program") == 0 ? m->first : NULL;

            if (!program) {
                hd_json_add_value(&w, m->key, m);
                continue;
            }
            hd_json_begin(&w, "program", '[');
            for (const struct hd_json *a = program; a; a = a->next)
                add_argument(a->text, folder, &w);
            hd_json_end(&w, ']');
        }
        hd_json_end(&w, '}');
    }
    hd_json_end(&w, ']');
    st = spec_keep_rewards(key, &text, draft->job, list);
    hd_text_free(&text);
    if (!st) {
        struct hd_rewards rewards;

        st = hd_rewards_read(key, *list, draft->arena, &rewards);
        for (int64_t i = 0; !st && i < rewards.count; i++)
            if (rewards.list[i].kind == HD_REWARD_PROGRAM)
                st = check_program(key, rewards.list[i].name, rewards.list[i].argv[0], look);
    }
    return st;
}

enum hd_status spec_find_rewards(struct spec_draft *draft, const char *folder, bool look)
{
    enum hd_status st = find_list(draft, "train.rewards", &draft->job->rewards, folder, look);

    return st ? st
              : find_list(draft, "validate.tasks.check", &draft->job->tasks_check, folder, look);
}
