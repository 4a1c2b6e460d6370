/* AMX in C: tile registers are a thread's own, all files of kernels/amx share them. What would
 * raise an exception ends the process with a line that says why. The operations are named after
 * their instructions in Intel's Software Developer's Manual. */
#ifndef NUMOE_TESTS_EMULATE_AMX_H
#define NUMOE_TESTS_EMULATE_AMX_H

#include <stddef.h>

/* config: 64 bytes. All of them may be called by any thread and concern that thread alone. */
void emulated_ldtilecfg(const void *config);
void emulated_tilerelease(void);
void emulated_tilezero(unsigned to);
void emulated_tileloadd(unsigned to, const void *base, ptrdiff_t stride_bytes);
void emulated_tilestored(unsigned from, void *base, ptrdiff_t stride_bytes);
void emulated_tdpbssd(unsigned to, unsigned a, unsigned b); /* a and b signed bytes */
void emulated_tdpbsud(unsigned to, unsigned a, unsigned b); /* a signed, b unsigned bytes */

/* Some of the compiler's are macros. */
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbsud
#define _tile_loadconfig emulated_ldtilecfg
#define _tile_release    emulated_tilerelease
#define _tile_zero       emulated_tilezero
#define _tile_loadd      emulated_tileloadd
#define _tile_stored     emulated_tilestored
#define _tile_dpbssd     emulated_tdpbssd
#define _tile_dpbsud     emulated_tdpbsud

#endif
