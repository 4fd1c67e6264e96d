/* flags: parses the flags "--name value" or "--name=value" of heddle-worker, heddle-serve,
 * heddle-supervisor and heddle-launcher. A verb lists its flags as rows, each with the variable that it
 * sets; a flag that is not given leaves its variable as it is. */
#ifndef HD_FLAGS_H
#define HD_FLAGS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct hd_flag {
    const char *name; /* with its dashes, "--rank" */
    enum {
        HD_IS_TEXT,
        HD_IS_SWITCH,
        HD_IS_INT,
        HD_IS_INT64,
        HD_IS_BYTES,
        HD_IS_REAL,
        HD_IS_READ
    } kind;
    union {
        const char **text;
        bool *on;
        int *small;
        int64_t *number;
        double *real;
        void *into;
    };
    /* Callback of HD_IS_READ, which parses the value; the name of the flag precedes its message. */
    enum hd_status (*read)(const char *value, void *into);
    int64_t min, max; /* of integers */
    double least, most;
    bool required, given; /* given: set by hd_flags_read */
};

#define HD_FLAG_(name_, kind_, member, to) .name = (name_), .kind = (kind_), .member = &(to)
#define HD_FLAG_TEXT(name, to)               \
    {                                        \
        HD_FLAG_(name, HD_IS_TEXT, text, to) \
    }
#define HD_FLAG_NEEDED(name, to)                               \
    {                                                          \
        HD_FLAG_(name, HD_IS_TEXT, text, to), .required = true \
    }
#define HD_FLAG_SWITCH(name, to)             \
    {                                        \
        HD_FLAG_(name, HD_IS_SWITCH, on, to) \
    }
#define HD_FLAG_INT(name, to, low, high, ...)                                            \
    {                                                                                    \
        HD_FLAG_(name, HD_IS_INT, small, to), .min = (low), .max = (high), ##__VA_ARGS__ \
    }
#define HD_FLAG_INT64(name, to, low, high, ...)                                             \
    {                                                                                       \
        HD_FLAG_(name, HD_IS_INT64, number, to), .min = (low), .max = (high), ##__VA_ARGS__ \
    }
#define HD_FLAG_BYTES(name, to)                           \
    {                                                     \
        HD_FLAG_(name, HD_IS_BYTES, number, to), .min = 1 \
    }
#define HD_FLAG_READ(name, read_, to, ...)                                   \
    {                                                                        \
        HD_FLAG_(name, HD_IS_READ, into, to), .read = (read_), ##__VA_ARGS__ \
    }
#define HD_FLAG_REAL(name, to, low, high)                                    \
    {                                                                        \
        HD_FLAG_(name, HD_IS_REAL, real, to), .least = (low), .most = (high) \
    }

/* Flags of verbs that open a model: `o` has dirs, precision and threads. */
#define HD_FLAGS_OF_MODEL(o)                                                                     \
    HD_FLAG_NEEDED("--checkpoint", (o).dirs.dir), HD_FLAG_TEXT("--base", (o).dirs.base),         \
        HD_FLAG_TEXT("--adapter", (o).dirs.adapter), HD_FLAG_TEXT("--precision", (o).precision), \
        HD_FLAG_INT("--threads", (o).threads, 1, HD_FLAG_THREADS_MAX)
/* Flags of verbs that decode: `o` is a struct hd_decoder_options. */
#define HD_FLAGS_OF_DECODER(o)                                    \
    HD_FLAGS_OF_MODEL(o), HD_FLAG_TEXT("--weights", (o).weights), \
        HD_FLAG_INT("--tp", (o).tp, 1, HD_DECODER_RANKS_MAX),     \
        HD_FLAG_INT("--pp", (o).pp, 1, HD_DECODER_RANKS_MAX)
enum { HD_FLAG_THREADS_MAX = 4096 };

/* Returns the number of threads for a verb without --threads: one for each processor, at most `max`. */
int hd_flags_threads(int max);

/* Parses all of argv. Returns HD_INVALID for unknown and missing flags, for one without its value, and for
 * a value that is no number of its range; the message names the flag. repeats: of a flag that is given
 * several times the last one counts; else it is refused, too. */
enum hd_status hd_flags_read(int argc, char **argv, struct hd_flag *flags, int count, bool repeats);
#define HD_FLAGS_READ(argc, argv, flags) \
    hd_flags_read((argc), (argv), (flags), (int)(sizeof(flags) / sizeof(flags)[0]), false)
#define HD_FLAGS_READ_LAST(argc, argv, flags) \
    hd_flags_read((argc), (argv), (flags), (int)(sizeof(flags) / sizeof(flags)[0]), true)

/* Prints `usage` if --help or -h is the first argument, and name and version if --version is. Returns 1 if
 * it has printed, 0 for other arguments, -1 if it cannot print. */
int hd_flags_answer(int argc, char **argv, const char *usage, const char *name,
                    const char *version);

/* Returns the number of arguments in front of "--", behind which files are named. */
int hd_flags_count(int argc, char **argv);

#endif
