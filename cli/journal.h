/* The results of a batch and the journal beside them, "RESULTS.journal", which knows what of them
 * is done, so that a job can be stopped at any moment and begun again by the same command.
 *
 * A result is appended to the results at once; from time to time these are brought to the disk, and
 * only then the journal says so. What is in the results beyond the journal when a job begins again
 * (a torn line, perhaps) is cut off and computed again: nothing is lost but a few seconds' work,
 * and nothing is there twice.
 *
 * The journal is text. Its first line is a JSON object that says of what job it is; then a line for
 * each result, "LINE OFFSET BYTES CHECKSUM": the line of the request, from 1, the place of the
 * result, and FNV-1a of its bytes. With --ordered results are collected in "RESULTS.part", and
 * RESULTS appears when all are there, in the order of the requests; "ordered" is the journal's last
 * line then.
 */
#ifndef NUMOE_CLI_JOURNAL_H
#define NUMOE_CLI_JOURNAL_H

#include <jansson.h>
#include <sys/types.h>

#include "cli/cli.h"

struct journal_entry {
    uint64_t line, offset, bytes, checksum;
};

struct journal {
    char *path, *live_path, *journal_path; /* results; where they are collected; the journal */
    bool ordered, is_finished;
    bool is_mine; /* locked: nobody else writes them */
    int live_fd, journal_fd;
    uint64_t offset; /* end of the live results */
    size_t n_valid;  /* bytes of the journal as it was found that are whole lines */
    json_t *header;  /* of the file; NULL: a new job */
    struct journal_entry *entry;
    size_t n_entry, n_synced, cap;
    double sync_seconds, next_sync;
};

/* FNV-1a, 64 bits; begin with hash 0. */
uint64_t journal_hash(uint64_t hash, const void *data, size_t bytes);

/* Opens or creates both files, locks them against other jobs, and reads what is there. An exit
 * status, as of all functions here. */
int journal_open(struct journal *j, const char *path, bool ordered, double sync_seconds);
/* Cuts off what is not known to be whole: once, when the job is known to be the one that began, and
 * before anything is put. */
int journal_cut(struct journal *j);
/* That the job is the same as the one that began: every member of want, but for `lenient`, which
 * gets a warning (NULL: none). What differs is said. A new job is the same as any. */
int journal_check(const struct journal *j, json_t *want, const char *lenient);
/* The same; of a new job, want becomes the header. */
int journal_begin(struct journal *j, json_t *want, const char *lenient);
/* The result of a line of requests, with its newline. */
int journal_put(struct journal *j, uint64_t line, const char *text, size_t bytes);
/* Brings results and journal to the disk, if it is time or `now`. */
int journal_sync(struct journal *j, bool now);
/* All results are there. */
int journal_finish(struct journal *j);
void journal_close(struct journal *j); /* also of one that was not opened */

#endif
