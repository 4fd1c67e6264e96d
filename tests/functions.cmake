# heddle_test() and heddle_scenario(): how a folder declares its tests.
#
# Each becomes one ctest test with its group as label, and one line in <build>/tests/list, which is
# what tests/run reads:
#
#   KIND NAME GROUP short|once|long|cuda TIMEOUT shared|waits|alone|last SCRIPT [ARG...]    a scenario
#   KIND NAME GROUP short|once|long|cuda TIMEOUT shared|waits|alone|last [PROGRAM ENTRY [ARG...]]    a program
#
# When a test runs:
#   LONG    with `tests/run --full` only
#   DEAR    so under a sanitizer, which is several times slower: it computes much, and what it does with
#           memory other tests do too
#   CUDA    with --full, with --cuda, or when what it depends on was changed (tests/run): kernels of the emulated
#           GPU, and what needs the plug-in that nvcc makes; under a sanitizer all that runs on the emulator
#   TWICE   with a sanitizer and without, in CI too: what it computes depends on how kernels are compiled, or it
#           takes fewer steps or elements under a sanitizer
# Any other unit or parity test whose program a sanitizer looks at shows the same in either build: it is `once` in a
# build without sanitizers, and CI, which runs asan as well, leaves it out there (tests/run --beside-asan).
# Scripts about the sources alone are the same in every build: no sanitizer runs a scenario of the group unit.
# Beside which others (default: as many at a time as there are cores):
#   WAITS   it sleeps more than it computes: some more run at a time (so do the groups e2e and chaos)
#   LAST    nothing else runs, and it is behind all the others, because it looks at what they left
# Tests of the group gpu run alone: there is one GPU.
# In which builds:
#   NOT_BARE   not under HEDDLE_BARE: there the same code would run in the same way as in the other builds

# heddle_test(NAME GROUP unit|parity|e2e|interop|chaos|fuzz|gpu SOURCES x_test.c [more.c...] [USES lib...]
#             [IN program] [ARGS arg...] [TIMEOUT seconds] [LONG|CUDA] [DEAR|TWICE] [WAITS] [NOT_BARE])
# A cmocka program of its own, whose cases are in its first source (tests/program/cases.h). With IN it is linked with
# the tests that name the same program: each source is compiled once, with the flags that the first USES asks for,
# whichever programs it is part of. So a test that needs flags of its own, or that stands before a
# function of libc, is a program of its own. <build>/tests/NAME runs the test either way, with ARGS
# before what it is given.
function(heddle_test name)
    cmake_parse_arguments(arg "LONG;CUDA;DEAR;TWICE;WAITS;NOT_BARE" "GROUP;TIMEOUT;IN" "SOURCES;USES;ARGS" ${ARGN})
    if(NOT HEDDLE_TESTS OR (arg_NOT_BARE AND HEDDLE_BARE))
        return()
    endif()
    foreach(room IN LISTS arg_USES)
        if(HEDDLE_ENGINE_ONLY AND room MATCHES "^hd_" AND NOT TARGET ${room})
            return() # of the control plane, which this build leaves out
        endif()
    endforeach()
    if(arg_IN)
        heddle_test_length(length ${name} program ${ARGN})
        add_custom_target(${name})
        set(entry)
        set(entry_object)
        if(NOT length IN_LIST HEDDLE_TESTS_NOT_BUILT)
            heddle_test_program(${arg_IN} entry entry_object SOURCES ${arg_SOURCES} USES ${arg_USES})
            add_dependencies(${name} ${arg_IN})
        endif()
        list(JOIN arg_ARGS " " args)
        file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/tests/${name} @ONLY CONTENT
            "#!/bin/sh\nexec '${CMAKE_BINARY_DIR}/tests/${arg_IN}' ${entry} ${args} \"$@\"\n")
        file(CHMOD ${CMAKE_BINARY_DIR}/tests/${name} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE
            GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
        heddle_list_test(${name} program "${arg_IN} ${entry} ${args}" ${CMAKE_BINARY_DIR}/tests/${name} ${ARGN} READS ${entry_object})
    else()
        add_executable(${name} ${arg_SOURCES})
        target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/lib ${PROJECT_SOURCE_DIR})
        target_link_libraries(${name} PRIVATE ${arg_USES} hd_cmocka)
        list(GET arg_SOURCES 0 source)
        heddle_list_cases(${name} ${source})
        set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
        heddle_list_test(${name} program "" $<TARGET_FILE:${name}> ${ARGN})
    endif()
endfunction()

