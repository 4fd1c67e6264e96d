#include "daemon/agent/question.h"

void agent_question_press(struct agent_question *question)
{
    question->pressing = question->number + 1;
    question->next_ms = 0;
}

bool agent_question_is_due(const struct agent_question *question, int64_t now_ms)
{
    return !question->under_way && now_ms >= question->next_ms;
}

void agent_question_begin(struct agent_question *question, bool started)
{
    question->number++;
    question->under_way = started;
}

bool agent_question_counts(struct agent_question *question, bool answered)
{
    const bool routine = question->number > question->pressing;

    if (!answered && routine && question->answered && !question->missed) {
        question->missed = true;
        return false;
    }
    question->answered = answered;
    question->missed = false;
    return true;
}

void agent_question_end(struct agent_question *question, bool broken, int64_t now_ms)
{
    const int wait_ms = !question->answered || question->missed ? AGENT_QUESTION_NO_ANSWER_MS
                        : broken                                ? AGENT_QUESTION_BROKEN_MS
                                                                : AGENT_QUESTION_EVERY_MS;

    question->under_way = false;
    question->next_ms = question->pressing > question->number ? 0 : now_ms + wait_ms;
}
