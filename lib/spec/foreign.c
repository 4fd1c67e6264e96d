/* foreign: names that other programs use for our keys: config.json of transformers and its
 * TrainingArguments, nanoGPT, Megatron-LM, DeepSpeed, Lightning. Used for the hint at an unknown key of a
 * job file; a name that is not here is looked up in the rows of translate_rows.c, which know the whole
 * files of six tools. */
#include <ctype.h>
#include <string.h>

#include "base/words.h"
#include "spec_internal.h"

enum { NAME_MAX_BYTES = 64 };

/* Names that other programs use, by the key of Heddle that they mean. `names`: separated by blanks,
 * in lower case with '_' for '-'; `note`: a sentence that the message adds after our key's name. */
static const struct {
    const char *path, *names, *note;
} keys[] = {
    {"name", "run project job_name experiment_name wandb_run_name", NULL},

    {"model.family", "model_type architecture architectures arch", NULL},
    {"model.from",
     "base_model_config model_id hf_model_id checkpointer model_name _name_or_path "
     "pretrained_model_name_or_path model_path hf_path",
     NULL},
    {"model.layers", "n_layer n_layers num_hidden_layers nlayers depth", NULL},
    {"model.hidden", "n_embd n_embed d_model hidden_dim embed_dim embedding_dim dim model_dim",
     NULL},
    {"model.heads", "n_head n_heads num_heads nhead", NULL},
    {"model.kv_heads", "num_key_value_heads n_kv_head n_kv_heads num_kv_heads n_query_groups",
     NULL},
    {"model.head_width", "head_dim head_size d_head attention_head_dim", NULL},
    {"model.ffn_hidden",
     "intermediate_size n_inner ffn_dim d_ff feed_forward_dim mlp_hidden_size "
     "moe_intermediate_size",
     NULL},
    {"model.vocab", "n_vocab", NULL},
    {"model.context",
     "max_position_id seq_length_max block_length n_positions n_ctx "
     "max_position_embeddings seq_len block_size max_sequence_length model_max_length "
     "context_length sequence_length",
     NULL},
    {"model.positions", "position_embeddings", NULL},
    {"model.rope_theta", "rope_base rotary_emb_base", NULL},
    {"model.rope_scaling", "rope_parameters rope_scaling rope_scaling_type", NULL},
    {"model.norm_eps", "rms_norm_eps layer_norm_epsilon layer_norm_eps", NULL},
    {"model.init.std", "initializer_range init_std init_stddev", NULL},
    {"model.tie_embeddings", "tie_word_embeddings share_embeddings_and_output_weights weight_tying",
     NULL},
    {"model.tie_embeddings", "untie_embeddings_and_output_weights", "It says the opposite."},
    {"model.qkv_bias", "attention_bias add_qkv_bias", "model.out_bias is a key of its own."},
    {"model.qkv_bias", "bias add_bias_linear",
     "model.out_bias and model.mlp_bias are keys of their own."},
    {"model.qk_norm", "use_qk_norm qk_layernorm", NULL},
    {"model.window", "sliding_window sliding_window_size attention_window", NULL},
    {"model.window_from", "max_window_layers", NULL},
    {"model.window_layers", "sliding_window_pattern layer_types", NULL},
    {"model.attention_cap", "attn_logit_softcapping attn_logit_softcap", NULL},
    {"model.qkv_clip", "clip_qkv", NULL},
    {"model.logit_cap", "final_logit_softcapping final_logit_softcap", NULL},
    {"model.quantization",
     "load_in_4bit load_in_8bit quantization quantization_bit quantize_base bnb_4bit_quant_type "
     "quantization_config",
     "It is nf4 or int8."},
    {"model.attention_chunk", "attention_chunk_size", NULL},
    {"model.query_factor", "attn_scale", NULL},
    {"model.query_factor_step", "floor_scale", NULL},
    {"model.experts", "num_local_experts n_experts num_moe_experts n_routed_experts", NULL},
    {"model.experts_per_token", "num_experts_per_tok num_experts_per_token moe_top_k", NULL},
    {"model.shared_ffn_hidden",
     "shared_expert_intermediate_size moe_shared_expert_intermediate_size", NULL},
    {"model.router.renormalize", "norm_topk_prob", NULL},
    {"model.router.balance",
     "router_aux_loss_coef moe_aux_loss_coeff aux_loss_coef aux_loss_weight load_balancing_weight",
     "The loss is 1 at balance in each block, and summed over the blocks."},
    {"model.router.z_loss", "router_z_loss router_z_loss_coef", NULL},
    {"model.experts_layers", "moe_layer_freq first_k_dense_replace decoder_sparse_step", NULL},
    {"model.mtp.layers", "num_nextn_predict_layers", NULL},
    {"model.router.capacity_factor", "capacity_factor expert_capacity_factor", NULL},

    {"data.train",
     "train_files_paths dataset_dir train_on train_file train_files train_data "
     "train_dataset data_files dataset_path",
     NULL},
    {"data.stages", "data_stages curriculum", NULL},
    {"data.val", "eval_data val_dataset validation_file val_data_path validation_data", NULL},
    {"data.val_split",
     "eval_size val_split validation_split validation_split_percentage test_split", NULL},
    {"data.tokenizer",
     "tokenizer_config tokenizer_id tokenizer_name tokenizer_path tokenizer_file "
     "tokenizer_type vocab_file",
     NULL},
    {"data.end_of_text", "eos_token_id eos_id eod_token_id eos_token", NULL},

    {"train.steps",
     "max_iters num_steps total_steps num_train_steps training_steps iterations "
     "train_steps",
     NULL},
    {"train.steps", "num_iterations", "In GRPO it is train.rollout.updates."},
    {"train.steps", "train_samples", "A run is counted in steps of train.global_batch sequences."},
    {"train.epochs", "epochs max_epochs", NULL},
    {"data.template", "jinja_template prompt_template", NULL},
    {"data.format", "dataset_format conversation_format", NULL},
    {"data.documents",
     "packing sample_packing pad_to_sequence_len eod_mask_loss reset_attention_mask neat_packing",
     "Texts and conversations are always packed into full sequences; bounded keeps them apart."},
    {"data.columns",
     "field_messages message_field_role message_field_content column_mapping dataset_columns "
     "columns",
     NULL},
    {"data.loss", "assistant_only_loss completion_only_loss train_on_responses_only", NULL},
    {"train.global_batch", "batch_size train_batch_size total_batch_size", NULL},
    {"train.batch_schedule", "step_batch_size_schedule rampup_batch_size batch_size_schedule",
     "Spans of steps or tokens, such as \"0:256 2000:512\"."},
    {"train.ema.decay", "ema_decay use_ema ema_rate", NULL},
    {"parallel.micro_batch", "train_micro_batch_size_per_gpu device_batch_size", NULL},
    {"train.global_batch",
     "gradient_accumulation_steps accumulate_grad_batches grad_accum_steps gradient_accumulation",
     "A step accumulates micro-batches of parallel.micro_batch sequences until it has that many."},
    {"train.lr", "learning_rate lr_peak max_lr peak_lr base_lr", NULL},
    {"train.lr.warmup", "warmup_iters lr_warmup_steps lr_warmup_samples warmup", NULL},
    {"train.lr.warmup", "warmup_ratio lr_warmup_fraction", "It is a number of steps."},
    {"train.lr.decay", "scheduler lr_schedule decay_lr", NULL},
    {"train.lr.decay_shape", "lr_decay_type decay_type wsd_decay_type", NULL},
    {"train.lr.decay_steps", "lr_decay_steps decay_steps num_decay_steps", NULL},
    {"train.lr.decay_steps", "decay_ratio decay_fraction", "It is a number of steps."},
    {"train.lr.min", "min_lr_ratio cosine_min_lr_ratio lr_min_ratio", "It is a learning rate."},
    {"train.lr.min", "learning_rate_min lr_min min_learning_rate", NULL},
    {"train.z_loss",
     "z_loss z_loss_weight z_loss_coef z_loss_multiplier softmax_auxiliary_loss "
     "auxiliary_loss_multiplier",
     "That of routers is model.router.z_loss."},
    {"train.distill.teacher", "kd_trainer teacher_model teacher_model_path load_teacher", NULL},
    {"train.distill.top_k", "kd_top_k loss_top_k logits_save_top_k", NULL},
    {"train.distill.temperature", "kd_temperature distillation_temperature", NULL},
    {"train.distill.weight", "kd_alpha logits_load_kd_loss_alpha kd_ratio", NULL},
    {"train.distill.weight", "kd_ce_alpha", "It is 1 - the weight of the labels' loss."},
    {"train.distill.beta", "kd_beta gkd_beta", NULL},
    {"train.distill.on_policy", "gkd_lmbda gkd_lambda", NULL},
    {"train.neftune_alpha", "neftune_alpha", NULL},
    {"train.optimizer", "optim optimizer optimizer_name optimizer_type",
     "It is adamw, lion or muon."},
    {"train.optimizer.momentum", "muon_momentum", NULL},
    {"train.optimizer.ns_steps", "muon_num_ns_steps", NULL},
    {"train.optimizer.scale", "muon_scale_mode adjust_lr_fn", "It is moonlight or keller."},
    {"train.weight_decay", "wd adam_weight_decay adamw_weight_decay", NULL},
    {"train.beta1", "betas adam_betas", "train.beta2 is a key of its own."},
    {"train.eps", "epsilon", "In GRPO it is train.policy.clip_low."},
    {"train.clip", "grad_clip gradient_clip_val gradient_clipping", NULL},
    {"train.adapter", "lora peft peft_config adapter_config finetuning_type", NULL},
    {"train.adapter.rank", "r adapter_rank", NULL},
    {"train.adapter.alpha", "adapter_alpha", NULL},
    {"train.adapter.dropout", "adapter_dropout", NULL},
    {"train.adapter.targets", "target_modules", NULL},
    {"train.adapter.trainable", "modules_to_save", NULL},
    {"train.adapter.loraplus_lr_ratio", "loraplus_lr_ratio", "It is a factor on train.lr."},
    {"train.objective", "rl rl_algo rlhf stage",
     "It is next_token, dpo, simpo, cpo, orpo, kto, reward, grpo or gkd."},
    {"train.rollout.group", "group_size n_samples_per_prompt rollout_n", NULL},
    {"train.rollout.prompts", "prompts_per_step num_prompts_per_step num_prompts", NULL},
    {"train.rollout.max_tokens", "max_response_length response_length", NULL},
    {"train.rollout.resample", "dynamic_sampling use_dynamic_sampling", NULL},
    {"train.rollout.updates", "ppo_epochs updates_per_rollout", NULL},
    {"train.rewards", "reward_weights", "Each reward of the list has a weight."},
    {"train.rewards", "reward_funcs reward_functions reward_model_path custom_reward_function",
     "It is a list such as [{builtin: number}]; a function in Python becomes a program."},
    {"train.policy.clip_low", "clip_ratio_low clip_ratio eps_clip", NULL},
    {"train.policy.clip_high", "clip_ratio_high eps_clip_high", NULL},
    {"train.policy.dual_clip", "delta clip_ratio_c", NULL},
    {"train.policy.scale", "scale_rewards norm_adv_by_std_in_grpo", "It is group, batch or none."},
    {"train.policy.kl_beta", "kl_loss_coef init_kl_coef kl_coef", NULL},
    {"train.policy.kl", "kl_loss_type kl_estimator use_kl_loss",
     "It is k1, k2 or k3, and counts with train.policy.kl_beta above 0."},
    {"train.policy.kl_in", "use_kl_in_reward", "It is loss or reward."},
    {"train.policy.mask_truncated", "overlong_filtering", NULL},
    {"train.policy.correction", "vllm_importance_sampling_correction tis_imp_ratio_cap",
     "It is none, truncate or mask_sequence."},
    {"train.preference.loss", "loss_type dpo_loss dpo_loss_type pref_loss",
     "It is sigmoid, robust, hinge, ipo, sigmoid_norm, apo_zero or apo_down; orpo and simpo are "
     "words of train.objective."},
    {"train.preference.smoothing", "label_smoothing dpo_label_smoothing", "It is of wrong pairs."},
    {"train.trainable", "unfrozen_parameters trainable_parameters trainable", NULL},
    {"train.precision", "dtype torch_dtype mixed_precision params_dtype", NULL},
    {"train.moments", "optim_bits use_8bit_adam adam_bits optimizer_bits", NULL},
    {"train.dropout.attention", "attn_pdrop attn_dropout", NULL},
    {"train.dropout.embedding", "embd_pdrop embedding_dropout", NULL},
    {"train.dropout.residual", "resid_pdrop residual_dropout resid_dropout", NULL},
    {"train.seed", "random_seed manual_seed", NULL},
    {"train.deterministic", "deterministic_mode use_deterministic_algorithms", NULL},
    {"train.init_from", "finetune_from init_from_checkpoint pretrained_checkpoint load", NULL},

    {"validate.every", "eval_freq val_check_interval eval_every val_interval", NULL},
    {"validate.batches", "eval_batches limit_val_batches max_eval_batches", NULL},

    {"parallel.tp", "tensor_parallel_degree tp_size tensor_parallel model_parallel_size tensor",
     NULL},
    {"parallel.pp",
     "pipeline_parallel_degree pipeline_parallel_size pp_size pipeline_parallel pipeline", NULL},
    {"parallel.dp", "data_parallel_size dp_size data_parallel data_parallel_replicate_degree",
     NULL},
    {"parallel.cp", "context_parallel_degree cp_size context_parallel", NULL},
    {"parallel.ep", "expert_parallel_degree expert_parallel_size ep_size expert_parallel", NULL},
    {"parallel.sequence", "sequence_parallelism", NULL},
    {"parallel.zero", "deepspeed_config zero_stage zero_optimization", NULL},
    {"parallel.offload", "cpu_offload offload_optimizer offload_optimizer_device", NULL},
    {"parallel.recompute",
     "enable_activation_offloading activation_offloading ac_mode activation_checkpointing "
     "recompute_method recompute_num_layers gradient_checkpointing_kwargs",
     NULL},

    {"resources.devices",
     "gres ntasks ntasks_per_node nodes num_gpus n_gpus ngpus gpus world_size num_devices "
     "num_processes",
     NULL},
    {"resources.device_type", "gpu_type accelerator device_type", NULL},
    {"resources.threads", "num_threads omp_num_threads cpus_per_task cpus cores", NULL},

    {"checkpoint.every",
     "save_freq save_every checkpoint_interval checkpointing_steps ckpt_interval", NULL},
    {"checkpoint.keep", "save_top_k keep_last_n_checkpoints", NULL},
    {"checkpoint.best", "metric_for_best_model", NULL},
    {"validate.stop.patience", "early_stopping", NULL},
    {"validate.stop.min_delta", "early_stopping_min_delta", NULL},
    {"queue", "partition account qos", NULL},
    {"time_limit", "walltime time timeout max_time", NULL},
    {"after", "dependency depends_on", NULL},
    {"restart.max", "max_restarts restart_limit", NULL},
};

