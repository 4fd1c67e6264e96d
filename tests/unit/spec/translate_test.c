/* Files of other tools: recognised at once, translated whole, and valid as job files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "fixture.h"
#include "tests/unit/spec/translate_keys.h"

static const struct {
    const char *file, *tool;
} files[] = {
    {"axolotl_qlora.yml", "axolotl"},
    {"axolotl_chat.yml", "axolotl"},
    {"axolotl_dpo.yml", "axolotl"},
    {"trl_sft.yaml", "TRL"},
    {"trl_lora.yaml", "TRL"},
    {"trl_dpo.yaml", "TRL"},
    {"torchtune_lora.yaml", "torchtune"},
    {"torchtune_full.yaml", "torchtune"},
    {"torchtune_dpo.yaml", "torchtune"},
    {"factory_lora.yaml", "LLaMA-Factory"},
    {"factory_dpo.yaml", "LLaMA-Factory"},
    {"megatron_gpt.sh", "Megatron-LM"},
    {"megatron_llama.args", "Megatron-LM"},
};

static char *read_theirs(const char *file)
{
    const char *root = getenv("HEDDLE_SOURCE_DIR");
    struct hd_text bytes = {0};
    char path[512];

    (void)snprintf(path, sizeof path, "%s/tests/unit/spec/foreign/%s", root ? root : ".", file);
    if (hd_file_read(path, 1 << 16, &bytes))
        fail_msg("%s", hd_err_message());
    return bytes.data;
}

/* A model of one block with a chat template, and a file for each form of data. */
static void put_stand_ins(void)
{
    static const char head[] = "{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    char path[160], file[8 + sizeof head] = {sizeof head - 1};

    (void)snprintf(path, sizeof path, "%s/llm/x", folder);
    assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
    (void)snprintf(path, sizeof path, "%s/data/x", folder);
    assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
    put_text("llm/config.json",
             "{\"model_type\":\"llama\",\"vocab_size\":256,\"hidden_size\":64,"
             "\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
             "\"num_key_value_heads\":4,\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-6,"
             "\"rope_theta\":50000,\"tie_word_embeddings\":false}");
    put_text("llm/chat_template.jinja", "{% for m in messages %}{{ m['content'] }}{% endfor %}");
    memcpy(file + 8, head, sizeof head - 1);
    (void)snprintf(path, sizeof path, "%s/llm/model.safetensors", folder);
    assert_int_equal(hd_file_write_atomic(path, file, sizeof file, 0644), HD_OK);
    put_text("alpaca.jsonl", "{\"instruction\": \"a\", \"input\": \"\", \"output\": \"b\"}\n");
    put_text("chats.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
                            "\"assistant\", \"content\": \"b\"}]}\n");
    put_text("val.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}, {\"role\": "
                          "\"assistant\", \"content\": \"d\"}]}\n");
    put_text(
        "preference-pairs.jsonl",
        "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"conversation\": \"a\"}\n");
    (void)snprintf(path, sizeof path, "%s/more", folder);
    assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
    put_text("more/chats.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"e\"}, "
                                 "{\"role\": \"assistant\", \"content\": \"f\"}]}\n");
}

/* The hub: one model, and a file for each set by its name. */
static enum hd_status stand_in(void *user, const char *name, bool is_data, struct hd_text *ret_path)
{
    const char *file = !is_data                                          ? "llm"
                       : strstr(name, "pairs") || strstr(name, "paired") ? "preference-pairs.jsonl"
                       : strstr(name, "instructions") || strstr(name, "alpaca") ? "alpaca.jsonl"
                                                                                : "chats.jsonl";

    (void)user;
    hd_text_add(ret_path, "%s/%s", folder, file);
    return HD_OK;
}

static void translate(const char *file, const char *bytes, struct hd_spec_translation *ret)
{
    if (hd_spec_translate(file, folder, bytes, strlen(bytes), &jobs, ret))
        fail_msg("%s: %s", file, hd_err_message());
}

