# architectures: which GPUs the plug-in is built for, by the version of nvcc.
#
#   hd_cuda_architectures(RESULT VERSION KNOWN WANTED)
#
# VERSION: of nvcc, such as 12.0. KNOWN: its answer to --list-gpu-arch, as a list (compute_80;..). WANTED: a list as
# CMAKE_CUDA_ARCHITECTURES, or "" for what suits the version: code for each generation that nvcc knows, and PTX of
# sm_90 for later ones. Sets RESULT to the list, or to "" and RESULT_PROBLEM to the reason why nothing can be built.

# The oldest nvcc with the types of fp8.
set(HEDDLE_CUDA_VERSION_MIN 11.8)

function(hd_cuda_architectures result version known wanted)
    set(${result} "" PARENT_SCOPE)
    set(${result}_PROBLEM "" PARENT_SCOPE)
    if(NOT version)
        set(${result}_PROBLEM "nvcc does not tell its version" PARENT_SCOPE)
        return()
    endif()
    if(version VERSION_LESS HEDDLE_CUDA_VERSION_MIN)
        set(${result}_PROBLEM "nvcc ${version} is older than ${HEDDLE_CUDA_VERSION_MIN}" PARENT_SCOPE)
        return()
    endif()
    set(list "${wanted}")
    if(list STREQUAL "")
        foreach(number IN ITEMS 80 90 100 120)
            if("compute_${number}" IN_LIST known)
                list(APPEND list ${number}-real)
            endif()
        endforeach()
        if("compute_90" IN_LIST known)
            list(APPEND list 90-virtual)
        endif()
        if(list STREQUAL "")
            set(${result}_PROBLEM "nvcc ${version} lists no GPU of compute capability 8.0, 9.0, 10.0 or 12.0" PARENT_SCOPE)
            return()
        endif()
    endif()
    set(unknown)
    foreach(item IN LISTS list)
        string(REGEX REPLACE "-(real|virtual)$" "" number "${item}")
        string(REGEX REPLACE "[af]$" "" plain "${number}") # sm_90a and sm_100f are listed, if at all, as 90 and 100
        if(number MATCHES "^[0-9]+[af]?$" AND NOT "compute_${number}" IN_LIST known AND NOT "compute_${plain}" IN_LIST known)
            list(APPEND unknown ${item})
        endif()
    endforeach()
    if(unknown)
        list(JOIN unknown ", " unknown)
        set(${result}_PROBLEM
            "nvcc ${version} does not know ${unknown} of HEDDLE_CUDA_ARCHITECTURES; leave it out, or set the option to \"\""
            PARENT_SCOPE)
        return()
    endif()
    set(${result} "${list}" PARENT_SCOPE)
endfunction()

# hd_cuda_hopper_architecture(RESULT VERSION KNOWN WANTED): for the sources *_hopper.cu, whose instructions (wgmma,
# setmaxnreg) only sm_90a has, which runs on GPUs of compute capability 9.0 alone. The arguments are those above; ""
# if nvcc does not know it, or the list leaves that capability out.
function(hd_cuda_hopper_architecture result version known wanted)
    set(${result} "" PARENT_SCOPE)
    if(version VERSION_GREATER_EQUAL 12.0 AND "compute_90" IN_LIST known AND (wanted STREQUAL "" OR wanted MATCHES "(^|;)90"))
        set(${result} "90a-real" PARENT_SCOPE)
    endif()
endfunction()
