/* What was measured on a machine, remembered from one process to the next: named numbers under a
 * key, in a file of their own in $XDG_CACHE_HOME/numoe (~/.cache/numoe). The key says what they hold
 * for; numbers older than MEMO_DAYS are forgotten, as are those of a file that is damaged, too large
 * or somebody else's.
 *
 * Nothing here is an error: what cannot be read was not remembered, what cannot be written is not
 * remembered the next time. Files are replaced as a whole. One thread at a time.
 */
#ifndef NUMOE_BASE_MEMO_H
#define NUMOE_BASE_MEMO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define MEMO_DAYS      30
#define MEMO_MAX_VALUE 256 /* numbers of a key: more are not kept */
#define MEMO_MAX_NAME  32  /* bytes of a name, with the NUL */

struct memo;

/* What is remembered under a key, a line of printable text. NULL for lack of memory, which all other
 * functions take for a memo that is empty and stays so. memo_close(). */
struct memo *memo_open(const char *key);
void memo_close(struct memo *memo); /* unlocks */

/* False where there is no such number, or none from min to max: *value stays. *when: seconds since
 * 1970 when it was set; may be NULL. */
bool memo_get(const struct memo *memo, const char *name, double min, double max, double *value,
              int64_t *when);
/* Now; for others after memo_save(). Numbers that are not finite are not kept. */
void memo_set(struct memo *memo, const char *name, double value);
void memo_save(struct memo *memo);

/* So that of several processes one measures and the others use what it finds. True: this one is to
 * measure what is missing; also where there is nothing to lock with. False: for wait_ms another has
 * been measuring. memo_get() has the newest state in both cases. */
bool memo_lock(struct memo *memo, unsigned wait_ms);
void memo_unlock(struct memo *memo);

/* The file, whether it is there or not; NULL where nothing can be remembered: no folder is known. */
const char *memo_path(const struct memo *memo);

/* Whether memo_save() can write it, as far as the permissions of folders tell. */
bool memo_can_be_saved(const struct memo *memo);

/* The text of such a file as memo_open() reads it, into an empty memo; false where it is none of this
 * key. now: seconds since 1970. */
bool memo_parse(struct memo *memo, const char *text, size_t bytes, int64_t now);

#endif
