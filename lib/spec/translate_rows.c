/* translate_rows: what each setting of another tool is in a job file. A setting without a row is
 * told as unknown. Names are those of the tools' published examples and references. */
#include <string.h>

#include "base/words.h"
#include "translate_internal.h"

#define COPY(tools, names, path, note)                      \
    {                                                       \
        tools, names, path, HOW_COPY, NULL, note, CALL_NONE \
    }
#define BOOL(tools, names, path, note)                      \
    {                                                       \
        tools, names, path, HOW_BOOL, NULL, note, CALL_NONE \
    }
#define NOT(tools, names, path, note)                      \
    {                                                      \
        tools, names, path, HOW_NOT, NULL, note, CALL_NONE \
    }
#define WORDS(tools, names, path, words, note)                \
    {                                                         \
        tools, names, path, HOW_WORDS, words, note, CALL_NONE \
    }
#define IF_TRUE(tools, names, path, value, note)             \
    {                                                        \
        tools, names, path, HOW_TRUE, value, note, CALL_NONE \
    }
#define DROP(tools, names, note)                            \
    {                                                       \
        tools, names, NULL, HOW_DROP, NULL, note, CALL_NONE \
    }
#define LACK(tools, names, note)                            \
    {                                                       \
        tools, names, NULL, HOW_LACK, NULL, note, CALL_NONE \
    }
#define CALL(tools, names, path, call, note)           \
    {                                                  \
        tools, names, path, HOW_CALL, NULL, note, call \
    }

#define DECAYS                                                                                 \
    "cosine=cosine linear=linear constant=constant constant_with_warmup=constant "             \
    "cosine_with_min_lr=cosine warmup_stable_decay=wsd WSD=wsd cosine_with_restarts=cosine "   \
    "inverse_sqrt=inverse_sqrt inverse-square-root=inverse_sqrt polynomial=linear rex=linear " \
    "one_cycle=cosine"

