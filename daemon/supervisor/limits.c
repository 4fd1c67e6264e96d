#include "daemon/supervisor/limits.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

enum {
    PER_OCTAVE = 8,
    FACTOR = 8,
    LONGEST_FACTOR = 2,
    FILE_BYTES_MAX = 1 << 20,
    /* a rank waits for others at least twice as long as the supervisor's limit, because supervisors
     * of other nodes get 1.5 times the limit */
    WAIT_FACTOR = 2,
};

static const char heading[] = "heddle silences 1\n";

enum hd_status sup_limits_init(struct sup_limits *limits, const struct hd_job *job, int rank_count,
                               int64_t all_ms)
{
    const char *const texts[HD_LINK_PHASE_COUNT] = {
        [HD_LINK_PHASE_SETUP] = job->hang_setup,
        [HD_LINK_PHASE_TRAINING] = job->hang_step,
        [HD_LINK_PHASE_VALIDATING] = job->hang_validation,
        [HD_LINK_PHASE_CHECKPOINTING] = job->hang_checkpoint,
        [HD_LINK_PHASE_ENDING] = job->hang_ending,
    };

    memset(limits, 0, sizeof *limits);
    limits->rank_count = rank_count;
    limits->reports_only = job->hang_action == HD_JOB_HANG_ACTION_TELL;
    for (int p = 0; p < HD_LINK_PHASE_COUNT; p++) {
        const enum hd_status st = hd_hang_limit_read(texts[p], &limits->set_ms[p]);

        if (st)
            return hd_err_prefix(st, "hang.%s", hd_link_phase_name((enum hd_link_phase)p));
        if (all_ms)
            limits->set_ms[p] = all_ms;
    }
    return HD_OK;
}

/* ---- learning ---- */

/* Returns the bin of a silence: bin b has silences of more than 2^((b - 1) / 8) ms, up to 2^(b / 8)
 * ms. */
static int bin_of(int64_t silence_ms)
{
    const int bin = silence_ms > 1 ? (int)ceil(PER_OCTAVE * log2((double)silence_ms) - 1e-9) : 0;

    return bin < SUP_LIMIT_BINS ? bin : SUP_LIMIT_BINS - 1;
}

static int64_t end_of_bin_ms(int bin)
{
    return (int64_t)ceil(exp2((double)bin / PER_OCTAVE) - 1e-6);
}

void sup_limits_learn(struct sup_limits *limits, enum hd_link_phase phase, int64_t silence_ms)
{
    limits->bins[phase][bin_of(silence_ms)]++;
    limits->count[phase]++;
}

/* Returns the first bin up to whose end lie at least `part` (0 to 1) of all silences of the
 * phase. */
static int percentile(const struct sup_limits *limits, enum hd_link_phase phase, double part)
{
    const double wanted = part * (double)limits->count[phase];
    int64_t sum = 0;
    int bin = 0;

    for (; bin < SUP_LIMIT_BINS - 1; bin++) {
        sum += limits->bins[phase][bin];
        if ((double)sum >= wanted)
            break;
    }
    return bin;
}

static int64_t largest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Returns the learned limit of a phase in ms; 0: not learned yet. */
static int64_t learned_ms(const struct sup_limits *limits, enum hd_link_phase phase)
{
    int64_t usual_ms, longest_ms;

    if (limits->count[phase] < (int64_t)SUP_LIMIT_COUNT_MIN * limits->rank_count)
        return 0;
    usual_ms = end_of_bin_ms(percentile(limits, phase, 0.99));
    longest_ms = end_of_bin_ms(percentile(limits, phase, 1));
    return largest(SUP_LIMIT_MIN_MS, largest(FACTOR * usual_ms, LONGEST_FACTOR * longest_ms));
}

struct sup_limit sup_limits_of(const struct sup_limits *limits, enum hd_link_phase phase)
{
    const int64_t set_ms = limits->set_ms[phase];
    const int64_t learned = set_ms ? 0 : learned_ms(limits, phase);
    struct sup_limit limit = {SUP_LIMIT_UNLEARNED_MS, SUP_LIMIT_UNLEARNED_MS};

