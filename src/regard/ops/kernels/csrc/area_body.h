/* Area attention with mean keys and sum (or mean) values, forward and backward, for one instruction set and one type.

   Mean keys make the score of an area the mean of its items' scores, and sum values make the output a sum over items (Li et al. 2018,
   Eq. 3 and 4), so nothing larger than ordinary attention has to exist:

       e = scale q k^T;   w = window pass of e;   o = w v                                         forward
       g = do v^T;   w, ds = window pass of e and g;   dq = ds k,  dk = ds^T q,  dv = w^T do      backward

   All inner matrices lie transposed: a row for each key, AREA_TILE queries side by side, so that a vector holds one number of several
   queries and the window pass needs no shifts across lanes. A tile of queries walks along the keys in
   chunks that stay in the first-level cache; nothing but largest score and sum of each row is kept for the backward pass. */
#include <math.h>

#include "area.h"
#include "area_sweep.h"
#include "parallel.h"
#include "simd.h"

enum { TILE = AREA_TILE, STRIPS = TILE / LANES, CHUNK = 128, BLOCK = 16 };

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Buffers of whole pages would all begin at the same place of a page, and a processor takes a load for one of what was just stored at that
   place of another page: it waits. */
static real *take(char **free_memory, int64_t count) {
    char *start = *free_memory;
    *free_memory += ((size_t)count * sizeof(real) + 63) / 64 * 64 + 192;
    return (real *)start;
}

#include "feature_body.h"
#include "area_memory.h"

/* Say whether query t of this head may attend item j. */
static int allowed(const Head *head, int64_t t, int64_t j) {
    const AreaCall *call = head->plan->call;
    if (call->causal && j > t + call->keys - call->queries) return 0;
    return !head->mask || head->mask[j * call->mask.key + t * call->mask.query];
}

/* Narrow [*first, *last) to the keys that some query of the tile may attend; for a grid, to whole rows of it. */
static void key_range(const Head *head, int64_t t0, int64_t *first, int64_t *last) {
    const AreaCall *call = head->plan->call;
    int64_t low = 0, high = call->keys;
    if (call->causal) {
        int64_t past = t0 + TILE + call->keys - call->queries;
        high = past < 0 ? 0 : past < high ? past : high;
    }
    if (head->mask) {
        const int64_t width = call->mask.query ? TILE : 1;
        const uint8_t *rows = head->mask + t0 * call->mask.query, none[TILE] = {0};
        while (high > low && memcmp(rows + (high - 1) * call->mask.key, none, width) == 0) high--;
        while (low < high && memcmp(rows + low * call->mask.key, none, width) == 0) low++;
    }
    const int64_t whole = call->grid_height > 1 ? call->grid_width : 1;
    *first = low / whole * whole;
    *last = (high + whole - 1) / whole * whole;
}

/* Overwrite what is hidden, for keys [j0, j0 + count): scores by HIDDEN, gradients (where there are any) by 0. */
static void hide(const Head *head, int64_t t0, int64_t j0, int64_t count, real *scores, real *grads) {
    const AreaCall *call = head->plan->call;
    const int64_t offset = call->keys - call->queries;
    int64_t begin = 0;
    if (!head->mask) {
        if (!call->causal) return;
        begin = t0 + offset + 1 - j0; /* all of the tile may attend what lies before */
        if (begin < 0) begin = 0;
    }
    ivec lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    for (int64_t i = begin; i < count; i++) {
        const int64_t j = j0 + i;
        const uint8_t *flags = head->mask ? head->mask + j * call->mask.key + t0 * call->mask.query : NULL;
        for (int strip = 0; strip < STRIPS; strip++) {
            real *score = scores + i * TILE + strip * LANES, *grad = grads ? grads + i * TILE + strip * LANES : NULL;
            ivec keep = isplat(-1);
            if (flags) keep = call->mask.query ? load_flags(flags + strip * LANES) : isplat(-(lane_int)*flags);
            if (call->causal) keep &= lane >= (lane_int)(j - offset - t0 - strip * LANES);
            store(score, select_vec(keep, load(score), splat(HIDDEN)));
            if (grad) store(grad, select_vec(keep, load(grad), (vec){0}));
        }
    }
}

/* The mean of an area never exceeds its largest item, and each item is an area: the largest score is an item's. */
static vec largest(const real *scores, int64_t count) {
    vec most = splat(HIDDEN);
    for (int64_t j = 0; j < count; j++) most = maximum(load(scores + j * TILE), most);
    return most;
}

/* Move a strip's base up to the largest score so far, and with it what was summed. */
static void raise_base(Strip *s, vec most, real *sums, int64_t sum_rows) {
    most = maximum(s->most, most);
    s->base = select_vec(most < IS_HIDDEN, (vec){0}, most); /* nothing allowed yet: every term must be 0, not 2^0 */
    const vec change = (s->most - s->base) * LOG2E, shrink = exp2_vec(change);
    s->most = most;
    s->sum *= shrink;
    for (int i = 0; i < MOST_LENGTH; i++) {
        s->run[i] += change * (real)(i + 1); /* these are sums of scores from which the base is taken off */
        s->weight[i] *= shrink;
    }
    for (int64_t i = 0; i < sum_rows; i++) store(sums + i * TILE, load(sums + i * TILE) * shrink);
}

#include "area_products.h"
#include "area_keyed.h"
#include "area_tiles.h"

int VARIANT(area_forward)(const AreaCall *call) {
    Plan plan = make_plan(call, 0);
    return parallel_for(call->batch * call->heads * plan.parts, call->threads, plan.bytes, forward_part, &plan);
}

int VARIANT(area_backward)(const AreaCall *call) {
    Plan plan = make_plan(call, 1);
    const int64_t heads = call->batch * call->heads, tasks = (heads * plan.parts + plan.block - 1) / plan.block;
    int failed = 0;
    if (plan.parts > 1) failed |= !(plan.partial = malloc((size_t)(heads * plan.parts * partial_size(&plan)) * sizeof(real)));
    if (call->features) failed |= !(plan.feature_sums = malloc((size_t)(tasks * feature_sums_size(call)) * sizeof(real)));
    if (!failed) failed = parallel_for(tasks, call->threads, plan.bytes, backward_part, &plan);
    if (!failed && plan.parts > 1) failed = parallel_for(heads, call->threads, plan.bytes, join_parts, &plan);
    if (!failed && call->features) feature_finish(call, plan.feature_sums, tasks);
    free(plan.partial);
    free(plan.feature_sums);
    return failed;
}
