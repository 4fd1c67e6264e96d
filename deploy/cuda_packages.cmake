# hd_cuda_packages(RESULT VERSION): sets RESULT to the Debian packages of which one brings libcublasLt.so of the CUDA
# version (13.0), for the field Depends. NVIDIA has a package per minor version, all of one major version fit each
# other; Debian and Ubuntu call theirs libcublaslt12. Without a version (no plug-in is built): of CUDA 13.
function(hd_cuda_packages result version)
    string(REGEX MATCH "^([0-9]+)(\\.([0-9]+))?$" whole "${version}")
    set(major "${CMAKE_MATCH_1}")
    set(first "${CMAKE_MATCH_3}")
    if(major STREQUAL "")
        set(major 13)
    endif()
    if(first STREQUAL "")
        set(first 0)
    endif()
    set(names)
    math(EXPR last "${first} + 4")
    foreach(minor RANGE ${first} ${last}) # an older one may lack what the plug-in uses
        list(APPEND names libcublas-${major}-${minor})
    endforeach()
    list(APPEND names libcublaslt${major})
    list(JOIN names " | " names)
    set(${result} "${names}" PARENT_SCOPE)
endfunction()
