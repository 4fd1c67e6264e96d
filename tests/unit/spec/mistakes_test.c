/* Several mistakes of a job file in one answer, and files of other tools. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

/* Reads the text, and returns all messages, one per line; the caller frees. */
static char *messages_of(const char *bytes, enum hd_status status)
{
    struct hd_text more = {0}, all = {0};
    const struct hd_spec_source source = {.name = "job.yaml",
                                          .folder = folder,
                                          .bytes = bytes,
                                          .size_bytes = strlen(bytes),
                                          .mistakes = &more};
    struct hd_job job;

    assert_int_equal(hd_spec_read_yaml(&source, &jobs, &job), status);
    hd_text_add(&all, "%s\n%s", hd_err_message(), more.data ? more.data : "");
    assert_false(all.failed);
    hd_text_free(&more);
    return all.data;
}

/* Keys and values: all are told in the order of the file, a value that is possible by itself is no
 * mistake, and rules between keys wait. */
static void all_wrong_keys_and_values_are_told_at_once(void **state)
{
    char *text = messages_of("name: x\n"
                             "model: {family: llama, layers: two, hidden: 65, heads: 0}\n"
                             "data: {train: [a.txt], val_splt: 0.1}\n"
                             "train: {lr: 0, steps: 2, global_batch: 8}\n"
                             "train: {}\n"
                             "lora_r: 8\n",
                             HD_INVALID);

    assert_string_equal(
        text,
        "job.yaml:2: model.layers: 'two' is not a whole number; write digits only, such as 1000\n"
        "job.yaml:2: model.heads: 0 is not possible; give a whole number from 1 to 4096\n"
        "job.yaml:3: data.val_splt: unknown key; did you mean val_split?\n"
        "job.yaml:4: train.lr: 0 is not possible; give a number from 1e-12 to 1000\n"
        "job.yaml:5: train: is given twice, first in line 4; remove one\n"
        "job.yaml:6: lora_r: unknown key; did you mean train.adapter.rank?\n");
    free(text);
}

/* Who mends the keys first learns of the family last. */
static void a_family_that_does_not_train_is_told_beside_unknown_keys(void **state)
{
    char *text = messages_of("name: x\n"
                             "model: {family: bert, n_layer: 2}\n"
                             "lora_r: 8\n",
                             HD_INVALID);

    assert_non_null(strstr(text, "job.yaml:2: model.n_layer: "));
    assert_non_null(strstr(text, "\njob.yaml:2: model.family: "));
    assert_non_null(strstr(text, "\njob.yaml:3: lora_r: "));
    free(text);
}

