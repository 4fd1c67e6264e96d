#include "controller/cli/progress.h"

#include <stdio.h>
#include <string.h>

#include "controller/cli/cli.h"

enum { BAR_MAX = 40, BAR_MIN = 8, PART_MAX = 48 };

/* Parts of the progress line, the most important first. */
enum part {
    PART_PERCENT,
    PART_STEP,
    PART_LOSS,
    PART_LEFT,
    PART_BAR,
    PART_VALIDATION,
    PART_RATE,
    PART_LR,
    PART_GRAD,
    PART_MFU,
    PART_COUNT
};

/* Parts in the order of the line, left to right. */
static const enum part positions[PART_COUNT] = {
    PART_PERCENT, PART_BAR,  PART_STEP, PART_LOSS, PART_VALIDATION,
    PART_LR,      PART_GRAD, PART_RATE, PART_MFU,  PART_LEFT,
};

/* Formats whole seconds in at most six columns: "45s", "2m05s", "12h10m", "3d04h". */
static void format_left(int64_t left_ms, char ret_text[32])
{
    const long long s = (left_ms + 500) / 1000;

    if (left_ms < 0)
        (void)snprintf(ret_text, 32, "-");
    else if (s < 60)
        (void)snprintf(ret_text, 32, "%llds", s);
    else if (s < 3600)
        (void)snprintf(ret_text, 32, "%lldm%02llds", s / 60, s % 60);
    else if (s < 86400)
        (void)snprintf(ret_text, 32, "%lldh%02lldm", s / 3600, s / 60 % 60);
    else
        (void)snprintf(ret_text, 32, "%lldd%02lldh", s / 86400, s / 3600 % 24);
}

void progress_validate(struct progress *p, int64_t step, const char *set, double loss)
{
    int i = 0;

    if (p->validation_step != step)
        p->validation_count = 0;
    p->validation_step = step;
    while (i < p->validation_count && strcmp(p->validations[i].set, set) != 0)
        i++;
    if (i == HD_JOB_VAL_REPORTS_MAX)
        return; /* a job has no more sets */
    (void)snprintf(p->validations[i].set, sizeof p->validations[i].set, "%s", set);
    p->validations[i].loss = loss;
    p->validation_count = i < p->validation_count ? p->validation_count : i + 1;
}

void progress_summarize(const struct progress *p, struct hd_text *out)
{
    char text[32];

    if (!p->step)
        return;
    hd_text_add(out, "step %lld of %lld (%d%%)", (long long)p->step, (long long)p->steps,
                p->steps ? (int)(100 * p->step / p->steps) : 0);
    cli_format_count(p->tokens_per_s, text);
    if (p->tokens_per_s > 0)
        hd_text_add(out, ", %s tok/s", text);
    format_left(p->left_ms, text);
    if (p->left_ms >= 0 && p->step < p->steps)
        hd_text_add(out, ", about %s left", text);
}

/* Formats the parts of the progress line, each with the same width at every step, so that the line
 * does not flicker. A part "" is left out. */
static void fill_parts(const struct progress *p, double done, char parts[PART_COUNT][PART_MAX])
{
    char text[32];
    int digits;

    for (int i = 0; i < PART_COUNT; i++)
        parts[i][0] = '\0';
    digits = snprintf(text, sizeof text, "%lld", (long long)p->steps);
    (void)snprintf(parts[PART_PERCENT], PART_MAX, "%3d%%", (int)(done * 100));
    (void)snprintf(parts[PART_STEP], PART_MAX, "%*lld/%s", digits, (long long)p->step, text);
    (void)snprintf(parts[PART_BAR], PART_MAX, "%*s", BAR_MIN, "");
    if (!p->step)
        return;
    (void)snprintf(parts[PART_LOSS], PART_MAX, "loss %.4f", p->loss);
    if (p->validation_count)
        (void)snprintf(parts[PART_VALIDATION], PART_MAX, "val %s%s%.4f", p->validations[0].set,
                       *p->validations[0].set ? " " : "", p->validations[0].loss);
    (void)snprintf(parts[PART_LR], PART_MAX, "lr %.2e", p->lr);
    if (p->grad_norm != 0)
        (void)snprintf(parts[PART_GRAD], PART_MAX, "grad %-5.3g", p->grad_norm);
    cli_format_count(p->tokens_per_s, text);
    if (p->tokens_per_s > 0)
        (void)snprintf(parts[PART_RATE], PART_MAX, "%5s tok/s", text);
    if (p->mfu > 0)
        (void)snprintf(parts[PART_MFU], PART_MAX, "mfu %2.0f%%", 100 * p->mfu);
    format_left(p->left_ms, text);
    (void)snprintf(parts[PART_LEFT], PART_MAX, "ETA %-6s", text);
}

/* Empties the first part that does not fit into the columns, and all less important ones. Returns
 * the columns that remain. */
static int drop_parts(char parts[PART_COUNT][PART_MAX], int columns)
{
    int columns_left = columns, i;

    for (i = 0; i < PART_COUNT; i++) {
        /* parts are separated by two blanks, the percentage by one */
        const int gap = i == PART_PERCENT ? 0 : i == PART_STEP ? 1 : 2;
        const int need = (int)strlen(parts[i]) + gap;

        if (!parts[i][0])
            continue;
        if (need > columns_left)
            break;
        columns_left -= need;
    }
    for (; i < PART_COUNT; i++)
        parts[i][0] = '\0';
    return columns_left;
}

static void add_bar(double done, int width, const struct progress_style *style, struct hd_text *out)
{
    int full = (int)(done * width);

    hd_text_add(out, "%s", style->colour ? "\033[32m" : "");
    for (int i = 0; i < full; i++)
        hd_text_add(out, "%s", style->utf8 ? "█" : "#");
    hd_text_add(out, "%s", style->colour ? "\033[0m\033[2m" : "");
    for (int i = full; i < width; i++)
        hd_text_add(out, "%s", style->utf8 ? "░" : ".");
    hd_text_add(out, "%s", style->colour ? "\033[0m" : "");
}

void progress_render(const struct progress *p, const struct progress_style *style,
                     struct hd_text *out)
{
    double done = p->steps > 0 ? (double)p->step / (double)p->steps : 0;
    char parts[PART_COUNT][PART_MAX];
    const char *gap = "";
    int columns_left;

    if (done > 1)
        done = 1;
    fill_parts(p, done, parts);
    columns_left = drop_parts(parts, style->columns - 1);
    if (columns_left > BAR_MAX - BAR_MIN)
        columns_left = BAR_MAX - BAR_MIN;
    hd_text_add(out, "%s", "");
    for (int i = 0; i < PART_COUNT; i++) {
        if (!parts[positions[i]][0])
            continue;
        hd_text_add(out, "%s", gap);
        if (positions[i] == PART_BAR)
            add_bar(done, BAR_MIN + columns_left, style, out);
        else
            hd_text_add(out, "%s", parts[positions[i]]);
        gap = positions[i] == PART_PERCENT ? " " : "  ";
    }
}
