/* entry: what the compiler reads before a test's source that is linked with others into one program
 * (heddle_test(... IN program), tests/functions.cmake). The source's main becomes a function of
 * another name and is entered into the program's list; main.c calls the one that is asked for.
 *
 * HD_TEST_ENTRY is the source's name without `.c`. The source itself knows nothing of this and may
 * define main with or without arguments.
 */
#ifndef HD_TESTS_PROGRAM_ENTRY_H
#define HD_TESTS_PROGRAM_ENTRY_H

struct hd_test_entry {
    const char *name;
    int (*plain)(void); /* one of the two; the other is NULL */
    int (*with_arguments)(int argc, char **argv);
    struct hd_test_entry *next;
};

void hd_test_entry_add(struct hd_test_entry *entry); /* before main */

#ifdef HD_TEST_ENTRY
#define main(...)                HD_TEST_MAIN(HD_TEST_ENTRY, __VA_ARGS__)
#define HD_TEST_MAIN(entry, ...) HD_TEST_NAMED_MAIN(entry, __VA_ARGS__)
#define HD_TEST_NAMED_MAIN(entry, ...)                                      \
    entry##_main(__VA_ARGS__);                                              \
    __attribute__((constructor)) static void add_test_entry(void)           \
    {                                                                       \
        static struct hd_test_entry this_one = {                            \
            .name = #entry,                                                 \
            .plain = _Generic(&entry##_main, int (*)(void)                  \
                              : entry##_main, default : 0),                 \
            .with_arguments = _Generic(&entry##_main, int (*)(int, char **) \
                                       : entry##_main, default : 0),        \
        };                                                                  \
                                                                            \
        hd_test_entry_add(&this_one);                                       \
    }                                                                       \
    int entry##_main(__VA_ARGS__)
#endif

#endif
