#!/usr/bin/perl
# stand_in: models of the hub as a recipe sees them, without their weights.
#
#   stand_in.pl HUB NAME [SHA]         the model ORG/NAME of its true size in the cache HUB, as commit SHA
#   stand_in.pl --small DIR NAME       a folder with the same kind of model, 2 layers of width 64
#
# Of a true size: config.json has the published sizes, and model.safetensors the names and shapes of all
# tensors; its body is a hole, so it takes some KB on disk. The small one has weights: small numbers that
# differ. Both have a byte-level tokenizer of 256 bytes and the special tokens of that model by their real
# names, and a chat template that marks turns by such names.
use strict;
use warnings;
use File::Path qw(make_path);

my $small = @ARGV && $ARGV[0] eq '--small' ? shift @ARGV : '';
my ($out, $name, $sha) = @ARGV;
die "usage: stand_in.pl [--small] DIR ORG/NAME\n" unless defined $name;

# Sizes: vocab, hidden, ffn, layers, heads, kv_heads, context; form: of the names of tensors.
my $llama_specials = '<|begin_of_text|> <|end_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|>';
my $qwen_specials = '<|endoftext|> <|im_start|> <|im_end|>';
my %models = (
    'meta-llama/Llama-3.1-8B' => {type => 'llama', class => 'Llama', sizes => [128256, 4096, 14336, 32, 32, 8, 131072],
        more => '"rope_theta": 500000.0, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,'
            . ' "original_max_position_embeddings": 8192, "rope_type": "llama3"}',
        specials => $llama_specials, bos => '<|begin_of_text|>', eos => '<|end_of_text|>'},
    'meta-llama/Llama-3.2-1B-Instruct' => {type => 'llama', class => 'Llama', sizes => [128256, 2048, 8192, 16, 32, 8, 131072], tied => 1,
        more => '"head_dim": 64, "rope_theta": 500000.0, "rope_scaling": {"factor": 32.0, "low_freq_factor": 1.0,'
            . ' "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}',
        specials => $llama_specials, bos => '<|begin_of_text|>', eos => '<|eot_id|>', turns => 'llama', dated => 1},
    'mistralai/Mistral-7B-v0.3' => {type => 'mistral', class => 'Mistral', sizes => [32768, 4096, 14336, 32, 32, 8, 32768],
        more => '"rope_theta": 1000000.0, "sliding_window": null', specials => '<s> </s>', bos => '<s>', eos => '</s>'},
    'mistralai/Mixtral-8x7B-v0.1' => {type => 'mixtral', class => 'Mixtral', sizes => [32000, 4096, 14336, 32, 32, 8, 32768],
        experts => 8, more => '"rope_theta": 1000000.0, "sliding_window": null, "num_local_experts": 8,'
            . ' "num_experts_per_tok": 2, "router_aux_loss_coef": 0.02', specials => '<s> </s>', bos => '<s>', eos => '</s>'},
    'Qwen/Qwen2.5-0.5B' => {type => 'qwen2', class => 'Qwen2', sizes => [151936, 896, 4864, 24, 14, 2, 32768], tied => 1,
        biases => 1, eps => '1e-06', more => '"rope_theta": 1000000.0', specials => $qwen_specials, eos => '<|endoftext|>', turns => 'qwen'},
    'Qwen/Qwen3-8B' => {type => 'qwen3', class => 'Qwen3', sizes => [151936, 4096, 12288, 36, 32, 8, 40960], head_dim => 128,
        qk_norm => 1, eps => '1e-06', more => '"head_dim": 128, "rope_theta": 1000000.0',
        specials => "$qwen_specials <think> </think>", eos => '<|im_end|>', turns => 'qwen'},
    'google/gemma-3-4b-it' => {type => 'gemma3_text', class => 'Gemma3', sizes => [262208, 2560, 10240, 34, 8, 4, 131072],
        head_dim => 256, tied => 1, qk_norm => 1, four_norms => 1, eps => '1e-06', wrapped => 1,
        more => '"head_dim": 256, "sliding_window": 1024, "query_pre_attn_scalar": 256, "rope_theta": 1000000.0,'
            . ' "rope_local_base_freq": 10000.0, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}',
        specials => '<pad> <eos> <bos> <start_of_turn> <end_of_turn>', bos => '<bos>', eos => '<eos>', turns => 'gemma'},
);
$models{'meta-llama/Llama-3.1-8B-Instruct'} = {%{$models{'meta-llama/Llama-3.1-8B'}}, eos => '<|eot_id|>', turns => 'llama'};
my $m = $models{$name} // die "stand_in: no sizes of $name\n";
my ($vocab, $hidden, $ffn, $layers, $heads, $kv_heads, $context) = @{$m->{sizes}};
($vocab, $hidden, $ffn, $layers, $heads, $kv_heads, $context) = (320, 64, 128, 2, 4, 2, $context) if $small;
my $width = !$m->{head_dim} ? $hidden / $heads : $small ? 16 : $m->{head_dim};
my $more = $m->{more};
$more =~ s/"head_dim": \d+/"head_dim": $width/ if $small;
$more =~ s/"query_pre_attn_scalar": \d+/"query_pre_attn_scalar": $width/ if $small;

