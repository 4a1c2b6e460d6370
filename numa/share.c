/* Owns the division of work within a node. Each worker has a cursor on a cache line of its own that
 * says how many pieces of its part are taken and of which operation (epoch). There is no shared
 * list: where a part begins and ends follows from n, grain and the number of workers, so a thief
 * knows a victim's part without asking. All steps are one compare-and-swap on one cursor.
 *
 * Workers may be in different operations. The rule that makes this safe: a worker leaves operation
 * e only when it has seen every part of e taken. So whoever is ahead may overwrite an older epoch,
 * and whoever meets a newer epoch knows that nothing of its own operation is left there. Two
 * workers, two pieces each in both operations:
 *
 *   A takes its own 2 of op 1, then B's 2    cursors  A 1|2   B 1|2   (B is still computing one)
 *   A begins op 2, takes its own 2           cursors  A 2|2   B 1|2
 *   A steals from B: 1 is older, so 2|1      cursors  A 2|2   B 2|1
 *   B, back, asks for more of op 1: its cursor is at 2, A's too: nothing left, leaves op 1
 *   B begins op 2 and takes its second piece cursors  A 2|2   B 2|2
 */
#include "numa/pool.h"

#include "base/mem.h"
#include "numa/pool_gate.h"

/* Epochs are compared by their signed difference, so no cursor may fall behind by 2^31; one whose
 * part is always empty would. */
#define REFRESH_EPOCHS (UINT32_C(1) << 28)

static inline uint64_t pack(uint32_t epoch, uint32_t next)
{
    return (uint64_t)epoch << 32 | next;
}

static void refresh_own_cursor(const struct worker *w)
{
    _Atomic uint64_t *cursor = &w->gate->cursor[w->iw].epoch_next;
    uint64_t seen = atomic_load_explicit(cursor, memory_order_relaxed);
    while ((int32_t)(w->share_epoch - (uint32_t)(seen >> 32)) > 0 &&
           !atomic_compare_exchange_weak_explicit(cursor, &seen, pack(w->share_epoch, 0),
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

void share_begin(struct share *s, struct worker *w, uint32_t n, uint32_t grain)
{
    w->share_epoch++;
    if (w->share_epoch % REFRESH_EPOCHS == 0) {
        refresh_own_cursor(w);
    }
    grain = MAX(grain, 1u);
    uint32_t n_piece = n / grain + (n % grain != 0);
    *s = (struct share){.w = w,
                        .epoch = w->share_epoch,
                        .n = n,
                        .grain = grain,
                        .each = n_piece / w->nw,
                        .more = n_piece % w->nw};
}

/* Takes the next piece of worker iv's part. Relaxed: what the pieces hold is ordered by barriers,
 * the cursor itself only has to be taken once. */
static bool take(const struct share *s, unsigned iv, uint32_t *lo, uint32_t *hi)
{
    uint32_t piece0 = s->each * iv + MIN(iv, s->more), n_piece = s->each + (iv < s->more);
    _Atomic uint64_t *cursor = &s->w->gate->cursor[iv].epoch_next;
    uint64_t seen = atomic_load_explicit(cursor, memory_order_relaxed);
    uint32_t next;
    do {
        int32_t behind = (int32_t)(s->epoch - (uint32_t)(seen >> 32));
        next = behind == 0 ? (uint32_t)seen : 0;
        if (behind < 0 || next >= n_piece) {
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(cursor, &seen, pack(s->epoch, next + 1),
                                                    memory_order_relaxed, memory_order_relaxed));
    *lo = (piece0 + next) * s->grain;
    *hi = s->n - *lo < s->grain ? s->n : *lo + s->grain;
    return true;
}

bool share_next(struct share *s, uint32_t *lo, uint32_t *hi)
{
    const struct worker *w = s->w;
    for (; s->victim < w->nw; s->victim++) {
        unsigned iv = w->iw + s->victim;
        if (take(s, iv < w->nw ? iv : iv - w->nw, lo, hi)) {
            return true;
        }
    }
    return false;
}