/* Names of other programs for what needs no key here, and what takes its place. */
static const struct {
    const char *names, *instead;
} without[] = {
    {"report_to logger tensorboard wandb_mode wandb_entity log_with metric_logger wandb mlflow "
     "trackio",
     "every job writes TensorBoard files, metrics for Prometheus and a history; `heddle track` "
     "sends "
     "it to MLflow, docs/tracking.md has Weights & Biases"},
    {"output_dir save_dir out_dir checkpoint_dir log_dir logging_dir dir",
     "the folder of a job is chosen by the controller (--jobs-dir), that of heddle local by "
     "--state-dir and --dir"},
    {"optim_args", "the optimizer's settings are train.optimizer, train.lr, train.weight_decay, "
                   "train.beta1, beta2, "
                   "eps and moments"},
    {"flash_attention flash_attn attn_implementation use_flash_attn xformers_attention "
     "sdp_attention",
     "attention is always computed in tiles, without a matrix of scores"},
    {"compile torch_compile use_compile", "nothing is compiled while a job runs"},
    {"special_tokens bos_token pad_token unk_token",
     "special tokens are those of the tokenizer's files (data.tokenizer or model.from)"},
    {"ddp_backend backend dist_backend master_addr master_port rdzv_endpoint",
     "ranks find one another by the controller; no key is needed"},
    {"num_workers dataloader_num_workers dataset_num_proc preprocessing_num_workers",
     "data is read ahead by itself; no key is needed"},
    {"resume_from_checkpoint auto_resume resume",
     "heddle resume JOB and heddle local --resume go on from the newest checkpoint"},
    {"push_to_hub hub_model_id hub_strategy",
     "heddle checkpoint export writes a model for the hub"},
    {"memory mem mem_per_cpu mem_per_gpu memory_per_device",
     "a job asks for no memory: it takes what heddle plan says, and waits for devices that have "
     "it"},
    {"trust_remote_code", "no code of a model is ever run"},
    {"nodelist exclude constraint nodes_list node_selector hostfile",
     "the controller chooses nodes by what a job needs and how they are connected; heddle drain "
     "NODE "
     "keeps jobs off one"},
    {"begin start_time",
     "heddle hold JOB keeps a job from being started, heddle release JOB lets it"},
    {"mail_user mail_type email",
     "alerts are rules of Prometheus (docs/metrics.md); heddle wait JOB ends with the job"},
    {"auto_find_batch_size", "parallel.micro_batch is chosen by itself, so that it fits"},
    {"exit_signal_handler", "SIGTERM always writes a checkpoint"},
    {"_component_", "values are written as words: family: llama, not a class"},
    {"adapter", "write train.adapter: {type: lora, rank: 16}"},
    {"template_name chat_template_name", "data.template: chatml, or from the tokenizer's files"},
};

