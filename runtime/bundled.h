/* Where this library runs: installed, or in its build tree. */
#ifndef NUMOE_RUNTIME_BUNDLED_H
#define NUMOE_RUNTIME_BUNDLED_H

#include <stdbool.h>

/* Neither the library nor the program that it is linked into lies below the build folder. */
bool bundled_is_installed(void);

#endif
