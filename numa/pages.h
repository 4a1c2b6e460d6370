/* What memory of a node is made of: which pages an arena should take. */
#ifndef NUMOE_NUMA_PAGES_H
#define NUMOE_NUMA_PAGES_H

#include <stddef.h>

#include "numa/topo.h"

/* Small pages of 4 KiB or what the machine has; transparent huge pages, which the kernel gives when
 * it has some; huge pages from the pools that an administrator reserved. */
enum pages { PAGES_SMALL, PAGES_THP, PAGES_2M, PAGES_1G };

const char *pages_name(enum pages pages); /* "transparent huge pages" */
size_t pages_bytes(enum pages pages);     /* of one page */

/* What may be used, from NUMOE_PAGES: reserved ones before others (auto, the default; huge is the
 * same but says so where there are none), or one kind only. */
enum pages_policy { PAGES_POLICY_AUTO, PAGES_POLICY_SMALL, PAGES_POLICY_THP, PAGES_POLICY_HUGE };
numoe_status pages_policy(enum pages_policy *out, numoe_error *err);

/* PAGES_THP or PAGES_SMALL for large regions of a node, where the policy leaves it open: as the
 * kernel's setting allows, and as the topology knows (pages_are_known) or a probe of some 50 ms says.
 * The probe runs once a process. */
enum pages pages_ordinary(const struct topo *topo, enum pages_policy policy);
/* Whether that is so: neither the policy nor the kernel's setting decides, and the probe has room. */
bool pages_are_open(const struct topo *topo, enum pages_policy policy);

/* The probe: nanoseconds to read the same panels, in a random order, from small and from
 * transparent huge pages; false where it could not be made. And what follows from it. */
bool pages_probe(double *small_ns, double *thp_ns);
enum pages pages_faster(double small_ns, double thp_ns);

#endif
