/* Rectangles of a grid with keys of their own: what area_keyed.h does along a sequence, for one strip. Scores lie in one buffer for each
   size, by the item at which the area ends. */
#ifndef REGARD_AREA_KEYED_GRID_H
#define REGARD_AREA_KEYED_GRID_H

#include "area_memory.h"
#include "area_sweep.h"

/* Hide the scores of areas that would begin outside of what is swept, whose first row of the grid is `first`'s, and spoil the bad ones. */
static void grid_scores(const Head *head, Memory *m, int64_t first, int64_t count) {
    const Plan *plan = head->plan;
    const AreaCall *call = plan->call;
    for (int64_t i = 0; i < call->area_height * call->area_width; i++) {
        real *scores = m->areas + i * area_buffer(plan);
        const int64_t h = i / call->area_width, w = i % call->area_width, row = area_row(call, i) + first;
        compare(&head->key, call->key_size, row, count, m->query_columns, scores);
        for (int64_t j = 0; j < count; j++) {
            const int there = j / call->grid_width >= h && j % call->grid_width >= w;
            const int bad = head->bad && !plan->backward && head->bad[row + j];
            for (int64_t t = 0; (bad || !there) && t < TILE; t++) scores[j * TILE + t] = there ? NAN : HIDDEN;
        }
    }
}

/* Overwrite the scores of areas that hold a hidden item: `hidden` is 0 or HIDDEN for each item. Returns the largest score. */
INLINE void grid_hide(int side, const Plan *plan, const real *hidden, real *areas, int64_t count, vec *largest) {
    const int64_t columns = plan->call->grid_width, tall = plan->call->area_height, wide = plan->call->area_width, buffer = area_buffer(plan);
    vec most = splat(HIDDEN);
    for (int64_t j = 0; j < count; j++) {
        const int64_t y = j / columns, x = j % columns;
        vec sum[MOST_SIDE] = {{0}}, line = {0};
        UNROLL
        for (int h = 0; h < side; h++) {
            UNROLL
            for (int w = 0; w < side; w++) {
                if (h >= tall || w >= wide) continue;
                const int there = h <= y && w <= x; /* the area exists */
                if (!there) continue;
                const vec item = load(hidden + (j - h * columns - w) * TILE);
                line = w ? line + item : item;
                sum[w] = h ? sum[w] + line : line;
                real *score = areas + (h * wide + w) * buffer + j * TILE;
                const vec seen = select_vec(sum[w] < 0, splat(HIDDEN), load(score));
                store(score, seen);
                most = maximum(seen, most);
            }
        }
    }
    *largest = most;
}

/* As keyed_sweep: scores of areas, in a backward sweep replaced by their gradients, to the weights of items, which are added up. */
INLINE void grid_keyed(int side, enum sweep_mode mode, const Plan *plan, Strip *s, real *areas, const real *grads, real *weights,
                       int64_t count) {
    const Windows *windows = &plan->windows;
    const int64_t columns = plan->call->grid_width, tall = plan->call->area_height, wide = plan->call->area_width, buffer = area_buffer(plan);
    const vec base = s->base, delta = s->delta, inverse = s->inverse;
    vec part = {0};
    for (int64_t j = 0; mode != DELTA && j < count; j++) store(weights + j * TILE, (vec){0});
    for (int64_t j = 0; j < count; j++) {
        const int64_t y = j / columns, x = j % columns;
        vec given[MOST_SIDE * MOST_SIDE] = {{0}}, grad[MOST_SIDE] = {{0}}, line = {0};
        UNROLL
        for (int h = 0; h < side; h++) {
            UNROLL
            for (int w = 0; w < side; w++) {
                if (h >= tall || w >= wide) continue;
                const int there = h <= y && w <= x; /* the area exists */
                real *score = areas + (h * wide + w) * buffer + j * TILE;
                const real share = windows->share[h * windows->width + w];
                if (!there) {
                    if (mode == BACKWARD) store(score, (vec){0});
                    continue;
                }
                const vec p = exp2_vec((load(score) - base) * LOG2E);
                given[h * side + w] = p * share;
                if (mode == FORWARD) {
                    part += p;
                    continue;
                }
                const vec item = load(grads + (j - h * columns - w) * TILE);
                line = w ? line + item : item;
                grad[w] = h ? grad[w] + line : line;
                if (mode == DELTA) part += p * grad[w] * share;
                else store(score, p * (grad[w] * share - delta) * inverse);
            }
        }
        if (j % 16 == 15 || j == count - 1) add_to_sum(&s->sum, &s->lost, part), part = (vec){0};
        if (mode == DELTA) continue;
        vec below[MOST_SIDE] = {{0}}; /* what the areas of more rows give to the items of a row */
        UNROLL
        for (int h = side - 1; h >= 0; h--) {
            vec suffix = {0};
            UNROLL
            for (int w = side - 1; w >= 0; w--) {
                suffix += given[h * side + w];
                below[w] += suffix;
                real *weight = weights + (j - h * columns - w) * TILE;
                if (h <= y && w <= x) store(weight, load(weight) + (mode == BACKWARD ? below[w] * inverse : below[w]));
            }
        }
    }
}

static void grid_keyed_forward(const Head *head, Memory *m, Strip *s, int strip, int64_t count) {
    real *areas = m->areas + strip * LANES, *items = m->scores + strip * LANES;
    vec most;
    BY_SIDE(grid_hide, head->plan->call, head->plan, items, areas, count, &most);
    shrink_sums(m, strip, raise_base(s, 0, most));
    BY_SIDE(grid_keyed, head->plan->call, FORWARD, head->plan, s, areas, NULL, items, count);
}

static void grid_keyed_backward(const Head *head, Memory *m, Strip *s, int strip, int64_t count) {
    real *areas = m->areas + strip * LANES, *items = m->scores + strip * LANES, *grads = m->grads + strip * LANES;
    vec most;
    BY_SIDE(grid_hide, head->plan->call, head->plan, items, areas, count, &most);
    BY_SIDE(grid_keyed, head->plan->call, DELTA, head->plan, s, areas, grads, items, count);
    s->delta = s->sum * s->inverse;
    BY_SIDE(grid_keyed, head->plan->call, BACKWARD, head->plan, s, areas, grads, items, count);
}

#endif
