/* What a person sees on stderr besides errors: a bar while something takes long, a table of what
 * was loaded, and how fast it went. */
#include <math.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

#define BAR_WIDTH   40
#define BAR_SECONDS 0.1 /* from one drawing to the next; what is done sooner has no bar */

double now_seconds(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* ------------------------------------------------------------------ progress */

void progress_init(struct progress *p, const char *label, bool quiet)
{
    *p = (struct progress){
        .label = label,
        .visible = !quiet && isatty(STDERR_FILENO),
        .next_seconds = now_seconds() + BAR_SECONDS,
    };
}

void progress_update(struct progress *p, double part)
{
    char bar[BAR_WIDTH + 1];

    if (!p->visible || now_seconds() < p->next_seconds) {
        return;
    }
    p->next_seconds = now_seconds() + BAR_SECONDS;
    p->drawn = true;
    int n_full = (int)(part * BAR_WIDTH);
    for (int i = 0; i < BAR_WIDTH; i++) {
        bar[i] = i < n_full ? '#' : '.';
    }
    bar[BAR_WIDTH] = 0;
    fprintf(stderr, "\r%s [%s] %3.0f %%", p->label, bar, floor(part * 100));
}

void progress_end(struct progress *p)
{
    if (p->drawn) {
        fputs("\r\033[K", stderr);
        p->drawn = false;
    }
}

/* ------------------------------------------------------------------ engine */

struct loading {
    struct progress bar;
    double begin_seconds; /* of the first report; what the engine does before is not loading */
    uint64_t n_begin;
};

/* Speed and time left, behind a bar that was just drawn. */
static void print_rate(const struct loading *l, uint64_t n_done, uint64_t n_total)
{
    const double seconds = now_seconds() - l->begin_seconds;
    const double bps = (double)(n_done - l->n_begin) / seconds;

    if (n_done > l->n_begin) {
        const double left = ceil((double)(n_total - n_done) / bps);
        fprintf(stderr, ", %.2f GB/s, ", bps * 1e-9);
        fprintf(stderr, left < 100 ? "%.0f s left" : "%.0f min left",
                left < 100 ? left : ceil(left / 60));
    }
    fputs("\033[K", stderr);
}

static void on_load(void *loading, uint64_t n_done, uint64_t n_total)
{
    struct loading *l = loading;
    const double next_seconds = l->bar.next_seconds;

    if (l->begin_seconds == 0) {
        l->begin_seconds = now_seconds();
        l->n_begin = n_done;
    }
    progress_update(&l->bar, n_total ? (double)n_done / (double)n_total : 1);
    if (l->bar.next_seconds != next_seconds) {
        print_rate(l, n_done, n_total);
    }
}

numoe_status try_open_engine(const struct model_options *o, numoe_engine **engine, numoe_error *err)
{
    numoe_engine_params params = o->params;
    struct loading loading = {.begin_seconds = 0};

    progress_init(&loading.bar, "loading", o->quiet);
    params.progress = on_load;
    params.progress_arg = &loading;
    const numoe_status status = numoe_engine_open(&params, engine, err);
    progress_end(&loading.bar);
    return status;
}

int open_engine(const struct model_options *o, numoe_engine **engine)
{
    numoe_error err;

    return try_open_engine(o, engine, &err) == NUMOE_OK ? EXIT_OK : fail_status(&err);
}

/* 39553024 as "39.6 M". */
static void print_scaled(FILE *to, double value, const char *unit)
{
    static const char *const prefix[] = {"", "k", "M", "G", "T"};
    int i = 0;

    while (value >= 1000 && i < 4) {
        value /= 1000;
        i++;
    }
    fprintf(to, i ? "%.1f %s%s" : "%.0f %s%s", value, prefix[i], unit);
}

const char *kv_type_name(numoe_kv_type type)
{
    static const char *const name[] = {"auto", "f32", "f16", "q8_0"};
    return name[type];
}

void report_engine(const numoe_engine *engine)
{
    const numoe_engine_info *info = numoe_engine_get_info(engine);

    fprintf(stderr, "machine    %s\n", info->machine);
    fprintf(stderr, "model      %s: %s, %u layers", info->model_name, info->arch, info->n_layer);
    if (info->n_expert) {
        fprintf(stderr, ", %u of %u experts", info->n_expert_used, info->n_expert);
    }
    fputs(", ", stderr);
    print_scaled(stderr, (double)info->n_param, "");
    fprintf(stderr, " parameters, %s, ", info->type_name);
    print_scaled(stderr, (double)info->weight_bytes, "B");
    if (info->mapped_bytes) {
        fputs(" in memory, ", stderr);
        print_scaled(stderr, (double)info->mapped_bytes, "B");
        fputs(" of experts in the file", stderr);
    }
    fprintf(stderr, "\nplacement  %s\ntuning     %s\n", info->placement, info->tuning);
    if (info->gpu) {
        fprintf(stderr, "gpu        %s\n", info->gpu);
    }
    fprintf(stderr, "compute    %s kernels, KV cache %s, ", info->isa, kv_type_name(info->kv_type));
    print_scaled(stderr, (double)info->active_bytes, "B");
    fputs(" of weights a token\n", stderr);
}

void report_audit(const numoe_engine *engine, const numoe_traffic *since, size_t n_token)
{
    numoe_traffic now;
    numoe_pages pages;

    for (unsigned i = 0; numoe_engine_traffic(engine, i, &now); i++) {
        fprintf(stderr, "node %-5u ", now.os_node);
        if (n_token) {
            print_scaled(stderr, (double)(now.local_bytes - since[i].local_bytes) / n_token, "B");
            fputs(" of weights a token read locally, ", stderr);
            print_scaled(stderr, (double)(now.remote_bytes - since[i].remote_bytes) / n_token, "B");
            fputs(" from other nodes", stderr);
            if (numoe_engine_get_info(engine)->mapped_bytes) {
                fputs(", ", stderr);
                print_scaled(stderr, (double)(now.file_bytes - since[i].file_bytes) / n_token, "B");
                fputs(" from the file", stderr);
            }
            fputs("; ", stderr);
        }
        numoe_engine_pages(engine, i, &pages);
        uint64_t n = pages.n_local + pages.n_remote;
        if (pages.known && n) {
            fprintf(stderr, "%.4g %% of %llu%s pages local%s%s\n",
                    100.0 * (double)pages.n_local / n, (unsigned long long)n,
                    pages.sampled ? " looked at" : "", pages.cause ? ": " : "",
                    pages.cause ? pages.cause : "");
        } else {
            fputs("where its pages are is not known\n", stderr);
        }
    }
}

void report_sampling(const struct sampling_options *o)
{
    const numoe_sampler_params *p = &o->params;

    if (p->temperature == 0) {
        fputs("sampling   greedy", stderr);
    } else {
        fprintf(stderr, "sampling   temperature %g", (double)p->temperature);
        if (p->top_k) {
            fprintf(stderr, ", top-k %u", p->top_k);
        }
        if (p->top_p < 1) {
            fprintf(stderr, ", top-p %g", (double)p->top_p);
        }
        if (p->min_p > 0) {
            fprintf(stderr, ", min-p %g", (double)p->min_p);
        }
        fprintf(stderr, ", seed %llu", (unsigned long long)p->seed);
    }
    if (p->repeat_penalty != 1) {
        fprintf(stderr, ", repetition penalty %g", (double)p->repeat_penalty);
    }
    fputs("\n\n", stderr);
}

/* ------------------------------------------------------------------ generation */

static const char *finish_text(numoe_finish finish)
{
    switch (finish) {
    case NUMOE_FINISH_EOG:
        return "the model ended its turn";
    case NUMOE_FINISH_STOP:
        return "a stop string was met";
    case NUMOE_FINISH_LENGTH:
        return "as many as asked for";
    case NUMOE_FINISH_CONTEXT:
        return "the context is full";
    default:
        return "stopped";
    }
}

static double rate(size_t n, double seconds)
{
    return seconds > 0 ? (double)n / seconds : 0;
}

void report_replicas(const numoe_engine *engine)
{
    const numoe_replicas r = numoe_engine_replicas(engine);

    if (r.n_copied > 0 && r.n_choice > 0) {
        fprintf(stderr,
                "replicas   %llu of %llu experts on several nodes served %.0f %% of choices\n",
                (unsigned long long)r.n_copied, (unsigned long long)r.n_expert,
                100 * (double)r.n_choice_copied / (double)r.n_choice);
    }
    if (r.n_place > 0 && r.n_made == 0 && r.n_token < r.n_token_first) {
        fprintf(stderr,
                "replicas   no copies yet, of at most %llu: the first are made after %llu tokens, "
                "%llu were counted\n",
                (unsigned long long)r.n_place, (unsigned long long)r.n_token_first,
                (unsigned long long)r.n_token);
    } else if (r.n_place > 0) {
        fprintf(stderr, "%s%llu cop%s made, %llu in place of others, of at most %llu: ",
                r.n_copied > 0 && r.n_choice > 0 ? "           " : "replicas   ",
                (unsigned long long)r.n_made, r.n_made == 1 ? "y" : "ies",
                (unsigned long long)r.n_swapped, (unsigned long long)r.n_place);
        print_scaled(stderr, (double)r.copied_bytes, "B");
        fprintf(stderr, " in %.3f s\n", r.copy_seconds);
    }
}

/* Measured if that may be and has not been done before, or in what must have been a bad moment; not
 * for a text whose prompt gave its only token. */
static double possible_bandwidth(numoe_engine *engine, double used_bps, bool no_probe)
{
    const double known = numoe_engine_get_info(engine)->read_bps;

    return no_probe || used_bps == 0 || known > used_bps ? known : numoe_engine_bandwidth(engine);
}

void report_generation(numoe_engine *engine, const numoe_generate_result *r, size_t n_evaluated,
                       bool no_probe)
{
    const numoe_engine_info *info = numoe_engine_get_info(engine);
    double tokens_per_s = rate(n_evaluated, r->generate_seconds);
    double used_bps = rate(r->generate_bytes, r->generate_seconds);

    fprintf(stderr, "\nprompt     %zu token%s in %.2f s, %.1f tokens/s\n", r->n_prompt,
            r->n_prompt == 1 ? "" : "s", r->prompt_seconds, rate(r->n_prompt, r->prompt_seconds));
    fprintf(stderr, "generated  %zu token%s in %.2f s, %.1f tokens/s, %s\n", r->n_generated,
            r->n_generated == 1 ? "" : "s", r->generate_seconds, tokens_per_s,
            finish_text(r->finish));
    const double possible_bps = possible_bandwidth(engine, used_bps, no_probe);
    fprintf(stderr, "memory     %.2f GB/s of weights%s", used_bps * 1e-9,
            info->gpu ? " outside the GPU" : "");
    if (possible_bps > 0) {
        fprintf(stderr, ", %.0f %% of the %.1f GB/s that the workers can read",
                used_bps / possible_bps * 100, possible_bps * 1e-9);
    }
    fprintf(stderr, "\nload       %.2f s\n", info->load_seconds);
    report_replicas(engine);
}