my $folder = $small ? $out : do {
    (my $repo = "models--$name") =~ s{/}{--};
    make_path("$out/$repo/refs", "$out/$repo/snapshots/$sha");
    put("$out/$repo/refs/main", $sha);
    "$out/$repo/snapshots/$sha";
};
make_path($folder);

sub put { my ($path, $text) = @_; open my $f, '>', $path or die "$path: $!\n"; print $f $text; close $f or die "$path: $!\n"; }

# ---- config.json ----

my $tied = $m->{tied} ? 'true' : 'false';
my $config = qq("model_type": "$m->{type}", "vocab_size": $vocab, "hidden_size": $hidden, "intermediate_size": $ffn,)
    . qq( "num_hidden_layers": $layers, "num_attention_heads": $heads, "num_key_value_heads": $kv_heads,)
    . qq( "max_position_embeddings": $context, "rms_norm_eps": ) . ($m->{eps} // '1e-05') . qq(, "tie_word_embeddings": $tied, $more);
$config .= $m->{wrapped} ? ', "hidden_activation": "gelu_pytorch_tanh"' : ', "hidden_act": "silu"';
$config = $m->{wrapped}
    ? qq({"architectures": ["$m->{class}ForConditionalGeneration"], "model_type": "gemma3", "text_config": {$config}, "vision_config": {"model_type": "siglip_vision_model"}})
    : qq({"architectures": ["$m->{class}ForCausalLM"], $config});
put("$folder/config.json", "$config\n");

# ---- weights ----

my ($at, @tensors) = (0);
sub tensor {
    my ($tensor, @shape) = @_;
    my $bytes = 2;
    $bytes *= $_ for @shape;
    push @tensors, qq("$tensor":{"dtype":"BF16","shape":[) . join(',', @shape) . qq(],"data_offsets":[$at,) . ($at += $bytes) . ']}';
}
my $prefix = $m->{wrapped} ? 'language_model.model' : 'model';
tensor("$prefix.embed_tokens.weight", $vocab, $hidden);
for my $layer (0 .. $layers - 1) {
    my $l = "$prefix.layers.$layer";
    my %rows = (q => $heads * $width, k => $kv_heads * $width, v => $kv_heads * $width);
    tensor("$l.input_layernorm.weight", $hidden);
    tensor("$l.post_attention_layernorm.weight", $hidden);
    if ($m->{four_norms}) { tensor("$l.${_}_feedforward_layernorm.weight", $hidden) for qw(pre post); }
    if ($m->{qk_norm}) { tensor("$l.self_attn.${_}_norm.weight", $width) for qw(q k); }
    for (qw(q k v)) {
        tensor("$l.self_attn.${_}_proj.weight", $rows{$_}, $hidden);
        tensor("$l.self_attn.${_}_proj.bias", $rows{$_}) if $m->{biases};
    }
    tensor("$l.self_attn.o_proj.weight", $hidden, $rows{q});
    if ($m->{experts}) {
        tensor("$l.block_sparse_moe.gate.weight", $m->{experts}, $hidden);
        for my $e (0 .. $m->{experts} - 1) {
            tensor("$l.block_sparse_moe.experts.$e.w$_.weight", $_ == 2 ? ($hidden, $ffn) : ($ffn, $hidden)) for 1 .. 3;
        }
    } else {
        tensor("$l.mlp.${_}_proj.weight", $_ eq 'down' ? ($hidden, $ffn) : ($ffn, $hidden)) for qw(gate up down);
    }
}
tensor("$prefix.norm.weight", $hidden);
tensor('lm_head.weight', $vocab, $hidden) unless $m->{tied};

my $head = '{' . join(',', @tensors) . '}';
open my $f, '>', "$folder/model.safetensors" or die "$folder: $!\n";
binmode $f;
print $f pack('Q<', length $head), $head;
if ($small) { # bf16 from -0.06 to 0.06, by a generator of its own so that runs are equal
    my $x = 1;
    my @values = map { $x = ($x * 1103515245 + 12345) & 0x7fffffff; (unpack 'L', pack 'f', ($x / 0x7fffffff - 0.5) / 8) >> 16 } 1 .. 4099;
    my $block = pack 'S<*', @values;
    for (my $left = $at; $left > 0; $left -= length $block) { print $f substr $block, 0, $left; }
}
close $f or die "$folder: $!\n";
truncate "$folder/model.safetensors", 8 + length($head) + $at or die "$folder: $!\n" unless $small;

# ---- tokenizer ----

my (%vocab, @added);
{ # bytes as GPT-2 writes them: those that print are themselves, the others follow 255
    my $next = 256;
    for my $byte (0 .. 255) {
        my $prints = ($byte >= 33 && $byte <= 126) || ($byte >= 161 && $byte <= 172) || $byte >= 174;
        $vocab{chr($prints ? $byte : $next++)} = $byte;
    }
}
sub quoted { my $s = shift; $s =~ s/(["\\])/\\$1/g; utf8::encode($s); return "\"$s\""; }
for my $special (split ' ', $m->{specials}) {
    push @added, sprintf '{"id": %d, "content": %s, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}',
        256 + @added, quoted($special);
}
put("$folder/tokenizer.json", '{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [' . join(', ', @added)
    . '], "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},'
    . ' "post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},'
    . ' "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,'
    . ' "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": {'
    . join(', ', map { quoted($_) . ": $vocab{$_}" } sort { $vocab{$a} <=> $vocab{$b} } keys %vocab) . '}, "merges": []}}' . "\n");
my %turns = ( # before a turn, before its text, after it
    llama => ['<|start_header_id|>', '<|end_header_id|>\n\n', '<|eot_id|>'],
    qwen => ['<|im_start|>', '\n', '<|im_end|>\n'],
    gemma => ['<start_of_turn>', '\n', '<end_of_turn>\n'],
);
my $template = '';
if ($m->{turns}) {
    my ($before, $between, $after) = @{$turns{$m->{turns}}};
    $template = "{%- for message in messages %}{{- '$before' + message['role'] + '$between' }}"
        . "{%- generation %}{{- message['content'] + '$after' }}{%- endgeneration %}{%- endfor %}"
        . "{%- if add_generation_prompt %}{{- '${before}assistant$between' }}{%- endif %}";
    $template =~ s/\{%- generation %\}(.*?)\{%- endgeneration %\}/{%- if message['role'] == 'assistant' %}{% generation %}$1\{% endgeneration %}{%- else %}$1\{%- endif %}/;
    $template = "{{- '$before' + 'system' + '$between' + strftime_now('%d %b %Y') + '$after' }}$template" if $m->{dated};
    put("$folder/chat_template.jinja", $template);
}
put("$folder/tokenizer_config.json", '{"tokenizer_class": "PreTrainedTokenizerFast", '
    . ($m->{bos} ? '"bos_token": ' . quoted($m->{bos}) . ', ' : '') . '"eos_token": ' . quoted($m->{eos}) . "}\n");
