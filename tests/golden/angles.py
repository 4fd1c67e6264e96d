"""Writes the frequencies and attention factors of tests/unit/program/angles_test.c: what transformers computes for
each kind of RoPE where a part of a head rotates. Needs torch and transformers.

    python3 tests/golden/angles.py
"""
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

LONG = [1.0, 1.25, 2.0, 3.5, 5.0, 8.0]
CASES = {
    "partial": dict(rope_type="linear", factor=1.0, partial_rotary_factor=0.75),
    "linear": dict(rope_type="linear", factor=3.0, partial_rotary_factor=0.75),
    "llama3": dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64, partial_rotary_factor=0.75),
    "yarn": dict(rope_type="yarn", factor=4.0, beta_fast=4.0, beta_slow=1.0, original_max_position_embeddings=64,
                 partial_rotary_factor=0.75),
    "yarn_no_truncate": dict(rope_type="yarn", factor=4.0, beta_fast=4.0, beta_slow=1.0, truncate=False,
                             original_max_position_embeddings=64, partial_rotary_factor=0.75),
    "yarn_mscale": dict(rope_type="yarn", factor=40.0, beta_fast=32.0, beta_slow=1.0, mscale=0.707,
                        mscale_all_dim=0.5, original_max_position_embeddings=64, partial_rotary_factor=0.75),
    "longrope": dict(rope_type="longrope", factor=32.0, short_factor=LONG, long_factor=LONG,
                     original_max_position_embeddings=64, partial_rotary_factor=0.75),
}

for name, rope in CASES.items():
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, head_dim=16, max_position_embeddings=2048,
                         rope_parameters={"rope_theta": 500.0, **rope})
    inverse, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=2048)
    print("%-17s %s  %s" % (name, ", ".join("%.9g" % x for x in inverse.tolist()), "%.9g" % factor))
