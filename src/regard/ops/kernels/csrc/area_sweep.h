/* The window pass of area attention, for one strip of LANES queries: every register holds one number for each of them.

   Items come in order. For a sequence, areas that end at item j are kept as running sums of the scores, one for each size:

       run_s(j) = run_{s-1}(j - 1) + (e_j - base) log2 e      base: the row's largest score
       p        = 2^(run_s / s)                               divided by the row's sum at the end
       w_i     += p   for the s items i of the area

   and in the backward pass, with g = dO v^T the gradient of the item weights,

       delta    = sum over areas of p (sum of g over the area)
       da       = p (sum of g over the area - delta)          gradient of the area's score
       ds_i    += da * scale / s

   delta is summed by a sweep of its own over the very numbers it is taken from, not as do . o: where one area has all the weight the
   difference is then exactly 0, as it should be, and not a rounding error times a large query.

   The base is taken off the items, not off the areas: what then still counts is near 0, and sums of it round off little.

   Adding p to the last s items for every s is a suffix sum over s; an item is complete once max-area - 1 later ones have been seen.
   On a grid the same happens along x, and its results are swept along y. */
#ifndef REGARD_AREA_SWEEP_H
#define REGARD_AREA_SWEEP_H

#include "calls.h"
#include "simd.h"

/* Stands for "not allowed". No finite score is mistaken for it: what it is added to stays hidden, its 2^x is exactly 0, and a row whose
   largest score it is has nothing to attend to. Only a finite base may be taken off it. */
#define HIDDEN (-(real)INFINITY)
#define LOG2E ((real)1.44269504088896340736)

/* The areas of a call. Loops over sizes are unrolled by the compiler for some largest areas only; others up to 16 are computed with the
   next of these, and the sizes that do not exist get a penalty that makes their p exactly 0. Arrays are indexed by (h - 1) * width + (w - 1). */
typedef struct {
    int height, width;            /* the largest area that is computed */
    int plain;                    /* no penalties, and all shares are 1 */
    int64_t columns;              /* of the grid */
    real inverse[MOST_ITEMS];     /* 1 / items */
    real slope[MOST_ITEMS];       /* scale / items */
    real share[MOST_ITEMS];       /* what an item gets of its area's weight: 1, or 1 / items for mean values */
    real penalty[MOST_ITEMS];     /* 0, or infinity */
} Windows;

static void windows_start(Windows *w, const AreaCall *call) {
    const int height = (int)call->area_height, width = (int)call->area_width;
    if (call->grid_height == 1) {
        const int plain = !call->mean_values && (width <= 5 || width == 8);
        w->height = 1;
        w->width = plain ? width : width <= 4 ? 4 : width <= 8 ? 8 : width <= 16 ? 16 : width;
    } else {
        w->height = w->width = height <= 2 && width <= 2 ? 2 : height <= 3 && width <= 3 ? 3 : 4;
    }
    w->plain = w->height == height && w->width == width && !call->mean_values;
    w->columns = call->grid_width;
    for (int i = 0; i < w->height * w->width; i++) {
        const int h = i / w->width + 1, across = i % w->width + 1;
        w->inverse[i] = (real)1 / (h * across);
        w->slope[i] = (real)call->scale / (h * across);
        w->share[i] = call->mean_values ? w->inverse[i] : 1;
        w->penalty[i] = h <= height && across <= width ? 0 : -HIDDEN;
    }
}

enum sweep_mode { FORWARD, DELTA, BACKWARD };

/* One strip, between two chunks of a sequence. */
typedef struct {
    vec base, most;                           /* most: the largest score so far, HIDDEN before the first; base: the same, but then 0 */
    vec sum, lost;                            /* of p (forward), of p times the gradient of the area's weight (delta); see add_to_sum */
    vec inverse, delta;                       /* backward: 1 / sum of p */
    vec run[MOST_LENGTH], run_grad[MOST_LENGTH]; /* [s - 1]: sums over the last s items */
    vec weight[MOST_LENGTH], slope[MOST_LENGTH]; /* [r]: unfinished w and ds of the item r steps back */
} Strip;

static void strip_start(Strip *s, int area) {
    for (int i = 0; i < area; i++) {
        s->run[i] = splat(HIDDEN); /* areas that begin before the first item do not exist */
        s->run_grad[i] = s->weight[i] = s->slope[i] = (vec){0};
    }
}

