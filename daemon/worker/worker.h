/* worker: the program that computes. `heddle-worker rank` is one rank of an attempt, started by the
 * supervisor; the other verbs are the work that the command line hands over, since it links no
 * compute.
 *
 * Used by: main.c of this folder only.
 */
#ifndef HD_WORKER_H
#define HD_WORKER_H

/* Each takes the arguments behind the verb and returns the exit status. */
int hd_worker_rank(int argc, char **argv);
int hd_worker_generate(int argc, char **argv);
int hd_worker_bigram(int argc, char **argv);
int hd_worker_memory(int argc, char **argv);
int hd_worker_program(int argc, char **argv);

/* Exit statuses of the verbs for people (rank has those of link.h). */
enum { HD_WORKER_OK = 0, HD_WORKER_USAGE = 2, HD_WORKER_FAILED = 6 };

#endif
