# Spack recipe of numoe. Put it into packages/numoe/ of a repository of your own. `spack repo create ~/spack-numoe
# numoe` makes one, whose folder is, with Spack 1.0 or later,
#
#     repo=~/spack-numoe/spack_repo/numoe
#
# and with Spack 0.23
#
#     repo=~/spack-numoe
#
# Then
#
#     mkdir -p $repo/packages/numoe && cp package.py $repo/packages/numoe/ && spack repo add $repo
#     cd FOLDER-OF-THE-TARBALL && spack install --no-checksum numoe +cuda cuda_arch=90
import os

from spack.package import *

try:
    from spack_repo.builtin.build_systems.autotools import AutotoolsPackage
    from spack_repo.builtin.build_systems.cuda import CudaPackage
except ImportError:
    pass  # before Spack 1.0 they are in spack.package


class Numoe(AutotoolsPackage, CudaPackage):
    """Mixture-of-Experts language models from GGUF files on the CPUs of multi-socket machines:
    weights are placed where they are read, on the memory of each NUMA node."""

    # The tarball is looked for in the current folder.
    manual_download = True
    url = f"file://{os.getcwd()}/numoe-0.1.0.tar.xz"

    license("MIT")

    # The tarball holds this file, so its checksum cannot stand here.
    version("0.1.0")

    variant("uring", default=True, description="Queued reads while a model is loaded")
    variant("mpi", default=False, description="Batch jobs on several machines, by Open MPI")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+cuda")
    depends_on("pkgconfig", type="build")
    depends_on("hwloc@2.7.1:")
    depends_on("numactl@2.0.12:")
    depends_on("pcre2@10.30:")
    depends_on("jansson@2.11:")
    depends_on("liburing@2.0:", when="+uring")
    depends_on("openmpi@4:", when="+mpi")

    conflicts("platform=darwin", msg="numoe runs on Linux only")
    conflicts("platform=windows", msg="numoe runs on Linux only")
    conflicts("cuda_arch=none", when="+cuda", msg="name the GPU's architecture, such as cuda_arch=90")

    def configure_args(self):
        args = ["--without-criterion"]
        args += self.with_or_without("liburing", variant="uring")
        args += self.with_or_without("mpi")
        if self.spec.satisfies("+cuda"):
            args.append(f"--with-cuda={self.spec['cuda'].prefix}")
            args.append("--with-cuda-arch=" + ",".join(self.spec.variants["cuda_arch"].value))
        else:
            args.append("--with-cuda=no")
        return args

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(self.prefix.bin.numoe)("run", "-q", "-n", "4", "--seed", "1", "-p", "Once")