/* Names that mean different keys in different groups. */
static const struct {
    const char *group, *names, *path;
} in_groups[] = {
    {"", "validation eval evaluation", "validate"},
    {"model", "width emb embed embedding size", "model.hidden"},
    {"model", "ctx ctx_len length", "model.context"},
    {"validate", "steps interval freq frequency period every_steps", "validate.every"},
    {"checkpoint", "steps interval freq frequency period every_steps", "checkpoint.every"},
    {"parallel", "data", "parallel.dp"},
    {"parallel", "context", "parallel.cp"},
    {"parallel", "expert experts", "parallel.ep"},
    {"data", "path files dataset", "data.train"},
    {"checkpoint", "limit max count", "checkpoint.keep"},
};

static const char *find_in_group(const char *group, const char *name)
{
    for (size_t i = 0; i < sizeof in_groups / sizeof in_groups[0]; i++)
        if (strcmp(in_groups[i].group, group) == 0 && hd_words_have(in_groups[i].names, name))
            return in_groups[i].path;
    return NULL;
}

/* Words that other tools use for values of keys. */
static const struct {
    const char *path, *theirs, *ours;
} values[] = {
    {"resources.device_type", "gpu gpus nvidia GPU", "cuda"},
    {"train.precision", "float32 float 32 32-true fp32-true", "fp32"},
    {"train.precision", "bfloat16 bf16-mixed bf16-true", "bf16"},
    {"train.precision", "float16 half 16 16-mixed fp16-mixed", "fp16"},
    {"train.precision", "tf32", "fp32, with train.tf32: true"},
    {"train.precision", "e4m3 hybrid float8", "fp8"},
    {"train.lr.decay", "cosine_with_warmup cosine_annealing", "cosine"},
    {"train.lr.decay", "constant_with_warmup none", "constant"},
    {"train.lr.decay", "warmup_stable_decay WSD", "wsd"},
    {"model.quantization", "4bit int4 4 nf4_double", "nf4"},
    {"model.quantization", "8bit 8 llm_int8", "int8"},
    {"train.objective", "sft causal_lm clm pretrain pt", "next_token"},
    {"train.objective", "rm reward_model", "reward"},
    {"train.objective", "rloo gspo dapo cispo dr_grpo ppo rlvr", "grpo"},
    {"train.policy.loss", "bnpo", "dapo"},
    {"train.adapter.type", "qlora", "lora, with model.quantization: nf4"},
    {"train.adapter.type", "full", "none"},
    {"train.moments", "int8 8 bnb", "8bit"},
};

