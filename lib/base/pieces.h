/* pieces: sizes of the pieces in which long work is done.
 *
 * A mistake at the border of two pieces shows only where the data is longer than one, which inputs
 * of tests are not. So pieces are small in builds with a sanitizer, and what these tests read and
 * write has many borders there. Results do not depend on such a size; what is part of a format,
 * a digest or a promise to users keeps its one size and is not written with HD_PIECE.
 *
 * Used by: all of lib, controller/store.
 */
#ifndef HD_BASE_PIECES_H
#define HD_BASE_PIECES_H

/* HD_PIECE(usual, small): `usual` is what is fast; `small` should be no power of two where the code
 * allows it, and at most a few hundred bytes or elements. -DHEDDLE_SMALL_PIECES takes the small
 * ones in a build without a sanitizer. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(HEDDLE_SMALL_PIECES)
#define HD_PIECE(usual, small) (small)
#else
#define HD_PIECE(usual, small) (usual)
#endif

#endif
