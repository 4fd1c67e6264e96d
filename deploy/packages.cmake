# packages: the Debian packages and the tarball, by CPack.
#
#   cmake --preset release && cmake --build --preset release && (cd build/release && cpack)
#
# What differs between a package and `cmake --install` (conffiles, compressed pages, changelogs) is done
# by debian/prepare.cmake, on the files that CPack is about to pack.
set(CPACK_PACKAGE_NAME heddle)
set(CPACK_PACKAGE_VENDOR "The Heddle project")
set(CPACK_PACKAGE_CONTACT "The Heddle project <maintainers@heddle.example>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains language models on clusters")
set(CPACK_GENERATOR DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
    WORLD_READ WORLD_EXECUTE)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/debian/prepare.cmake)
set(CPACK_THREADS 0)

# A package per component; a tarball is one.
set(CPACK_COMPONENTS_ALL client controller node)
if(TARGET heddle_cuda)
    list(APPEND CPACK_COMPONENTS_ALL plugin)
endif()
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(version ${PROJECT_VERSION})
set(scripts ${CMAKE_CURRENT_LIST_DIR}/debian)
set(made_scripts ${CMAKE_CURRENT_BINARY_DIR}/debian)

set(CPACK_DEBIAN_CLIENT_PACKAGE_NAME heddle)
set(CPACK_COMPONENT_CLIENT_DESCRIPTION "Heddle trains large language models on clusters of machines with GPUs or
processors alone. This package has the command, which submits jobs and shows
how they fare, its manual pages and the documentation.")
if(HEDDLE_LIBCURL_FOUND) # loaded by lib/hub when it is needed
    set(CPACK_DEBIAN_CLIENT_PACKAGE_DEPENDS "libcurl4 | libcurl3-gnutls")
endif()
set(CPACK_DEBIAN_CLIENT_PACKAGE_RECOMMENDS "heddle-node (= ${version}), ca-certificates")
set(CPACK_DEBIAN_CLIENT_PACKAGE_SUGGESTS "heddle-controller (= ${version})")
set(CPACK_DEBIAN_CLIENT_PACKAGE_CONTROL_EXTRA ${scripts}/heddle/conffiles)

set(CPACK_DEBIAN_CONTROLLER_PACKAGE_NAME heddle-controller)
set(CPACK_COMPONENT_CONTROLLER_DESCRIPTION "Heddle trains large language models on clusters of machines with GPUs or
processors alone. This package has the controller, one per cluster, which
accepts jobs, places them on nodes, restarts them and remembers everything.")
set(CPACK_DEBIAN_CONTROLLER_PACKAGE_DEPENDS "heddle (= ${version}), passwd")
set(CPACK_DEBIAN_CONTROLLER_PACKAGE_CONTROL_EXTRA ${scripts}/heddle-controller/conffiles
    ${scripts}/heddle-controller/preinst ${scripts}/heddle-controller/postinst ${scripts}/heddle-controller/prerm
    ${made_scripts}/heddle-controller/postrm)

set(CPACK_DEBIAN_NODE_PACKAGE_NAME heddle-node)
set(CPACK_COMPONENT_NODE_DESCRIPTION "Heddle trains large language models on clusters of machines with GPUs or
processors alone. This package has what runs on each machine that trains: the
daemon, the supervisor of a job and the worker that computes.")
set(CPACK_DEBIAN_NODE_PACKAGE_DEPENDS "heddle (= ${version}), passwd")
set(CPACK_DEBIAN_NODE_PACKAGE_SUGGESTS "heddle-cuda (= ${version})")
set(CPACK_DEBIAN_NODE_PACKAGE_CONTROL_EXTRA ${scripts}/heddle-node/conffiles ${scripts}/heddle-node/postinst
    ${scripts}/heddle-node/prerm ${made_scripts}/heddle-node/postrm)

set(CPACK_DEBIAN_PLUGIN_PACKAGE_NAME heddle-cuda)
set(CPACK_COMPONENT_PLUGIN_DESCRIPTION "Heddle trains large language models on clusters of machines with GPUs or
processors alone. This package has the kernels for NVIDIA GPUs, which
heddle-worker loads. It needs NVIDIA's driver, cuBLASLt of the CUDA version
with which it was built, and for jobs on several GPUs NCCL.")
get_property(cuda GLOBAL PROPERTY HEDDLE_CUDA_VERSION)
include(${CMAKE_CURRENT_LIST_DIR}/cuda_packages.cmake)
hd_cuda_packages(cublas "${cuda}")
set(CPACK_DEBIAN_PLUGIN_PACKAGE_DEPENDS "heddle-node (= ${version}), ${cublas}")
set(CPACK_DEBIAN_PLUGIN_PACKAGE_RECOMMENDS "libnccl2 (>= 2.18)")
set(CPACK_DEBIAN_PLUGIN_PACKAGE_SUGGESTS "libcudnn9-cuda-13 (>= 9.18) | libcudnn9-cuda-12 (>= 9.18)")
include(CPack)
