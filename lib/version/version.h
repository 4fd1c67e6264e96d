/* version: release and commit from which this Heddle was built.
 *
 * A library of its own, not part of base, so that a new commit only relinks programs.
 * Used by: programs, the control plane.   Uses: nothing.   Threads: constants.
 */
#ifndef HD_VERSION_VERSION_H
#define HD_VERSION_VERSION_H

extern const char hd_version[]; /* "0.1.0" */
extern const char hd_commit[];  /* "d23340be1c2d", with "+" if the tree had changes; "unknown" */
extern const char hd_version_text[]; /* "0.1.0 (commit d23340be1c2d)" */

#endif
