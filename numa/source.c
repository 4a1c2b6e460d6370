/* Owns how a machine's description is found and loaded by hwloc: this machine, an XML file, or a
 * synthetic string. What is read out of hwloc's tree is the business of whoever opened it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "numa/source.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/knob.h"
#include "base/mem.h"

#define MAX_PUS 4096 /* for which hwloc takes seconds; its time grows with the cube */

static bool is_xml_path(const char *spec)
{
    size_t n = strlen(spec);
    return n > 4 && strcmp(spec + n - 4, ".xml") == 0;
}

/* The hardware threads of a synthetic topology, counted before hwloc makes objects of them: the
 * product of the levels' numbers, those outside of brackets. UINT64_MAX for more than that. */
static uint64_t synthetic_pus(const char *spec)
{
    uint64_t product = 1;
    int depth = 0;
    for (const char *c = spec; *c != '\0'; c++) {
        depth += *c == '(' || *c == '[';
        depth -= *c == ')' || *c == ']';
        const bool begins = c == spec || c[-1] == ':' || c[-1] == ' ';
        if (depth == 0 && begins && *c >= '0' && *c <= '9') {
            const uint64_t n = MAX(strtoull(c, NULL, 10), 1ull);
            product = n > UINT64_MAX / product ? UINT64_MAX : product * n;
        }
    }
    return product;
}

static numoe_status set_synthetic(hwloc_topology_t hw, const char *spec, numoe_error *err)
{
    const uint64_t n_pu = synthetic_pus(spec);
    if (n_pu > MAX_PUS) {
        return status_fail(err, NUMOE_E_INPUT,
                           "topology \"%s\": %" PRIu64 " hardware threads, at most %d are possible",
                           spec, n_pu, MAX_PUS);
    }
    return hwloc_topology_set_synthetic(hw, spec) == 0
               ? NUMOE_OK
               : status_fail(err, NUMOE_E_INPUT,
                             "topology \"%s\": neither a path ending in .xml nor a synthetic "
                             "topology such as \"pack:2 [numa(memory=64GiB)] core:8 pu:2\"",
                             spec);
}

static numoe_status set_xml(hwloc_topology_t hw, const char *spec, numoe_error *err)
{
    struct stat st;
    if (stat(spec, &st) != 0 || access(spec, R_OK) != 0) {
        return status_fail(err, NUMOE_E_FILE_OPEN, "topology %s: %s", spec, strerror(errno));
    }
    if (!S_ISREG(st.st_mode)) {
        return status_fail(err, NUMOE_E_FILE_OPEN, "topology %s: not a regular file", spec);
    }
    return hwloc_topology_set_xml(hw, spec) == 0
               ? NUMOE_OK
               : status_fail(err, NUMOE_E_FILE_FORMAT,
                             "topology %s: not an XML file of hwloc version 2", spec);
}

/* hwloc takes what its variables name, but goes on with this machine where it cannot. HWLOC_XMLFILE may
 * have any name. */
static numoe_status set_from_environment(hwloc_topology_t hw, numoe_error *err)
{
    const char *xml = knob_str("HWLOC_XMLFILE"), *synthetic = knob_str("HWLOC_SYNTHETIC");
    const char *name = xml != NULL ? "HWLOC_XMLFILE" : "HWLOC_SYNTHETIC";
    if (xml == NULL && synthetic == NULL) {
        return NUMOE_OK;
    }
    numoe_status status = xml != NULL ? set_xml(hw, xml, err) : set_synthetic(hw, synthetic, err);
    return status == NUMOE_OK ? status : status_context(err, status, "%s in the environment", name);
}

static numoe_status set_source(hwloc_topology_t hw, const char *spec, numoe_error *err)
{
    if (spec == NULL) {
        return set_from_environment(hw, err);
    }
    return is_xml_path(spec) ? set_xml(hw, spec, err) : set_synthetic(hw, spec, err);
}

/* hwloc prints a banner about firmware that contradicts itself; the tree it makes is good enough.
 */
static int load_quietly(hwloc_topology_t hw)
{
    bool is_set = knob_str("HWLOC_HIDE_ERRORS") != NULL;
    if (!is_set) {
        setenv("HWLOC_HIDE_ERRORS", "2", 1);
    }
    int rc = hwloc_topology_load(hw);
    if (!is_set) {
        unsetenv("HWLOC_HIDE_ERRORS");
    }
    return rc;
}

numoe_status source_open(const char *spec, bool with_forbidden, hwloc_topology_t *out,
                         numoe_error *err)
{
    hwloc_topology_t hw;
    if (hwloc_topology_init(&hw) != 0) {
        return status_fail(err, NUMOE_E_MEMORY, "topology: cannot allocate");
    }
    if (with_forbidden) {
        hwloc_topology_set_flags(hw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    }
    numoe_status st = set_source(hw, spec, err);
    if (st == NUMOE_OK && load_quietly(hw) != 0) {
        st = spec && is_xml_path(spec)
                 ? status_fail(err, NUMOE_E_FILE_FORMAT, "topology %s: hwloc cannot load it", spec)
                 : status_fail(err, NUMOE_E_SUPPORT, "topology %s: hwloc cannot load it: %s",
                               spec ? spec : "of this machine", strerror(errno));
    }
    const int n_pu = st == NUMOE_OK ? hwloc_get_nbobjs_by_type(hw, HWLOC_OBJ_PU) : 0;
    if (spec != NULL && n_pu > MAX_PUS) {
        st = status_fail(err, NUMOE_E_INPUT,
                         "topology %s: %d hardware threads, at most %d are possible", spec, n_pu,
                         MAX_PUS);
    }
    if (st != NUMOE_OK) {
        hwloc_topology_destroy(hw);
        return st;
    }
    *out = hw;
    return NUMOE_OK;
}
