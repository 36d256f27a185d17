/* The greatest log-probabilities of a row, for one instruction set: two passes over the logits, no row of log-probabilities. */
#ifndef REGARD_BEST_H
#define REGARD_BEST_H

#include <math.h>

#include "calls.h"
#include "native.h"
#include "parallel.h"
#include "simd.h"

enum { BEST_BLOCK = 64 };

/* The `count` greatest numbers met so far, descending, with their places; met in ascending order of place, so that ties stay so. */
typedef struct {
    int64_t count, found;
    real *values;
    int64_t *places;
} best_list;

static inline void best_insert(best_list *list, real value, int64_t place) {
    int64_t at = list->found < list->count ? list->found : list->count - 1;
    if (list->found == list->count && !(value > list->values[at])) return;
    for (; at > 0 && value > list->values[at - 1]; at--) {
        list->values[at] = list->values[at - 1];
        list->places[at] = list->places[at - 1];
    }
    list->values[at] = value;
    list->places[at] = place;
    if (list->found < list->count) list->found++;
}

static real best_maximum(const real *p, int64_t count) {
    int64_t i = 0;
    real greatest = p[0];
    if (count >= LANES) {
        vec most = load(p);
        for (i = LANES; i + LANES <= count; i += LANES) most = maximum(load(p + i), most);
        greatest = most[0];
        for (int lane = 1; lane < LANES; lane++) greatest = most[lane] > greatest ? most[lane] : greatest;
    }
    for (; i < count; i++) greatest = p[i] > greatest ? p[i] : greatest;
    return greatest;
}

/* log of the sum of exp(p[i] - greatest); NaN where the logits are no distribution. */
static real best_log_sum(const real *p, int64_t size, real greatest) {
    const real log2_e = (real)1.4426950408889634;
    vec sum = {0};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) sum += exp2_vec((load(p + i) - greatest) * log2_e);
    double total = 0;
    for (int lane = 0; lane < LANES; lane++) total += sum[lane];
    for (; i < size; i++) total += exp((double)p[i] - greatest);
    return (real)log(total);
}

static void best_task(int64_t row, void *scratch, const void *context) {
    const BestCall *call = context;
    const real *logits = call->logits + row * call->size;
    const int64_t blocks = (call->size + BEST_BLOCK - 1) / BEST_BLOCK;
    real *maxima = scratch, *values = call->values + row * call->count;
    int64_t *places = call->places + row * call->count;
    real head_values[BEST_MOST] = {0}, best_values[BEST_MOST];
    int64_t head_places[BEST_MOST], best_places[BEST_MOST];
    best_list heads = {.count = call->count, .values = head_values, .places = head_places};
    best_list best = {.count = call->count, .values = best_values, .places = best_places};
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t start = b * BEST_BLOCK, left = call->size - start;
        maxima[b] = best_maximum(logits + start, left < BEST_BLOCK ? left : BEST_BLOCK);
        best_insert(&heads, maxima[b], b);
    }
    const real greatest = heads.values[0], log_sum = best_log_sum(logits, call->size, greatest);
    /* The best lie in blocks whose maxima are among the `count` greatest, or equal the least of those. */
    const real least = heads.values[heads.found - 1];
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t i = b * BEST_BLOCK; maxima[b] >= least && i < call->size && i < (b + 1) * BEST_BLOCK; i++)
            best_insert(&best, logits[i], i);
    for (int64_t i = 0; i < call->count; i++) {
        values[i] = i < best.found ? best.values[i] - greatest - log_sum : log_sum;
        places[i] = i < best.found ? best.places[i] : i;
    }
}

int VARIANT(best)(const BestCall *call) {
    const size_t blocks = (size_t)((call->size + BEST_BLOCK - 1) / BEST_BLOCK);
    return parallel_for(call->rows, (int)call->threads, blocks * sizeof(real), best_task, call);
}

#endif