# Returns when a test runs, in one word of its line in the list; the arguments are those of its declaration.
function(heddle_test_length ret_length name kind)
    cmake_parse_arguments(arg "LONG;CUDA;DEAR;TWICE;WAITS;LAST;NOT_BARE" "GROUP;TIMEOUT;IN" "ARGS;SOURCES;USES;SCRIPT;READS" ${ARGN})
    set(length short)
    if(arg_LONG OR (HEDDLE_SANITIZE AND (arg_DEAR OR (kind STREQUAL scenario AND arg_GROUP STREQUAL unit))))
        set(length long)
    elseif(arg_CUDA OR (HEDDLE_SANITIZE AND "${arg_USES}" MATCHES "cudasim"))
        set(length cuda) # a sanitized build leaves the emulator out, unless it was touched
    elseif(kind STREQUAL program AND arg_GROUP MATCHES "^(unit|parity)$" AND NOT HEDDLE_SANITIZE
        AND NOT arg_DEAR AND NOT arg_TWICE AND NOT "${arg_USES}" MATCHES "cudasim")
        set(length once)
    endif()
    set(${ret_length} ${length} PARENT_SCOPE)
endfunction()

# In TARGET the compiler reads the table of the cases of SOURCE before SOURCE itself.
function(heddle_list_cases target source)
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    cmake_path(GET source STEM stem)
    set(header ${CMAKE_CURRENT_BINARY_DIR}/${stem}.cases.h)
    get_source_file_property(known ${source} HEDDLE_CASES)
    if(NOT known)
        add_custom_command(OUTPUT ${header} DEPENDS ${source} ${PROJECT_SOURCE_DIR}/tests/program/cases
            COMMAND ${PROJECT_SOURCE_DIR}/tests/program/cases ${source} ${header} VERBATIM)
        set_property(SOURCE ${source} PROPERTY HEDDLE_CASES ON)
        set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -include ${header})
        get_property(headers DIRECTORY PROPERTY HEDDLE_CASES)
        if(NOT headers)
            cmake_language(DEFER CALL heddle_cases_of_folder)
        endif()
        set_property(DIRECTORY APPEND PROPERTY HEDDLE_CASES ${header})
    endif()
    target_sources(${target} PRIVATE ${header})
endfunction()

# A target of the folder's tables, which needs no library: clang-check reads the tables where nothing was compiled.
function(heddle_cases_of_folder)
    get_property(headers DIRECTORY PROPERTY HEDDLE_CASES)
    cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE folder)
    string(MAKE_C_IDENTIFIER cases_${folder} target)
    add_custom_target(${target} DEPENDS ${headers})
    set_property(GLOBAL APPEND PROPERTY HEDDLE_CASES ${target})
endfunction()

# The program PROGRAM, which grows by these sources; the first is a test, whose ENTRY and object
# library are returned.
function(heddle_test_program program ret_entry ret_object)
    cmake_parse_arguments(arg "" "" "SOURCES;USES" ${ARGN})
    if(NOT TARGET ${program})
        add_executable(${program} ${PROJECT_SOURCE_DIR}/tests/program/main.c)
        set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
        target_link_libraries(${program} PRIVATE hd_cmocka)
    endif()
    target_link_libraries(${program} PRIVATE ${arg_USES})
    set(kind entry)
    foreach(source IN LISTS arg_SOURCES)
        cmake_path(ABSOLUTE_PATH source NORMALIZE)
        cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE path)
        cmake_path(GET source STEM stem)
        string(MAKE_C_IDENTIFIER ${path} object)
        set(object ${kind}_${object})
        if(NOT TARGET ${object})
            add_library(${object} OBJECT ${source})
            target_include_directories(${object} PRIVATE ${PROJECT_SOURCE_DIR}/lib ${PROJECT_SOURCE_DIR})
            target_link_libraries(${object} PRIVATE ${arg_USES} hd_cmocka)
            if(kind STREQUAL entry)
                heddle_list_cases(${object} ${source})
                target_compile_definitions(${object} PRIVATE HD_TEST_ENTRY=${stem})
                target_compile_options(${object} PRIVATE -include ${PROJECT_SOURCE_DIR}/tests/program/entry.h)
            endif()
        endif()
        get_target_property(objects ${program} HEDDLE_OBJECTS)
        if(NOT object IN_LIST objects)
            target_sources(${program} PRIVATE $<TARGET_OBJECTS:${object}>)
            set_property(TARGET ${program} APPEND PROPERTY HEDDLE_OBJECTS ${object})
        endif()
        if(kind STREQUAL entry)
            set(${ret_entry} ${stem} PARENT_SCOPE)
            set(${ret_object} ${object} PARENT_SCOPE)
        endif()
        set(kind part)
    endforeach()
endfunction()

