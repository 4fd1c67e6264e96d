/* pieces: sizes of the pieces in which long work is done.
 *
 * A mistake at the border of two pieces shows only with data longer than one piece, and the inputs
 * of tests are short. In builds with a sanitizer pieces are therefore small, so that these inputs
 * have many borders. Results never depend on such a size: a size that is part of a format, of a
 * digest or of a promise to users is not written with HD_PIECE.
 *
 * Used by: all of lib, controller/store.
 */
#ifndef HD_BASE_PIECES_H
#define HD_BASE_PIECES_H

/* HD_PIECE(usual, small): `usual` is chosen for speed; `small` should be no power of two where the
 * code allows it, and at most a few hundred bytes or elements. -DHEDDLE_SMALL_PIECES takes the
 * small ones in a build without a sanitizer. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(HEDDLE_SMALL_PIECES)
#define HD_PIECE(usual, small) (small)
#else
#define HD_PIECE(usual, small) (usual)
#endif

#endif
