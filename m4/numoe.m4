# The checks that configure.ac is written with.

# NUMOE_REQUIRE(VARIABLE, PKG-CONFIG SPEC, DEBIAN PACKAGE, RPM PACKAGE)
# Sets VARIABLE_CFLAGS and VARIABLE_LIBS, or ends with how to get the library.
AC_DEFUN([NUMOE_REQUIRE], [
  PKG_CHECK_MODULES([$1], [$2], [],
    [AC_MSG_ERROR([$2 is required and pkg-config does not find it
  Debian, Ubuntu: apt-get install $3      Fedora, RHEL: dnf install $4
  In a prefix of your own: PKG_CONFIG_PATH=PREFIX/lib/pkgconfig ./configure
  pkg-config said: $$1[]_PKG_ERRORS])])
])

# NUMOE_WITH(NAME, VARIABLE, PKG-CONFIG SPEC, EFFECT)
# Three states: --with-NAME demands it, --without-NAME ignores it, neither takes it if it is there.
# Sets HAVE_VARIABLE (Automake conditional), VARIABLE_CFLAGS and VARIABLE_LIBS. It defines no C macro:
# that the library was installed meanwhile is then no reason to compile everything again.
AC_DEFUN([NUMOE_WITH], [
  AC_ARG_WITH([$1],
    [AS_HELP_STRING([--with-$1@<:@=yes|no|guess@:>@], [$4; default guess])],
    [], [with_$1=guess])
  numoe_with_$1=no
  AS_CASE([$with_$1],
    [no], [numoe_with_$1="no (left out)"],
    [yes|guess], [
      PKG_CHECK_MODULES([$2], [$3], [numoe_with_$1=yes],
        [AS_IF([test "x$with_$1" = xyes],
          [AC_MSG_ERROR([--with-$1 was given, but pkg-config does not find $3: $$2[]_PKG_ERRORS])])
         numoe_with_$1="no (not found)"])],
    [AC_MSG_ERROR([--with-$1 takes yes, no or guess, not "$with_$1"])])
  AS_IF([test "x$numoe_with_$1" != xyes], [$2[]_CFLAGS= $2[]_LIBS=])
  AM_CONDITIONAL([HAVE_$2], [test "x$numoe_with_$1" = xyes])
])

# NUMOE_ISA(NAME, VARIABLE, FLAGS, BODY)
# Whether the compiler makes code for an x86 instruction set. Sets KERN_HAVE_VARIABLE (C macro and
# Automake conditional) and VARIABLE_FLAGS; whether the processor has it is asked at run time.
AC_DEFUN([NUMOE_ISA], [
  AC_REQUIRE([NUMOE_OPTION_ISA])
  AC_REQUIRE([NUMOE_OPTION_EMULATED_ISA])
  numoe_isa_ok=no
  numoe_isa_flags="$3"
  AS_IF([test "x$with_emulated_isa" != xno && test $1 != avx2], [numoe_isa_flags=$EMULATED_FLAGS])
  AS_CASE([$host_cpu:,$with_isa,], [x86_64:*,all,*|amd64:*,all,*|x86_64:*,$1,*|amd64:*,$1,*], [
    AC_MSG_CHECKING([whether $CC can make $1 code])
    numoe_saved_CFLAGS=$CFLAGS
    CFLAGS="$CFLAGS $numoe_isa_flags"
    AC_COMPILE_IFELSE([AC_LANG_SOURCE([[
#include <immintrin.h>
int main(void)
{
    $4
}]])], [numoe_isa_ok=yes])
    CFLAGS=$numoe_saved_CFLAGS
    AC_MSG_RESULT([$numoe_isa_ok])])
  AS_IF([test $numoe_isa_ok = yes],
    [AC_DEFINE([KERN_HAVE_$2], [1], [$1 kernels are built])
     numoe_isa_built="$numoe_isa_built $1"])
  AM_CONDITIONAL([KERN_HAVE_$2], [test $numoe_isa_ok = yes])
  AC_SUBST([$2_FLAGS], [$numoe_isa_flags])
])

