/* sanitized: whether this program is compiled with a sanitizer, which makes it several times slower
 * and looks at addresses and threads. What a test repeats for the sake of its numbers, such as
 * steps of training, it may take less of there: the numbers are looked at in the other builds.
 *
 * Used by: tests.
 */
#ifndef HD_TESTS_SANITIZED_H
#define HD_TESTS_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { HD_TEST_SANITIZED = 1 };
#else
enum { HD_TEST_SANITIZED = 0 };
#endif

#endif
