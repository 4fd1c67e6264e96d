#include "controller/cli/progress.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "controller/cli/cli.h"

enum { BAR_MAX = 40, BAR_MIN = 8, PART_MAX = 48 };

void progress_step(struct progress *p, int64_t step, int64_t time_unix_ms)
{
    int64_t steps = step - p->step;
    double pace;

    if (!p->first_unix_ms || steps <= 0) {
        p->first_step = step;
        p->first_unix_ms = time_unix_ms;
    } else if (time_unix_ms > p->last_unix_ms) {
        pace = (double)(time_unix_ms - p->last_unix_ms) / (double)steps;
        /* the plain mean at first, then an average that forgets */
        if (step - p->first_step <= 20)
            p->ms_per_step =
                (double)(time_unix_ms - p->first_unix_ms) / (double)(step - p->first_step);
        else
            p->ms_per_step += (pace - p->ms_per_step) * (steps < 20 ? (double)steps / 20 : 1);
    }
    p->step = step;
    p->last_unix_ms = time_unix_ms;
}

void progress_restart(struct progress *p)
{
    p->first_unix_ms = 0;
    p->ms_per_step = 0;
}

int64_t progress_left_ms(const struct progress *p)
{
    if (p->ms_per_step <= 0 || p->steps <= 0 || p->step > p->steps)
        return -1;
    return (int64_t)((double)(p->steps - p->step) * p->ms_per_step);
}

/* The parts behind the bar, the most important first. */
enum part { PART_STEP, PART_LOSS, PART_LEFT, PART_RATE, PART_MFU, PART_COUNT };

static void fill_parts(const struct progress *p, char parts[PART_COUNT][PART_MAX])
{
    int64_t left_ms = progress_left_ms(p);
    char text[32];

    for (int i = 0; i < PART_COUNT; i++)
        parts[i][0] = '\0';
    (void)snprintf(parts[PART_STEP], PART_MAX, "%lld/%lld", (long long)p->step,
                   (long long)p->steps);
    if (!p->step)
        return;
    (void)snprintf(parts[PART_LOSS], PART_MAX, "loss %.4f", p->loss);
    cli_format_count(p->tokens_per_s, text);
    (void)snprintf(parts[PART_RATE], PART_MAX, "%s tok/s", text);
    if (p->mfu > 0)
        (void)snprintf(parts[PART_MFU], PART_MAX, "mfu %.0f%%", 100 * p->mfu);
    if (left_ms >= 0) {
        hd_clock_format_span(left_ms - left_ms % 1000, text);
        (void)snprintf(parts[PART_LEFT], PART_MAX, "%s left", left_ms < 1000 ? "0s" : text);
    }
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
    hd_text_add(out, "%s  ", style->colour ? "\033[0m" : "");
}

void progress_render(const struct progress *p, const struct progress_style *style,
                     struct hd_text *out)
{
    static const enum part order[] = {PART_STEP, PART_LOSS, PART_RATE, PART_MFU, PART_LEFT};
    double done = p->steps > 0 ? (double)p->step / (double)p->steps : 0;
    int room = style->columns - 1 - (int)strlen("100% "), bar;
    char parts[PART_COUNT][PART_MAX];

    if (done > 1)
        done = 1;
    fill_parts(p, parts);
    for (int i = 0; i < PART_COUNT; i++) {    /* what no longer fits, and all behind it, goes */
        int need = (int)strlen(parts[i]) + 2; /* two blanks in front of each */

        if (!parts[i][0])
            continue;
        if (i > PART_LOSS && room - need < BAR_MIN) {
            for (int j = i; j < PART_COUNT; j++)
                parts[j][0] = '\0';
            break;
        }
        room -= need;
    }
    hd_text_add(out, "%3d%% ", (int)(done * 100));
    bar = room < BAR_MAX ? room : BAR_MAX;
    if (bar >= BAR_MIN)
        add_bar(done, bar, style, out);
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
        if (parts[order[i]][0])
            hd_text_add(out, "%s%s", i ? "  " : "", parts[order[i]]);
}
