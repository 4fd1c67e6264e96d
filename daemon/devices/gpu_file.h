/* gpu_file: finds the device file of a GPU in /proc/driver/nvidia/gpus of NVIDIA's driver.
 *
 * Used by: agent.   Uses: base.   Threads: any.
 */
#ifndef HD_DAEMON_DEVICES_GPU_FILE_H
#define HD_DAEMON_DEVICES_GPU_FILE_H

#include "base/status.h"

enum { HD_GPU_FILE_MAX = 24 };

/* Finds the device file, such as "/dev/nvidia3", of the GPU with this UUID. proc: path of the proc
 * file system, "/proc". HD_NOT_FOUND, HD_INVALID: the driver does not list the GPU. */
enum hd_status hd_gpu_device_file(const char *proc, const char *uuid,
                                  char ret_file[HD_GPU_FILE_MAX]);

#endif
