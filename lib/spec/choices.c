/* choices: reads validate.choices and validate.tasks.files, the files of questions that validations answer: `arc.jsonl`,
 * `[arc.jsonl, hs.jsonl]` or `{arc: a/test.jsonl}`. */
#include <stdio.h>
#include <string.h>

#include "job/choice_sets.h"
#include "spec_internal.h"

/* Adds a file of questions with a name that is given, or that is the file's. */
static enum hd_status add_questions(struct spec_reader *r, enum hd_question_kind kind,
                                    const struct yaml_node *node, const char *name)
{
    struct hd_choice_set set = {.size_bytes = -1};
    enum hd_status st = spec_need_scalar(r, node, "a path");
    const char *slash = st ? NULL : strrchr(node->text, '/');
    char own[HD_JOB_PATH_MAX], quoted[SPEC_QUOTE_MAX];

    if (!st && (!*node->text || strlen(node->text) >= sizeof set.path))
        st = hd_err(HD_INVALID, "%s: expected the path of a file of questions", r->path);
    if (st)
        return st;
    (void)snprintf(own, sizeof own, "%s", slash ? slash + 1 : node->text);
    own[strcspn(own, ".")] = '\0';
    if (!hd_job_val_name_is_possible(name ? name : own))
        return hd_err(
            HD_INVALID, "%s: %s is no name of a file of questions; %s " SPEC_SET_NAME_RULE, r->path,
            spec_quote(name ? name : own, quoted), name ? "use" : "write {NAME: path}, NAME of");
    (void)snprintf(set.name, sizeof set.name, "%s", name ? name : own);
    (void)snprintf(set.path, sizeof set.path, "%s", node->text);
    return hd_choice_set_add(&set, kind, r->draft.job);
}

enum hd_status spec_read_choices(struct spec_reader *r, enum hd_question_kind kind,
                                 const struct yaml_node *node)
{
    const bool is_map = node->kind == YAML_KIND_MAP;
    enum hd_status st = HD_OK;
    int64_t index = 0;

    *spec_given(&r->draft, kind == HD_QUESTIONS_TASKS ? "validate.tasks.list"
                                                      : "validate.choices.list") = true;
    if (node->kind == YAML_KIND_SCALAR)
        return add_questions(r, kind, node, NULL);
    for (const struct yaml_node *c = node->first; c && !st; c = c->next, index++) {
        const size_t len = strlen(r->path);

        if (is_map)
            (void)spec_path_push(r, c->key);
        else
            (void)snprintf(r->path + len, sizeof r->path - len, "[%lld]", (long long)index);
        r->here = c;
        st = add_questions(r, kind, c, is_map ? c->key : NULL);
        spec_path_pop(r, len);
    }
    if (!st && !index)
        st = hd_err(HD_INVALID, "%s: names no file; write {NAME: path}, or remove the line",
                    r->path);
    return st;
}