    if (set_ms)
        limit = (struct sup_limit){set_ms, set_ms};
    else if (learned && phase == HD_LINK_PHASE_TRAINING)
        limit = (struct sup_limit){learned, learned};
    else if (learned)
        limit = (struct sup_limit){learned, largest(learned, SUP_LIMIT_UNLEARNED_MS)};
    if (limits->reports_only)
        limit.ends_ms = SUP_LIMIT_NEVER;
    return limit;
}

int64_t sup_wait_limit_ms(const struct sup_limits *limits)
{
    const struct sup_limit limit = sup_limits_of(limits, HD_LINK_PHASE_TRAINING);

    if (limits->reports_only)
        return SUP_LIMIT_NEVER / 2;
    return limit.ends_ms == SUP_LIMIT_UNLEARNED_MS && !limits->set_ms[HD_LINK_PHASE_TRAINING]
               ? 0
               : WAIT_FACTOR * limit.ends_ms;
}

/* ---- from one attempt to the next ---- */

/* Writes one line per phase: its name, then BIN:COUNT of each bin that is not empty. */
enum hd_status sup_limits_write(const struct sup_limits *limits, const char *path)
{
    struct hd_text text = {0};
    enum hd_status st;

    hd_text_add(&text, "%s", heading);
    for (int p = 0; p < HD_LINK_PHASE_COUNT; p++) {
        hd_text_add(&text, "%s", hd_link_phase_name((enum hd_link_phase)p));
        for (int b = 0; b < SUP_LIMIT_BINS; b++)
            if (limits->bins[p][b])
                hd_text_add(&text, " %d:%" PRId64, b, limits->bins[p][b]);
        hd_text_add(&text, "\n");
    }
    st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for %s", path)
                     : hd_file_write_atomic(path, text.data, text.len_bytes, 0640);
    hd_text_free(&text);
    return st;
}

/* Reads the bins of silences of one line of the file; returns false if the line is damaged. */
static bool read_bins(char *line, int64_t bins[SUP_LIMIT_BINS], int64_t *ret_count)
{
    char *rest = line, *word;
    int64_t bin, count, sum = 0;

    while ((word = strsep(&rest, " "))) {
        char *colon = strchr(word, ':');

        if (!*word)
            continue;
        if (!colon)
            return false;
        *colon = '\0';
        if (hd_text_to_int64(word, 0, SUP_LIMIT_BINS - 1, &bin) ||
            hd_text_to_int64(colon + 1, 1, INT32_MAX, &count))
            return false;
        bins[bin] = count;
        sum += count;
    }
    *ret_count = sum;
    return true;
}

/* Scales the counts of silences of a phase down. Rounds up, so that no bin becomes empty. */
static void keep_less(struct sup_limits *limits, int phase)
{
    const int64_t sum = limits->count[phase];

    if (sum <= SUP_LIMIT_KEPT_MAX)
        return;
    limits->count[phase] = 0;
    for (int b = 0; b < SUP_LIMIT_BINS; b++) {
        int64_t *bin = &limits->bins[phase][b];

        *bin = (*bin * SUP_LIMIT_KEPT_MAX + sum - 1) / sum;
        limits->count[phase] += *bin;
    }
}

static bool read_line(struct sup_limits *limits, char *line)
{
    const size_t word = strcspn(line, " ");

    for (int p = 0; p < HD_LINK_PHASE_COUNT; p++) {
        const char *name = hd_link_phase_name((enum hd_link_phase)p);

        if (strlen(name) != word || strncmp(line, name, word) != 0)
            continue;
        if (!read_bins(line + word, limits->bins[p], &limits->count[p]))
            return false;
        keep_less(limits, p);
    }
    return true; /* a line about a phase that this build does not have is ignored */
}

void sup_limits_read(struct sup_limits *limits, const char *path)
{
    struct sup_limits read = *limits;
    struct hd_text text = {0};
    char *rest, *line;
    bool sound;
    const enum hd_status st = hd_file_read(path, FILE_BYTES_MAX, &text);

    if (st == HD_NOT_FOUND)
        return;
    sound = !st && text.data && strncmp(text.data, heading, sizeof heading - 1) == 0;
    rest = sound ? text.data + sizeof heading - 1 : NULL;
    while (sound && (line = strsep(&rest, "\n")))
        sound = read_line(&read, line);
    if (sound)
        *limits = read;
    else
        hd_log(HD_LOG_WARN, "%s cannot be used, the limits of silence are learned anew: %s", path,
               st ? hd_err_message() : "it is damaged");
    hd_text_free(&text);
}