/* Reads a job; missing: its data is elsewhere. */
static enum hd_status read_job(const char *name, const char *text, const char *const *overrides,
                               size_t count, struct hd_text *mistakes, struct hd_job *ret_job)
{
    struct hd_text missing = {0};
    const struct hd_spec_source source = {.name = name,
                                          .folder = folder,
                                          .bytes = text,
                                          .size_bytes = strlen(text),
                                          .overrides = overrides,
                                          .override_count = count,
                                          .locate = stand_in,
                                          .mistakes = mistakes,
                                          .missing_data =
                                              strstr(name, "megatron") ? &missing : NULL};
    const enum hd_status st = hd_spec_read_yaml(&source, &jobs, ret_job);

    hd_text_free(&missing);
    return st;
}

/* First round: validate on their file names the tool and has a line for each setting. Second: the
 * translated file is valid, with the stand-ins of what is on another machine. */
static void each_file_is_named_at_once_and_valid_in_the_second_round(void **state)
{
    put_stand_ins();
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char *theirs = read_theirs(files[i].file);
        struct hd_spec_translation made = {0};
        struct hd_text table = {0};
        const char *overrides[] = {"model.from=llm"};
        const bool has_folder = strncmp(files[i].file, "torchtune", 9) == 0;
        struct hd_job job;

        assert_int_equal(read_job(files[i].file, theirs, NULL, 0, &table, &job), HD_INVALID);
        assert_non_null(strstr(hd_err_message(), files[i].tool));
        assert_non_null(strstr(hd_err_message(), "heddle translate "));
        translate(files[i].file, theirs, &made);
        assert_string_equal(made.tool, files[i].tool);
        assert_string_equal(made.table.data, table.data);
        assert_int_equal(made.unknown, 0);
        if (made.template_file)
            put_text(made.template_file, made.template_text);
        if (read_job(files[i].file, made.job.data, overrides, has_folder, NULL, &job))
            fail_msg("%s\n%s", hd_err_message(), made.job.data);
        hd_text_free(&made.job);
        hd_text_free(&made.table);
        hd_text_free(&table);
        free(theirs);
    }
}

/* Values that several settings make together: 2 sequences x 4 micro-batches; 8 GPUs on 2 nodes; a tenth of 2e-5; .001
 * of 500,000 steps; 50 of 949 + 50. */