/* Habits of other tools, in values and in groups, each with what its message must say. */
static void a_habit_of_another_tool_has_its_remedy(void **state)
{
    static const struct {
        const char *line, *said;
    } rows[] = {
        {"resources: {device_type: gpu}", "did you mean cuda?"},
        {"resources: {devices: auto}", "or {min: 1, max: 8}"},
        {"resources: {memory: 4}", "asks for no memory"},
        {"resources: {cpus: 4}", "did you mean threads?"},
        {"parallel: {tensor: 2}", "did you mean tp?"},
        {"parallel: {data: 2}", "did you mean dp?"},
        {"validate: {steps: 5}", "did you mean every?"},
        {"validate: {interval: 5}", "did you mean every?"},
        {"checkpoint: {interval: 5}", "did you mean every?"},
        {"checkpoint: {dir: /x}", "--jobs-dir"},
        {"data: {path: a.txt}", "did you mean train?"},
        {"train: {precision: float16}", "did you mean fp16?"},
        {"train: {precision: tf32}", "train.tf32: true"},
        {"train: {lr: 10%}", "write 0.1"},
        {"train: {steps: 1e3}", "write 1000"},
        {"train: {steps: 2k}", "write 2000"},
        {"r: 8", "train.adapter.rank"},
        {"data: {train: *.txt}", "must be in quotes"},
        {"name: a: b", "in quotes"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *text = messages_of(rows[i].line, HD_INVALID);

        if (!strstr(text, rows[i].said))
            fail_msg("%s: %s", rows[i].line, text);
        free(text);
    }
}

/* Paths that a shell, but not Heddle, would replace. */
static void a_path_that_is_not_replaced_says_so(void **state)
{
    static const char *const rows[][2] = {{"~/corpus/*.txt", "~ is not replaced"},
                                          {"$HOME/a.txt", "variables are not replaced"},
                                          {"corpus/**/a.txt", "** is not known"},
                                          {"\xe2\x80\x9c"
                                           "a.txt\xe2\x80\x9d",
                                           "curly quotes"}};

    for (size_t i = 0; i < 4; i++) {
        char override[128];
        struct hd_job *job;

        (void)snprintf(override, sizeof override, "data.train=['%s']", rows[i][0]);
        assert_int_equal(read_bytes(good, good_bytes, override, &job), HD_INVALID);
        if (!strstr(hd_err_message(), rows[i][1]))
            fail_msg("%s", hd_err_message());
    }
}

/* A schedule of batches that cannot be read hides no other mistake, and is not followed by one of the batch
 * that it would have given. */
static void a_wrong_schedule_is_one_mistake_among_others(void **state)
{
    char *text = messages_of("name: x\n"
                             "model: {family: llama, layers: 2, hidden: 64, heads: 4, context: 8}\n"
                             "data: {train: [a.txt]}\n"
                             "train: {lr: 1e-3, steps: 2, batch_schedule: \"0:4 x\"}\n"
                             "parallel: {tp: 3, micro_batch: 5}\n",
                             HD_INVALID);

    assert_non_null(strstr(text, "job.yaml:4: train.batch_schedule: 'x' is no span"));
    assert_non_null(strstr(text, "\njob.yaml:5: parallel.tp: 3 does not divide model.heads"));
    assert_null(strstr(text, "global_batch"));
    free(text);
}

/* 65 channels have no 4 heads, and 3 ranks share no 4 heads: two groups of rules, two messages. */
static void rules_are_told_at_once_when_each_value_is_possible(void **state)
{
    char *text = messages_of("name: x\n"
                             "model: {family: llama, layers: 2, hidden: 64, heads: 4, context: 8}\n"
                             "data: {train: [a.txt], val_split: 0.1}\n"
                             "train: {steps: 2, global_batch: 8, lr: {peak: 1e-3, min: 1}}\n"
                             "parallel: {tp: 3}\n",
                             HD_INVALID);

    assert_non_null(strstr(text, "job.yaml:4: train.lr.min: 1 is above"));
    assert_non_null(strstr(text, "\njob.yaml:5: parallel.tp: 3 does not divide model.heads"));
    free(text);
}

/* 30 keys of nobody: 20 are told, and that there are 10 more. */
static void so_many_mistakes_are_told_and_the_rest_is_counted(void **state)
{
    struct hd_text file = {0};
    size_t lines = 0;
    char *text;

    for (int i = 0; i < 30; i++)
        hd_text_add(&file, "qqqq%d: 1\n", i);
    text = messages_of(file.data, HD_INVALID);
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    assert_int_equal(lines, HD_SPEC_MISTAKES_MAX + 1);
    assert_non_null(strstr(text, "\njob.yaml: and 10 more\n"));
    hd_text_free(&file);
    free(text);
}

/* Goal: a job file of before a renaming means the same. Method: each renamed key under both names,
 * in a file and as an override; what is stored has the old name. */
static void a_key_is_read_under_its_old_name_which_is_told(void **state)
{
    static const struct {
        const char *old, *now, *said, *stored;
    } rows[] = {
        {"model.weights=nf4", "model.quantization=nf4",
         "--set model.weights=nf4: the key is now called model.quantization; the old name is read, "
         "too\n",
         "\nmodel.weights nf4\n"},
        {"train.adapter={type: lora, b_lr: 4}", "train.adapter={type: lora, loraplus_lr_ratio: 4}",
         "--set train.adapter={type: lora, b_lr: 4}: train.adapter.b_lr is now called "
         "train.adapter.loraplus_lr_ratio; the old name is read, too\n",
         "\ntrain.adapter.b_lr 4\n"},
        {"model.weights=plain", "model.quantization=none", "model.quantization;",
         "\nmodel.weights plain\n"},
        {"train.only={last: 1}", "train.trainable=[last:1]", "train.trainable;",
         "\ntrain.only last:1\n"},
        {"resources.device=cpu", "resources.device_type=cpu", "resources.device_type;",
         "\nresources.device cpu\n"},
        {"parallel={pp: 2, stages: [1, 2]}", "parallel={pp: 2, layers_per_stage: [1, 2]}",
         "parallel.layers_per_stage;", "\nparallel.stages.layers 1,2\n"},
    };
    static const char file[] =
        "name: x\n"
        "model: {family: llama, layers: 3, hidden: 64, heads: 4, context: 8}\n"
        "data: {train: [corpus/a.txt]}\n"
        "train: {steps: 2, global_batch: 8, lr: 1e-3, reduce: bf16}\n"
        "resources: {devices: 2}\n"
        "checkpoint: {base: save}\n";

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *const adapter =
            strstr(rows[i].old, "nf4") ? "train.adapter.type=lora" : "priority=0";
        struct hd_text told[2] = {{0}}, stored[2] = {{0}};

        for (int k = 0; k < 2; k++) {
            const char *const overrides[] = {adapter, k ? rows[i].now : rows[i].old};
            const struct hd_spec_source source = {.name = "job.yaml",
                                                  .folder = folder,
                                                  .bytes = file,
                                                  .size_bytes = sizeof file - 1,
                                                  .overrides = overrides,
                                                  .override_count = 2,
                                                  .old_names = &told[k]};
            struct hd_job job;

            if (hd_spec_read_yaml(&source, &jobs, &job))
                fail_msg("%s: %s", overrides[1], hd_err_message());
            must(hd_job_write(&job, &stored[k]));
            assert_non_null(strstr(told[k].data, "job.yaml:4: train.reduce is now called "
                                                 "train.grad_reduce_dtype; "));
            assert_non_null(strstr(told[k].data, "job.yaml:6: checkpoint.base is now called "));
        }
        assert_string_equal(stored[0].data, stored[1].data);
        assert_non_null(strstr(stored[0].data, rows[i].stored));
        assert_non_null(strstr(told[0].data, rows[i].said));
        assert_null(strstr(told[1].data, "--set"));
        for (int k = 0; k < 2; k++) {
            hd_text_free(&told[k]);
            hd_text_free(&stored[k]);
        }
    }
}

