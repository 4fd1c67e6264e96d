# SPDX-License-Identifier: Apache-2.0
"""Heddle for Spack 1.0 and later: spack repo add deploy/spack/spack_repo/heddle && spack install heddle.

What of this has run where: docs/operations.md, "Other packages"."""

from spack_repo.builtin.build_systems.cmake import CMakePackage, generator

from spack.package import *


class Heddle(CMakePackage):
    """Heddle trains large language models on clusters of machines with GPUs or processors alone."""

    homepage = "https://heddle.example"
    git = "https://heddle.example/heddle.git"

    license("Apache-2.0")

    version("main", branch="main")
    version("0.1.0", tag="v0.1.0")

    variant("cuda", default=False, description="Build the plug-in for NVIDIA GPUs")
    variant("engine", default=False, description="Build only what trains: the worker, no cluster")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("onednn@2.6:")
    depends_on("pcre2+jit")
    depends_on("utf8proc+shared")
    depends_on("xxhash")
    depends_on("zlib-api")
    depends_on("zstd")
    depends_on("libseccomp~python")
    depends_on("openssl@3:")
    depends_on("cuda@12:", when="+cuda")
    depends_on("nccl@2.18:", when="+cuda", type="run")

    with when("~engine"):
        # the snapshot whose TCP transport lib/comm/gloo_link.cc knows; others leave CPU jobs on one node
        depends_on("gloo@2022-05-18")
        depends_on("protobuf", type="build")
        depends_on("protobuf-c")
        # protobuf-c takes protobuf up to 21.12, and gRPC from 1.55 on needs a later one
        depends_on("grpc@1.50+shared")
        depends_on("libuv")
        depends_on("sqlite@3.38:")
        depends_on("libyaml")
        depends_on("libmicrohttpd+https")
        depends_on("gnutls")
        depends_on("curl libs=shared")

    generator("ninja")

    def cmake_args(self):
        return [
            self.define("HEDDLE_TESTS", False),
            self.define_from_variant("HEDDLE_CUDA", "cuda"),
            self.define_from_variant("HEDDLE_ENGINE_ONLY", "engine"),
        ]

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_example_files(self):
        """The example files that are installed are the ones that the programs take."""
        if self.spec.satisfies("+engine"):
            return
        examples = join_path(self.prefix.share, "heddle")
        Executable(self.prefix.bin.join("heddle-controller"))(
            "--check-config", "--config", join_path(examples, "controller.yaml")
        )
        Executable(self.prefix.bin.heddled)("--check-config", "--config", join_path(examples, "node.yaml"))
