/* Every layout of a model trains to the numbers of one rank: every legal pair of values, stated
 * triples. Layouts are generated from the table in axes.c; `--model` names it.
 *
 * By hand:  grid_llama_test [--full] [--list] [--only 'tp=2 dp=2']
 */
#include <stdio.h>
#include <string.h>

#include "cover.h"
#include "tests/program/test.h"
#include "trial.h"

static struct {
    bool all_triples, list;
    const char *model;
    const char *only; /* NULL: all */
} asked;

/* One in EVERY of the chosen layouts is trained: a sanitizer looks at addresses, for which few do.
 */
enum { EVERY = HD_TEST_SANITIZED ? 3 : 1 };

static struct grid_layout wish_of(const char *words)
{
    struct grid_layout wish;

    if (grid_read(words, &wish))
        fail_msg("%s", hd_err_message());
    return wish;
}

static void every_layout_trains_like_one_rank(void **state)
{
    const struct grid_layout only = wish_of(asked.only);
    char text[GRID_TEXT_MAX], first[GRID_TEXT_MAX + HD_ERR_MAX] = "";
    int passed = 0, failed = 0;
    struct grid_cover cover;
    struct grid_bench bench;

    grid_bench_open(&bench, asked.model);
    grid_bench_refer(&bench);
    grid_choose(bench.model, asked.all_triples, &cover);
    for (int i = 0; i < cover.count; i++) {
        double worst = 0;

        if (!grid_grants(&cover.list[i], &only) || (i % EVERY && !asked.only))
            continue;
        grid_write(&cover.list[i], text);
        if (asked.list) {
            (void)printf("%s %s\n", asked.model, text);
        } else if (!grid_try(&bench, &cover.list[i], &worst)) {
            passed++;
            (void)printf("PASS %s %s worst %.1e\n", asked.model, text, worst);
        } else {
            (void)printf("FAIL %s %s: %s\n", asked.model, text, hd_err_message());
            if (!failed++)
                (void)snprintf(first, sizeof first, "%s: %s", text, hd_err_message());
        }
        (void)fflush(stdout);
    }
    (void)printf("%s (%s): %d layouts passed, %d failed\n", asked.model, bench.model->what, passed,
                 failed);
    grid_bench_close(&bench);
    if (failed)
        fail_msg("%d of %d layouts of %s, the first is %s", failed, passed + failed, asked.model,
                 first);
    assert_true(passed > 0 || asked.list);
}

static void every_legal_pair_is_covered(void **state)
{
    struct grid_cover cover;
    struct grid_bench bench;
    int legal, uncovered;

    grid_bench_open(&bench, asked.model);
    grid_choose(bench.model, asked.all_triples, &cover);
    legal = grid_print_exclusions(bench.model);
    uncovered = grid_uncovered_pairs(bench.model, &cover);
    (void)printf("%s: %d of %d legal layouts chosen, %d uncovered legal pairs\n", asked.model,
                 cover.count, legal, uncovered);
    grid_bench_close(&bench);
    assert_int_equal(uncovered, 0);
    assert_true(cover.count < GRID_LAYOUTS_MAX);
}

/* The judge is awake: without the layouts of one pair it names that pair. They take other pairs
 * with them, which no other layout has. */
static void a_pair_that_is_left_out_is_noticed(void **state)
{
    struct grid_cover cover, rest = {0};
    struct grid_layout pair;
    struct grid_bench bench;
    int uncovered;

    grid_bench_open(&bench, asked.model);
    pair = wish_of(bench.model->tuned ? "adapter=prefix weights=nf4" : "cp=4 dp=2");
    grid_choose(bench.model, false, &cover);
    for (int i = 0; i < cover.count; i++)
        if (!grid_grants(&cover.list[i], &pair))
            rest.list[rest.count++] = cover.list[i];
    assert_true(rest.count < cover.count);
    uncovered = grid_uncovered_pairs(bench.model, &rest);
    assert_true(uncovered >= 1);
    grid_bench_close(&bench);
}

static int usage(const char *program)
{
    (void)fprintf(stderr, "usage: %s --model NAME [--full] [--list] [--only 'AXIS=VALUE ...']\n",
                  program);
    return 2;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_legal_pair_is_covered),
        cmocka_unit_test(a_pair_that_is_left_out_is_noticed),
        cmocka_unit_test(every_layout_trains_like_one_rank),
    };
    const struct CMUnitTest by_hand[] = {cmocka_unit_test(every_layout_trains_like_one_rank)};

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--full") == 0)
            asked.all_triples = true;
        else if (strcmp(argv[i], "--list") == 0)
            asked.list = true;
        else if (strcmp(argv[i], "--model") == 0 && i + 1 < argc)
            asked.model = argv[++i];
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            asked.only = argv[++i];
        else
            return usage(argv[0]);
    }
    if (!asked.model)
        return usage(argv[0]);
    if (asked.list || asked.only)
        return cmocka_run_group_tests_name("grid", by_hand, NULL, NULL);
    return cmocka_run_group_tests_name("grid", tests, NULL, NULL);
}