# Where instructions are calls of functions that AVX2 executes: tests/emulate.
AC_DEFUN([NUMOE_OPTION_EMULATED_ISA], [
  AC_ARG_WITH([emulated-isa],
    [AS_HELP_STRING([--with-emulated-isa],
      [for tests on a processor with AVX2: the instructions beyond that in C, very slow])],
    [], [with_emulated_isa=no])
  AS_IF([test "x$with_emulated_isa" != xno],
    [EMULATED_FLAGS="-mavx2 -mfma -mf16c -Wno-psabi -I$srcdir/tests/emulate -I$srcdir"
     AC_DEFINE([KERN_EMULATED], [1], [instructions beyond AVX2 are emulated, for tests])])
  AM_CONDITIONAL([EMULATED_ISA], [test "x$with_emulated_isa" != xno])
])

AC_DEFUN([NUMOE_OPTION_ISA], [
  AC_ARG_WITH([isa],
    [AS_HELP_STRING([--with-isa=LIST],
      [build kernels for these instruction sets, separated by commas (default: all; ref: portable C
       alone, which is always there)])],
    [AS_CASE([$withval], [yes], [with_isa=all], [no], [with_isa=ref])], [with_isa=all])
])

AC_DEFUN([NUMOE_OPTION_DEBUG], [
  AC_ARG_ENABLE([debug],
    [AS_HELP_STRING([--enable-debug], [assertions and the allocation guard around decode steps])],
    [], [enable_debug=no])
  AS_IF([test "x$enable_debug" = xno],
    [AC_DEFINE([NDEBUG], [1], [no assertions])],
    [AC_DEFINE([NUMOE_DEBUG], [1], [the allocation guard is on])])
])

AC_DEFUN([NUMOE_OPTION_WERROR], [
  AC_ARG_ENABLE([werror],
    [AS_HELP_STRING([--enable-werror], [warnings are errors])], [], [enable_werror=no])
  # Fields that a table leaves out are zero: that is what leaving them out is for.
  WARN_CFLAGS="-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla"
  WARN_CFLAGS="$WARN_CFLAGS -Wno-missing-field-initializers"
  AS_IF([test "x$enable_werror" != xno], [WARN_CFLAGS="$WARN_CFLAGS -Werror"])
  AC_SUBST([WARN_CFLAGS])
])

# Fuzzing brings its own sanitizers, so this comes before NUMOE_OPTION_FUZZING.
AC_DEFUN([NUMOE_OPTION_SANITIZERS], [
  AC_ARG_ENABLE([sanitizers],
    [AS_HELP_STRING([--enable-sanitizers=LIST], [e.g. address,undefined or thread])],
    [], [enable_sanitizers=no])
  AS_CASE([$enable_sanitizers],
    [yes], [enable_sanitizers=address,undefined])
  SANITIZE_FLAGS=
  AS_IF([test "x$enable_sanitizers" != xno], [
    SANITIZE_FLAGS="-fsanitize=$enable_sanitizers -fno-sanitize-recover=all -fno-omit-frame-pointer"
    NUMOE_CHECK_LINK([$SANITIZE_FLAGS], [],
      [AC_MSG_ERROR([$CC cannot link a program with $SANITIZE_FLAGS])])])
  AC_SUBST([SANITIZE_FLAGS])
])

AC_DEFUN([NUMOE_OPTION_FUZZING], [
  AC_ARG_ENABLE([fuzzing],
    [AS_HELP_STRING([--enable-fuzzing], [fuzz targets for make fuzz (needs clang with libFuzzer)])],
    [], [enable_fuzzing=no])
  FUZZ_FLAGS=
  AS_IF([test "x$enable_fuzzing" != xno], [
    AS_IF([test "x$enable_sanitizers" = xno],
      [enable_sanitizers=address,undefined
       SANITIZE_FLAGS="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"])
    NUMOE_CHECK_LINK([-fsanitize=fuzzer-no-link $SANITIZE_FLAGS], [],
      [AC_MSG_ERROR([--enable-fuzzing needs clang with libFuzzer: CC=clang ./configure --enable-fuzzing
  Debian, Ubuntu: apt-get install clang and the libclang-rt-*-dev of its version])])
    SANITIZE_FLAGS="-fsanitize=fuzzer-no-link $SANITIZE_FLAGS"
    FUZZ_FLAGS="-fsanitize=fuzzer"])
  # clang leaves a sanitizer's own symbols in shared libraries open
  AM_CONDITIONAL([SANITIZERS], [test "x$enable_sanitizers" != xno])
  AC_SUBST([FUZZ_FLAGS])
  AM_CONDITIONAL([FUZZING], [test "x$enable_fuzzing" != xno])
])

