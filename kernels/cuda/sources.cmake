# What the plug-in is made of, for nvcc here and for the emulator of tests/cudasim, with paths.
file(GLOB HEDDLE_CUDA_KERNELS CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cu) # C++
file(GLOB HEDDLE_CUDA_HOST CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.c)     # C
