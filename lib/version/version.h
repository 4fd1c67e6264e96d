/* version: which Heddle this is: the release and the commit that it was built from.
 *
 * A library of its own, and not part of base, so that a commit relinks programs alone.
 * Used by: programs, the control plane.   Uses: nothing.   Threads: constants.
 */
#ifndef HD_VERSION_VERSION_H
#define HD_VERSION_VERSION_H

extern const char hd_version[];      /* "0.1.0" */
extern const char hd_commit[];       /* "d23340be1c2d", with "+" if files were changed; "unknown" */
extern const char hd_version_text[]; /* "0.1.0 (commit d23340be1c2d)" */

#endif