# NUMOE_CHECK_LINK(FLAGS, IF-YES, IF-NO)
AC_DEFUN([NUMOE_CHECK_LINK], [
  AC_MSG_CHECKING([whether $CC links with $1])
  numoe_saved_CFLAGS=$CFLAGS
  CFLAGS="$CFLAGS $1"
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[]], [[]])],
    [CFLAGS=$numoe_saved_CFLAGS
     AC_MSG_RESULT([yes])
     $2],
    [CFLAGS=$numoe_saved_CFLAGS
     AC_MSG_RESULT([no])
     $3])
])

# The library's symbols carry a version; a linker that cannot do it still hides the internal ones.
AC_DEFUN([NUMOE_LD_VERSION_SCRIPT], [
  AC_MSG_CHECKING([whether the linker takes a version script])
  numoe_saved_LDFLAGS=$LDFLAGS
  LDFLAGS="$LDFLAGS -Wl,--version-script=conftest.map"
  AS_ECHO(["V_1 { global: main; local: *; };"]) >conftest.map
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[]], [[]])], [numoe_version_script=yes], [numoe_version_script=no])
  LDFLAGS=$numoe_saved_LDFLAGS
  rm -f conftest.map
  AC_MSG_RESULT([$numoe_version_script])
  AM_CONDITIONAL([HAVE_VERSION_SCRIPT], [test $numoe_version_script = yes])
])

# NUMOE_CUDA: --with-cuda=DIR|no, --with-cuda-arch=LIST. Sets HAVE_CUDA (Automake conditional), NVCC,
# NVCC_ARCH, CUDA_CFLAGS, CUDA_LIBS. Without nvcc numoe-gpu-cuda is left out.
AC_DEFUN([NUMOE_CUDA], [
  AC_ARG_WITH([cuda],
    [AS_HELP_STRING([--with-cuda@<:@=DIR|no@:>@],
      [the CUDA toolkit, for numoe-gpu-cuda; default: where nvcc is])],
    [], [with_cuda=guess])
  AC_ARG_WITH([cuda-arch],
    [AS_HELP_STRING([--with-cuda-arch=LIST],
      [GPU architectures to build for, e.g. 80,90; default 75,80,90, and PTX of the last])],
    [], [with_cuda_arch=75,80,90])
  numoe_with_cuda=no
  AS_CASE([$with_cuda],
    [no], [NVCC= numoe_with_cuda="no (left out)"],
    [yes|guess], [AC_PATH_PROG([NVCC], [nvcc], [], [$PATH:/usr/local/cuda/bin])],
    [AC_PATH_PROG([NVCC], [nvcc], [], [$with_cuda/bin])])
  AS_IF([test -n "$NVCC"], [
    numoe_cuda_dir=`dirname "$NVCC"`
    numoe_cuda_dir=`cd "$numoe_cuda_dir/.." && pwd -P`
    AS_IF([test -d "$numoe_cuda_dir/lib64"], [numoe_cuda_lib=$numoe_cuda_dir/lib64],
      [numoe_cuda_lib=$numoe_cuda_dir/targets/x86_64-linux/lib])
    AS_IF([test -f "$numoe_cuda_lib/libcudart_static.a" && test -f "$numoe_cuda_lib/libcublasLt.so"],
      [numoe_with_cuda="yes ($with_cuda_arch)"],
      [numoe_with_cuda="no (no cudart_static and cublasLt in $numoe_cuda_lib)"])],
    [AS_CASE([$with_cuda], [no], [], [numoe_with_cuda="no (nvcc not found)"])])
  AS_CASE([$with_cuda], [no|guess], [], [
    AS_CASE([$numoe_with_cuda], [yes*], [],
      [AC_MSG_ERROR([--with-cuda was given, but: $numoe_with_cuda])])])
  NVCC_ARCH=
  for numoe_arch in `AS_ECHO(["$with_cuda_arch"]) | tr , ' '`; do
    NVCC_ARCH="$NVCC_ARCH -gencode arch=compute_$numoe_arch,code=sm_$numoe_arch"
  done
  NVCC_ARCH="$NVCC_ARCH -gencode arch=compute_$numoe_arch,code=compute_$numoe_arch"
  AC_SUBST([NVCC_ARCH])
  AC_SUBST([CUDA_CFLAGS], ["-isystem $numoe_cuda_dir/include"])
  AC_SUBST([CUDA_LIBS],
    ["-L$numoe_cuda_lib -Wl,-rpath,$numoe_cuda_lib -lcublasLt -lcudart_static -lstdc++ -lrt -ldl"])
  AM_CONDITIONAL([HAVE_CUDA], [expr "x$numoe_with_cuda" : xyes >/dev/null])
])

