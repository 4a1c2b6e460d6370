/* Owns the choice of page sizes, by policy and by measurement; it maps nothing for others. Huge
 * pages spare address translation, but there are machines that read them more slowly, so nobody's
 * rule holds everywhere and a short probe decides.
 */
#include "numa/pages.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/knob.h"
#include "base/mem.h"

#define PROBE_BYTES     ((size_t)48 << 20) /* more than second-level caches and TLBs reach */
#define PROBE_ROOM_PART 8u /* of what may be taken, the probe's two pieces must be no more */
#define PANEL_BYTES     ((size_t)8 << 10) /* a panel of 16 rows of some 1000 4-bit weights */
/* Read several times, of each stretch the best counts: it is shorter than the time for which others
 * take the CPU in between. */
#define N_ROUND        4u
#define STRETCH_PANELS 64u
#define N_STRETCH      (PROBE_BYTES / PANEL_BYTES / STRETCH_PANELS)
#define THP_ENABLED     "/sys/kernel/mm/transparent_hugepage/enabled"
/* Small pages must win by this: they cost more to make and to keep, and neighbours disturb a short
 * probe. */
#define SMALL_MUST_WIN 1.15

const char *pages_name(enum pages pages)
{
    static const char *const name[] = {"small pages", "transparent huge pages", "2 MiB huge pages",
                                       "1 GiB huge pages"};
    return name[pages];
}

size_t pages_bytes(enum pages pages)
{
    return pages == PAGES_SMALL ? (size_t)sysconf(_SC_PAGESIZE)
           : pages == PAGES_1G  ? TOPO_HUGE_1G
                                : TOPO_HUGE_2M;
}

numoe_status pages_policy(enum pages_policy *out, numoe_error *err)
{
    static const char *const name[] = {"auto", "small", "thp", "huge"};
    const char *text = knob_str("NUMOE_PAGES");
    unsigned i = 0;
    while (text != NULL && i < ARRAY_LEN(name) && strcmp(text, name[i]) != 0) {
        i++;
    }
    if (i == ARRAY_LEN(name)) {
        return status_fail(err, NUMOE_E_INPUT,
                           "NUMOE_PAGES is \"%s\", expected auto, small, thp or huge", text);
    }
    *out = (enum pages_policy)i;
    return NUMOE_OK;
}

/* ------------------------------------------------------------------ probe */

/* Reads every panel once, each forwards, in an order that no prefetcher foresees: a step that is
 * coprime to their number. What a stretch of them takes at best goes into best_ns[N_STRETCH]. */
static void read_panels(const uint64_t *data, uint64_t *best_ns)
{
    const size_t n_panel = PROBE_BYTES / PANEL_BYTES, n_word = PANEL_BYTES / sizeof(*data);
    uint64_t sum = 0;
    for (size_t s = 0; s < N_STRETCH; s++) {
        const uint64_t begin_ns = clock_ns();
        for (size_t i = s * STRETCH_PANELS; i < (s + 1) * STRETCH_PANELS; i++) {
            const uint64_t *panel = data + i * 2477 % n_panel * n_word;
            for (size_t k = 0; k < n_word; k++) {
                sum += panel[k];
            }
        }
        best_ns[s] = MIN(best_ns[s], clock_ns() - begin_ns);
    }
    __asm__ volatile("" : : "r"(sum));
}

static double sum_ns(const uint64_t *ns)
{
    double sum = 0;
    for (size_t s = 0; s < N_STRETCH; s++) {
        sum += (double)ns[s];
    }
    return sum;
}

bool pages_probe(double *small_ns, double *thp_ns)
{
    const size_t room = 2 * PROBE_BYTES + TOPO_HUGE_2M;
    char *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) {
        return false;
    }
    char *huge = p + (round_up((uintptr_t)p, TOPO_HUGE_2M) - (uintptr_t)p);
    char *small = huge + PROBE_BYTES;
    const bool good = madvise(huge, PROBE_BYTES, MADV_HUGEPAGE) == 0 &&
                      madvise(small, PROBE_BYTES, MADV_NOHUGEPAGE) == 0;
    if (good) {
        uint64_t best_huge_ns[N_STRETCH], best_small_ns[N_STRETCH];
        memset(huge, 1, 2 * PROBE_BYTES);
        memset(best_huge_ns, 0xff, sizeof best_huge_ns); /* UINT64_MAX */
        memset(best_small_ns, 0xff, sizeof best_small_ns);
        for (unsigned i = 0; i < N_ROUND; i++) {
            read_panels((const uint64_t *)huge, best_huge_ns);
            read_panels((const uint64_t *)small, best_small_ns);
        }
        *thp_ns = sum_ns(best_huge_ns);
        *small_ns = sum_ns(best_small_ns);
    }
    munmap(p, room);
    return good;
}

enum pages pages_faster(double small_ns, double thp_ns)
{
    return small_ns * SMALL_MUST_WIN < thp_ns ? PAGES_SMALL : PAGES_THP;
}

/* ------------------------------------------------------------------ choice */

static pthread_once_t probe_once = PTHREAD_ONCE_INIT;
static enum pages probed = PAGES_THP;

static void probe(void)
{
    double small_ns, thp_ns;
    if (pages_probe(&small_ns, &thp_ns)) {
        probed = pages_faster(small_ns, thp_ns);
    }
}

static bool never_huge(const struct topo *topo)
{
    char *enabled = world_read(topo->world->root, THP_ENABLED);
    const bool never = enabled == NULL || strstr(enabled, "[never]") != NULL;
    mem_free(enabled);
    return never;
}

/* The probe itself must not be what a control group kills for. */
static bool has_room_for_probe(const struct topo *topo)
{
    const uint64_t room = MIN(topo->memory_limit_bytes, topo->host_room_bytes);
    return topo->is_this_machine && room / PROBE_ROOM_PART >= 2 * PROBE_BYTES;
}

bool pages_are_open(const struct topo *topo, enum pages_policy policy)
{
    return policy != PAGES_POLICY_SMALL && policy != PAGES_POLICY_THP && !never_huge(topo) &&
           has_room_for_probe(topo);
}

enum pages pages_ordinary(const struct topo *topo, enum pages_policy policy)
{
    if (policy == PAGES_POLICY_SMALL || policy == PAGES_POLICY_THP) {
        return policy == PAGES_POLICY_SMALL ? PAGES_SMALL : PAGES_THP;
    }
    if (never_huge(topo)) {
        return PAGES_SMALL;
    }
    if (topo->pages_are_known) {
        return topo->small_pages_are_faster ? PAGES_SMALL : PAGES_THP;
    }
    if (!has_room_for_probe(topo)) {
        return PAGES_THP;
    }
    pthread_once(&probe_once, probe);
    return probed;
}
