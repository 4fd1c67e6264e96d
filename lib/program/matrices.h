/* matrices: which rank computes the step of each matrix whose rule needs it whole (Muon), and what
 * ranks send each other for it.
 *
 * A rank has the moments of its shards alone: its part of a matrix by tp, and of that its ZeRO
 * shard. The *owner* of a matrix is one of the ranks of its pipeline stage that have a part of it.
 * In U, for one *round* after the other (adjacent buckets with together at least one matrix per
 * rank, so that all ranks have work):
 *
 *     each rank      step of the elements of its shards, in a flat buffer (kernel momentum)
 *     exchange 0     each part of a matrix to its owner, from one rank that has it
 *     owners         newton_schulz of each matrix
 *     exchange 1     back, to every rank that has a part of it
 *     each rank      weights of its shards (kernel step_along)
 *
 * So shards, moments and checkpoints are those of any other rule, and an owner computes a matrix of
 * the whole model in every layout. Both exchanges move rows of HD_MATRIX_ROW elements; a part takes
 * whole rows. With one rank a flat buffer has whole matrices, and nothing is moved.
 *
 * Owners are chosen within a round: matrices in the order of their cost, the dearest first, each to
 * the rank with the least work in this round, then in all rounds so far, then of the lowest number.
 * That depends on shapes and layout alone, so every rank computes all of it.
 *
 * Used by: registry, optim, train, plan.   Uses: registry, mesh.   Threads: any; no state.
 */
#ifndef HD_PROGRAM_MATRICES_H
#define HD_PROGRAM_MATRICES_H

#include "program/registry.h"

enum { HD_MATRIX_ROW = 16, HD_MATRIX_ALIGN = 64 }; /* elements */

enum hd_matrix_exchange { HD_MATRIX_TO_OWNERS, HD_MATRIX_BACK, HD_MATRIX_EXCHANGES };

/* The four moves of elements of a round: into what an exchange sends, and from what it received. */
enum hd_matrix_move { HD_MOVE_SEND, HD_MOVE_ARRIVE, HD_MOVE_RETURN, HD_MOVE_TAKE, HD_MATRIX_MOVES };

struct hd_matrix {
    int param;
    int64_t index;         /* number of the matrix in its parameter: the expert; else 0 */
    int64_t rows, columns; /* of the whole matrix */
    int owner;             /* rank that iterates the matrix: its index in HD_GROUP_STAGE */
    /* first element in the buffer of this rank's matrices; -1: another rank owns the matrix */
    int64_t at;
};

struct hd_matrix_round {
    int first_bucket, end_bucket; /* buckets, those of other rules among them to be left out */
    int64_t first, end;           /* matrices */
    int64_t flat;                 /* elements of this rank's shards */
    int64_t owned;                /* elements of the buffer of this rank's matrices */
    struct {
        int64_t sent, received; /* rows of this rank */
        int64_t moved;          /* rows that all ranks together send to others */
        int64_t counts_at;      /* bytes from the begin of the tables: int32 [ranks], rows sent to
                                   each rank of the stage */
    } exchange[HD_MATRIX_EXCHANGES];
    struct {
        int64_t count, elements; /* pieces, and their elements */
        int64_t at;              /* bytes from the begin of the tables: struct hd_piece [count] */
    } move[HD_MATRIX_MOVES];
};

/* Plan for one rank. */
struct hd_matrix_plan {
    int rank, ranks; /* ranks of a stage */
    struct hd_matrix *matrices;
    int64_t count;
    struct hd_matrix_round *rounds;
    int round_count;
    int64_t table_bytes; /* bytes of HD_GLOBAL_MATRICES; 0: one rank */
};

/* Returns true if a bucket has matrices that this rank's stage updates. */
bool hd_bucket_has_matrices(const struct hd_registry *registry, const struct hd_bucket *bucket,
                            int rank);
/* Returns the offset of a bucket's shard in the flat buffer of its round. */
int64_t hd_matrix_flat_at(const struct hd_registry *registry, const struct hd_matrix_round *round,
                          int bucket, int rank);

/* Makes the plan of `rank`, whose stage may be another one than the registry's rank is on, in memory
 * of the registry. HD_INVALID: more ranks than an exchange can have. */
enum hd_status hd_matrix_plan_make(const struct hd_registry *registry, int rank,
                                   struct hd_matrix_plan **ret_plan);

/* Fills ret_tables[table_bytes] with the tables of all rounds. */
void hd_matrix_plan_fill(const struct hd_registry *registry, const struct hd_matrix_plan *plan,
                         void *ret_tables);

#endif
