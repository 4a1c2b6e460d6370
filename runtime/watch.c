/* Owns the decision when to look and what to say. A look at N pages is one system call for 512 of
 * them, some 0.2 us a page: with PAGES_A_LOOK on each of eight nodes, 2 ms every ten seconds.
 */
#include "runtime/watch.h"

#include "base/clock.h"
#include "base/knob.h"
#include "base/log.h"

#define INTERVAL_S    10u
#define PAGES_A_LOOK  1024u  /* of each node */
#define PAGES_AT_LOAD 65536u /* likewise */

static void look_at_pages(struct watch *watch, const struct store *store, const struct topo *topo,
                          unsigned max_page)
{
    for (unsigned in = 0; !watch->told && topo->is_this_machine && in < store->n_node; in++) {
        struct audit audit = {0};
        store_audit_sample(store, topo, in, max_page, watch->n_look, &audit);
        if (!audit.is_unknown && audit.n_remote > 0) {
            log_warn("%.3g %% of the weights of node %u are on other nodes%s: %s",
                     100 - audit_percent_local(&audit), topo->node[in].os_index,
                     watch->n_look > 0 ? " by now" : "", store_audit_cause(store, topo, in));
            watch->told = true;
        }
    }
    watch->n_look++;
}

numoe_status watch_init(struct watch *watch, numoe_error *err)
{
    unsigned seconds = INTERVAL_S;
    FORWARD_IF(knob_uint("NUMOE_WATCH_SECONDS", 0, 1000000, &seconds, err));
    *watch = (struct watch){.interval_ns = seconds * UINT64_C(1000000000)};
    return NUMOE_OK;
}

void watch_begin(struct watch *watch, const struct store *store, const struct topo *topo)
{
    watch->next_ns = clock_ns() + watch->interval_ns;
    look_at_pages(watch, store, topo, PAGES_AT_LOAD);
}

void watch_look(struct watch *watch, const struct store *store, const struct topo *topo,
                struct pools *pools)
{
    const uint64_t now_ns = clock_ns();
    if (watch->interval_ns == 0 || now_ns < watch->next_ns) {
        return;
    }
    watch->next_ns = now_ns + watch->interval_ns;
    pools_repin(pools);
    look_at_pages(watch, store, topo, PAGES_A_LOOK);
}