static void what_several_settings_say_is_computed(void **state)
{
    static const struct {
        const char *file, *line;
    } rows[] = {
        {"axolotl_qlora.yml", "\n  global_batch: 8"},
        {"axolotl_qlora.yml", "\n  quantization: nf4\n"},
        {"axolotl_qlora.yml", "\n    trainable: [embedding, head]\n"},
        {"axolotl_qlora.yml", "\n  zero: 2\n"},
        {"axolotl_chat.yml", "\n    min: 2e-06\n"},
        {"axolotl_chat.yml", "\n  steps: 400\n"},
        {"axolotl_chat.yml", "\n  neftune_alpha: 5\n"},
        {"axolotl_dpo.yml",
         "\n  columns: {prompt: conversation, chosen: chosen, rejected: rejected}\n"},
        {"trl_dpo.yaml", "\n  objective: dpo\n"},
        {"trl_lora.yaml", "\n    decay: linear  # their default\n"},
        {"torchtune_lora.yaml",
         "\n    targets: [q_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]\n"},
        {"torchtune_lora.yaml", "\n  clip: 0  # their default\n"},
        {"torchtune_full.yaml", "\n  beta2: 0.99\n"},
        {"torchtune_full.yaml", "\n  from: /tmp/Small-7B\n"},
        {"factory_lora.yaml", "\n    alpha: 16  # their default\n"},
        {"factory_lora.yaml", "\n  zero: 3\n"},
        {"factory_dpo.yaml", "\n  objective: orpo\n"},
        {"trl_dpo.yaml", "\n    beta: 0.05\n"},
        {"training_arguments.json", "\n  global_batch: 32"},
        {"megatron_gpt.sh", "\n  devices: 16\n"},
        {"megatron_gpt.sh", "\n    warmup: 500\n"},
        {"megatron_gpt.sh", "\n  val_split: 0.05005\n"},
        {"megatron_gpt.sh", "\n  train: [my-gpt_text_document.bin]\n"},
        {"megatron_llama.args", "{path: code_text_document.bin, weight: 0.3}"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *theirs = read_theirs(rows[i].file);
        struct hd_spec_translation made = {0};

        translate(rows[i].file, theirs, &made);
        if (!strstr(made.job.data, rows[i].line))
            fail_msg("%s lacks '%s':\n%s", rows[i].file, rows[i].line, made.job.data);
        hd_text_free(&made.job);
        hd_text_free(&made.table);
        free(theirs);
    }
}

/* Each setting by itself, in a file of its tool: the table names the key or the words. */
static void each_setting_has_its_key(void **state)
{
    int count = 0, wrong = 0;

    for (size_t i = 0; i < sizeof translate_keys / sizeof translate_keys[0]; i++)
        for (const char *at = translate_keys[i].theirs; *at; at += strspn(at, " ")) {
            const int len = (int)strcspn(at, " ");
            struct hd_spec_translation made = {0};
            char line[256], *found;
            struct hd_text file = {0};

            hd_text_add(&file, "%s", translate_keys[i].head);
            if (translate_keys[i].is_argument)
                hd_text_add(&file, "--%.*s %s\n", len, at, translate_keys[i].value);
            else if (memchr(at, '.', (size_t)len)) /* a group, such as optimizer.lr */
                hd_text_add(&file, "%.*s: {%.*s: %s}\n", (int)strcspn(at, "."), at,
                            len - (int)strcspn(at, ".") - 1, at + strcspn(at, ".") + 1,
                            translate_keys[i].value);
            else
                hd_text_add(&file, "%.*s: %s\n", len, at, translate_keys[i].value);
            translate("their.file", file.data, &made);
            (void)snprintf(line, sizeof line, "\n%.*s ", len, at);
            for (char *c = line; *c; c++)
                *c = *c == '-' ? '_' : *c;
            found = strstr(made.table.data, line);
            count++;
            if (!found || !memmem(found + 1, strcspn(found + 1, "\n"), translate_keys[i].ours,
                                  strlen(translate_keys[i].ours))) {
                wrong++;
                print_error("%.*s of %s: %.*s, not %s\n", len, at, made.tool,
                            found ? (int)strcspn(found + 1, "\n") : 0, found ? found + 1 : "",
                            translate_keys[i].ours);
            }
            at += len;
            hd_text_free(&file);
            hd_text_free(&made.job);
            hd_text_free(&made.table);
        }
    assert_int_equal(wrong, 0);
    assert_true(count >= 120);
}

/* Goal: what TRL's file of grpo says of answers and their loss is in the job, and in no other job. */
static void settings_of_grpo_are_translated(void **state)
{
    static const char theirs[] = "epsilon: 0.1\ntemperature: 0.9\nmax_completion_length: 64\n"
                                 "reward_model_name_or_path: a/rm\nscale_rewards: false\n"
                                 "num_train_epochs: 2\n";
    static const char *const ours[] = {
        "\n# num_train_epochs: steps of grpo are not counted by data",
        "\n    clip_low: 0.1\n",
        "\n    clip_high: 0.1\n",
        "\n    temperature: 0.9",
        "\n    max_tokens: 64\n",
        "\n    group: 4\n",
        "\n    scale: none",
        "[{model: hf://a/rm}]"};

    (void)state;
    for (int grpo = 0; grpo < 2; grpo++) {
        struct hd_spec_translation made = {0};
        struct hd_text file = {0};

        hd_text_add(&file, TRL "%s%s", theirs, grpo ? "num_generations: 4\n" : "");
        translate("their.yaml", file.data, &made);
        for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
            if ((strstr(made.job.data, ours[i]) != NULL) != grpo)
                fail_msg("%s: %s", ours[i], made.job.data);
        /* the table does not name a key as taken that the job file lacks */
        if ((strstr(made.table.data, "temperature  left out: only") != NULL) == grpo)
            fail_msg("%s", made.table.data);
        hd_text_free(&file);
        hd_text_free(&made.job);
        hd_text_free(&made.table);
    }
}

/* Goal: --qk-clip decides, wherever it stands; its numbers alone clip nothing. */
static void a_switch_of_megatron_decides(void **state)
{
    static const char *const rows[][2] = {
        {"--qk-clip-threshold 50 --qk-clip", "threshold: 50"},
        {"--qk-clip --qk-clip-threshold 50", "threshold: 50"},
        {"--qk-clip", "threshold: 100"},
        {"--qk-clip-threshold 50 --qk-clip-alpha 0.4", NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_spec_translation made = {0};
        struct hd_text file = {0};

        hd_text_add(&file, "--num-layers 2 --hidden-size 64 --micro-batch-size 2 %s\n", rows[i][0]);
        translate("their.args", file.data, &made);
        if (rows[i][1] ? !strstr(made.job.data, rows[i][1])
                       : strstr(made.job.data, "qk_clip:") != NULL)
            fail_msg("%s", made.job.data);
        if (!rows[i][1])
            assert_non_null(strstr(made.table.data, "without --qk-clip nothing is clipped"));
        hd_text_free(&file);
        hd_text_free(&made.job);
        hd_text_free(&made.table);
    }
}

/* Goal: the share of a mixture that is not held out is told, not taken over. */
static void no_share_of_a_mixture_is_held_out(void **state)
{
    struct hd_spec_translation made = {0};

    (void)state;
    translate("their.args", MEGA "--data-path 0.5 a 0.5 b --split 949,50,1\n", &made);
    assert_null(strstr(made.job.data, "val_split:"));
    assert_non_null(strstr(made.table.data, "no share of a mixture is held out"));
    hd_text_free(&made.job);
    hd_text_free(&made.table);
}

/* Goal: a threshold of early stopping that stops nothing is told, not taken over. */
static void a_threshold_without_patience_stops_nothing(void **state)
{
    static const char *const rows[][2] = {
        {"early_stopping_patience: 3\n", "    patience: 3\n    min_delta: 0.01\n"}, {"", NULL}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_spec_translation made = {0};
        struct hd_text file = {0};

        hd_text_add(&file, FACTORY "val_size: 0.1\nearly_stopping_threshold: 0.01\n%s", rows[i][0]);
        translate("their.yaml", file.data, &made);
        if (rows[i][1])
            assert_non_null(strstr(made.job.data, rows[i][1]));
        else
            assert_null(strstr(made.job.data, "min_delta:"));
        assert_int_equal(strstr(made.table.data, "without a patience nothing stops") == NULL,
                         i == 0);
        hd_text_free(&file);
        hd_text_free(&made.job);
        hd_text_free(&made.table);
    }
}

/* Goal: lists of arguments in quotes lose neither their first argument nor the values of their last.
 * Method: on one line, and on several as in Megatron-LM's old examples. */
static void arguments_in_quotes_are_all_read(void **state)
{
    static const char *const scripts[] = {
        "ARGS=\"--num-layers 12 --hidden-size 768 --seq-length 512 --log-interval 7\"\n"
        "torchrun --nproc_per_node 2 pretrain_gpt.py $ARGS --bf16\n",
        "ARGS=\"\n  --num-layers 12 \\\n  --hidden-size 768 \\\n  --seq-length 512 \\\n"
        "  --log-interval 7\n\"\n\n/usr/bin/python3 pretrain_gpt.py \\\n  $ARGS --bf16\n",
    };

    (void)state;
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        struct hd_spec_translation made = {0};

        translate("their.sh", scripts[i], &made);
        if (!strstr(made.job.data, "layers: 12") || !strstr(made.job.data, "log_every: 7") ||
            !strstr(made.job.data, "precision: bf16"))
            fail_msg("%s", made.job.data);
        hd_text_free(&made.job);
        hd_text_free(&made.table);
    }
}

/* Goal: another split of the training's set validates nothing that trains. */
static void a_set_does_not_validate_itself(void **state)
{
    struct hd_spec_translation made = {0};

    (void)state;
    translate("their.yaml",
              TUNE
              "dataset: {_component_: torchtune.datasets.alpaca_dataset, split: 'train[:95%]'}\n"
              "dataset_val: {_component_: torchtune.datasets.alpaca_dataset, split: "
              "'train[95%:]'}\n"
              "epochs: 1\nbatch_size: 2\nenable_activation_checkpointing: true\n",
              &made);
    assert_non_null(strstr(made.job.data, "val_split: 0.05"));
    assert_null(strstr(made.job.data, "  val: ["));
    assert_non_null(strstr(made.job.data, "the files of train[:95%]"));
    hd_text_free(&made.job);
    hd_text_free(&made.table);
    /* a set of its own stays */
    made = (struct hd_spec_translation){0};
    translate("their.yaml",
              "base_model: a/b\nmicro_batch_size: 2\ngradient_accumulation_steps: 1\n"
              "datasets:\n  - {path: /d/a.jsonl, ds_type: json, type: alpaca}\n"
              "test_datasets:\n  - {path: /d/a.jsonl, ds_type: json, type: alpaca}\n"
              "  - {path: /d/b.jsonl, ds_type: json, type: alpaca}\n",
              &made);
    assert_non_null(strstr(made.job.data, "val: [/d/b.jsonl]"));
    assert_non_null(strstr(made.job.data, "another split of the same set"));
    assert_null(strstr(made.job.data, "val_split"));
    hd_text_free(&made.job);
    hd_text_free(&made.table);
}

/* Goal: beta alone makes a job of dpo, beside generations or a teacher it does not. */
static void beta_belongs_to_the_trainer(void **state)
{
    static const char *const rows[][2] = {
        {"num_generations: 8\n", "\n    kl_beta: 0.04\n"},
        {"loss_type: dapo\n", "\n  objective: grpo\n"},
        {"teacher_model_name_or_path: a/d\n", "\n  objective: gkd "},
        {"teacher_model_name_or_path: a/d\n", "\n    on_policy: 0.5  # their default"},
        {"teacher_model_name_or_path: a/d\nlmbda: 0.5\n", "\n    beta: 0.04\n"},
        {"", "\n  objective: dpo "},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_spec_translation made = {0};
        struct hd_text file = {0};

        hd_text_add(&file, TRL "beta: 0.04\n%s", rows[i][0]);
        translate("their.yaml", file.data, &made);
        if (!strstr(made.job.data, rows[i][1]) ||
            (*rows[i][0] && strstr(made.job.data, "  preference:")))
            fail_msg("%s", made.job.data);
        hd_text_free(&file);
        hd_text_free(&made.job);
        hd_text_free(&made.table);
    }
}

static void what_is_no_file_of_a_tool_is_none(void **state)
{
    static const char *const texts[] = {
        ("name: x\nmodel: {layers: 2}\nlearning_rate: 1\nnum_train_epochs: 2\n"
         "max_steps: 3\nseed: 1\n"),
        "learning_rate: 1\n",
        "[1, 2]\n",
        "a: 1\nb: 2\nc: 3\n",
    };

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct hd_spec_translation made = {0};

        assert_int_equal(
            hd_spec_translate("x.yaml", folder, texts[i], strlen(texts[i]), &jobs, &made),
            HD_NOT_FOUND);
    }
}

