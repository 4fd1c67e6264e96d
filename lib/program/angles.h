/* angles: how attention knows positions: rotary angles, ALiBi slopes, factors of queries. A program
 * holds tables of them as constants.
 *
 * Used by: recording.h, with it program, model and hf.   Uses: libc.   Threads: any; no state.
 */
#ifndef HD_PROGRAM_ANGLES_H
#define HD_PROGRAM_ANGLES_H

#include <stdbool.h>
#include <stdint.h>

/* RoPE: pair i of the W channels of a head that rotate turns by frequency[i] per position. With
 * f = theta^(-2i/W) and wavelength = 2 pi / f, frequency[i] is
 *
 *   none    f
 *   linear  f / factor (Chen et al. 2023, "Extending Context Window ... Interpolation")
 *   llama3  wavelength > original_context / low_freq_factor: f / factor; wavelength <
 *           original_context / high_freq_factor: f; between: interpolated linearly in
 *           original_context / wavelength (Llama 3.1, Grattafiori et al. 2024)
 *   yarn    pairs with at least beta_fast rotations in original_context: f; with at most beta_slow:
 *           f / factor; between: interpolated linearly in i (Peng et al. 2023, "YaRN")
 *   longrope  f / pair_factor[i] (Ding et al. 2024, "LongRoPE")
 *
 * Rotated values are also multiplied by an attention factor, which is attention_factor if it is not
 * 0, else by default
 *
 *   yarn      0.1 ln(factor) + 1; if mscale and mscale_all_dim are not 0:
 *             (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1)
 *   longrope  sqrt(1 + ln(factor) / ln(original_context)), and 1 if factor <= 1
 *   others    1, also if attention_factor is given */
enum hd_rope_kind { HD_ROPE_NONE, HD_ROPE_LINEAR, HD_ROPE_LLAMA3, HD_ROPE_YARN, HD_ROPE_LONGROPE };
enum { HD_ROPE_WIDTH_MAX = 4096, HD_ROPE_PAIRS_MAX = 128 };
struct hd_rope {
    enum hd_rope_kind kind;
    int64_t rotated;  /* W: channels of a head that rotate, an even number; 0: all of them */
    int64_t first;    /* index in the head of the first of them */
    bool interleaved; /* true: pair i is channels 2i and 2i + 1 of them; false: i and i + W/2 */
    double theta, factor, original_context;
    double low_freq_factor, high_freq_factor; /* HD_ROPE_LLAMA3: bounds of the interpolated
                                                  wavelengths */
    double beta_fast, beta_slow;              /* HD_ROPE_YARN: bounds in rotations */
    bool yarn_no_truncate;                    /* true: the indices of pairs at which the
                                                  interpolation begins and ends are not rounded */
    double mscale, mscale_all_dim;            /* HD_ROPE_YARN; 0: not given */
    double attention_factor;                  /* HD_ROPE_YARN, LONGROPE; 0: the default formula */
    float pair_factor[HD_ROPE_PAIRS_MAX];     /* HD_ROPE_LONGROPE, by pair: > 0; W/2 of them are
                                                  used */
};

/* Returns the number of channels that rotate in a head of D channels. */
int64_t hd_rope_width(const struct hd_rope *rope, int64_t D);
/* Sets ret_frequency[i] to the rotation of channel pair i in radians per position, for i < W/2.
 * Returns the attention factor. */
double hd_rope_frequencies(const struct hd_rope *rope, int64_t D, double *ret_frequency);
bool hd_rope_equal(const struct hd_rope *a, const struct hd_rope *b);
/* Fills ret_table [P, W/2, 2]: element [p, i] is {cos, sin} of the rotation angle of channel pair i
 * at position p, times the attention factor. W <= HD_ROPE_WIDTH_MAX. */
void hd_rope_fill(const struct hd_rope *rope, int64_t P, int64_t D, float *ret_table);

/* A factor on queries that grows with the position p, in steps of `original` positions:
 * 1 + beta ln(1 + floor((p + floor_offset) / original)) (Llama 4, Ministral 3). */
struct hd_query_factor {
    double beta, original, floor_offset;
};
/* Fills ret_table [P] with the factors of positions 0 to P - 1. */
void hd_query_factor_fill(const struct hd_query_factor *factor, int64_t P, float *ret_table);

/* Fills the ALiBi slopes of heads first .. first + count - 1 of H. A score decreases by the slope
 * for each position between query and key. For H a power of two the slopes are the powers 1 .. H of
 * 2^(-8/H); else those of the next lower power of two, then the 1st, 3rd, 5th ... of the next
 * higher power of two (Press et al. 2022, "Train Short, Test Long"). */
void hd_alibi_slopes(int64_t H, int64_t first, int64_t count, float *ret_slopes);

#endif
