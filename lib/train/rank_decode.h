/* rank_decode: the programs of decoding of a rank that trains, and where their memory is. Only for
 * rank_program.
 *
 * They read the weights where training has them: the same registry, mesh, tp and pp, adapters,
 * quantized weights and, with ZeRO 3, gathers. A cp rank has whole sequences of its own, as a
 * further dp rank would; tp ranks do not split rows (sequence parallelism).
 */
#ifndef HD_TRAIN_RANK_DECODE_H
#define HD_TRAIN_RANK_DECODE_H

#include "train/rank_program.h"

/* Compiles both programs for the rank's chunks; does nothing if the job writes no text. */
enum hd_status hd_rank_decode_compile(const struct hd_compile_options *options,
                                      struct hd_arena *arena, struct hd_rank_program *rank_program);

/* Compiles the program that reads `rows` tokens of each of `slots` sequences, of these units of the job. */
enum hd_status hd_rank_decode_compile_units(const struct hd_compile_options *options,
                                            const struct hd_job *job,
                                            const struct hd_registry *registry,
                                            const struct hd_model *model, struct hd_units units,
                                            int64_t slots, int64_t rows, struct hd_arena *arena,
                                            struct hd_chunk **ret_chunk);

/* Assigns offsets from begin[v] on, the begin of the memory that steps leave free; v is 0 for
 * private, 1 for registered memory. end[v]: the end of that memory, which is raised to the end of
 * what decoding needs. */
void hd_rank_decode_place(struct hd_rank_program *rank_program, const int64_t begin[2],
                          int64_t end[2]);

/* Returns the bytes of the largest slot of hidden rows that stages send and receive; 0: none. */
int64_t hd_rank_decode_stage_io(const struct hd_rank_program *rank_program);

#endif
