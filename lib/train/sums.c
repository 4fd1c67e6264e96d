/* sums: the step's state block on the device, and the sums in it to which programs add. */
#include "train/trainer.h"

enum hd_status hd_trainer_write_block(struct hd_trainer *t)
{
    return hd_staging_write(&t->open.staging, hd_trainer_global(t, HD_GLOBAL_STEP_STATE), &t->block,
                            sizeof t->block);
}

enum hd_status hd_trainer_reset_sums(struct hd_trainer *t)
{
    t->block.loss_sum = 0;
    t->block.target_count = 0;
    t->block.too_many_rows = 0;
    t->block.margin_sum = 0;
    t->block.correct_pairs = 0;
    t->block.answer_targets = 0;
    t->block.reward_sum = 0;
    t->block.z_sum = 0;
    t->block.loss_scale = 1;
    return hd_trainer_write_block(t);
}

enum hd_status hd_trainer_read_sums(struct hd_trainer *t)
{
    return hd_staging_read(&t->open.staging, &t->block, hd_trainer_global(t, HD_GLOBAL_STEP_STATE),
                           sizeof t->block);
}

enum hd_status hd_trainer_refuse_rows(void)
{
    return hd_err(HD_LIMIT, "routers sent more rows to the experts of a rank than "
                            "parallel.expert_rows allows; raise it, or set it to auto");
}
