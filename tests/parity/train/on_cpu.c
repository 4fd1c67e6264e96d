/* The ranks of a test run on the cpu. */
#include "harness.h"

const struct hd_backend_table *on_backend(void)
{
    return hd_backend_cpu();
}

int on_steps(int steps)
{
    return steps;
}
