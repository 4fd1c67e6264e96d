# The source files of the plug-in, for nvcc and for the emulator of tests/cudasim, with full paths.
file(GLOB HEDDLE_CUDA_KERNELS CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cu) # C++
file(GLOB HEDDLE_CUDA_HOPPER CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*_hopper.cu) # of these, for sm_90a alone
file(GLOB HEDDLE_CUDA_HOST CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.c)     # C