static void a_key_under_both_names_is_refused(void **state)
{
    char *text = messages_of("name: x\nmodel:\n  weights: nf4\n  quantization: int8\n", HD_INVALID);

    assert_string_equal(
        text, "job.yaml:3: model.weights: is the old name of model.quantization, which is "
              "given too; remove one\n");
    free(text);
}

/* Names of settings in files of axolotl, TRL, torchtune, LLaMA-Factory, Megatron-LM and Slurm, each
 * with words that the answer must have. */
static void settings_of_other_tools_are_named_as_here(void **state)
{
    static const struct {
        const char *names, *said;
    } rows[] = {
        {"base_model model_id model_name_or_path", "model.from"},
        {"sequence_len cutoff_len max_length max_seq_len seq_length", "model.context"},
        {"load_in_4bit load_in_8bit quantization_bit bnb_4bit_quant_type", "model.quantization"},
        {"sliding_window_pattern layer_types", "model.window_layers"},
        {"attn_logit_softcapping", "model.attention_cap"},
        {"final_logit_softcapping", "model.logit_cap"},
        {"router_z_loss moe_z_loss_coeff", "model.router.z_loss"},
        {"z_loss softmax_auxiliary_loss", "train.z_loss"},
        {"neftune_noise_alpha noisy_embedding_alpha", "train.neftune_alpha"},
        {"datasets dataset data_path", "data.train"},
        {"test_datasets eval_dataset", "data.val"},
        {"val_set_size val_size", "data.val_split"},
        {"sample_packing packing neat_packing", "data.documents"},
        {"field_messages message_field_role", "data.columns"},
        {"train_on_inputs assistant_only_loss", "data.loss"},
        {"chat_template", "data.template"},
        {"num_epochs num_train_epochs epochs", "train.epochs"},
        {"max_steps train_iters", "train.steps"},
        {"learning_rate", "train.lr"},
        {"lr_scheduler lr_scheduler_type lr_decay_style", "train.lr.decay"},
        {"lr_wsd_decay_style decay_type", "train.lr.decay_shape"},
        {"lr_wsd_decay_iters num_decay_steps", "train.lr.decay_steps"},
        {"initializer_range init_method_std", "model.init.std"},
        {"warmup_steps warmup_ratio", "train.lr.warmup"},
        {"min_lr min_lr_ratio cosine_min_lr_ratio", "train.lr.min"},
        {"gradient_accumulation_steps", "train.global_batch"},
        {"micro_batch_size per_device_train_batch_size", "parallel.micro_batch"},
        {"lora_r lora_rank", "train.adapter.rank"},
        {"lora_alpha", "train.adapter.alpha"},
        {"lora_dropout", "train.adapter.dropout"},
        {"target_modules lora_target lora_target_linear", "train.adapter.targets"},
        {"modules_to_save", "train.adapter.trainable"},
        {"finetuning_type peft adapter", "train.adapter"},
        {"rl rlhf pref_loss", "train.objective"},
        {"dpo_beta rl_beta", "train.preference.beta"},
        {"dpo_loss_type", "train.preference.loss"},
        {"rpo_alpha cpo_alpha", "train.preference.sft"},
        {"simpo_gamma", "train.preference.gamma"},
        {"bf16 fp16 mixed_precision", "train.precision"},
        {"fp8_recipe", "train.fp8"},
        {"optim optimizer", "train.optimizer"},
        {"max_grad_norm clip_grad", "train.clip"},
        {"eval_steps evals_per_epoch", "validate.every"},
        {"save_steps saves_per_epoch save_freq", "checkpoint.every"},
        {"save_total_limit", "checkpoint.keep"},
        {"load_best_model_at_end", "checkpoint.best"},
        {"logging_steps log_interval", "train.log_every"},
        {"report_to wandb_mode tensorboard", "TensorBoard"},
        {"output_dir save_dir", "--state-dir"},
        {"resume_from_checkpoint", "resume"},
        {"deepspeed fsdp fsdp_config zero_stage", "parallel.zero"},
        {"tensor_parallel_size tensor_parallel_degree", "parallel.tp"},
        {"pipeline_parallel_size", "parallel.pp"},
        {"context_parallel_size", "parallel.cp"},
        {"expert_parallel_size", "parallel.ep"},
        {"gradient_checkpointing enable_activation_checkpointing", "parallel.recompute"},
        {"flash_attention attn_implementation", "tiles"},
        {"torch_compile compile", "compiled"},
        {"special_tokens bos_token", "tokenizer"},
        {"gres ntasks nodes gpus", "resources.devices"},
        {"partition account qos", "queue"},
        {"time walltime", "time_limit"},
        {"dependency", "after"},
        {"run_name wandb_name", "name"},
        {"model.width model.hidden_dim", "model.hidden"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (const char *at = rows[i].names; *at; at += strspn(at, " ")) {
            const size_t len = strcspn(at, " ");
            struct hd_text said = {0};
            char name[64];

            (void)snprintf(name, sizeof name, "%.*s", (int)len, at);
            at += len;
            if (!hd_spec_suggest(name, &said))
                fail_msg("%s: nothing is said", name);
            if (!strstr(said.data, rows[i].said))
                fail_msg("%s: %s", name, said.data);
            hd_text_free(&said);
        }
}

/* A value that is possible and hardly meant is told, and is no error: a rate with a slip of the
 * decimal point, and keys of early stopping in a job that is not stopped. The good job has no
 * notes. */
static void what_is_hardly_meant_is_noted(void **state)
{
    static const struct {
        const char *override, *note;
    } rows[] = {
        {"train.lr.peak=0.09", NULL},
        {"train.lr.peak=900",
         "train.lr.peak: 900 is far from the usual 1e-05 to 0.01: a run may learn "
         "nothing, or diverge\n"},
        {"train.lr.peak=1e-9",
         "train.lr.peak: 1e-09 is far from the usual 1e-05 to 0.01: a run may "
         "learn nothing, or diverge\n"},
        {"train.weight_decay=10",
         "train.weight_decay: 10 is far from the usual 0 to 0.3: weights may "
         "shrink faster than they learn\n"},
        {"validate.stop={min_delta: 0.1}",
         "validate.stop.min_delta: changes nothing, as no run is stopped early without "
         "validate.stop.patience; give it, or remove the line\n"},
        {"validate.stop={min_delta: 0.1, patience: 3}", NULL},
        {"train.profile={steps: [200, 210]}",
         "train.profile.steps: begins at step 200, and the job has 100 steps: nothing is profiled "
         "unless it goes on with more\n"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_text notes = {0};
        const struct hd_spec_source source = {.name = "job.yaml",
                                              .folder = folder,
                                              .bytes = good,
                                              .size_bytes = good_bytes,
                                              .overrides = &rows[i].override,
                                              .override_count = 1,
                                              .notes = &notes};
        struct hd_job job;

        if (hd_spec_read_yaml(&source, &jobs, &job))
            fail_msg("%s: %s", rows[i].override, hd_err_message());
        if (strcmp(notes.data ? notes.data : "", rows[i].note ? rows[i].note : "") != 0)
            fail_msg("%s: '%s'", rows[i].override, notes.data ? notes.data : "");
        hd_text_free(&notes);
    }
}

RUN_CASES_BETWEEN(make_corpus, drop_corpus)