/* A value cannot end a comment and become a key of the job file. */
static void a_line_break_in_a_value_stays_in_it(void **state)
{
    static const char theirs[] = "base_model: x/y\nsequence_len: 8\nmicro_batch_size: 1\n"
                                 "lr_scheduler: \"a\\nname: evil\"\n"
                                 "\"odd\\nname: evil\": \"b\\nname: evil\"\n"
                                 "datasets: [{path: \"c\\nname: evil\"}]\n"
                                 "rl: \"d\\nname: evil\"\n";
    struct hd_spec_translation made = {0};

    translate("good.yaml", theirs, &made);
    assert_null(strstr(made.job.data, "\nname: evil"));
    assert_null(strstr(made.table.data, "\nname: evil"));
    assert_non_null(strstr(made.job.data, "\nname: good\n"));
    hd_text_free(&made.job);
    hd_text_free(&made.table);
}

/* Marks in comments make no arguments of a job file. */
static void arguments_in_comments_are_none(void **state)
{
    static const char text[] = "# was: --num-layers 12 --hidden-size 768 --seq-length 2048\n"
                               "name: x # as --global-batch-size 8\n"
                               "train: {lr: 0}\n";
    struct hd_text mistakes = {0};
    struct hd_job job;

    assert_int_equal(read_job("x", text, NULL, 0, &mistakes, &job), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "train.lr"));
    hd_text_free(&mistakes);
}

