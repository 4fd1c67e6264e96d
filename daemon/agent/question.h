/* question: when GPUs are asked for, and what it means when nobody answers.
 *
 * A driver may be slow for once: under load, without persistence mode, while another GPU is reset.
 * So a routine question without an answer leaves the last answer standing; the next one follows
 * soon, and if that has none either, nothing is known of the GPUs. There is reason to doubt the
 * last answer at once when an attempt has failed, or somebody wants to know: such a question is
 * pressing.
 *
 * Used by: agent.   Uses: libc.   Threads: plain values.
 */
#ifndef HD_DAEMON_AGENT_QUESTION_H
#define HD_DAEMON_AGENT_QUESTION_H

#include <stdbool.h>
#include <stdint.h>

enum {
    AGENT_QUESTION_EVERY_MS = 300000,    /* from one answer to the next question, all being well */
    AGENT_QUESTION_BROKEN_MS = 60000,    /* while a GPU is out of order */
    AGENT_QUESTION_NO_ANSWER_MS = 10000, /* when there was no answer */
};

/* Start with {0}: nothing is known. */
struct agent_question {
    int64_t number;   /* of the newest; 0: none yet */
    int64_t pressing; /* the newest one that is */
    bool under_way;
    bool answered; /* what is thought of the GPUs was an answer */
    bool missed;   /* which stands, though the newest question had none */
    int64_t next_ms;
};

/* The next one comes at once and is pressing; one that is under way was asked before. */
void agent_question_press(struct agent_question *question);
bool agent_question_is_due(const struct agent_question *question, int64_t now_ms);
/* Numbers a new one; not `started`: that has failed, and it is over. */
void agent_question_begin(struct agent_question *question, bool started);
/* Whether what the newest has come to counts: an answer, or that there is none. */
bool agent_question_counts(struct agent_question *question, bool answered);
/* It is over, and was weighed. `broken`: a GPU is out of order. */
void agent_question_end(struct agent_question *question, bool broken, int64_t now_ms);

#endif