const char *spec_find_value(const char *path, const char *word)
{
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        if (strcmp(values[i].path, path) == 0 && hd_words_have(values[i].theirs, word))
            return values[i].ours;
    return NULL;
}

static const char *find_without(const char *name)
{
    for (size_t i = 0; i < sizeof without / sizeof without[0]; i++)
        if (hd_words_have(without[i].names, name))
            return without[i].instead;
    return NULL;
}

/* Writes a name in lower case with '_' for '-', as the tables have names. Returns false if it is
 * empty or longer than any of them. */
static bool make_plain(const char *name, char ret_plain[NAME_MAX_BYTES])
{
    const size_t len = strlen(name);

    for (size_t i = 0; i <= len && len < NAME_MAX_BYTES; i++)
        ret_plain[i] = name[i] == '-' ? '_' : (char)tolower((unsigned char)name[i]);
    return len > 0 && len < NAME_MAX_BYTES;
}

const char *spec_find_instead(const char *name)
{
    char plain[NAME_MAX_BYTES];
    const char *instead, *note;
    bool is_key = false;

    if (!make_plain(name, plain))
        return NULL;
    instead = find_without(plain);
    if (instead)
        return instead;
    instead = spec_find_translated(plain, &is_key, &note);
    return instead && !is_key ? instead : NULL;
}