# heddle_scenario(NAME GROUP unit|parity|e2e|interop|chaos|fuzz|gpu|bench SCRIPT file [ARGS arg...]
#                 [READS path...] [TIMEOUT seconds] [LONG|CUDA] [WAITS|LAST] [NOT_BARE])
# A script that speaks the protocol of tests/README.md; no argument of it contains a space. READS are
# the files and folders of the repository that it looks at, beside its own folder, for `tests/run
# --changed`; one of the groups e2e, interop and chaos runs all programs.
function(heddle_scenario name)
    cmake_parse_arguments(arg "LONG;CUDA;WAITS;LAST;NOT_BARE" "GROUP;TIMEOUT;SCRIPT" "ARGS;READS" ${ARGN})
    if(NOT HEDDLE_TESTS OR (arg_NOT_BARE AND HEDDLE_BARE))
        return()
    endif()
    cmake_path(ABSOLUTE_PATH arg_SCRIPT NORMALIZE)
    cmake_path(RELATIVE_PATH arg_SCRIPT BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE script)
    list(JOIN arg_ARGS " " args)
    heddle_list_test(${name} scenario "${script} ${args}" ${arg_SCRIPT} ${ARGN})
endfunction()

# The part both share: the ctest test and the lines for tests/run.
function(heddle_list_test name kind script command)
    cmake_parse_arguments(arg "LONG;CUDA;DEAR;TWICE;WAITS;LAST;NOT_BARE" "GROUP;TIMEOUT;IN" "ARGS;SOURCES;USES;SCRIPT;READS" ${ARGN})
    if(NOT arg_GROUP MATCHES "^(unit|parity|e2e|interop|chaos|fuzz|gpu|bench)$")
        message(FATAL_ERROR "${name}: GROUP is '${arg_GROUP}', not one of unit parity e2e interop chaos fuzz gpu bench")
    endif()
    if(HEDDLE_ENGINE_ONLY AND arg_GROUP MATCHES "^(e2e|interop|chaos)$") # no controller, no daemon
        return()
    endif()
    heddle_test_length(length ${name} ${kind} ${ARGN})
    set(neighbours shared)
    set(labels ${arg_GROUP})
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 120)
    endif()
    if(length MATCHES "^(long|cuda)$")
        list(APPEND labels long)
    endif()
    if(arg_LAST)
        set(neighbours last)
    elseif(arg_GROUP STREQUAL "gpu")
        set(neighbours alone)
    elseif(arg_WAITS OR arg_GROUP MATCHES "^(e2e|chaos)$")
        set(neighbours waits)
    endif()
    set_property(GLOBAL APPEND PROPERTY HEDDLE_TEST_LIST
        "${kind} ${name} ${arg_GROUP} ${length} ${arg_TIMEOUT} ${neighbours} ${script}")

    # For --changed: the test's folder, and what else it reads; of a test in a program the object library
    # that is its own (entry_*).
    cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE folder)
    set(reads ${folder} ${arg_READS})
    if(kind STREQUAL scenario AND arg_GROUP MATCHES "^(e2e|interop|chaos)$")
        list(APPEND reads PROGRAMS tests/e2e/cluster.sh)
    endif()
    list(JOIN reads " " reads)
    set_property(GLOBAL APPEND PROPERTY HEDDLE_TEST_READS "${name} ${reads}")

    if(kind STREQUAL scenario)
        list(APPEND command ${arg_ARGS})
    endif()
    add_test(NAME ${name} COMMAND ${PROJECT_SOURCE_DIR}/tests/own_folder ${command}
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${arg_TIMEOUT}
        ENVIRONMENT
        "HEDDLE_BUILD_DIR=${CMAKE_BINARY_DIR};HEDDLE_SOURCE_DIR=${PROJECT_SOURCE_DIR};HEDDLE_BIN=${CMAKE_BINARY_DIR}/bin")
    if(neighbours MATCHES "^(alone|last)$")
        set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
    endif()
endfunction()

# Called once after the last test folder.
function(heddle_write_test_list)
    get_property(lines GLOBAL PROPERTY HEDDLE_TEST_LIST)
    list(JOIN lines "\n" text)
    file(WRITE ${CMAKE_BINARY_DIR}/tests/list "${text}\n")
    get_property(lines GLOBAL PROPERTY HEDDLE_TEST_READS)
    list(JOIN lines "\n" text)
    file(WRITE ${CMAKE_BINARY_DIR}/tests/reads "${text}\n")
    get_property(programs GLOBAL PROPERTY HEDDLE_PROGRAMS)
    add_custom_target(heddle-programs DEPENDS ${programs})
    get_property(cases GLOBAL PROPERTY HEDDLE_CASES)
    add_custom_target(heddle-test-cases DEPENDS ${cases})
    add_custom_target(heddle-cluster DEPENDS heddle-programs) # what whole clusters run
    if(TARGET heddle_cudasim)
        add_dependencies(heddle-cluster heddle_cudasim)
    endif()
endfunction()
