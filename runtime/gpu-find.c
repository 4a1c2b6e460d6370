/* Where GPU programs are: nothing else knows. An installed library looks where it was installed to;
 * one that runs in its build tree looks there first. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/knob.h"
#include "base/status.h"
#include "runtime/bundled.h"
#include "runtime/gpu.h"

/* Given by the build: GPU_INSTALLED, the folder of programs, and BUNDLED_BUILD_FOLDER. */

static bool is_there(const char *folder, const char *name, char *path, size_t cap)
{
    const int n = snprintf(path, cap, "%s/numoe-gpu-%s", folder, name);
    return n > 0 && (size_t)n < cap && access(path, X_OK) == 0;
}

const char *gpu_automatic_name(void)
{
    const char *name = knob_str("NUMOE_GPU_PROGRAM");
    return name != NULL ? name : "cuda";
}

numoe_status gpu_find(const char *name, char *path, size_t cap, numoe_error *err)
{
    const bool in_build = !bundled_is_installed();
    if (strchr(name, '/') != NULL) {
        const int n = snprintf(path, cap, "%s", name);
        return n > 0 && (size_t)n < cap
                   ? NUMOE_OK
                   : status_fail(err, NUMOE_E_INPUT, "the path of the GPU program is too long");
    }
    if ((in_build && is_there(BUNDLED_BUILD_FOLDER, name, path, cap)) ||
        is_there(GPU_INSTALLED, name, path, cap)) {
        return NUMOE_OK;
    }
    return status_fail(
        err, NUMOE_E_FILE_OPEN,
        "there is no GPU program numoe-gpu-%s (looked in %s%s%s): a program elsewhere "
        "is named by its path",
        name, GPU_INSTALLED, in_build ? " and " : "", in_build ? BUNDLED_BUILD_FOLDER : "");
}
