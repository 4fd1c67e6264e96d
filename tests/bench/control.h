/* control: the floor of the controller's benchmark (control_floor.c), for control.c. */
#ifndef HD_BENCH_CONTROL_H
#define HD_BENCH_CONTROL_H

#include <stddef.h>
#include <stdint.h>

enum { IN_FLIGHT = 64 }; /* submissions without an answer; rows of one commit of the floor */

/* A database that takes what a submission leaves on disk (a row of the job with its spec and a row
 * of its history), in tables and with durability like the controller's, and nothing else. A failure
 * ends the program. */
struct floor;
struct floor *floor_open(const char *dir, const void *spec, size_t spec_bytes);
void floor_insert(struct floor *floor, int64_t count); /* a commit per IN_FLIGHT jobs */
/* Measures what an audit log adds to existing transactions: rows, each with the hash of the one
 * before, in groups of IN_FLIGHT that are not committed. */
void floor_audit(struct floor *floor, int64_t count);
void floor_close(struct floor *floor);

#endif
