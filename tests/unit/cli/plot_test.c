/* Curves of runs: histories, axes, pictures, and characters. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "controller/cli/plot.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

static const struct plot_options loss_of_steps = {
    .metrics = {HD_METRIC_INDEX_loss}, .metric_count = 1, .smooth = 0.5, .width = 600};

static void add(struct plot_run *run, int64_t step, double loss)
{
    plot_add_step(run,
                  &(struct plot_step){.step = step, .tokens = 100, .ms = 1000, .values = {loss}});
}

/* A run that restarted at step 3: what it did again counts once, as it was the second time. */
static void steps_that_were_repeated_count_once(void **state)
{
    struct plot_run run = {.name = "a"};
    struct plot_panel panels[PLOT_KEYS_MAX];

    for (int64_t s = 1; s <= 5; s++)
        add(&run, s, 10 - (double)s);
    plot_add_validation(&run, &(struct plot_validation){.step = 2, .loss = 8.5});
    plot_add_validation(&run, &(struct plot_validation){.step = 5, .loss = 5.5});
    add(&run, 3, 20);
    assert_int_equal(run.step_count, 3);
    assert_int_equal(run.validation_count, 1);
    assert_int_equal(plot_make(&run, 1, &loss_of_steps, panels), HD_OK);
    assert_int_equal(panels[0].lines[0].count, 3);
    assert_true(panels[0].lines[0].points[2].y == 20);
    assert_int_equal(panels[0].lines[1].count, 1);
    assert_true(panels[0].lines[1].points[0].x == 2);
    plot_free_panels(panels);
    plot_free_run(&run);
}

/* With weight 0.5 the averages of 4, 8 are 4 and (0.25 x 4 + 0.5 x 8) / 0.75 = 20/3. */
static void a_line_is_smoothed_without_bias_at_its_start(void **state)
{
    struct plot_run run = {0};
    struct plot_panel panels[PLOT_KEYS_MAX];

    add(&run, 1, 4);
    add(&run, 2, NAN);
    add(&run, 3, 8);
    assert_int_equal(plot_make(&run, 1, &loss_of_steps, panels), HD_OK);
    assert_true(panels[0].lines[0].points[0].smooth == 4);
    assert_true(isnan(panels[0].lines[0].points[1].smooth));
    assert_true(fabs(panels[0].lines[0].points[2].smooth - 20.0 / 3) < 1e-12);
    plot_free_panels(panels);
    plot_free_run(&run);
}

/* 200 values from 1 to 3, and one of 1e7: the axis is theirs, and the line behind it is not lifted
 * above it. */
static void one_value_far_from_all_is_left_out_of_the_axis(void **state)
{
    struct plot_run run = {0};
    struct plot_panel panels[PLOT_KEYS_MAX];

    for (int64_t s = 1; s <= 200; s++)
        add(&run, s, s == 50 ? 1e7 : 3 - (double)s / 100);
    assert_int_equal(plot_make(&run, 1, &loss_of_steps, panels), HD_OK);
    assert_int_equal(panels[0].outside, 1);
    assert_true(panels[0].y_max > 2.9 && panels[0].y_max < 3.5);
    assert_true(panels[0].lines[0].points[60].smooth < 3);
    plot_free_panels(panels);
    plot_free_run(&run);
}

static void ticks_are_round(void **state)
{
    double ticks[PLOT_TICKS_MAX];
    char text[32];

    assert_int_equal(plot_ticks(0, 1000, false, 5, ticks), 6);
    assert_true(ticks[1] == 200 && ticks[5] == 1000);
    assert_int_equal(plot_ticks(0.5, 60, true, 5, ticks), 7); /* 0.5 1 2 5 10 20 50 */
    assert_true(fabs(ticks[6] - 50) < 1e-9);
    plot_format(1500, text);
    assert_string_equal(text, "1.5k");
    plot_format(0.00025, text);
    assert_string_equal(text, "0.00025");
    plot_format(-2e6, text);
    assert_string_equal(text, "-2M");
    plot_format(1e-17, text);
    assert_string_equal(text, "0");
}

/* A name is text of a job file: neither a tag nor an escape sequence of a terminal. */
static void pictures_are_whole_whatever_a_run_is_called(void **state)
{
    struct plot_run run = {.name = "<b>&\"\033[2J"};
    struct plot_panel panels[PLOT_KEYS_MAX];
    struct hd_text svg = {0}, text = {0}, csv = {0};

    add(&run, 1, 4);
    add(&run, 2, 3);
    plot_add_validation(&run, &(struct plot_validation){.step = 2, .loss = 3.5});
    assert_int_equal(plot_make(&run, 1, &loss_of_steps, panels), HD_OK);
    plot_svg(panels, &run, 1, &loss_of_steps, &svg);
    assert_true(hd_text_starts(svg.data, "<svg xmlns"));
    assert_non_null(strstr(svg.data, "&lt;b&gt;&amp;\"?[2J"));
    assert_null(strstr(svg.data, "<b>"));
    assert_null(strchr(svg.data, '\033'));
    assert_non_null(strstr(svg.data, "<circle"));
    assert_null(strstr(svg.data, "nan"));
    plot_text(panels, &run, 1, &loss_of_steps, 80, false, false, &text);
    assert_null(strchr(text.data, '\033'));
    assert_non_null(strstr(text.data, "2 steps, loss 3, validation 3.5"));
    for (const char *line = text.data; *line; line = strchr(line, '\n') + 1)
        assert_in_range(strchr(line, '\n') - line, 0, 80);
    plot_csv(&run, 1, &loss_of_steps, &csv);
    assert_non_null(strstr(csv.data, "\"<b>&\"\"\033[2J\",2,200,2.000,3,3.5\n"));
    hd_text_free(&svg);
    hd_text_free(&text);
    hd_text_free(&csv);
    plot_free_panels(panels);
    plot_free_run(&run);
}

