/* All of the plug-in is in hd_cudasim, which is linked whole. Its ranks are processes. */
#include "tests/cudasim/nccl_stand_in.h"

__attribute__((constructor)) static void connect_processes(void)
{
    hd_nccl_stand_in_between_processes();
}
