/* foreign: names that other programs use for our keys: config.json of transformers and its
 * TrainingArguments, nanoGPT, Megatron-LM, DeepSpeed, Lightning. Used for the hint at an unknown
 * key. */
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
    {"name", "run_name job_name experiment_name wandb_run_name", NULL},

    {"model.family", "model_type architecture architectures arch", NULL},
    {"model.from",
     "_name_or_path model_name_or_path pretrained_model_name_or_path model_path hf_path", NULL},
    {"model.layers", "n_layer n_layers num_layers num_hidden_layers nlayers depth", NULL},
    {"model.hidden",
     "n_embd n_embed hidden_size d_model hidden_dim embed_dim embedding_dim dim model_dim", NULL},
    {"model.heads", "n_head n_heads num_heads num_attention_heads nhead", NULL},
    {"model.kv_heads",
     "num_key_value_heads n_kv_head n_kv_heads num_kv_heads num_query_groups "
     "n_query_groups",
     NULL},
    {"model.head_width", "head_dim kv_channels head_size d_head attention_head_dim", NULL},
    {"model.ffn_hidden",
     "intermediate_size n_inner ffn_hidden_size ffn_dim d_ff feed_forward_dim "
     "mlp_hidden_size moe_ffn_hidden_size moe_intermediate_size",
     NULL},
    {"model.vocab", "vocab_size n_vocab padded_vocab_size", NULL},
    {"model.context",
     "n_positions n_ctx max_position_embeddings seq_length seq_len block_size "
     "max_seq_len max_seq_length max_sequence_length model_max_length "
     "context_length sequence_length",
     NULL},
    {"model.positions", "position_embedding_type position_embeddings", NULL},
    {"model.rope_theta", "rotary_base rope_base rotary_emb_base", NULL},
    {"model.rope_scaling", "rope_parameters", NULL},
    {"model.norm_eps",
     "rms_norm_eps layer_norm_epsilon layer_norm_eps layernorm_epsilon norm_epsilon", NULL},
    {"model.tie_embeddings", "tie_word_embeddings share_embeddings_and_output_weights weight_tying",
     NULL},
    {"model.tie_embeddings", "untie_embeddings_and_output_weights", "It says the opposite."},
    {"model.qkv_bias", "attention_bias add_qkv_bias", "model.out_bias is a key of its own."},
    {"model.qkv_bias", "bias add_bias_linear",
     "model.out_bias and model.mlp_bias are keys of their own."},
    {"model.qk_norm", "use_qk_norm qk_layernorm", NULL},
    {"model.window", "sliding_window window_size sliding_window_size attention_window", NULL},
    {"model.window_from", "max_window_layers", NULL},
    {"model.experts", "num_local_experts num_experts n_experts num_moe_experts n_routed_experts",
     NULL},
    {"model.experts_per_token",
     "num_experts_per_tok moe_router_topk num_experts_per_token moe_top_k", NULL},
    {"model.shared_ffn_hidden",
     "shared_expert_intermediate_size moe_shared_expert_intermediate_size", NULL},
    {"model.router.renormalize", "norm_topk_prob", NULL},
    {"model.router.balance",
     "router_aux_loss_coef moe_aux_loss_coeff aux_loss_coef aux_loss_weight load_balancing_weight",
     "The loss is 1 at balance in each block, and summed over the blocks."},
    {"model.router.z", "router_z_loss_coef moe_z_loss_coeff z_loss_weight", NULL},
    {"model.router.capacity", "moe_expert_capacity_factor capacity_factor expert_capacity_factor",
     NULL},

    {"data.train",
     "dataset data_path train_data_path train_file train_files train_data "
     "train_dataset data_files dataset_path",
     NULL},
    {"data.val", "valid_data_path validation_file val_data_path eval_dataset validation_data",
     NULL},
    {"data.split", "val_split validation_split validation_split_percentage test_split", NULL},
    {"data.tokenizer",
     "tokenizer_name tokenizer_path tokenizer_file tokenizer_model tokenizer_type vocab_file",
     NULL},
    {"data.end_of_text", "eos_token_id eos_id eod_token_id eos_token", NULL},
    {"data.order", "shuffle dataloader_type", NULL},

    {"train.steps",
     "max_steps max_iters train_iters num_steps total_steps num_train_steps "
     "training_steps num_iterations iterations train_steps",
     NULL},
    {"train.steps", "train_samples", "A run is counted in steps of train.global_batch sequences."},
    {"train.epochs", "epochs num_epochs num_train_epochs max_epochs", NULL},
    {"data.template", "chat_template chat_template_path", NULL},
    {"data.loss",
     "assistant_only_loss completion_only_loss train_on_inputs train_on_responses_only", NULL},
    {"train.global_batch", "batch_size global_batch_size train_batch_size total_batch_size", NULL},
    {"parallel.micro_batch",
     "micro_batch_size per_device_train_batch_size train_micro_batch_size_per_gpu "
     "device_batch_size",
     NULL},
    {"train.global_batch",
     "gradient_accumulation_steps accumulate_grad_batches grad_accum_steps gradient_accumulation",
     "A step accumulates micro-batches of parallel.micro_batch sequences until it has that many."},
    {"train.lr", "learning_rate lr_peak max_lr peak_lr base_lr", NULL},
    {"train.lr.warmup",
     "warmup_steps warmup_iters lr_warmup_iters num_warmup_steps lr_warmup_steps "
     "lr_warmup_samples warmup",
     NULL},
    {"train.lr.warmup", "warmup_ratio lr_warmup_fraction", "It is a number of steps."},
    {"train.lr.decay",
     "lr_scheduler_type lr_decay_style lr_scheduler scheduler lr_schedule decay_lr", NULL},
    {"train.lr.decay_steps", "lr_decay_iters lr_decay_steps decay_steps", NULL},
    {"train.lr.min", "min_lr learning_rate_min lr_min min_learning_rate", NULL},
    {"train.weight_decay", "wd adam_weight_decay adamw_weight_decay", NULL},
    {"train.beta1", "adam_beta1", NULL},
    {"train.beta2", "adam_beta2", NULL},
    {"train.beta1", "betas adam_betas", "train.beta2 is a key of its own."},
    {"train.eps", "adam_epsilon adam_eps epsilon", NULL},
    {"train.clip",
     "max_grad_norm grad_clip clip_grad gradient_clip_val gradient_clipping "
     "clip_grad_norm",
     NULL},
    {"train.precision", "bf16 fp16 fp8 dtype torch_dtype mixed_precision params_dtype", NULL},
    {"train.moments", "optim_bits use_8bit_adam adam_bits", NULL},
    {"train.dropout.attention", "attn_pdrop attention_dropout attn_dropout", NULL},
    {"train.dropout.embedding", "embd_pdrop embedding_dropout", NULL},
    {"train.dropout.residual", "resid_pdrop hidden_dropout residual_dropout resid_dropout", NULL},
    {"train.log_every", "logging_steps log_interval log_every_n_steps", NULL},
    {"train.seed", "random_seed manual_seed", NULL},
    {"train.init_from", "finetune_from init_from_checkpoint pretrained_checkpoint load", NULL},

    {"validate.every", "eval_interval eval_steps val_check_interval eval_every val_interval", NULL},
    {"validate.batches", "eval_iters eval_batches limit_val_batches max_eval_batches", NULL},

    {"parallel.tp",
     "tensor_parallel_size tensor_model_parallel_size tp_size tensor_parallel model_parallel_size",
     NULL},
    {"parallel.pp", "pipeline_parallel_size pipeline_model_parallel_size pp_size pipeline_parallel",
     NULL},
    {"parallel.dp", "data_parallel_size dp_size data_parallel data_parallel_replicate_degree",
     NULL},
    {"parallel.cp", "context_parallel_size cp_size context_parallel", NULL},
    {"parallel.ep", "expert_parallel_size expert_model_parallel_size ep_size expert_parallel",
     NULL},
    {"parallel.sequence", "sequence_parallel sequence_parallelism", NULL},
    {"parallel.zero", "zero_stage zero_optimization use_distributed_optimizer fsdp", NULL},
    {"parallel.offload",
     "cpu_offload offload_optimizer optimizer_cpu_offload offload_optimizer_device", NULL},
    {"parallel.recompute",
     "gradient_checkpointing activation_checkpointing recompute_granularity recompute_activations",
     NULL},

    {"resources.devices",
     "num_gpus n_gpus ngpus gpus nproc_per_node world_size num_devices "
     "num_processes gpus_per_node",
     NULL},
    {"resources.device", "accelerator device_type", NULL},
    {"resources.threads", "num_threads omp_num_threads cpus_per_task", NULL},

    {"checkpoint.every",
     "save_steps save_interval save_every checkpoint_interval "
     "checkpointing_steps ckpt_interval",
     NULL},
    {"checkpoint.keep", "save_total_limit save_top_k keep_last_n_checkpoints", NULL},
    {"restart.max", "max_restarts restart_limit", NULL},
};