const struct spec_row spec_rows[] = {
    /* ---- the model ---- */
    CALL(TOOL_AXOLOTL, "base_model", "model.from", CALL_MODEL, NULL),
    CALL(TOOL_TRL | TOOL_FACTORY, "model_name_or_path", "model.from", CALL_MODEL, NULL),
    CALL(TOOL_TUNE, "checkpointer.checkpoint_dir", "model.from", CALL_MODEL,
         "the folder with config.json and safetensors"),
    LACK(TOOL_MEGATRON, "load pretrained_checkpoint",
         "weights of Megatron-LM are not read: convert them to a Hugging Face folder, then "
         "model.from"),
    DROP(
        TOOL_AXOLOTL,
        "model_type tokenizer_type tokenizer_config base_model_config is_llama_derived_model "
        "is_mistral_derived_model is_falcon_derived_model is_qwen_derived_model tokenizer_use_fast "
        "tokenizer_legacy processor_type",
        "config.json of model.from says it"),
    DROP(TOOL_TRL | TOOL_FACTORY, "trust_remote_code", "no code of a model is ever run"),
    DROP(TOOL_AXOLOTL, "trust_remote_code", "no code of a model is ever run"),
    LACK(TOOL_AXOLOTL | TOOL_TRL | TOOL_FACTORY, "revision_of_model model_revision",
         "write the revision into model.from: hf://ORG/NAME@REVISION"),
    DROP(TOOLS_SFT, "torch_dtype dtype",
         "the encoding is train.precision; weights are read as they are"),
    COPY(TOOL_AXOLOTL, "sequence_len", "model.context", NULL),
    COPY(TOOL_TRL, "max_length max_seq_length", "model.context", NULL),
    COPY(TOOL_FACTORY, "cutoff_len", "model.context", NULL),
    COPY(TOOL_TUNE, "tokenizer.max_seq_len dataset.max_seq_len", "model.context", NULL),
    COPY(TOOL_MEGATRON, "seq_length encoder_seq_length", "model.context", NULL),
    LACK(TOOL_TRL, "max_prompt_length", "model.context bounds prompt and answer together"),
    CALL(TOOL_AXOLOTL | TOOL_TRL, "load_in_4bit load_in_8bit", "model.quantization", CALL_QUANT,
         NULL),
    CALL(TOOL_FACTORY, "quantization_bit", "model.quantization", CALL_QUANT, NULL),
    DROP(
        TOOL_AXOLOTL | TOOL_TRL | TOOL_FACTORY,
        "bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_use_double_quant bnb_4bit_compute_dtype "
        "double_quantization quantization_method quantization_type bnb_config_kwargs "
        "bnb_4bit_quant_storage quantization_device_map",
        "nf4 always has double quantisation; products are in train.precision"),
    LACK(TOOL_AXOLOTL, "gptq gptq_disable_exllama", "codes of GPTQ are not read"),
    DROP(TOOL_TUNE,
         "checkpointer.checkpoint_files checkpointer.model_type checkpointer.recipe_checkpoint "
         "checkpointer.adapter_checkpoint checkpointer.safe_serialization "
         "checkpointer.keep_last_n_checkpoints checkpointer.output_dir",
         "files and classes are found in the folder"),
    CALL(TOOL_TUNE,
         "model._component_ tokenizer._component_ optimizer._component_ loss._component_ "
         "lr_scheduler._component_ checkpointer._component_ dataset._component_ "
         "dataset_val._component_",
         NULL, CALL_COMPONENT, NULL),
    DROP(TOOL_TUNE,
         "tokenizer.path tokenizer.merges_file tokenizer.vocab_file tokenizer.prompt_template "
         "tokenizer.special_tokens tokenizer.special_tokens_path",
         "the tokenizer and its template are those of model.from"),
    COPY(TOOL_MEGATRON, "num_layers", "model.layers", NULL),
    COPY(TOOL_MEGATRON, "hidden_size", "model.hidden", NULL),
    COPY(TOOL_MEGATRON, "num_attention_heads", "model.heads", NULL),
    COPY(TOOL_MEGATRON, "num_query_groups", "model.kv_heads", NULL),
    DROP(TOOL_MEGATRON, "group_query_attention", "model.kv_heads says it"),
    COPY(TOOL_MEGATRON, "kv_channels", "model.head_width", NULL),
    COPY(TOOL_MEGATRON, "ffn_hidden_size moe_ffn_hidden_size", "model.ffn_hidden", NULL),
    COPY(TOOL_MEGATRON, "rotary_base", "model.rope_theta", NULL),
    COPY(TOOL_MEGATRON, "norm_epsilon layernorm_epsilon", "model.norm_eps", NULL),
    COPY(TOOL_MEGATRON, "vocab_size padded_vocab_size", "model.vocab", NULL),
    WORDS(TOOL_MEGATRON, "position_embedding_type", "model.positions",
          "rope=rope learned_absolute=learned", NULL),
    IF_TRUE(TOOL_MEGATRON, "untie_embeddings_and_output_weights", "model.tie_embeddings", "false",
            NULL),
    DROP(TOOL_MEGATRON,
         "max_position_embeddings position_embedding swiglu "
         "normalization "
         "disable_bias_linear add_qkv_bias qk_layernorm apply_layernorm_1p "
         "use_rotary_position_embeddings squared_relu no_bias_gelu_fusion openai_gelu",
         "model.family says it"),
    DROP(TOOL_MEGATRON, "make_vocab_size_divisible_by",
         "model.vocab is the tokenizer's size, up to the next 64"),
    COPY(TOOL_MEGATRON, "init_method_std", "model.init.std", NULL),
    COPY(TOOL_MEGATRON, "num_experts", "model.experts", NULL),
    COPY(TOOL_MEGATRON, "moe_router_topk", "model.experts_per_token", NULL),
    COPY(TOOL_MEGATRON, "moe_aux_loss_coeff", "model.router.balance", NULL),
    COPY(TOOL_MEGATRON, "moe_z_loss_coeff", "model.router.z_loss", NULL),
    COPY(TOOL_MEGATRON, "mtp_num_layers", "model.mtp.layers", NULL),
    COPY(TOOL_MEGATRON, "mtp_loss_scaling_factor", "model.mtp.loss_weight", NULL),
    LACK(TOOL_MEGATRON, "moe_layer_freq", "model.experts_layers has the blocks with experts"),
    COPY(TOOL_MEGATRON, "moe_expert_capacity_factor", "model.router.capacity_factor", NULL),
    DROP(TOOL_MEGATRON,
         "moe_router_load_balancing_type moe_grouped_gemm moe_token_dispatcher_type "
         "moe_permute_fusion moe_router_dtype",
         "experts are computed grouped; model.router has the losses"),
    COPY(TOOL_MEGATRON, "window_size", "model.window", NULL),

    /* ---- data ---- */
    CALL(TOOL_AXOLOTL, "datasets", "data.train", CALL_DATA, NULL),
    CALL(TOOL_AXOLOTL, "pretraining_dataset", "data.train", CALL_DATA, NULL),
    CALL(TOOL_AXOLOTL, "test_datasets", "data.val", CALL_VAL_DATA, NULL),
    CALL(TOOL_TRL, "dataset_name datasets", "data.train", CALL_DATA, NULL),
    CALL(TOOL_TRL, "dataset_train_split dataset_config", "data.train", CALL_SPLIT, NULL),
    CALL(TOOL_TRL, "dataset_test_split", NULL, CALL_SPLIT, NULL),
    CALL(TOOL_FACTORY, "dataset", "data.train", CALL_DATA, NULL),
    CALL(TOOL_FACTORY, "eval_dataset", "data.val", CALL_VAL_DATA, NULL),
    DROP(TOOL_FACTORY, "dataset_dir media_dir", "names are looked up there"),
    CALL(TOOL_TUNE, "dataset", "data.train", CALL_DATA, NULL),
    CALL(TOOL_TUNE, "dataset_val", "data.val", CALL_VAL_DATA, NULL),
    CALL(TOOL_MEGATRON, "data_path train_data_path", "data.train", CALL_BLEND, NULL),
    CALL(TOOL_MEGATRON, "valid_data_path", "data.val", CALL_BLEND, NULL),
    CALL(TOOL_MEGATRON, "split", "data.val_split", CALL_WEIGHTS_SPLIT, NULL),
    COPY(TOOL_MEGATRON, "tokenizer_model", "data.tokenizer", "a tokenizer.json or tokenizer.model"),
    LACK(TOOL_MEGATRON, "vocab_file merge_file",
         "token files need no tokenizer; for text, data.tokenizer: tokenizer.json"),
    DROP(TOOL_MEGATRON,
         "tokenizer_type data_impl mmap_bin_files num_dataset_builder_threads "
         "no_create_attention_mask_in_dataloader data_cache_path",
         "files and tokenizers are recognised by what is in them"),
    IF_TRUE(TOOL_MEGATRON, "reset_attention_mask", "data.documents", "bounded", NULL),
    DROP(TOOL_MEGATRON, "reset_position_ids eod_mask_loss", "data.documents: bounded does both"),
    CALL(TOOL_AXOLOTL, "val_set_size", "data.val_split", CALL_VAL_SIZE, NULL),
    CALL(TOOL_FACTORY, "val_size", "data.val_split", CALL_VAL_SIZE, NULL),
    DROP(TOOLS_SFT,
         "packing sample_packing eval_packing eval_sample_packing neat_packing "
         "pad_to_sequence_len multipack_real_batches padding_free packing_strategy "
         "group_by_length sample_packing_eff_est sample_packing_group_size "
         "total_num_tokens remove_unused_columns flash_attn_cross_entropy "
         "length_column_name pad_to_multiple_of",
         "conversations and texts are always packed, and see only themselves"),
    DROP(TOOL_TUNE, "packed dataset.packed dataset.split_across_pack",
         "conversations and texts are always packed, and see only themselves"),
    IF_TRUE(TOOL_AXOLOTL, "train_on_inputs", "data.loss", "all", "answers alone by default"),
    IF_TRUE(TOOL_FACTORY, "train_on_prompt", "data.loss", "all", "answers alone by default"),
    IF_TRUE(TOOL_FACTORY, "mask_history", "data.loss", "last", NULL),
    DROP(TOOL_TRL, "assistant_only_loss completion_only_loss", "data.loss: answers is the default"),
    CALL(TOOL_AXOLOTL, "chat_template", "data.template", CALL_TEMPLATE, NULL),
    CALL(TOOL_FACTORY, "template", "data.template", CALL_TEMPLATE, NULL),
    COPY(TOOL_TRL, "chat_template_path", "data.template",
         "a Jinja file, or the file in a model's folder"),
    COPY(TOOL_AXOLOTL, "chat_template_jinja", "data.template", "a Jinja file"),
    LACK(TOOL_AXOLOTL | TOOL_FACTORY, "default_system_message default_system",
         "a chat template writes it, or a system message in the data"),
    DROP(TOOLS_SFT,
         "special_tokens tokens eos_token pad_token added_tokens_overrides resize_vocab "
         "resize_token_embeddings_to_32x mean_resizing_embeddings add_tokens",
         "special tokens are those of the tokenizer's files"),
    DROP(TOOLS_SFT,
         "dataset_prepared_path overwrite_cache preprocessing_num_workers dataset_processes "
         "dataset_num_proc tokenized_path skip_prepare_dataset dataset_keep_in_memory "
         "push_dataset_to_hub streaming dataset_streaming dataset_kwargs",
         "texts become token files once, in the job's folder"),
    DROP(TOOLS_SFT, "shuffle_merged_datasets", "data.order is shuffled unless it says sequential"),
    LACK(TOOLS_SFT, "dataset_exact_deduplication", "remove equal records from the files"),
    LACK(TOOL_FACTORY, "max_samples interleave_probs mix_strategy",
         "train.steps or a mixture of data.train bounds it"),
    CALL(TOOL_AXOLOTL | TOOL_TRL, "dataset_text_field", "data.columns", CALL_TEXT_COLUMN, NULL),
    WORDS(TOOL_AXOLOTL, "excess_length_strategy", "data.too_long",
          "drop=drop truncate=cut raise=error", NULL),
    DROP(TOOL_AXOLOTL, "min_sample_len", "no record is too short"),
    WORDS(TOOL_TUNE, "shuffle", "data.order",
          "True=shuffled true=shuffled False=sequential false=sequential", NULL),
    WORDS(TOOL_MEGATRON, "dataloader_type", "data.order", "cyclic=shuffled single=shuffled", NULL),
    LACK(TOOL_AXOLOTL, "curriculum_sampling", "data.order: sequential keeps the files' order"),

    /* ---- length and batch ---- */
    COPY(TOOL_AXOLOTL, "num_epochs", "train.epochs", NULL),
    COPY(TOOLS_HF, "num_train_epochs", "train.epochs", NULL),
    COPY(TOOL_TUNE, "epochs", "train.epochs", NULL),
    CALL(TOOLS_SFT, "max_steps", "train.steps", CALL_STEPS, NULL),
    CALL(TOOL_TUNE, "max_steps_per_epoch", "train.steps", CALL_STEPS, NULL),
    COPY(TOOL_MEGATRON, "train_iters", "train.steps", NULL),
    LACK(TOOL_MEGATRON, "train_samples exit_duration_in_mins exit_interval",
         "train.steps = samples / train.global_batch; time_limit ends a job"),
    CALL(TOOL_AXOLOTL, "micro_batch_size", "parallel.micro_batch", CALL_MICRO, NULL),
    CALL(TOOLS_HF, "per_device_train_batch_size", "parallel.micro_batch", CALL_MICRO, NULL),
    CALL(TOOL_TUNE, "batch_size", "parallel.micro_batch", CALL_MICRO, NULL),
    CALL(TOOL_MEGATRON, "micro_batch_size", "parallel.micro_batch", CALL_MICRO, NULL),
    COPY(TOOL_AXOLOTL, "batch_size", "train.global_batch", NULL),
    CALL(TOOLS_SFT | TOOL_TUNE, "gradient_accumulation_steps", "train.global_batch", CALL_ACCUM,
         NULL),
    COPY(TOOL_MEGATRON, "global_batch_size", "train.global_batch", NULL),
    LACK(TOOL_MEGATRON, "rampup_batch_size",
         "set train.batch_schedule: spans that begin at steps or tokens"),
    DROP(TOOLS_SFT,
         "per_device_eval_batch_size eval_batch_size eval_accumulation_steps "
         "eval_causal_lm_metrics per_gpu_train_batch_size",
         "a validation has batches of the training's size"),
    DROP(TOOLS_SFT, "auto_find_batch_size",
         "parallel.micro_batch is chosen by itself, so that it fits"),
    DROP(TOOL_TUNE, "batch_size_val", "a validation has batches of the training's size"),

    /* ---- optimizer ---- */
    COPY(TOOLS_SFT, "learning_rate", "train.lr.peak", NULL),
    COPY(TOOL_TUNE, "optimizer.lr", "train.lr.peak", NULL),
    COPY(TOOL_MEGATRON, "lr", "train.lr.peak", NULL),
    COPY(TOOLS_SFT, "warmup_steps", "train.lr.warmup", NULL),
    COPY(TOOL_TUNE, "lr_scheduler.num_warmup_steps", "train.lr.warmup", NULL),
    COPY(TOOL_MEGATRON, "lr_warmup_iters", "train.lr.warmup", NULL),
    CALL(TOOLS_SFT, "warmup_ratio", "train.lr.warmup", CALL_RATIO, NULL),
    CALL(TOOL_MEGATRON, "lr_warmup_fraction", "train.lr.warmup", CALL_RATIO, NULL),
    LACK(TOOL_MEGATRON, "lr_warmup_samples lr_decay_samples lr_warmup_init",
         "train.lr counts in steps"),
    LACK(TOOL_AXOLOTL, "lr_quadratic_warmup", "the rate rises linearly over train.lr.warmup steps"),
    LACK(TOOL_AXOLOTL, "relora_steps relora_warmup_steps relora_cpu_offload jagged_restart_steps",
         "one adapter from beginning to end"),
    LACK(TOOL_MEGATRON, "start_weight_decay end_weight_decay weight_decay_incr_style",
         "train.weight_decay is one value for the whole run"),
    WORDS(TOOL_AXOLOTL, "lr_scheduler", "train.lr.decay", DECAYS, NULL),
    WORDS(TOOLS_HF, "lr_scheduler_type", "train.lr.decay", DECAYS, NULL),
    WORDS(TOOL_MEGATRON, "lr_decay_style", "train.lr.decay", DECAYS, NULL),
    COPY(TOOL_MEGATRON, "lr_decay_iters lr_wsd_decay_iters", "train.lr.decay_steps", NULL),
    WORDS(TOOL_MEGATRON, "lr_wsd_decay_style", "train.lr.decay_shape",
          "linear=linear cosine=cosine minus_sqrt=sqrt exponential=exponential", NULL),
    COPY(TOOL_MEGATRON, "min_lr", "train.lr.min", NULL),
    CALL(TOOL_AXOLOTL, "cosine_min_lr_ratio", "train.lr.min", CALL_MIN_RATIO, NULL),
    LACK(TOOL_AXOLOTL, "cosine_constant_lr_ratio lr_groups embedding_lr embedding_lr_scale",
         "one rate for all; train.lr.decay_steps ends the decay early"),
    LACK(TOOLS_HF | TOOL_AXOLOTL, "lr_scheduler_kwargs", "train.lr.min is the rate at the end"),
    COPY(TOOLS_SFT, "weight_decay", "train.weight_decay", NULL),
    COPY(TOOL_TUNE, "optimizer.weight_decay", "train.weight_decay", NULL),
    COPY(TOOL_MEGATRON, "weight_decay", "train.weight_decay", NULL),
    COPY(TOOLS_SFT, "adam_beta1", "train.beta1", NULL),
    COPY(TOOL_MEGATRON, "adam_beta1", "train.beta1", NULL),
    COPY(TOOLS_SFT, "adam_beta2", "train.beta2", NULL),
    COPY(TOOL_MEGATRON, "adam_beta2", "train.beta2", NULL),
    COPY(TOOLS_SFT, "adam_epsilon", "train.eps", NULL),
    COPY(TOOL_MEGATRON, "adam_eps", "train.eps", NULL),
    COPY(TOOL_TUNE, "optimizer.eps", "train.eps", NULL),
    CALL(TOOL_TUNE, "optimizer.betas", "train.beta1", CALL_BETAS, NULL),
    COPY(TOOLS_SFT, "max_grad_norm", "train.clip", NULL),
    COPY(TOOL_TUNE, "clip_grad_norm", "train.clip", NULL),
    COPY(TOOL_MEGATRON, "clip_grad", "train.clip", NULL),
    CALL(TOOL_AXOLOTL, "optimizer", "train.optimizer", CALL_OPTIMIZER, NULL),
    CALL(TOOLS_HF, "optim", "train.optimizer", CALL_OPTIMIZER, NULL),
    CALL(TOOL_MEGATRON, "optimizer", "train.optimizer", CALL_OPTIMIZER, NULL),
    IF_TRUE(TOOL_FACTORY, "use_muon", "train.optimizer.name", "muon", NULL),
    LACK(TOOL_AXOLOTL | TOOLS_HF,
         "optim_args optim_target_modules use_galore use_badam use_apollo use_adam_mini",
         "not here: train.optimizer is adamw, lion or muon, with keys of its own"),
    DROP(TOOL_TUNE, "optimizer.fused optimizer_in_bwd optimizer.foreach optimizer.capturable",
         "the update is one fused kernel"),
    COPY(TOOLS_SFT, "seed", "train.seed", NULL),
    COPY(TOOL_TUNE, "seed", "train.seed", NULL),
    COPY(TOOL_MEGATRON, "seed", "train.seed", NULL),
    DROP(TOOLS_SFT, "data_seed", "train.seed is that of weights and data"),
    BOOL(TOOLS_SFT, "full_determinism", "train.deterministic", NULL),
    COPY(TOOLS_SFT, "neftune_noise_alpha noisy_embedding_alpha", "train.neftune_alpha", NULL),
    LACK(TOOLS_SFT, "label_smoothing_factor", "smoothed labels are not here"),
    COPY(TOOL_MEGATRON, "attention_dropout", "train.dropout.attention", NULL),
    COPY(TOOL_MEGATRON, "hidden_dropout", "train.dropout.residual", NULL),

    /* ---- precision ---- */
    CALL(TOOLS_SFT, "bf16 fp16 bfloat16 float16", "train.precision", CALL_PRECISION, NULL),
    CALL(TOOL_AXOLOTL, "fp8", "train.precision", CALL_PRECISION, NULL),
    CALL(TOOL_MEGATRON, "bf16 fp16 fp8_format fp8_hybrid", "train.precision", CALL_PRECISION, NULL),
    WORDS(TOOL_TUNE, "dtype", "train.precision", "bf16=bf16 fp32=fp32 fp16=fp16", NULL),
    BOOL(TOOLS_SFT, "tf32", "train.tf32", NULL),
    DROP(TOOLS_HF,
         "bf16_full_eval fp16_full_eval fp16_opt_level half_precision_backend pure_bf16 "
         "upcast_layernorm upcast_lmhead_output",
         "masters, sums and norms are in fp32"),
    COPY(TOOL_MEGATRON, "qk_clip_threshold", "train.qk_clip.threshold", NULL),
    COPY(TOOL_MEGATRON, "qk_clip_alpha", "train.qk_clip.alpha", NULL),
    IF_TRUE(TOOL_MEGATRON, "qk_clip", "train.qk_clip.threshold", "100", NULL),
    COPY(TOOL_MEGATRON, "initial_loss_scale", "train.loss_scale.initial", NULL),
    COPY(TOOL_MEGATRON, "min_loss_scale", "train.loss_scale.floor", NULL),
    COPY(TOOL_MEGATRON, "loss_scale_window", "train.loss_scale.interval", NULL),
    COPY(TOOL_MEGATRON, "fp8_amax_history_len", "train.fp8.history", NULL),
    WORDS(TOOL_MEGATRON, "fp8_recipe", "train.fp8.scaling", "delayed=delayed tensorwise=current",
          NULL),
    DROP(TOOL_MEGATRON, "fp8_amax_compute_algo fp8_margin fp8_interval",
         "train.fp8 has what there is"),
    IF_TRUE(TOOL_MEGATRON, "grad_reduce_in_bf16", "train.grad_reduce_dtype", "bf16", NULL),
    DROP(TOOL_MEGATRON,
         "attention_softmax_in_fp32 accumulate_allreduce_grads_in_fp32 "
         "no_masked_softmax_fusion no_gradient_accumulation_fusion "
         "cross_entropy_loss_fusion no_rope_fusion bias_swiglu_fusion "
         "apply_query_key_layer_scaling masked_softmax_fusion",
         "sums and softmax are in fp32, and fused"),

    /* ---- adapters ---- */
    CALL(TOOL_AXOLOTL, "adapter", "train.adapter.type", CALL_ADAPTER, NULL),
    CALL(TOOL_FACTORY, "finetuning_type", "train.adapter.type", CALL_ADAPTER, NULL),
    CALL(TOOL_TRL, "use_peft", "train.adapter.type", CALL_ADAPTER, NULL),
    COPY(TOOL_AXOLOTL | TOOL_TRL, "lora_r", "train.adapter.rank", NULL),
    COPY(TOOL_FACTORY, "lora_rank", "train.adapter.rank", NULL),
    COPY(TOOL_TUNE, "model.lora_rank", "train.adapter.rank", NULL),
    COPY(TOOL_AXOLOTL | TOOL_TRL | TOOL_FACTORY, "lora_alpha", "train.adapter.alpha", NULL),
    COPY(TOOL_TUNE, "model.lora_alpha", "train.adapter.alpha", NULL),
    COPY(TOOL_AXOLOTL | TOOL_TRL | TOOL_FACTORY, "lora_dropout", "train.adapter.dropout", NULL),
    COPY(TOOL_TUNE, "model.lora_dropout", "train.adapter.dropout", NULL),
    IF_TRUE(TOOL_AXOLOTL, "lora_target_linear", "train.adapter.targets", "all-linear", NULL),
    CALL(TOOL_AXOLOTL | TOOL_TRL, "lora_target_modules", "train.adapter.targets", CALL_TARGETS,
         NULL),
    CALL(TOOL_FACTORY, "lora_target", "train.adapter.targets", CALL_TARGETS, NULL),
    CALL(TOOL_TUNE, "model.lora_attn_modules model.apply_lora_to_mlp", "train.adapter.targets",
         CALL_TARGETS, NULL),
    LACK(TOOL_TUNE, "model.apply_lora_to_output",
         "the head gets no adapter; train.adapter.trainable: [head]"),
    CALL(TOOL_AXOLOTL | TOOL_TRL, "lora_modules_to_save", "train.adapter.trainable", CALL_ALSO,
         NULL),
    CALL(TOOL_FACTORY, "additional_target", "train.adapter.trainable", CALL_ALSO, NULL),
    BOOL(TOOL_AXOLOTL, "peft_use_dora", "train.adapter.dora", NULL),
    BOOL(TOOL_TRL | TOOL_FACTORY, "use_dora", "train.adapter.dora", NULL),
    BOOL(TOOL_TUNE, "model.use_dora", "train.adapter.dora", NULL),
    BOOL(TOOL_AXOLOTL, "peft_use_rslora", "train.adapter.rslora", NULL),
    BOOL(TOOL_TRL | TOOL_FACTORY, "use_rslora", "train.adapter.rslora", NULL),
    COPY(TOOL_AXOLOTL | TOOL_FACTORY, "loraplus_lr_ratio", "train.adapter.loraplus_lr_ratio", NULL),
    LACK(TOOL_AXOLOTL | TOOL_FACTORY, "loraplus_lr_embedding", "not here"),
    IF_TRUE(TOOL_FACTORY, "pissa_init use_pissa", "train.adapter.init", "pissa", NULL),
    DROP(TOOL_FACTORY, "pissa_iter", "how the directions are computed is fixed"),
    WORDS(TOOL_AXOLOTL | TOOL_TRL, "peft_init_lora_weights", "train.adapter.init",
          "pissa=pissa true=zero", NULL),
    COPY(TOOL_AXOLOTL, "lora_model_dir", "train.adapter.from", NULL),
    COPY(TOOL_FACTORY, "adapter_name_or_path", "train.adapter.from", NULL),
    DROP(TOOL_AXOLOTL | TOOL_TRL,
         "lora_fan_in_fan_out lora_task_type lora_mlp_kernel lora_qkv_kernel "
         "lora_o_kernel lora_on_cpu",
         "products with an adapter are kernels here"),
    LACK(TOOL_AXOLOTL | TOOL_TRL, "peft_layers_to_transform lora_layers_to_transform",
         "an adapter is in every block"),
    LACK(TOOL_AXOLOTL | TOOL_TRL, "peft", "train.adapter.init: pissa is the only other beginning"),
    LACK(TOOL_AXOLOTL, "unfrozen_parameters",
         "train.trainable takes a list of patterns of our names"),
    CALL(TOOL_FACTORY, "freeze_trainable_layers", "train.trainable", CALL_LAST_LAYERS, NULL),
    DROP(TOOL_TUNE, "save_adapter_weights_only quantizer", "a checkpoint has what trains"),
    IF_TRUE(TOOL_TUNE, "model.quantize_base", "model.quantization", "nf4", NULL),

    /* ---- preferences ---- */
    CALL(TOOL_AXOLOTL, "rl", "train.objective", CALL_OBJECTIVE, NULL),
    CALL(TOOL_FACTORY, "stage", "train.objective", CALL_OBJECTIVE, NULL),
    IF_TRUE(TOOL_AXOLOTL, "reward_model", "train.objective", "reward", NULL),
    COPY(TOOL_AXOLOTL, "rl_beta dpo_beta orpo_alpha", "train.preference.beta", NULL),
    COPY(TOOL_FACTORY, "pref_beta", "train.preference.beta", NULL),
    CALL(TOOL_FACTORY, "pref_loss", "train.objective", CALL_PREFERENCE, NULL),
    CALL(TOOL_TRL, "loss_type", "train.objective", CALL_PREFERENCE, NULL),
    CALL(TOOL_TRL, "beta", "train.preference.beta", CALL_BETA, NULL),
    COPY(TOOL_TUNE, "loss.beta", "train.preference.beta", NULL),
    COPY(TOOL_AXOLOTL | TOOL_TRL, "center_rewards_coefficient", "train.preference.center", NULL),
    COPY(TOOL_TUNE, "loss.label_smoothing", "train.preference.smoothing", NULL),
    CALL(TOOL_TRL, "teacher_model_name_or_path", "train.distill.teacher", CALL_TEACHER,
         "docs/distillation.md has loss, weight and beta"),
    COPY(TOOL_TRL, "label_smoothing", "train.preference.smoothing", NULL),
    COPY(TOOL_AXOLOTL | TOOL_FACTORY, "dpo_label_smoothing", "train.preference.smoothing", NULL),
    COPY(TOOL_TRL | TOOL_AXOLOTL, "rpo_alpha cpo_alpha", "train.preference.sft", NULL),
    COPY(TOOL_FACTORY, "pref_ftx", "train.preference.sft", NULL),
    COPY(TOOL_TRL | TOOL_FACTORY, "simpo_gamma", "train.preference.gamma", NULL),
    COPY(TOOL_TRL, "desirable_weight", "train.preference.desirable_weight", NULL),
    COPY(TOOL_TRL, "undesirable_weight", "train.preference.undesirable_weight", NULL),
    COPY(TOOL_AXOLOTL, "kto_desirable_weight", "train.preference.desirable_weight", NULL),
    COPY(TOOL_AXOLOTL, "kto_undesirable_weight", "train.preference.undesirable_weight", NULL),
    COPY(TOOL_FACTORY, "kto_chosen_weight", "train.preference.desirable_weight", NULL),
    COPY(TOOL_FACTORY, "kto_rejected_weight", "train.preference.undesirable_weight", NULL),
    CALL(TOOL_TRL, "reward_funcs", "train.objective", CALL_GRPO, NULL),
    CALL(TOOL_TRL, "num_generations", "train.rollout.group", CALL_GRPO, NULL),
    CALL(TOOL_TRL, "reward_model_name_or_path", "train.rewards", CALL_REWARD_MODEL, NULL),
    COPY(TOOL_TRL, "max_completion_length max_new_tokens", "train.rollout.max_tokens", NULL),
    COPY(TOOL_TRL, "lmbda", "train.distill.on_policy", NULL),
    COPY(TOOL_TRL, "temperature", "train.rollout.temperature", NULL),
    COPY(TOOL_TRL, "num_iterations", "train.rollout.updates", NULL),
    COPY(TOOL_TRL, "epsilon", "train.policy.clip_low", "and train.policy.clip_high"),
    COPY(TOOL_TRL, "epsilon_high", "train.policy.clip_high", NULL),
    WORDS(TOOL_TRL, "scale_rewards", "train.policy.scale",
          "group=group true=group batch=batch none=none false=none", NULL),
    BOOL(TOOL_TRL, "mask_truncated_completions", "train.policy.mask_truncated", NULL),
    LACK(TOOLS_SFT & ~TOOL_TRL, "trl num_generations reward_funcs",
         "docs/grpo.md has what answers and rewards have here"),
    DROP(TOOLS_SFT, "vllm use_vllm", "the ranks that train write the answers"),
    LACK(TOOLS_SFT, "ld_alpha dpo_use_weighting rl_adapter_ref_model",
         "docs/fine-tuning.md has the losses on pairs that there are"),
    DROP(TOOL_TRL, "precompute_ref_log_probs disable_dropout generate_during_eval truncation_mode",
         "the reference's values are computed once, before the first step"),
    LACK(TOOL_TRL, "sync_ref_model ref_model_mixup_alpha reference_free f_divergence_type",
         "the reference is the model at the start, and stays; the divergence is reverse_kl"),

    /* ---- memory and speed ---- */
    IF_TRUE(TOOLS_SFT, "gradient_checkpointing", "parallel.recompute", "full", NULL),
    IF_TRUE(TOOL_TUNE, "enable_activation_checkpointing", "parallel.recompute", "full", NULL),
    IF_TRUE(TOOL_MEGATRON, "recompute_activations", "parallel.recompute", "selective", NULL),
    WORDS(TOOL_MEGATRON, "recompute_granularity", "parallel.recompute",
          "full=full selective=selective", NULL),
    DROP(TOOL_MEGATRON, "recompute_method recompute_num_layers recompute_modules",
         "parallel.recompute: {full: K} saves the input of every K layers"),
    DROP(TOOLS_SFT,
         "gradient_checkpointing_kwargs use_reentrant disable_gradient_checkpointing "
         "use_unsloth_gc unsloth_cross_entropy_loss unsloth_lora_mlp unsloth_lora_qkv "
         "unsloth_lora_o unsloth_rms_norm unsloth_rope use_unsloth",
         "parallel.recompute has what there is"),
    LACK(TOOL_TUNE, "enable_activation_offloading",
         "activations are recomputed, not moved to the host"),
    LACK(TOOL_AXOLOTL, "activation_offloading",
         "activations are recomputed, not moved to the host"),
    DROP(TOOL_AXOLOTL,
         "plugins liger_rope liger_rms_norm liger_glu_activation liger_swiglu "
         "liger_layer_norm liger_fused_linear_cross_entropy liger_cross_entropy "
         "cut_cross_entropy experimental_attn_implementation xformers "
         "flash_attn_rms_norm flash_attn_fuse_qkv flash_attn_fuse_mlp flash_optimum "
         "use_kernels scaling_softmax",
         "kernels are chosen by themselves"),
    DROP(TOOLS_SFT,
         "flash_attention flash_attn attn_implementation xformers_attention sdp_attention "
         "sdpa_attention eager_attention flex_attention use_flash_attention_2 "
         "enable_liger_kernel use_liger_kernel torch_compile torch_compile_backend "
         "torch_compile_mode use_cache optimizer_torch_compile",
         "attention is in tiles, and nothing is compiled while a job runs"),
    LACK(TOOLS_SFT, "s2_attention shift_attn mixture_of_depths rope_scaling_factor",
         "attention and positions are those of model.from"),
    DROP(TOOL_TUNE, "compile loss.num_output_chunks loss.ignore_index model.attn_dropout",
         "nothing is compiled while a job runs; the head works in chunks"),
    DROP(TOOL_MEGATRON,
         "use_flash_attn transformer_impl use_mcore_models attention_backend "
         "overlap_grad_reduce overlap_param_gather tp_comm_overlap "
         "no_async_tensor_model_parallel_allreduce use_legacy_models "
         "ddp_bucket_size manual_gc manual_gc_interval empty_unused_memory_level "
         "cuda_graph_impl enable_cuda_graph use_cpu_initialization "
         "distributed_timeout_minutes distributed_backend calculate_per_token_loss",
         "collectives overlap by themselves"),
    CALL(TOOL_AXOLOTL | TOOLS_HF, "deepspeed fsdp fsdp_config fsdp_version", "parallel.zero",
         CALL_ZERO, NULL),
    IF_TRUE(TOOL_MEGATRON, "use_distributed_optimizer", "parallel.zero", "1", NULL),
    IF_TRUE(TOOL_MEGATRON, "use_torch_fsdp2 use_custom_fsdp use_megatron_fsdp", "parallel.zero",
            "3", NULL),
    IF_TRUE(TOOL_TUNE, "fsdp_cpu_offload", "parallel.offload", "optimizer", NULL),
    IF_TRUE(TOOL_MEGATRON, "optimizer_cpu_offload", "parallel.offload", "optimizer", NULL),
    COPY(TOOL_AXOLOTL, "tensor_parallel_size", "parallel.tp", NULL),
    COPY(TOOL_AXOLOTL, "context_parallel_size sequence_parallel_degree", "parallel.cp", NULL),
    DROP(TOOL_AXOLOTL,
         "dp_shard_size dp_replicate_size heads_k_stride ring_attn_func ddp ddp_timeout "
         "ddp_bucket_cap_mb ddp_broadcast_buffers ddp_find_unused_parameters local_rank "
         "world_size device_map max_memory low_cpu_mem_usage",
         "parallel.zero shards over all replicas; ranks find one another by themselves"),
    DROP(TOOLS_HF,
         "ddp_timeout ddp_find_unused_parameters ddp_backend local_rank ddp_bucket_cap_mb "
         "low_cpu_mem_usage device_map no_cuda use_cpu no_python",
         "ranks find one another by themselves"),
    COPY(TOOL_TUNE, "tensor_parallel_dim", "parallel.tp", NULL),
    COPY(TOOL_TUNE, "context_parallel_dim", "parallel.cp", NULL),
    DROP(TOOL_TUNE,
         "data_parallel_shard_dim data_parallel_replicate_dim tensor_parallel_plan "
         "fsdp_reshard_after_forward custom_sharded_layers",
         "parallel.zero shards over all replicas"),
    COPY(TOOL_MEGATRON, "tensor_model_parallel_size", "parallel.tp", NULL),
    COPY(TOOL_MEGATRON, "pipeline_model_parallel_size", "parallel.pp", NULL),
    COPY(TOOL_MEGATRON, "context_parallel_size", "parallel.cp", NULL),
    COPY(TOOL_MEGATRON, "expert_model_parallel_size", "parallel.ep", NULL),
    LACK(TOOL_MEGATRON, "expert_tensor_parallel_size", "experts have no tp of their own"),
    BOOL(TOOL_MEGATRON, "sequence_parallel", "parallel.sequence", NULL),
    WORDS(TOOL_MEGATRON, "cp_comm_type", "parallel.cp_exchange", "p2p=ring all_gather=all_gather",
          NULL),
    COPY(TOOL_MEGATRON, "virtual_pipeline_model_parallel_size num_virtual_stages_per_pipeline_rank",
         "parallel.virtual_stages", NULL),
    LACK(TOOL_MEGATRON,
         "num_layers_per_virtual_pipeline_stage decoder_first_pipeline_num_layers "
         "decoder_last_pipeline_num_layers pipeline_model_parallel_layout "
         "account_for_embedding_in_pipeline_split",
         "parallel.virtual_stages = layers / (pp x that number); parallel.layers_per_stage"),
    CALL(TOOL_MEGATRON, "nproc_per_node gpus_per_node", "resources.devices", CALL_DEVICES, NULL),
    CALL(TOOL_MEGATRON, "nnodes num_nodes", "resources.devices", CALL_NODES, NULL),
    CALL(TOOL_MEGATRON, "world_size", "resources.devices", CALL_DEVICES, NULL),
    DROP(TOOL_MEGATRON,
         "node_rank master_addr master_port rdzv_backend rdzv_endpoint rdzv_id "
         "local_rank",
         "ranks find one another by the controller"),
    WORDS(TOOL_TUNE, "device", "resources.device_type", "cuda=cuda cpu=cpu", NULL),

    /* ---- validation, checkpoints, reports ---- */
    CALL(TOOL_AXOLOTL, "eval_steps", "validate.every", CALL_STEPS, NULL),
    CALL(TOOLS_HF, "eval_steps", "validate.every", CALL_STEPS, NULL),
    COPY(TOOL_TUNE, "run_val_every_n_steps", "validate.every", NULL),
    COPY(TOOL_MEGATRON, "eval_interval", "validate.every", NULL),
    COPY(TOOL_MEGATRON, "eval_iters", "validate.batches", NULL),
    CALL(TOOL_AXOLOTL, "evals_per_epoch", "validate.every", CALL_PER_EPOCH, NULL),
    CALL(TOOL_AXOLOTL, "saves_per_epoch", "checkpoint.every", CALL_PER_EPOCH, NULL),
    CALL(TOOLS_SFT, "eval_strategy evaluation_strategy", "validate.every", CALL_STRATEGY, NULL),
    CALL(TOOLS_SFT, "save_strategy", "checkpoint.every", CALL_STRATEGY, NULL),
    CALL(TOOLS_SFT, "save_steps", "checkpoint.every", CALL_STEPS, NULL),
    COPY(TOOL_MEGATRON, "save_interval", "checkpoint.every", NULL),
    COPY(TOOL_TUNE, "save_every_n_steps", "checkpoint.every", NULL),
    COPY(TOOLS_SFT, "save_total_limit", "checkpoint.keep", NULL),
    BOOL(TOOLS_SFT, "load_best_model_at_end", "checkpoint.best", NULL),
    DROP(TOOLS_SFT, "metric_for_best_model greater_is_better",
         "checkpoint.best goes by the validation loss"),
    BOOL(TOOL_MEGATRON, "async_save", "checkpoint.async", NULL),
    COPY(TOOL_AXOLOTL | TOOLS_HF, "early_stopping_patience", "validate.stop.patience", NULL),
    COPY(TOOLS_HF, "early_stopping_threshold", "validate.stop.min_delta", NULL),
    COPY(TOOLS_SFT, "logging_steps", "train.log_every", NULL),
    COPY(TOOL_TUNE, "log_every_n_steps", "train.log_every", NULL),
    COPY(TOOL_MEGATRON, "log_interval", "train.log_every", NULL),
    LACK(TOOL_AXOLOTL, "loss_watchdog_threshold",
         "train.guard.spike: 6 watches for spikes of loss and gradient norm"),
    DROP(TOOL_AXOLOTL, "loss_watchdog_patience", "train.guard watches for spikes"),
    CALL(TOOL_AXOLOTL, "wandb_project wandb_name wandb_run_id", "name", CALL_NAME, NULL),
    CALL(TOOLS_HF, "run_name", "name", CALL_NAME, NULL),
    DROP(TOOL_AXOLOTL,
         "wandb_entity wandb_watch wandb_log_model wandb_mode use_wandb use_tensorboard "
         "use_mlflow mlflow_tracking_uri mlflow_experiment_name mlflow_run_name "
         "hf_mlflow_log_artifacts use_comet comet_project_name comet_workspace",
         "heddle track sends a run to MLflow; docs/tracking.md has W&B; TensorBoard files are "
         "always there"),
    DROP(TOOLS_HF,
         "report_to logging_dir logging_first_step logging_strategy log_level plot_loss "
         "include_num_input_tokens_seen include_tokens_per_second log_completions "
         "disable_tqdm logging_nan_inf_filter use_swanlab",
         "heddle track sends a run to MLflow; docs/tracking.md has W&B; TensorBoard files are "
         "always there"),
    DROP(TOOL_TUNE, "metric_logger log_peak_memory_stats log_level profiler",
         "heddle track sends a run to MLflow; docs/tracking.md has W&B; TensorBoard files are "
         "always there"),
    DROP(TOOL_MEGATRON,
         "tensorboard_dir wandb_project wandb_exp_name wandb_save_dir "
         "tensorboard_log_interval tensorboard_queue_size log_timers_to_tensorboard "
         "log_validation_ppl_to_tensorboard log_memory_to_tensorboard log_throughput "
         "log_params_norm log_num_zeros_in_grad log_progress timing_log_level "
         "log_batch_size_to_tensorboard log_world_size_to_tensorboard profile",
         "heddle track sends a run to MLflow; docs/tracking.md has W&B; TensorBoard files are "
         "always there"),
    CALL(TOOLS_SFT | TOOL_TUNE, "output_dir", "name", CALL_OUTPUT, NULL),
    CALL(TOOL_MEGATRON, "save", "name", CALL_OUTPUT, NULL),
    DROP(TOOL_AXOLOTL | TOOLS_HF,
         "resume_from_checkpoint auto_resume_from_checkpoints "
         "overwrite_output_dir save_only_model save_safetensors ignore_data_skip "
         "restore_callback_states_from_checkpoint",
         "heddle local --resume, heddle resume JOB; exports are by heddle checkpoint export"),
    DROP(TOOL_TUNE, "resume_from_checkpoint", "heddle local --resume, heddle resume JOB"),
    DROP(TOOL_MEGATRON,
         "no_load_optim no_load_rng no_save_optim no_save_rng finetune ckpt_format "
         "use_dist_ckpt auto_detect_ckpt_format dist_ckpt_format exit_on_missing_checkpoint "
         "use_checkpoint_args ckpt_fully_parallel_save",
         "heddle resume JOB goes on; train.init_from starts from weights"),
    DROP(TOOLS_SFT,
         "hub_model_id push_to_hub hub_strategy hub_token hub_private_repo hf_use_auth_token "
         "hub_always_push",
         "heddle checkpoint export writes a model for the hub"),
    DROP(TOOLS_SFT,
         "strict debug do_train do_eval do_predict dataloader_num_workers "
         "dataloader_pin_memory dataloader_prefetch_factor dataloader_drop_last early_stop "
         "eval_table_size eval_max_new_tokens do_bench_eval do_causal_lm_eval "
         "dataloader_persistent_workers past_index predict_with_generate prediction_loss_only "
         "accelerator_config jit_mode_eval torch_empty_cache_steps eval_on_start config_file "
         "eval_delay infer_backend",
         "no key is needed"),
    LACK(TOOL_FACTORY,
         "visual_inputs freeze_vision_tower freeze_multi_modal_projector image_max_pixels",
         "only text models train"),
    DROP(TOOL_MEGATRON,
         "num_workers data_parallel_random_init train_sync_interval "
         "no_check_for_nan_in_loss_and_grad check_for_nan_in_loss_and_grad exit_signal_handler "
         "exit_signal",
         "no key is needed"),
};

