/* How much memory there still is: on a node, on the machine, within the control group and what
 * ulimit allows. Read from the kernel at the moment of asking; what was promised meanwhile is the
 * arenas' ledger.
 */
#ifndef NUMOE_NUMA_ROOM_H
#define NUMOE_NUMA_ROOM_H

#include "numa/topo.h"

/* Free and reclaimable memory of a kernel node now, down to where the kernel begins to kill; 0 if
 * not this machine or unknown, so a node that has none left has one page. */
uint64_t room_available_bytes(const struct topo *topo, unsigned os_index);
/* Huge pages of a size that a kernel node has reserved and not given out; likewise. They are not
 * part of its available memory. */
uint64_t room_free_huge(const struct topo *topo, unsigned os_index, uint64_t page_bytes);

/* What may be taken of so much available memory: something is left for the kernel, page tables and
 * everybody else. UINT64_MAX (not known) stays what it is. */
uint64_t room_less_reserve(uint64_t bytes);

/* What to put behind a refusal: "" or, where the machine's memory may grow, what to do then. */
const char *room_way_out(const struct topo *topo);

/* What this process could take of the machine that it runs on: what is available, within its control
 * groups and ulimit -v and -d; UINT64_MAX if that is not known, or with NUMOE_MEMORY_CHECK=off. */
uint64_t room_of_host(void);

/* Of the topology: available memory and free huge pages of all nodes, memory_limit_bytes,
 * host_room_bytes, process_room_bytes, memory_may_grow, as they are now. Before arenas take
 * anything. With NUMOE_MEMORY_CHECK=off in the environment everything is unknown, hence nothing
 * refused, and a warning says so; another value than "on" and "off" is NUMOE_E_INPUT. */
numoe_status room_read(struct topo *topo, numoe_error *err);

#endif
