/* --profile and --trace: where the time of a run goes. */
#include "cli/cli.h"

int profile_option(struct profile_options *o, int opt, const char *value)
{
    switch (opt) {
    case OPT_PROFILE:
        o->table = true;
        return 1;
    case OPT_TRACE:
        o->trace = value;
        return 1;
    default:
        return 0;
    }
}

int profile_open(struct profile_options *o)
{
    return o->trace ? output_open(&o->out, o->trace) : EXIT_OK;
}

int profile_start(const struct profile_options *o, numoe_engine *engine)
{
    numoe_error err;

    if (!o->table && !o->trace) {
        return EXIT_OK;
    }
    return numoe_profile_start(engine, o->trace != NULL, &err) == NUMOE_OK ? EXIT_OK
                                                                           : fail_status(&err);
}

int profile_report(struct profile_options *o, numoe_engine *engine, double wall_seconds)
{
    numoe_error err;

    if (o->table) {
        fputc('\n', stderr);
        if (numoe_profile_print(engine, wall_seconds, NUMOE_REPORT_TEXT, stderr, &err) !=
            NUMOE_OK) {
            return fail_status(&err);
        }
    }
    if (!o->trace) {
        return EXIT_OK;
    }
    return numoe_trace_write(engine, o->out.file, &err) == NUMOE_OK ? output_commit(&o->out)
                                                                   : fail_file(o->trace, &err);
}
