/* Latency or throughput: whether all nodes evaluate a batch together or each one of its own (a
 * lane), and which session is in which lane. Decides; moves and evaluates nothing.
 */
#ifndef NUMOE_RUNTIME_MODE_H
#define NUMOE_RUNTIME_MODE_H

#include "runtime/engine.h"

/* Whether a step over sessions [n] is taken in lanes, which the engine is then ready for. Cannot
 * fail: AUTO stays with LATENCY, and says so once, where the lanes have no room. */
bool mode_of_step(numoe_engine *engine, numoe_session *const *sessions, size_t n);

/* Where a cache or buffer had no room in throughput mode: whether the step may be tried with all
 * nodes together, as from now on. */
bool mode_give_up(numoe_engine *engine, const numoe_error *err);

/* Sets session.lane of all sessions [n] that have work, never to a lane that has refused one. */
void mode_deal(const numoe_engine *engine, numoe_session *const *sessions, size_t n);

/* The cache of s had no room in its lane, which is avoided until something is given back there:
 * whether there is a lane that s has not been refused by. */
bool mode_refuse(numoe_engine *engine, numoe_session *s);

#endif