static int depth_of(const char *path)
{
    int depth = 0;

    for (; *path; path++)
        depth += *path == '.';
    return depth;
}

/* Returns the path of the key whose last part is `name`, such as `tp` outside its group. Of
 * several, the one in the outermost group; NULL: none, or two are equally far out. The keys of
 * `hang` are left out: a user who writes `step` or `validation` in another group means train.steps
 * or validate. */
static const char *find_elsewhere(const char *name)
{
    const char *found = NULL;
    bool several = false;

    for (size_t i = 0; i < hd_job_key_count; i++) {
        const char *path = hd_job_keys[i].path, *dot = strrchr(path, '.');

        if (hd_job_keys[i].hidden || !dot || strcmp(dot + 1, name) != 0 ||
            strncmp(path, "hang.", 5) == 0 || (found && depth_of(path) > depth_of(found)))
            continue;
        several = found && depth_of(path) == depth_of(found);
        found = path;
    }
    return several ? NULL : found;
}

const char *spec_find_foreign(const char *name, const char **ret_note)
{
    char plain[NAME_MAX_BYTES];
    const size_t len = strlen(name);

    *ret_note = NULL;
    if (!len || len >= sizeof plain)
        return NULL;
    for (size_t i = 0; i <= len; i++)
        plain[i] = name[i] == '-' ? '_' : (char)tolower((unsigned char)name[i]);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (hd_words_have(keys[i].names, plain)) {
            *ret_note = keys[i].note;
            return keys[i].path;
        }
    return find_elsewhere(plain);
}
