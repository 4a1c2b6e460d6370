/* Private to store/: brings ranges of a model's files into memory, several at a time for each
 * worker.
 *
 * A file that is mostly in the page cache is read from there. Others are read around it (O_DIRECT):
 * a model is read once, and would only push out what others use. Reads are queued with io_uring, so
 * that a worker packs one range while the next ones are on their way. What the system or the file
 * system refuses is done without: direct reads by pread, or reads through the page cache; what has
 * to be done without is said once for a file.
 */
#ifndef NUMOE_STORE_READER_H
#define NUMOE_STORE_READER_H

#include "model/gguf.h"

#define READER_DEPTH 4u /* ranges on their way */

/* The files of a model, opened for reading as they can be. Any thread. */
struct reader_files;
numoe_status reader_files_new(const struct gguf *gguf, struct reader_files **out, numoe_error *err);
void reader_files_free(struct reader_files *files);

/* How a file is read; for messages and tests. */
enum reader_way { READER_CACHED, READER_DIRECT, READER_PLAIN };
enum reader_way reader_files_way(const struct reader_files *files, unsigned part);

/* One worker's: a queue of at most READER_DEPTH ranges of at most range_bytes. All calls from that
 * worker; its memory, slots and `extra_bytes` more, is touched first by it. */
struct reader;
numoe_status reader_new(const struct reader_files *files, size_t range_bytes, size_t extra_bytes,
                        struct reader **out, numoe_error *err);
size_t reader_memory_bytes(size_t range_bytes, size_t extra_bytes); /* that it takes */
void reader_free(struct reader *reader);         /* waits for what is on its way */
void *reader_extra(const struct reader *reader); /* 64-byte aligned */

/* Queues bytes [from, from + bytes) of a tensor; there must be room. */
bool reader_has_room(const struct reader *reader);
void reader_start(struct reader *reader, const struct gguf_tensor *t, uint64_t from, size_t bytes);

/* Waits for the oldest range; *data is valid until reader_drop(), which makes room. */
numoe_status reader_wait(struct reader *reader, const void **data, numoe_error *err);
void reader_drop(struct reader *reader);

/* For tests: from now on every file is read in this way, and with or without io_uring. */
void reader_files_force(struct reader_files *files, enum reader_way way, bool may_queue);

#endif
