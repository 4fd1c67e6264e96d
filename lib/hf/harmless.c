/* harmless: keys of config.json that have no effect on training, whatever their value: those of
 * transformers' configuration classes (versions 4 and 5: PretrainedConfig, GPT2Config, LlamaConfig,
 * MistralConfig, MixtralConfig, Qwen2Config, Qwen3Config), and others that published files of these
 * types have. A key that matters with some value has a rule in config.c. */
#include "base/words.h"
#include "hf/hf_internal.h"

/* Keys of config.json without an effect, by the classes that have them; those of single classes
 * are in families.def. `names` are separated
 * by blanks. */
enum groups { EVERY, GPT2, ROTARY, EXPERTS };
static const struct {
    enum groups of;
    const char *why, *names;
} groups[] = {
    {GPT2, "an older name of n_positions", "n_ctx"},
    {GPT2, "how an implementation rounds", "reorder_and_upcast_attn"},
    {GPT2, "of a classifier's head",
     "summary_activation summary_first_dropout summary_proj_to_labels summary_type "
     "summary_use_proj"},
    {EXPERTS, "what a call returns; the job says what is trained", "output_router_logits"},
    {ROTARY, "how an implementation rounds", "pretraining_tp"},
    {GPT2, "of an older model's vocabulary", "n_special"},
    {GPT2, "of an older model's head", "predict_special_tokens"},
    {GPT2, "what a call returns", "output_past"},
    {ROTARY, "where the file came from", "is_llama_config"},
    {ROTARY, "an older name of max_position_embeddings", "max_sequence_length"},
    {EVERY, "these types always are", "is_decoder"},
    {EVERY, "where the file came from",
     "_name_or_path name_or_path _commit_hash transformers_version unsloth_fixed unsloth_version"},
    {EVERY, "of another library", "transformers.js_config"},
    {EVERY, "each tensor says its own", "dtype torch_dtype use_bfloat16"},
    {EVERY, "of new weights; these are read", "initializer_range"},
    {EVERY, "of generation",
     "use_cache task_specific_params max_length min_length do_sample early_stopping num_beams "
     "num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty "
     "length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids "
     "num_return_sequences output_scores return_dict_in_generate forced_bos_token_id "
     "forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens "
     "begin_suppress_tokens"},
    {EVERY, "of the tokenizer",
     "tokenizer_class model_max_length prefix bos_token_id eos_token_id unk_token_id sep_token_id "
     "decoder_start_token_id"},
    {EVERY, "of the tokenizer; sequences are never padded", "pad_token_id"},
    {EVERY, "what a call returns", "output_attentions output_hidden_states return_dict"},
    {EVERY, "how an implementation computes",
     "torchscript xla_device tf_legacy_loss attn_implementation _attn_implementation "
     "_attn_implementation_internal _attn_implementation_autoset _flash_attn_2_enabled"},
    {EVERY, "how an implementation saves memory", "chunk_size_feed_forward gradient_checkpointing"},
    {EVERY, "of a classifier's head",
     "id2label label2id num_labels _num_labels problem_type classifier_dropout finetuning_task"},
};

bool hd_hf_is_harmless(const char *name, const struct hd_family *family)
{
    const bool is[] = {[EVERY] = true,
                       [GPT2] = hd_hf_has_gpt2_keys(family),
                       [ROTARY] = !hd_hf_has_gpt2_keys(family),
                       [EXPERTS] = family->experts};

    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++)
        if (is[groups[i].of] && hd_words_have(groups[i].names, name))
            return true;
    return false;
}
