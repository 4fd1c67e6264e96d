/* cases: the end of a test's source, in place of a table of its cases and a main.
 *
 *   RUN_CASES()                            runs each `static void NAME(void **state)` of the file,
 *                                          in their order
 *   RUN_EACH_CASE_WITH(setup, teardown)    the same, with these around each case
 *   RUN_CASES_BETWEEN(setup, teardown)     the same, with these once around all
 *   CASE_WITH(setup, teardown)             on the line above one case: what is around it, in place
 *                                          of the file's; NULL for nothing
 *
 * A test whose main does more has one of its own, which takes the table from here:
 *
 *   const struct CMUnitTest tests[] = {ALL_CASES};
 *
 * The build makes ALL_CASES_WITH and CASES_NAME from the source (tests/program/cases); the compiler
 * reads them before it (heddle_test() in tests/functions.cmake).
 *
 * Used by: tests.   Uses: cmocka.
 */
#ifndef HD_TESTS_PROGRAM_CASES_H
#define HD_TESTS_PROGRAM_CASES_H

#define ALL_CASES ALL_CASES_WITH(NULL, NULL)
#define CASE_WITH(setup, teardown)

#define RUN_CASES()                         RUN_TABLE(ALL_CASES, NULL, NULL)
#define RUN_EACH_CASE_WITH(setup, teardown) RUN_TABLE(ALL_CASES_WITH(setup, teardown), NULL, NULL)
#define RUN_CASES_BETWEEN(setup, teardown)  RUN_TABLE(ALL_CASES, setup, teardown)

#define RUN_TABLE(cases, setup, teardown)                                       \
    int main(void)                                                              \
    {                                                                           \
        const struct CMUnitTest tests[] = {cases};                              \
                                                                                \
        return cmocka_run_group_tests_name(CASES_NAME, tests, setup, teardown); \
    }

#endif
