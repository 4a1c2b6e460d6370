/* The only reader of the environment. Knobs are read at set-up, never in hot code. */
#ifndef NUMOE_BASE_KNOB_H
#define NUMOE_BASE_KNOB_H

#include <stdbool.h>

#include "base/status.h"

/* NULL where unset or empty. */
const char *knob_str(const char *name);

/* *value keeps its default where unset; NUMOE_E_INPUT names the variable, its text and the range. */
numoe_status knob_uint(const char *name, unsigned min, unsigned max, unsigned *value,
                       numoe_error *err);

#endif