static int depth_of(const char *path)
{
    int depth = 0;

    for (; *path; path++)
        depth += *path == '.';
    return depth;
}

/* Returns the path of the key whose last part is `name`, such as `tp` outside its group. Of
 * several, the one in the outermost group; NULL: none, or two are equally far out. The keys of
 * `hang`, `train.distill` and `train.policy` are left out: a user who writes `step` or `validation` in
 * another group means train.steps or validate, and `top_k` in model.router no distillation. */
static const char *find_elsewhere(const char *name)
{
    const char *found = NULL;
    bool several = false;

    for (size_t i = 0; i < hd_job_key_count; i++) {
        const char *path = hd_job_keys[i].path, *dot = strrchr(path, '.');

        if (hd_job_keys[i].hidden || !dot || strcmp(dot + 1, name) != 0 ||
            strncmp(path, "hang.", 5) == 0 || strncmp(path, "train.distill.", 14) == 0 ||
            strncmp(path, "train.policy.", 13) == 0 || (found && depth_of(path) > depth_of(found)))
            continue;
        several = found && depth_of(path) == depth_of(found);
        found = path;
    }
    return several ? NULL : found;
}

const char *spec_find_foreign(const char *name, const char **ret_note)
{
    char plain[NAME_MAX_BYTES];
    const char *found;
    bool is_key;

    *ret_note = NULL;
    if (!make_plain(name, plain))
        return NULL;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (hd_words_have(keys[i].names, plain)) {
            *ret_note = keys[i].note;
            return keys[i].path;
        }
    found = find_elsewhere(plain);
    if (!found && !find_without(plain))
        found = spec_find_translated(plain, &is_key, ret_note);
    return found && hd_job_find_key(found) ? found : NULL;
}

const char *spec_find_meant(const char *group, const char *name, const char **ret_note)
{
    const char *found = find_in_group(group, name);

    *ret_note = NULL;
    return found ? found : spec_find_foreign(name, ret_note);
}

bool hd_spec_suggest(const char *name, struct hd_text *out)
{
    const char *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name, *note, *path, *instead;
    char group[NAME_MAX_BYTES] = "";

    if (dot && dot - name < (ptrdiff_t)sizeof group)
        memcpy(group, name, (size_t)(dot - name));
    path = spec_find_meant(group, last, &note);
    instead = path ? NULL : spec_find_instead(last);
    if (path)
        hd_text_add(out, "did you mean %s?%s%s", path, note ? " " : "", note ? note : "");
    else if (instead)
        hd_text_add(out, "%s", instead);
    return path || instead;
}
