# prepare: makes of an installed tree what a Debian package holds. CPack runs it once, before packing.
#
#   share/heddle/X.yaml  -> /etc/heddle/X.yaml, a conffile      pages of the manual, changelog -> compressed
#   LICENSE              -> a file `copyright` per package      zsh's functions -> where Debian has them
if(NOT CPACK_GENERATOR STREQUAL "DEB")
    return()
endif()
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC) # SOURCE_DATE_EPOCH, where it is set
foreach(pair client:heddle controller:heddle-controller node:heddle-node plugin:heddle-cuda)
    string(REPLACE ":" ";" pair ${pair})
    list(GET pair 0 component)
    list(GET pair 1 package)
    set(root ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/${component})
    if(NOT EXISTS ${root})
        continue()
    endif()
    set(doc ${root}/usr/share/doc/${package})
    file(MAKE_DIRECTORY ${doc})
    file(REMOVE ${doc}/LICENSE)
    file(COPY_FILE ${CMAKE_CURRENT_LIST_DIR}/copyright ${doc}/copyright)
    file(WRITE ${doc}/changelog "heddle (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * Release ${CPACK_PACKAGE_VERSION}.

 -- ${CPACK_PACKAGE_CONTACT}  ${now}
")
    if(EXISTS ${root}/usr/share/heddle/${component}.yaml)
        file(MAKE_DIRECTORY ${root}/etc/heddle)
        file(RENAME ${root}/usr/share/heddle/${component}.yaml ${root}/etc/heddle/${component}.yaml)
        file(GLOB others ${root}/usr/share/heddle/*) # recipes, the schema, rules for Prometheus
        if(NOT others)
            file(REMOVE_RECURSE ${root}/usr/share/heddle)
        endif()
    endif()
    if(EXISTS ${root}/usr/share/zsh/site-functions)
        file(RENAME ${root}/usr/share/zsh/site-functions ${root}/usr/share/zsh/vendor-completions)
    endif()
    file(GLOB pages ${root}/usr/share/man/man*/*.[18])
    foreach(page IN LISTS pages)
        if(NOT page MATCHES "gz$")
            execute_process(COMMAND gzip -9nf ${page} COMMAND_ERROR_IS_FATAL ANY)
        endif()
    endforeach()
    execute_process(COMMAND gzip -9nf ${doc}/changelog COMMAND_ERROR_IS_FATAL ANY)
    # whatever the umask of who builds
    execute_process(COMMAND chmod -R u=rwX,go=rX ${root} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
