/* library: finds NVIDIA's libraries, cuBLASLt and NCCL, which the plug-in for GPUs needs.
 *
 * The loader's own rules come first (ld.so.cache, LD_LIBRARY_PATH, the plug-in's folder and that of
 * the toolkit with which it was built). After them come the folders of HEDDLE_CUDA_LIBRARIES, and
 * those in which Python's packages of NVIDIA have libraries (nvidia/cu13/lib, nvidia/nccl/lib), of
 * the system's Python and of a virtual environment.
 *
 * Used by: kernels (plugin.c), kernels/cuda (nccl.c), worker.   Uses: libc.
 * Threads: any. */
#ifndef HD_KERNELS_LIBRARY_H
#define HD_KERNELS_LIBRARY_H

#define HD_LIBRARY_FOLDERS_ENV "HEDDLE_CUDA_LIBRARIES" /* folders, separated by ':' */

/* Loads the library `name`, such as "libnccl.so.2", and returns its handle. NULL: it is in no
 * folder, or cannot be loaded; dlerror() then says why. It stays loaded. */
void *hd_library_open(const char *name);

/* Calls `take` with each folder that hd_library_open searches beyond the loader's rules. */
typedef void hd_library_take(void *context, const char *folder);
void hd_library_folders(hd_library_take *take, void *context);

#endif
