# Finds a library gloo whose TCP transport fits lib/comm/gloo_link.cc. Sets HEDDLE_HAVE_GLOO,
# HEDDLE_GLOO_LIBRARY and HEDDLE_GLOO_INCLUDE. Included by the top CMakeLists.txt, because CXX must be
# enabled there.
option(HEDDLE_GLOO "Build the engine gloo (ranks on several nodes) if libgloo and a C++ compiler exist" ON)
set(HEDDLE_HAVE_GLOO OFF)
if(HEDDLE_GLOO AND NOT HEDDLE_ENGINE_ONLY)
    include(CheckLanguage)
    check_language(CXX)
    find_path(GLOO_INCLUDE_DIR gloo/transport/tcp/pair.h)
    find_library(HEDDLE_GLOO_LIBRARY gloo)
endif()
if(CMAKE_CXX_COMPILER AND GLOO_INCLUDE_DIR AND HEDDLE_GLOO_LIBRARY)
    enable_language(CXX)
    set(HEDDLE_GLOO_INCLUDE ${GLOO_INCLUDE_DIR})
    if(NOT EXISTS ${GLOO_INCLUDE_DIR}/gloo/common/memory.h)
        list(APPEND HEDDLE_GLOO_INCLUDE ${PROJECT_SOURCE_DIR}/lib/comm/gloo_stand_in)
    endif()
    # Other versions of gloo may have another transport interface; then this build has no engine gloo.
    set(probe ${PROJECT_BINARY_DIR}/gloo_fits/probe.c)
    file(WRITE ${probe} "int hd_err(int st) { return st; }\nint main(void) { return 0; }\n")
    try_compile(HEDDLE_GLOO_FITS ${PROJECT_BINARY_DIR}/gloo_fits
        SOURCES ${probe} ${PROJECT_SOURCE_DIR}/lib/comm/gloo_link.cc
        CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${PROJECT_SOURCE_DIR}/lib;${HEDDLE_GLOO_INCLUDE}"
        LINK_LIBRARIES ${HEDDLE_GLOO_LIBRARY} Threads::Threads
        CXX_STANDARD 14)
    set(HEDDLE_HAVE_GLOO ${HEDDLE_GLOO_FITS})
endif()
message(STATUS "comm: gloo ${HEDDLE_HAVE_GLOO} ${HEDDLE_GLOO_LIBRARY}")