/* The mean of an area never exceeds its largest item, and each item is an area: the largest score is an item's. */
static vec largest(const real *scores, int64_t count) {
    vec most = splat(HIDDEN);
    for (int64_t j = 0; j < count; j++) most = maximum(load(scores + j * AREA_TILE), most);
    return most;
}

/* Move a strip's base up to the largest score so far, and with it what was summed; return what other sums are to be multiplied by. */
static vec raise_base(Strip *s, int area, vec most) {
    most = maximum(s->most, most);
    s->base = select_vec(most == HIDDEN, (vec){0}, most); /* nothing allowed yet: every term must be 0, not 2^0 */
    const vec change = (s->most - s->base) * LOG2E, shrink = exp2_vec(change);
    s->most = most;
    s->sum *= shrink;
    s->lost *= shrink;
    for (int i = 0; i < area; i++) {
        s->run[i] += change * (real)(i + 1); /* these are sums of scores from which the base is taken off */
        s->weight[i] *= shrink;
    }
    return shrink;
}

/* Sweep `count` items of a sequence whose largest area is `area`. scores (count x AREA_TILE) becomes w and grads becomes ds, both of the
   item area - 1 steps back; a sweep for delta leaves them. */
INLINE void line_sweep(int area, int plain, enum sweep_mode mode, const Windows *w, Strip *s, real *scores, real *grads, int64_t count) {
    vec run[MOST_LENGTH], run_grad[MOST_LENGTH], weight[MOST_LENGTH], slope[MOST_LENGTH], part = (vec){0};
    const vec base = s->base, delta = s->delta, inverse = s->inverse;
    UNROLL
    for (int i = 0; i < area; i++) {
        run[i] = s->run[i];
        weight[i] = s->weight[i];
        if (mode != FORWARD) run_grad[i] = s->run_grad[i], slope[i] = s->slope[i];
    }
    for (int64_t j = 0; j < count; j++) {
        const vec e = (load(scores + j * AREA_TILE) - base) * LOG2E;
        const vec g = mode != FORWARD ? load(grads + j * AREA_TILE) : e;
        UNROLL
        for (int i = area - 1; i > 0; i--) {
            run[i] = run[i - 1] + e;
            if (mode != FORWARD) run_grad[i] = run_grad[i - 1] + g;
        }
        run[0] = e;
        if (mode != FORWARD) run_grad[0] = g;
        vec p_suffix = (vec){0}, da_suffix = (vec){0}, total = (vec){0};
        UNROLL
        for (int i = area - 1; i >= 0; i--) {
            const vec p = exp2_vec(plain ? run[i] * w->inverse[i] : run[i] * w->inverse[i] - w->penalty[i]);
            if (mode == FORWARD) {
                total += p;
            } else {
                const vec grad = plain ? run_grad[i] : run_grad[i] * w->share[i];
                if (mode == DELTA) {
                    total += p * grad;
                    continue;
                }
                da_suffix += p * (grad - delta) * w->slope[i];
                const vec done = i ? slope[i - 1] + da_suffix : da_suffix;
                if (i == area - 1) store(grads + j * AREA_TILE, done * inverse);
                else slope[i] = done;
            }
            p_suffix += plain ? p : p * w->share[i];
            const vec done = i ? weight[i - 1] + p_suffix : p_suffix;
            if (i == area - 1) store(scores + j * AREA_TILE, mode == BACKWARD ? done * inverse : done);
            else weight[i] = done;
        }
        part += total;
        if (j % 16 == 15 || j == count - 1) add_to_sum(&s->sum, &s->lost, part), part = (vec){0};
    }
    UNROLL
    for (int i = 0; i < area; i++) {
        s->run[i] = run[i];
        s->weight[i] = weight[i];
        if (mode != FORWARD) s->run_grad[i] = run_grad[i], s->slope[i] = slope[i];
    }
}

INLINE void line_sweep_any(enum sweep_mode mode, const Windows *w, Strip *s, real *scores, real *grads, int64_t count) {
    switch (w->plain ? w->width : -w->width) {
    case 1: line_sweep(1, 1, mode, w, s, scores, grads, count); break;
    case 2: line_sweep(2, 1, mode, w, s, scores, grads, count); break;
    case 3: line_sweep(3, 1, mode, w, s, scores, grads, count); break;
    case 4: line_sweep(4, 1, mode, w, s, scores, grads, count); break;
    case 5: line_sweep(5, 1, mode, w, s, scores, grads, count); break;
    case 8: line_sweep(8, 1, mode, w, s, scores, grads, count); break;
    case -4: line_sweep(4, 0, mode, w, s, scores, grads, count); break;
    case -8: line_sweep(8, 0, mode, w, s, scores, grads, count); break;
    case 16: case -16: line_sweep(16, 0, mode, w, s, scores, grads, count); break;
    default: line_sweep(w->width, 0, mode, w, s, scores, grads, count);
    }
}

