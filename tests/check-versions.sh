#!/bin/sh
# The recipes under packaging/ build the version that configure.ac names.
src=${NUMOE_TEST_SRCDIR:-$(cd "$(dirname "$0")/.." && pwd)}
version=$(sed -n 's/^AC_INIT(\[numoe\], \[\([^]]*\)\].*/\1/p' "$src/configure.ac")
test -n "$version" || { echo 'no version in configure.ac'; exit 1; }
bad=0
cd "$src/packaging" || exit 1

# says FILE PATTERN: a line of the file is that, with the version in place of @.
says()
{
    pattern=$(echo "$2" | sed "s/@/$(echo "$version" | sed 's/\./\\\\./g')/g")
    grep -Eqx "$pattern" "$1" 2>/dev/null || { echo "FAILED: packaging/$1 is not of version $version"; bad=1; }
}
says debian/changelog 'numoe \(@-[0-9]+\) .*'
says numoe.spec 'Version: +@'
says spack/package.py ' +version\("@".*\)'
says spack/package.py ' +url = .*/numoe-@\.tar\.xz"'
says "easybuild/numoe-$version-GCC-13.3.0.eb" "version = '@'"
says apptainer/numoe.def ' +numoe-@\.tar\.xz .*'
says apptainer/numoe.def ' +Version @'
says "modulefiles/numoe/$version" 'set prefix /opt/numoe/@'
says "modulefiles/numoe/$version.lua" 'local prefix = "/opt/numoe/@"'
says "modulefiles/numoe/$version.lua" 'whatis\("Version: @"\)'
exit $bad
