#include "runs.h"
#include "tests/lazy_device/lazy_device.h"

enum hd_status run_on_lazy_device(const struct hd_job *job, struct run *run)
{
    enum hd_status st;

    harness_use(lazy_device());
    st = run_on_threads(job, run);
    harness_use(NULL);
    return st;
}