static void line_forward(const Windows *w, Strip *s, real *scores, int64_t count) { line_sweep_any(FORWARD, w, s, scores, scores, count); }

static void line_backward(const Windows *w, Strip *s, real *scores, real *grads, int64_t count) {
    line_sweep_any(DELTA, w, s, scores, grads, count);
    s->delta = s->sum * s->inverse;
    strip_start(s, w->width);
    line_sweep_any(BACKWARD, w, s, scores, grads, count);
}

/* Write what is unfinished after the last item: `area` - 1 more rows. */
static void line_flush(int area, const vec *unfinished, vec factor, real *rows) {
    for (int i = 0; i + 1 < area; i++) store(rows + i * AREA_TILE, unfinished[area - 2 - i] * factor);
}

/* The columns of a grid between two of its rows; each is one vector for each column of the grid. */
typedef struct {
    real *run, *run_grad;   /* [height][width][columns]: sums over rectangles that end in the row above */
    real *weight, *slope;   /* [height][columns]: unfinished w and ds of the rows above */
} GridState;

INLINE int64_t grid_vectors(const Windows *w) { return (int64_t)w->height * (w->width + 1) * w->columns; }

/* Where the sums of one column lie. */
INLINE real *at(real *array, int64_t index, int64_t columns, int64_t x) { return array + (index * columns + x) * LANES; }

/* What a rectangle's share adds up to along x is handed to the rows it covers: u[h] belongs to h + 1 rows that end in row y. */
INLINE void grid_finish(int height, int64_t columns, int64_t x, const vec *u, vec factor, real *unfinished, real *row_done) {
    vec suffix = (vec){0};
    UNROLL
    for (int h = height - 1; h >= 0; h--) {
        suffix += u[h];
        vec done = h ? load(at(unfinished, h - 1, columns, x)) + suffix : suffix;
        if (h == height - 1) {
            if (row_done) store(row_done + x * AREA_TILE, done * factor);
        } else {
            store(at(unfinished, h, columns, x), done);
        }
    }
}

/* One row of the grid. row_w and row_ds are where the row `height` - 1 above is to be written (NULL: there is none). */
INLINE void grid_row(int height, int width, int plain, enum sweep_mode mode, const Windows *w, GridState *g, Strip *s, const real *scores, const real *grads,
                     real *row_w, real *row_ds) {
    const int64_t columns = w->columns;
    const vec base = s->base, delta = s->delta, factor = mode == BACKWARD ? s->inverse : splat(1);
    vec row_total = (vec){0};
    vec line[MOST_SIDE], line_grad[MOST_SIDE], weight[MOST_SIDE][MOST_SIDE], slope[MOST_SIDE][MOST_SIDE];
    UNROLL
    for (int i = 0; i < width; i++) {
        line[i] = splat(HIDDEN);
        line_grad[i] = (vec){0};
        UNROLL
        for (int h = 0; h < height; h++) weight[h][i] = slope[h][i] = (vec){0};
    }
    for (int64_t x = 0; x < columns + width - 1; x++) {
        vec done_w[MOST_SIDE], done_ds[MOST_SIDE], total = (vec){0};
        const int inside = x < columns; /* beyond, only what is unfinished moves on */
        if (inside) {
            const vec e = (load(scores + x * AREA_TILE) - base) * LOG2E, d = mode != FORWARD ? load(grads + x * AREA_TILE) : e;
            UNROLL
            for (int i = width - 1; i > 0; i--) {
                line[i] = line[i - 1] + e;
                if (mode != FORWARD) line_grad[i] = line_grad[i - 1] + d;
            }
            line[0] = e;
            line_grad[0] = d;
        }
        UNROLL
        for (int h = height - 1; h >= 0; h--) {
            vec p_suffix = (vec){0}, da_suffix = (vec){0};
            UNROLL
            for (int i = width - 1; i >= 0; i--) {
                if (inside) {
                    const int64_t here = h * width + i, above = here - width;
                    const vec run = h ? load(at(g->run, above, columns, x)) + line[i] : line[i];
                    if (h < height - 1) store(at(g->run, here, columns, x), run);
                    const vec p = exp2_vec(plain ? run * w->inverse[here] : run * w->inverse[here] - w->penalty[here]);
                    if (mode == FORWARD) {
                        total += p;
                    } else {
                        const vec sum = h ? load(at(g->run_grad, above, columns, x)) + line_grad[i] : line_grad[i];
                        if (h < height - 1) store(at(g->run_grad, here, columns, x), sum);
                        const vec grad = plain ? sum : sum * w->share[here];
                        if (mode == DELTA) total += p * grad;
                        else da_suffix += p * (grad - delta) * w->slope[here];
                    }
                    p_suffix += plain ? p : p * w->share[here];
                }
                if (mode == DELTA) continue;
                const vec now_w = i ? weight[h][i - 1] + p_suffix : p_suffix;
                const vec now_ds = i ? slope[h][i - 1] + da_suffix : da_suffix;
                if (i == width - 1) done_w[h] = now_w, done_ds[h] = now_ds;
                else weight[h][i] = now_w, slope[h][i] = now_ds;
            }
        }
        row_total += total;
        if (mode == DELTA || x < width - 1) continue;
        grid_finish(height, columns, x - (width - 1), done_w, factor, g->weight, row_w);
        if (mode == BACKWARD) grid_finish(height, columns, x - (width - 1), done_ds, factor, g->slope, row_ds);
    }
    add_to_sum(&s->sum, &s->lost, row_total);
}