/* Each variable holds the one before 60 times: whole, the last had 60^6 bytes. */
static void variables_in_variables_stay_bounded(void **state)
{
    struct hd_spec_translation made = {0};
    struct hd_text text = {0};

    hd_text_add(&text, "A=xxxxxxxx\n");
    for (char name = 'B'; name < 'G'; name++) {
        hd_text_add(&text, "%c=", name);
        for (int i = 0; i < 60; i++)
            hd_text_add(&text, "$%c", name - 1);
        hd_text_add(&text, "\n");
    }
    hd_text_add(&text, "--num-layers 2 --hidden-size 8 --seq-length 8 --tokenizer-model $F$F\n");
    translate("x.sh", text.data, &made);
    assert_true(made.job.len_bytes + made.table.len_bytes < 100000);
    hd_text_free(&text);
    hd_text_free(&made.job);
    hd_text_free(&made.table);
}

/* Texts that look like arguments and end in the middle, lists in odd places, values of odd types. */
static void odd_files_do_no_harm(void **state)
{
    static const char *const texts[] = {
        "--num-layers --hidden-size --train-iters",
        "--num-layers 2 --hidden-size '--train-iters 3",
        "--num-layers=$X --hidden-size ${Y --train-iters ${Z:-5} --split , --data-path",
        "base_model: [1]\nsequence_len: {a: 1}\nmicro_batch_size: x\nnum_epochs: -1\ndatasets: 5\n",
        "base_model: x\nsequence_len: 99999999999\nmicro_batch_size: 1e300\ndatasets: [[1], {a: "
        "b}]\n",
        "model:\n  _component_: ${a}\na: ${b}\nb: ${a}\ndataset:\n  _component_:\n",
        "base_model: 'a: b # c'\nsequence_len: 8\nadapter: \"it's\"\nlora_target_modules: ['a,b', "
        "\"c'd\"]\n",
    };

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct hd_spec_translation made = {0};
        struct hd_text mistakes = {0};
        struct hd_job job;

        translate("x.yaml", texts[i], &made);
        if (read_job("megatron", made.job.data, NULL, 0, &mistakes, &job))
            assert_null(strstr(hd_err_message(), "yaml")); /* whatever is wrong, it is YAML */
        hd_text_free(&mistakes);
        hd_text_free(&made.job);
        hd_text_free(&made.table);
    }
}

