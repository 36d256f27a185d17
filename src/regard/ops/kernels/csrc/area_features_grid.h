/* Features of all rectangles of a grid, and the way back: what area_features.h does along a sequence. Nothing is carried from item to item,
   for a rectangle has 16 of them at most.

   An area stands where its last item does, at (y, x), in the rows of its size: [h * width + w] for h + 1 rows and w + 1 columns. Rows of
   areas that would begin outside of the grid are zeros.

   Moments grow item by item along a line, and line by line, as Chan et al. merge them. */
#ifndef REGARD_AREA_FEATURES_GRID_H
#define REGARD_AREA_FEATURES_GRID_H

#include "calls.h"
#include "simd.h"

enum { FEATURE_CHUNK = 64 };

INLINE vec sqrt_vec(vec x) {
    vec root;
    for (int i = 0; i < LANES; i++) root[i] = REAL_IS_FLOAT ? __builtin_sqrtf(x[i]) : (real)__builtin_sqrt(x[i]);
    return root;
}

/* Loops over sizes are unrolled: `side` is the longest side, and areas that are less high or less wide than long leave some of them out. */
#define BY_SIDE(function, call, ...)                                                  \
    do {                                                                              \
        if ((call)->area_height <= 2 && (call)->area_width <= 2) function(2, __VA_ARGS__);      \
        else if ((call)->area_height <= 3 && (call)->area_width <= 3) function(3, __VA_ARGS__); \
        else function(MOST_SIDE, __VA_ARGS__);                                             \
    } while (0)

/* Deviations of the areas that end in [j0, j0 + count). */
INLINE void grid_sigma(int side, const AreaCall *call, const real *key, real *sigma, int64_t j0, int64_t count) {
    const int64_t size = call->key_size, columns = call->grid_width, tall = call->area_height, wide = call->area_width;
    const real epsilon = (real)((const AreaFeatures *)call->features)->epsilon;
    for (int64_t j = 0; j < count; j++) {
        const int64_t y = (j0 + j) / columns, x = (j0 + j) % columns;
        vec mean[MOST_SIDE] = {{0}}, squares[MOST_SIDE] = {{0}}, line = {0}, around = {0};
        UNROLL
        for (int h = 0; h < side; h++) {
            UNROLL
            for (int w = 0; w < side; w++) {
                if (h >= tall || w >= wide) continue;
                const int there = h <= y && w <= x; /* the area exists */
                real *to = sigma + ((h * wide + w) * FEATURE_CHUNK + j) * size;
                if (!there) {
                    store(to, (vec){0});
                    continue;
                }
                const vec step = load(key + (j0 + j - h * columns - w) * size) - (w ? line : (vec){0});
                line = w ? line + step * ((real)1 / (w + 1)) : step;
                around = w ? around + step * step * ((real)w / (w + 1)) : (vec){0};
                const vec apart = h ? line - mean[w] : (vec){0};
                mean[w] = h ? mean[w] + apart * ((real)1 / (h + 1)) : line;
                squares[w] = h ? squares[w] + around + apart * apart * ((real)((w + 1) * h) / (h + 1)) : around;
                store(to, sqrt_vec(squares[w] * ((real)1 / ((h + 1) * (w + 1))) + epsilon));
            }
        }
    }
}

/* Finish hidden, which holds W_sigma sigma but for single items, of the areas that end in [j0, j0 + count). */
INLINE void grid_mean(int side, const AreaCall *call, const real *projected, const real *shape, real *hidden, int64_t j0,
                      int64_t count) {
    const int64_t size = call->key_size, columns = call->grid_width, tall = call->area_height, wide = call->area_width;
    for (int64_t j = j0; j < j0 + count; j++) {
        const int64_t y = j / columns, x = j % columns;
        vec sum[MOST_SIDE] = {{0}}, line = {0};
        UNROLL
        for (int h = 0; h < side; h++) {
            UNROLL
            for (int w = 0; w < side; w++) {
                if (h >= tall || w >= wide) continue;
                const int there = h <= y && w <= x; /* the area exists */
                const int64_t i = h * wide + w;
                real *to = hidden + (i * call->keys + j) * size;
                if (!there) {
                    store(to, (vec){0});
                    continue;
                }
                const vec item = load(projected + (j - h * columns - w) * size);
                line = w ? line + item : item;
                sum[w] = h ? sum[w] + line : line;
                vec value = sum[w] * ((real)1 / ((h + 1) * (w + 1))) + load(shape + i * size);
                if (i) value += load(to);
                store(to, select_vec(value < 0, (vec){0}, value)); /* a NaN stays */
            }
        }
    }
}

/* From the gradients of the areas that end in a chunk to those of their items, which are added up. */
INLINE void grid_spread(int side, const AreaCall *call, const real *key, const real *grad, const real *slope, const real *sigma,
                        real *grad_key, real *grad_projected, int64_t j0, int64_t count) {
    const int64_t size = call->key_size, columns = call->grid_width, tall = call->area_height, wide = call->area_width;
    for (int64_t j = 0; j < count; j++) {
        const int64_t y = (j0 + j) / columns, x = (j0 + j) % columns, last = (j0 + j) * size;
        /* Items from the last one on: differences of close numbers are exact, and a small sigma makes much of them. */
        vec apart[MOST_SIDE * MOST_SIDE] = {{0}}, of_key[MOST_SIDE * MOST_SIDE] = {{0}}, of_projected[MOST_SIDE * MOST_SIDE] = {{0}}, sum[MOST_SIDE] = {{0}}, line = {0};
        UNROLL
        for (int h = 0; h < side; h++) {
            UNROLL
            for (int w = 0; w < side; w++) {
                if (h >= tall || w >= wide) continue;
                const int there = h <= y && w <= x; /* the area exists */
                const int64_t i = h * wide + w, here = (i * FEATURE_CHUNK + j) * size;
                const int at = h * side + w;
                const real share = (real)1 / ((h + 1) * (w + 1));
                if (!there) continue;
                of_projected[at] = load(grad + here) * share;
                apart[at] = load(key + last - (h * columns + w) * size) - load(key + last);
                line = w ? line + apart[at] : apart[at];
                sum[w] = h ? sum[w] + line : line;
                if (!i) continue; /* a single item has no deviation */
                const vec mean = sum[w] * share, each = load(slope + here) * share / load(sigma + here);
                UNROLL
                for (int up = 0; up <= h; up++) {
                    UNROLL
                    for (int left = 0; left <= w; left++) of_key[up * side + left] += each * (apart[up * side + left] - mean);
                }
            }
        }
        vec below[MOST_SIDE] = {{0}}; /* what the areas of more rows give to the items of a row */
        UNROLL
        for (int h = side - 1; h >= 0; h--) {
            vec suffix = {0};
            UNROLL
            for (int w = side - 1; w >= 0; w--) {
                suffix += of_projected[h * side + w];
                below[w] += suffix;
                if (h > y || w > x) continue;
                const int64_t item = last - (h * columns + w) * size;
                store(grad_projected + item, load(grad_projected + item) + below[w]);
                store(grad_key + item, load(grad_key + item) + of_key[h * side + w]);
            }
        }
    }
}

#endif
