/* kernels_gpu: how near each kernel of a GPU comes to what it can do.
 *
 *   kernels_gpu bytes|gemm|attention [--dtype bf16|f16|f32] [--rows 32768] [--channels 2048]
 *               [--rounds 20] [--only NAME] [--epilogues fused|apart]
 *
 * Each launch is timed by events around it, three rounds to warm up and then --rounds, of which the
 * median and the least are printed; before each one 256 MiB are written, so that nothing is left in
 * a cache. Bytes and operations are those of kernels/costs, every tensor once. Beside them stands
 * the floor: what the bytes take at the rate of a copy by the device itself, measured in the same
 * run before and after, or, for products and attention, the operations at the peak that MFU is
 * quoted against. Values are random: a GPU that multiplies zeros draws less power and is faster. A
 * product that the library did not take says so. With --epilogues apart the library computes bare
 * products; bias, GELU and residual are launches of their own. Both settings print the same lines.
 * Clocks are as nvidia-smi tells them, before and after.
 *
 * CUDA_MODULE_LOADING=EAGER against LAZY: the time to open, and the memory that nvidia-smi shows.
 * Where there is no GPU it says why, and has nothing to do. Run by hand.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/plugin.h"
#include "tests/bench/gpu_clocks.h"
#include "tests/bench/kernels_gpu.h"

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "kernels_gpu: %s: %s\n", what, why);
    exit(1);
}

static int64_t number(const char *option, const char *text, int64_t least, int64_t most)
{
    char *end;
    const long value = strtol(text, &end, 10);

    if (*end || end == text || value < least || value > most)
        die(option, "is not a number that it can be");
    return value;
}

int main(int argc, char **argv)
{
    struct kernels_run run = {.dtype = HD_BF16, .rows = 32768, .channels = 2048, .rounds = 20};
    struct hd_plugin_gpu gpus[HD_PLUGIN_GPUS_MAX];
    struct hd_traits traits;
    int count;

    if (argc < 2)
        die("usage", "kernels_gpu bytes|gemm|attention; see the first comment of kernels_gpu.c");
    for (int i = 2; i < argc; i += 2) {
        const char *option = argv[i], *value = argv[i + 1];

        if (!value)
            die(option, "wants a value");
        if (!strcmp(option, "--dtype") && hd_dtype_from_name(value, &run.dtype))
            continue;
        if (!strcmp(option, "--rows"))
            run.rows = number(option, value, 128, 1 << 24);
        else if (!strcmp(option, "--channels"))
            run.channels = number(option, value, 128, 1 << 24) / 128 * 128;
        else if (!strcmp(option, "--rounds"))
            run.rounds = (int)number(option, value, 1, KERNELS_GPU_ROUNDS_MAX);
        else if (!strcmp(option, "--only"))
            run.only = value;
        else if (!strcmp(option, "--epilogues") && !strcmp(value, "apart"))
            run.apart = true;
        else if (!strcmp(option, "--epilogues") && !strcmp(value, "fused"))
            run.apart = false;
        else
            die(option, "is not known; see the first comment of kernels_gpu.c");
    }
    if (hd_plugin_cuda(&run.table) || hd_plugin_cuda_gpus(gpus, &count)) {
        printf("SKIPPED: %s\n", hd_err_message());
        return 0;
    }
    run.table->describe(&(struct hd_backend_options){.threads = 1}, &traits);
    printf("%s, capability %d, %s, %s\n", gpus[0].name, gpus[0].capability, traits.isa,
           traits.library);
    gpu_clocks_print(gpus[0].bus, stdout);
    if (kernels_gpu(argv[1], &run, stdout))
        die(argv[1], hd_err_message());
    gpu_clocks_print(gpus[0].bus, stdout);
    return 0;
}
