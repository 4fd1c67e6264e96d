# commit.cmake: writes OUTPUT with the commit of SOURCE: from the file `commit`, which `git archive` fills in for a
# tarball; else from git, in a clone; else "unknown".
file(STRINGS ${SOURCE}/lib/version/commit COMMIT LIMIT_COUNT 1)
if(NOT COMMIT MATCHES "^[0-9a-f]+$")
    set(COMMIT unknown)
    execute_process(COMMAND git -C ${SOURCE} rev-parse --short=12 HEAD OUTPUT_VARIABLE found
        OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    # a tarball inside another project's clone: git would give the commit of that project
    execute_process(COMMAND git -C ${SOURCE} ls-files --error-unmatch lib/version/commit
        OUTPUT_QUIET ERROR_QUIET RESULT_VARIABLE foreign)
    if(NOT failed AND NOT foreign)
        set(COMMIT ${found})
        execute_process(COMMAND git -C ${SOURCE} diff-index --quiet HEAD ERROR_QUIET RESULT_VARIABLE changed)
        if(changed)
            string(APPEND COMMIT "+")
        endif()
    endif()
endif()
configure_file(${TEMPLATE} ${OUTPUT} @ONLY)