const size_t spec_row_count = sizeof spec_rows / sizeof spec_rows[0];

const struct spec_row *spec_find_row(unsigned tools, const char *name)
{
    for (size_t i = 0; i < spec_row_count; i++)
        if ((spec_rows[i].tools & tools) && hd_words_have(spec_rows[i].names, name))
            return &spec_rows[i];
    return NULL;
}

/* Returns whether `name` is what follows the last '.' of one of `names`, as apply_lora_to_mlp is of
 * model.apply_lora_to_mlp. */
static bool has_last_part(const char *names, const char *name)
{
    const size_t len = strlen(name);

    for (const char *at = names; (at = strchr(at, '.')); at++)
        if (strncmp(at + 1, name, len) == 0 && (at[1 + len] == ' ' || !at[1 + len]))
            return true;
    return false;
}

const char *spec_find_translated(const char *name, bool *ret_is_key, const char **ret_note)
{
    *ret_note = NULL;
    for (int parts = 0; parts < 2; parts++)
        for (size_t i = 0; i < spec_row_count; i++) {
            const struct spec_row *row = &spec_rows[i];

            if (!(parts ? has_last_part(row->names, name) : hd_words_have(row->names, name)))
                continue;
            *ret_is_key = row->path != NULL && hd_job_find_key(row->path);
            return *ret_is_key ? row->path : row->note;
        }
    return NULL;
}