/* Two sets: each keeps its own loss, and a validation that was done again replaces its first. */
static void sets_of_validations_are_kept_apart(void **state)
{
    struct plot_run run = {.name = "r"};
    struct hd_text csv = {0};

    add(&run, 1, 4);
    add(&run, 2, 3);
    plot_add_validation(&run, &(struct plot_validation){.step = 2, .loss = 3.5, .set = "web"});
    plot_add_validation(&run, &(struct plot_validation){.step = 2, .loss = 2.5, .set = "code"});
    plot_add_validation(&run, &(struct plot_validation){.step = 2, .loss = 3.25, .set = "web"});
    assert_int_equal(run.validation_count, 2);
    plot_csv(&run, 1, &loss_of_steps, &csv);
    assert_string_equal(csv.data,
                        "run,step,tokens,seconds,loss,validation_loss/web,validation_loss/code\n"
                        "\"r\",1,100,1.000,4,,\n\"r\",2,200,2.000,3,3.25,2.5\n");
    hd_text_free(&csv);
    plot_free_run(&run);
}

/* Scores have a panel and columns of their own: beside losses their range would be lost. */
static void scores_are_drawn_apart(void **state)
{
    const struct plot_options options = {
        .metrics = {HD_METRIC_INDEX_loss, PLOT_SCORES}, .metric_count = 2, .width = 900};
    struct plot_panel panels[PLOT_KEYS_MAX] = {0};
    struct plot_run run = {.name = "r"};
    struct hd_text csv = {0};

    add(&run, 1, 4);
    add(&run, 2, 3);
    plot_add_validation(&run, &(struct plot_validation){.step = 2, .loss = 3.5});
    plot_add_validation(&run, &(struct plot_validation){.step = 2, .loss = 0.25, .set = "q/acc"});
    assert_int_equal(plot_make(&run, 1, &options, panels), HD_OK);
    assert_int_equal(panels[0].lines[1].count, 1);
    assert_true(panels[0].lines[1].points[0].y == 3.5);
    assert_string_equal(panels[1].title, "scores");
    assert_int_equal(panels[1].lines[1].count, 1);
    assert_true(panels[1].lines[1].points[0].y == 0.25);
    plot_csv(&run, 1, &options, &csv);
    assert_string_equal(csv.data, "run,step,tokens,seconds,loss,validation_loss,score/q/acc\n"
                                  "\"r\",1,100,1.000,4,,\n\"r\",2,200,2.000,3,3.5,0.25\n");
    hd_text_free(&csv);
    plot_free_panels(panels);
    plot_free_run(&run);
}

static void write_history(const char *folder, const char *text)
{
    char path[256];
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/history.jsonl", folder);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* A run that was killed in the middle of a line, and lines that are none of ours. */
static void a_damaged_history_gives_what_it_has(void **state)
{
    static const char history[] =
        "{\"type\":\"step\",\"step\":1,\"loss\":5.5,\"tokens\":64,\"step_ms\":2.5}\n"
        "{\"type\":\"event\",\"step\":9,\"kind\":\"x\"}\n"
        "not json\n"
        "{\"type\":\"step\",\"step\":-3,\"loss\":1}\n"
        "{\"type\":\"step\",\"step\":\"2\",\"loss\":1}\n"
        "{\"type\":\"step\",\"step\":2,\"loss\":null}\n"
        "{\"type\":\"validation\",\"step\":2,\"loss\":4.5}\n"
        "{\"type\":\"step\",\"step\":3,\"lo";
    char folder[TEMPORARY_BYTES], path[256];
    struct plot_run run = {0}, none = {0};

    temporary_dir(folder, "plot");
    assert_int_equal(plot_read_folder(folder, &loss_of_steps, &none), HD_NOT_FOUND);
    write_history(folder, history);
    assert_int_equal(plot_read_folder(folder, &loss_of_steps, &run), HD_OK);
    assert_int_equal(run.step_count, 2);
    assert_true(run.steps[0].values[0] == 5.5 && run.steps[0].tokens == 64);
    assert_true(isnan(run.steps[1].values[0]));
    assert_int_equal(run.validation_count, 1);
    plot_write_loss(folder, "run");
    (void)snprintf(path, sizeof path, "%s/loss.svg", folder);
    assert_int_equal(unlink(path), 0);
    (void)snprintf(path, sizeof path, "%s/history.jsonl", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
    plot_free_run(&run);
}

RUN_CASES()