INLINE void grid_row_any(enum sweep_mode mode, const Windows *w, GridState *g, Strip *s, const real *scores, const real *grads, real *row_w,
                         real *row_ds) {
    switch (w->plain ? w->width : -w->width) {
    case 2: grid_row(2, 2, 1, mode, w, g, s, scores, grads, row_w, row_ds); break;
    case 3: grid_row(3, 3, 1, mode, w, g, s, scores, grads, row_w, row_ds); break;
    case -2: grid_row(2, 2, 0, mode, w, g, s, scores, grads, row_w, row_ds); break;
    case -3: grid_row(3, 3, 0, mode, w, g, s, scores, grads, row_w, row_ds); break;
    default: grid_row(4, 4, 0, mode, w, g, s, scores, grads, row_w, row_ds);
    }
}

/* Sweep `rows` rows of a grid: scores becomes w, grads becomes ds, item by item; a sweep for delta leaves them. A row is overwritten once it has been read: the results
   of a row are complete height - 1 rows later. */
INLINE void grid_sweep(enum sweep_mode mode, const Windows *w, GridState *g, Strip *s, real *scores, real *grads, int64_t rows) {
    const int64_t row = w->columns * AREA_TILE;
    const int64_t sums = (int64_t)w->height * w->width * w->columns, lines = (int64_t)w->height * w->columns;
    for (int64_t i = 0; i < sums; i++) {
        store(g->run + i * LANES, splat(HIDDEN));
        if (mode != FORWARD) store(g->run_grad + i * LANES, (vec){0});
    }
    for (int64_t i = 0; i < lines; i++) {
        store(g->weight + i * LANES, (vec){0});
        if (mode != FORWARD) store(g->slope + i * LANES, (vec){0});
    }
    const int64_t late = w->height - 1;
    for (int64_t y = 0; y < rows; y++) {
        real *row_w = y >= late ? scores + (y - late) * row : NULL, *row_ds = y >= late ? grads + (y - late) * row : NULL;
        grid_row_any(mode, w, g, s, scores + y * row, grads + y * row, row_w, row_ds);
    }
    const vec factor = mode == BACKWARD ? s->inverse : splat(1);
    for (int64_t i = 0; mode != DELTA && i < late && i < rows; i++) { /* row rows - 1 - i is i steps back */
        for (int64_t x = 0; x < w->columns; x++) {
            store(scores + (rows - 1 - i) * row + x * AREA_TILE, load(at(g->weight, i, w->columns, x)) * factor);
            if (mode == BACKWARD) store(grads + (rows - 1 - i) * row + x * AREA_TILE, load(at(g->slope, i, w->columns, x)) * factor);
        }
    }
}

static void grid_forward(const Windows *w, GridState *g, Strip *s, real *scores, int64_t rows) {
    grid_sweep(FORWARD, w, g, s, scores, scores, rows);
}

static void grid_backward(const Windows *w, GridState *g, Strip *s, real *scores, real *grads, int64_t rows) {
    grid_sweep(DELTA, w, g, s, scores, grads, rows);
    s->delta = s->sum * s->inverse;
    grid_sweep(BACKWARD, w, g, s, scores, grads, rows);
}

#endif
