# heddle_test() and heddle_scenario(): how a folder declares its tests.
#
# Each becomes one ctest test with its group as label, and one line in <build>/tests/list, which is
# what tests/run reads:   KIND NAME GROUP short|long TIMEOUT shared|alone|last SCRIPT [ARG...]

# heddle_test(NAME GROUP unit|parity|e2e|interop|chaos|fuzz|gpu SOURCES x_test.c [USES lib...]
#             [TIMEOUT seconds] [LONG] [ALONE])
# A cmocka program. LONG runs only with `tests/run --full`; ALONE has the machine to itself.
function(heddle_test name)
    cmake_parse_arguments(arg "LONG;ALONE" "GROUP;TIMEOUT" "SOURCES;USES" ${ARGN})
    if(NOT HEDDLE_TESTS)
        return()
    endif()
    foreach(room IN LISTS arg_USES)
        if(HEDDLE_ENGINE_ONLY AND room MATCHES "^hd_" AND NOT TARGET ${room})
            return() # of the control plane, which this build leaves out
        endif()
    endforeach()
    add_executable(${name} ${arg_SOURCES})
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/lib ${PROJECT_SOURCE_DIR})
    target_link_libraries(${name} PRIVATE ${arg_USES} hd_cmocka)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    heddle_list_test(${name} program "" ${name} ${ARGN})
endfunction()

# heddle_scenario(NAME GROUP unit|parity|e2e|interop|chaos|fuzz|gpu SCRIPT file [ARGS arg...]
#                 [TIMEOUT seconds] [LONG] [ALONE] [LAST])
# A script that speaks the protocol of tests/README.md; no argument of it contains a space.
# LAST looks at what all the others have left: tests/run starts it behind them.
function(heddle_scenario name)
    cmake_parse_arguments(arg "LONG;ALONE;LAST" "GROUP;TIMEOUT;SCRIPT" "ARGS" ${ARGN})
    if(NOT HEDDLE_TESTS)
        return()
    endif()
    cmake_path(ABSOLUTE_PATH arg_SCRIPT NORMALIZE)
    cmake_path(RELATIVE_PATH arg_SCRIPT BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE script)
    list(JOIN arg_ARGS " " args)
    heddle_list_test(${name} scenario "${script} ${args}" ${arg_SCRIPT} ${ARGN})
endfunction()

# The part both share: the ctest test and the line in the list.
function(heddle_list_test name kind script command)
    cmake_parse_arguments(arg "LONG;ALONE;LAST" "GROUP;TIMEOUT" "ARGS;SOURCES;USES;SCRIPT" ${ARGN})
    if(NOT arg_GROUP MATCHES "^(unit|parity|e2e|interop|chaos|fuzz|gpu)$")
        message(FATAL_ERROR "${name}: GROUP is '${arg_GROUP}', not one of unit parity e2e interop chaos fuzz gpu")
    endif()
    if(HEDDLE_ENGINE_ONLY AND arg_GROUP MATCHES "^(e2e|interop|chaos)$") # no controller, no daemon
        return()
    endif()
    set(length short)
    set(neighbours shared)
    set(labels ${arg_GROUP})
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 120)
    endif()
    if(arg_LONG)
        set(length long)
        list(APPEND labels long)
    endif()
    if(arg_ALONE OR arg_GROUP MATCHES "^(e2e|interop|chaos|gpu)$") # they start whole clusters of processes
        set(neighbours alone)
    endif()
    if(arg_LAST)
        set(neighbours last)
    endif()
    set_property(GLOBAL APPEND PROPERTY HEDDLE_TEST_LIST
        "${kind} ${name} ${arg_GROUP} ${length} ${arg_TIMEOUT} ${neighbours} ${script}")

    add_test(NAME ${name} COMMAND ${command} ${arg_ARGS} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${arg_TIMEOUT}
        ENVIRONMENT "HEDDLE_BUILD_DIR=${CMAKE_BINARY_DIR};HEDDLE_SOURCE_DIR=${PROJECT_SOURCE_DIR}")
    if(NOT neighbours STREQUAL shared)
        set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
    endif()
endfunction()

# Called once after the last test folder.
function(heddle_write_test_list)
    get_property(lines GLOBAL PROPERTY HEDDLE_TEST_LIST)
    list(JOIN lines "\n" text)
    file(WRITE ${CMAKE_BINARY_DIR}/tests/list "${text}\n")
endfunction()