/* Goal: names of LLaMA-Factory's sets are files of dataset_info.json, with its columns and tags; what
 * it has and Heddle does not is named. */
static void names_of_sets_are_looked_up_in_dataset_info(void **state)
{
    static const char theirs[] = "model_name_or_path: llm\nstage: sft\nfinetuning_type: lora\n"
                                 "dataset: questions , chats, none_such\ntemplate: llama3\n"
                                 "use_muon: true\ncutoff_len: 128\nmax_steps: 4\n";
    static const char *const found[] = {"[data/q.json, hf://datasets/o/chats, data/none_such.json]",
                                        "{prompt: question, answer: target}",
                                        "{H: user, B: assistant}",
                                        "muon",
                                        "num_samples of chats",
                                        "dataset none_such",
                                        "has no such name"};
    struct hd_spec_translation t = {0};

    put_text("dataset_info.json",
             "{\"questions\": {\"file_name\": \"data/q.json\", \"columns\": {\"prompt\": "
             "\"question\", \"response\": \"target\"}}, \"chats\": {\"hf_hub_url\": \"o/chats\", "
             "\"formatting\": \"sharegpt\", \"num_samples\": 5, \"tags\": {\"role_tag\": \"from\", "
             "\"user_tag\": \"H\", \"assistant_tag\": \"B\"}}}");
    translate("factory.yaml", theirs, &t);
    for (size_t i = 0; i < sizeof found / sizeof found[0]; i++)
        if (!strstr(t.job.data, found[i]))
            fail_msg("'%s' is not in\n%s", found[i], t.job.data);
    hd_text_free(&t.job);
    hd_text_free(&t.table);
    t = (struct hd_spec_translation){0};
    put_text("dataset_info.json", "[]");
    translate("factory.yaml", theirs, &t);
    if (!strstr(t.job.data, "dataset_info.json is no object with names of sets"))
        fail_msg("%s", t.job.data);
    hd_text_free(&t.job);
    hd_text_free(&t.table);
}

RUN_CASES_BETWEEN(make_corpus, drop_corpus)
