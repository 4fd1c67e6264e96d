#include "tests/bench/gpu_clocks.h"

#include <string.h>

void gpu_clocks_print(const char *bus, FILE *out)
{
    char command[256], line[256];
    FILE *from;

    (void)snprintf(command, sizeof command,
                   "nvidia-smi -i %s --query-gpu=clocks.sm,clocks.max.sm,clocks.mem,power.draw,"
                   "power.limit,temperature.gpu,memory.used --format=csv,noheader 2>/dev/null",
                   bus);
    (void)fflush(out);
    from = popen(command, "r"); /* a bus is digits and colons */
    if (from && fgets(line, sizeof line, from)) {
        line[strcspn(line, "\n")] = '\0';
        fprintf(out, "now: SM %s (now, most, memory, draws, may draw, degrees, in use)\n", line);
    } else {
        fprintf(out, "clocks are not known: there is no nvidia-smi\n");
    }
    if (from)
        (void)pclose(from);
}
