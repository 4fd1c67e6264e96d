/* The ranks of a test run on a GPU, by the plug-in: logical ranks when there are several. */
#include "harness.h"
#include "kernels/plugin.h"
#include "tests/program/test.h"

const struct hd_backend_table *on_backend(void)
{
    static const struct hd_backend_table *table;

    if (!table && hd_plugin_cuda(&table)) {
        print_message("%s\n", hd_err_message());
        skip();
    }
    return table;
}

int on_steps(int steps)
{
    return steps;
}
