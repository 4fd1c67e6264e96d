/* A model whose blocks are of several kinds trains alike on one rank and on several: in each kind of
 * group alone, in stages that have blocks of two kinds, and with recompute over two of them.
 */
#include "tests/program/test.h"
#include "trial.h"

static const char *const names[] = {
    "mixtral_kinds: tp=2 sequence=on",
    "mixtral_kinds: cp=2",
    "mixtral_kinds: dp=2 ep=2 zero=3",
    "mixtral_kinds: pp=2",
    "mixtral_kinds: pp=2 recompute=full:2",
    "mixtral_kinds: recompute=selective",
    "mixtral_kinds: pp=2 schedule=zb-v dp=2 ep=2 zero=1",
    "mixtral_kinds_tuned: tp=2 adapter=lora",
    "mixtral_kinds_tuned: dp=2 ep=2 pp=2 adapter=lora weights=nf4",
};
enum { NAMES = sizeof names / sizeof names[0] };

static void several_kinds_of_blocks_train_like_one_rank(void **state)
{
    struct grid_bench benches[GRID_BENCHES_MAX] = {0};
    static struct grid_pick picks[NAMES];
    const int count = grid_pick(names, NAMES, benches, picks);

    (void)state;
    assert_int_equal(count, NAMES);
    for (int i = 0; i < count; i++) {
        double worst;

        if (grid_try(picks[i].bench, &picks[i].layout, &worst))
            fail_msg("%s: %s", picks[i].text, hd_err_message());
    }
    grid_benches_close(benches);
}

RUN_CASES()