# NUMOE_MPI: --with-mpi, off by default: the program is linked with it then, the library never is. Sets
# HAVE_MPI (Automake conditional), MPI_CFLAGS, MPI_LIBS, from pkg-config or else from mpicc.
AC_DEFUN([NUMOE_MPI], [
  AC_ARG_WITH([mpi],
    [AS_HELP_STRING([--with-mpi],
      [batch jobs on several machines, by Open MPI (default: no)])], [], [with_mpi=no])
  numoe_with_mpi=no
  MPI_CFLAGS= MPI_LIBS=
  AS_CASE([$with_mpi],
    [no], [],
    [yes], [
      PKG_CHECK_MODULES([MPI], [ompi-c], [numoe_with_mpi=yes], [
        AC_PATH_PROG([MPICC], [mpicc])
        AS_IF([test -n "$MPICC" && MPI_CFLAGS=`$MPICC --showme:compile 2>/dev/null` &&
               MPI_LIBS=`$MPICC --showme:link 2>/dev/null`], [numoe_with_mpi="yes ($MPICC)"],
          [AC_MSG_ERROR([--with-mpi was given, but neither pkg-config finds ompi-c nor is there an mpicc of Open MPI
  Debian, Ubuntu: apt-get install libopenmpi-dev openmpi-bin      Fedora, RHEL: dnf install openmpi-devel
  In a prefix of your own: PKG_CONFIG_PATH=PREFIX/lib/pkgconfig, or PREFIX/bin in PATH (module load openmpi)])])])
      numoe_saved_CFLAGS=$CFLAGS numoe_saved_LIBS=$LIBS
      CFLAGS="$CFLAGS $MPI_CFLAGS" LIBS="$LIBS $MPI_LIBS"
      AC_MSG_CHECKING([whether a program with MPI can be linked])
      AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <mpi.h>]],
          [[MPI_Request r; return MPI_Ialltoallv(0, 0, 0, MPI_BYTE, 0, 0, 0, MPI_BYTE, MPI_COMM_WORLD, &r);]])],
        [AC_MSG_RESULT([yes])],
        [AC_MSG_RESULT([no])
         AC_MSG_ERROR([--with-mpi was given, but a program with MPI 3 cannot be compiled and linked: see config.log])])
      CFLAGS=$numoe_saved_CFLAGS LIBS=$numoe_saved_LIBS],
    [AC_MSG_ERROR([--with-mpi takes yes or no, not "$with_mpi": which MPI, PKG_CONFIG_PATH or PATH says])])
  # Their headers are not held to our warnings.
  MPI_CPPFLAGS=`AS_ECHO(["$MPI_CFLAGS"]) | $SED 's/-I/-isystem /g'`
  AC_SUBST([MPI_CPPFLAGS])
  AC_SUBST([MPI_LIBS])
  AM_CONDITIONAL([HAVE_MPI], [test "x$numoe_with_mpi" != xno])
])
