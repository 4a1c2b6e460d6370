/* Where the bundled model is: nothing else knows. An installed library looks where it was installed
 * to and nowhere else; one that runs in its build tree may also take the file of the source tree.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr */
#endif
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/bundled.h"
#include "runtime/engine.h"

/* Given by the build: BUNDLED_INSTALLED, BUNDLED_IN_SOURCE, BUNDLED_BUILD_FOLDER. */

static bool is_in_build_folder(const char *file)
{
    char *real = realpath(file, NULL), *folder = realpath(BUNDLED_BUILD_FOLDER, NULL);
    const size_t len = folder ? strlen(folder) : 0;
    const bool is_in = real && folder && strncmp(real, folder, len) == 0 && real[len] == '/';

    free(real);
    free(folder);
    return is_in;
}

/* The library's own file tells, or where it is linked into a program, the program's. */
bool bundled_is_installed(void)
{
    Dl_info info;
    static const char here;

    if (dladdr(&here, &info) && info.dli_fname && is_in_build_folder(info.dli_fname)) {
        return false;
    }
    return !is_in_build_folder("/proc/self/exe");
}

numoe_status numoe_bundled_model(const char **path, numoe_error *err)
{
    const bool installed = bundled_is_installed();

    if (access(BUNDLED_INSTALLED, R_OK) == 0) {
        *path = BUNDLED_INSTALLED;
        return NUMOE_OK;
    }
    if (!installed && access(BUNDLED_IN_SOURCE, R_OK) == 0) {
        *path = BUNDLED_IN_SOURCE;
        return NUMOE_OK;
    }
    return status_fail(err, NUMOE_E_FILE_OPEN,
                       "the bundled model is not there (looked for %s%s%s): name a GGUF file",
                       BUNDLED_INSTALLED, installed ? "" : " and ",
                       installed ? "" : BUNDLED_IN_SOURCE);
}
