/* Features of all areas of a sequence (Li et al. 2018, Eq. 9, up to the relu), of one head, and the way back:

       hidden = relu(W_mu mu + W_sigma sigma + W_e e)        mu, sigma: mean and deviation of the area's items

   W_mu commutes with the mean, so items are projected once and only averaged then. Mean and squares about it grow item by item, the area
   of i + 1 items that ends at x from that of i items that ends before it:

       step = x - mu',  mu = mu' + step / (i + 1),  squares = squares' + step^2 i / (i + 1),  sigma = sqrt(squares / (i + 1) + epsilon)

   Backward, with d = dhidden where hidden > 0:  dW_sigma = d^T sigma,  dsigma = d W_sigma,  and for each item x of the area
   dprojected += d / (i + 1),  dx += dsigma (x - mu) / (sigma (i + 1)).

   The deviation of a single item is the same for all, so it needs no product: its share stands in `shape`.
   Lanes are features; products are taken for FEATURE_CHUNK areas of one size at a time. */
#ifndef REGARD_AREA_FEATURES_H
#define REGARD_AREA_FEATURES_H

#include "area_features_grid.h"
#include "calls.h"
#include "simd.h"

/* Squares of differences of such items, MOST_KEYED of them together, are finite. */
#define FEATURE_LIMIT ((real)(REAL_IS_FLOAT ? 0x1p60 : 0x1p508))

/* What is carried from chunk to chunk for LANES features; [i]: areas of i + 1 items, [r]: the item r steps back. */
typedef struct {
    vec mean[MOST_KEYED], squares[MOST_KEYED], projected[MOST_KEYED];
    vec item[MOST_KEYED], grad_key[MOST_KEYED], grad_projected[MOST_KEYED];
} Moments;

/* A worker's memory. All of one head fits the second-level cache for sentences: nothing of the size of all areas leaves it. */
typedef struct {
    Moments *moments;           /* size / LANES */
    real *sigma, *grad, *slope; /* [area][FEATURE_CHUNK][size]: deviations; backward: gradient before the relu, gradient of the deviation */
    real *items, *projected;    /* S x size; projected: W_mu of the items, backward its gradient */
    real *grad_items;
    real *columns;              /* size x AREA_TILE: queries before W_d */
    real *sums;                 /* backward: gradients of W_mu, W_sigma, W_d and shape, over the heads of a task */
    uint8_t *skip;              /* items that nobody may attend, or that are not finite: taken as zeros */
    const real *calm;           /* items without those beyond FEATURE_LIMIT: what deviations are taken of */
    real *calm_copy;            /* room for them where there are such */
    uint8_t *large, *bad;       /* items beyond FEATURE_LIMIT; areas without a finite key, taken as zeros */
} FeatureMemory;

static int64_t feature_sizes(const AreaCall *call) { return call->area_height * call->area_width; }

static int64_t feature_sums_size(const AreaCall *call) { return (3 * call->key_size + feature_sizes(call)) * call->key_size; }

static void feature_divide(const AreaCall *call, int backward, char **memory, FeatureMemory *m) {
    const int64_t size = call->key_size, chunk = feature_sizes(call) * FEATURE_CHUNK * size, rows = call->keys * size;
    m->moments = (Moments *)take(memory, size / LANES * (int64_t)(sizeof(Moments) / sizeof(real)));
    m->sigma = take(memory, chunk);
    m->grad = take(memory, backward ? chunk : 0);
    m->slope = take(memory, backward ? chunk : 0);
    m->items = take(memory, rows);
    m->projected = take(memory, rows);
    m->grad_items = take(memory, backward ? rows : 0);
    m->columns = take(memory, size * AREA_TILE);
    m->skip = (uint8_t *)take(memory, call->keys);
}

/* Row `area_row(call, i) + j` belongs to the area of i + 1 items that ends at j; of a grid, to the i-th size. */
static int64_t area_row(const AreaCall *call, int64_t i) {
    return call->grid_height > 1 ? i * call->keys : i * call->keys - i * (i - 1) / 2 - i;
}

/* How many of the areas of a size that end in [j0, j0 + count) have no row; they come first. */
static int64_t area_absent(const AreaCall *call, int64_t i, int64_t j0, int64_t count) {
    const int64_t absent = call->grid_height > 1 || j0 > i ? 0 : i - j0;
    return absent > count ? count : absent;
}

/* Let one more item end the areas of all sizes. */
INLINE void moments_step(int area, Moments *s, vec x) {
    UNROLL
    for (int i = area - 1; i > 0; i--) {
        const vec step = x - s->mean[i - 1];
        s->mean[i] = s->mean[i - 1] + step * ((real)1 / (i + 1));
        s->squares[i] = s->squares[i - 1] + step * step * ((real)i / (i + 1));
    }
    s->mean[0] = x;
    s->squares[0] = (vec){0};
}

INLINE void sigma_sweep(int area, const AreaCall *call, Moments *s, const real *key, real *sigma, int64_t count) {
    const int64_t size = call->key_size;
    const real epsilon = (real)((const AreaFeatures *)call->features)->epsilon;
    for (int64_t j = 0; j < count; j++) {
        moments_step(area, s, load(key + j * size));
        UNROLL
        for (int i = 1; i < area; i++)
            store(sigma + (i * FEATURE_CHUNK + j) * size, sqrt_vec(s->squares[i] * ((real)1 / (i + 1)) + epsilon));
    }
}

/* Finish hidden, which holds W_sigma sigma but for single items, of the areas that end in [j0, j0 + count). */
INLINE void mean_sweep(int area, const AreaCall *call, Moments *s, const real *projected, const real *shape, real *hidden, int64_t j0,
                       int64_t count) {
    const int64_t size = call->key_size;
    for (int64_t j = 0; j < count; j++) {
        const vec x = load(projected + j * size);
        UNROLL
        for (int i = area - 1; i >= 0; i--) {
            s->projected[i] = i ? s->projected[i - 1] + x : x;
            if (j0 + j < i) continue; /* it would begin before the first item */
            real *to = hidden + (area_row(call, i) + j0 + j) * size;
            vec h = s->projected[i] * ((real)1 / (i + 1)) + load(shape + i * size);
            if (i) h += load(to);
            store(to, select_vec(h < 0, (vec){0}, h)); /* a NaN stays */
        }
    }
}

/* From the gradients of the areas that end in a chunk to those of their items; what is complete lies area - 1 items back. */
INLINE void spread_sweep(int area, const AreaCall *call, Moments *s, const real *key, const FeatureMemory *m, int64_t c, real *grad_key,
                         real *grad_projected, int64_t j0, int64_t count) {
    const int64_t size = call->key_size, late = area - 1;
    for (int64_t j = 0; j < count; j++) {
        UNROLL
        for (int r = area - 1; r > 0; r--) {
            s->item[r] = s->item[r - 1];
            s->grad_key[r] = s->grad_key[r - 1];
            s->grad_projected[r] = s->grad_projected[r - 1];
        }
        s->item[0] = load(key + j * size);
        s->grad_key[0] = s->grad_projected[0] = (vec){0};
        /* Items and their means from the newest item on: differences of close numbers are exact, and a small sigma makes much of them. */
        vec apart[MOST_KEYED] = {{0}}, mean[MOST_KEYED] = {{0}}, sum = (vec){0};
        UNROLL
        for (int i = 0; i < area; i++) {
            apart[i] = s->item[i] - s->item[0];
            sum += apart[i];
            mean[i] = sum * ((real)1 / (i + 1));
        }
        vec suffix = (vec){0};
        UNROLL
        for (int i = area - 1; i >= 0; i--) {
            const int64_t here = (i * FEATURE_CHUNK + j) * size + c;
            suffix += load(m->grad + here) * ((real)1 / (i + 1));
            s->grad_projected[i] += suffix;
            if (i == 0) continue; /* a single item has no deviation */
            const vec slope = load(m->slope + here) * ((real)1 / (i + 1)) / load(m->sigma + here);
            UNROLL
            for (int r = 0; r <= i; r++) s->grad_key[r] += slope * (apart[r] - mean[i]);
        }
        if (j0 + j < late) continue;
        store(grad_key + (j0 + j - late) * size, s->grad_key[late]);
        store(grad_projected + (j0 + j - late) * size, s->grad_projected[late]);
    }
}

/* Areas up to five items, the usual ones, have their loops unrolled. */
#define BY_AREA(function, ...)                                   \
    switch (call->area_width) {                                        \
    case 2: function(2, call, __VA_ARGS__); break;               \
    case 3: function(3, call, __VA_ARGS__); break;               \
    case 4: function(4, call, __VA_ARGS__); break;               \
    case 5: function(5, call, __VA_ARGS__); break;               \
    default: function((int)call->area_width, call, __VA_ARGS__); break; \
    }

static void sigma_chunk(const AreaCall *call, const FeatureMemory *m, int64_t j0, int64_t count) {
    for (int64_t c = 0; c < call->key_size; c += LANES)
        if (call->grid_height > 1)
            BY_SIDE(grid_sigma, call, call, m->calm + c, m->sigma + c, j0, count);
        else
            BY_AREA(sigma_sweep, &m->moments[c / LANES], m->calm + j0 * call->key_size + c, m->sigma + c, count)
}

static void moments_start(const AreaCall *call, const FeatureMemory *m) {
    memset(m->moments, 0, (size_t)(call->key_size / LANES) * sizeof(Moments));
}

/* Set the larger items apart. Their squares could overflow, and infinity in an area that is hidden would reach the gradients of all it
   stands beside: 0 times infinity is NaN. Returns whether there are any. */
static int feature_calm(const AreaCall *call, FeatureMemory *m) {
    const int64_t size = call->key_size;
    int any = 0;
    for (int64_t j = 0; j < call->keys; j++) {
        vec most = (vec){0};
        for (int64_t c = 0; c < size; c += LANES) {
            const vec x = load(m->items + j * size + c);
            most = maximum(maximum(x, -x), most);
        }
        any |= m->large[j] = lanes_maximum(most) > FEATURE_LIMIT;
    }
    m->calm = m->items;
    if (!any) return 0;
    m->calm = m->calm_copy;
    memcpy(m->calm_copy, m->items, (size_t)(call->keys * size) * sizeof(real));
    for (int64_t j = 0; j < call->keys; j++)
        if (m->large[j]) memset(m->calm_copy + j * size, 0, (size_t)size * sizeof(real));
    return 1;
}

/* hidden, a row for each area, of the keys in `items`. */
static void feature_forward(const AreaCall *call, const FeatureMemory *m, real *hidden) {
    const AreaFeatures *features = call->features;
    const int64_t size = call->key_size, items = call->keys;
    const real *shape = features->shape;
    moments_start(call, m);
    product((product_args){.a = m->items, .a_row = size, .a_column = 1, .b = features->mean_turned, .b_row = size, .c = m->projected,
                           .c_row = size, .depth = size, .add = 0}, items, size);
    for (int64_t j0 = 0; j0 < items; j0 += FEATURE_CHUNK) {
        const int64_t count = items - j0 < FEATURE_CHUNK ? items - j0 : FEATURE_CHUNK;
        sigma_chunk(call, m, j0, count);
        for (int64_t i = 1; i < feature_sizes(call); i++) {
            const int64_t first = area_absent(call, i, j0, count);
            if (first >= count) continue;
            product((product_args){.a = m->sigma + (i * FEATURE_CHUNK + first) * size, .a_row = size, .a_column = 1,
                                   .b = features->deviation_turned, .b_row = size, .c = hidden + (area_row(call, i) + j0 + first) * size,
                                   .c_row = size, .depth = size, .add = 0}, count - first, size);
        }
        for (int64_t c = 0; c < size; c += LANES)
            if (call->grid_height > 1)
                BY_SIDE(grid_mean, call, call, m->projected + c, shape + c, hidden + c, j0, count);
            else
                BY_AREA(mean_sweep, &m->moments[c / LANES], m->projected + j0 * size + c, shape + c, hidden + c, j0, count)
    }
}

/* Gradients before the relu of one size's areas that end in [j0, j0 + count), 0 for those that do not exist. */
static void relu_backward(const AreaCall *call, const real *hidden, const real *grad, int64_t i, int64_t j0, int64_t count, real *to,
                          real *grad_shape) {
    const int64_t size = call->key_size, row = area_row(call, i) + j0;
    const int64_t first = area_absent(call, i, j0, count);
    memset(to, 0, (size_t)(first * size) * sizeof(real));
    for (int64_t c = 0; c < size; c += LANES) {
        vec sum = (vec){0};
        for (int64_t j = first; j < count; j++) {
            const int64_t here = (row + j) * size + c;
            const vec d = select_vec(load(hidden + here) > 0, load(grad + here), (vec){0});
            store(to + j * size + c, d);
            sum += d;
        }
        store(grad_shape + c, load(grad_shape + c) + sum);
    }
}

/* From the gradient of hidden to that of the items (grad_items) and of the weights (sums). */
static void feature_backward(const AreaCall *call, const FeatureMemory *m, const real *hidden, const real *grad) {
    const AreaFeatures *features = call->features;
    const int64_t size = call->key_size, items = call->keys;
    real *grad_mean = m->sums, *grad_deviation = m->sums + size * size, *grad_shape = m->sums + 3 * size * size;
    const int grid = call->grid_height > 1;
    moments_start(call, m);
    if (grid) { /* items get their gradient from areas of several chunks */
        memset(m->grad_items, 0, (size_t)(items * size) * sizeof(real));
        memset(m->projected, 0, (size_t)(items * size) * sizeof(real));
    }
    for (int64_t j0 = 0; j0 < items; j0 += FEATURE_CHUNK) {
        const int64_t count = items - j0 < FEATURE_CHUNK ? items - j0 : FEATURE_CHUNK;
        sigma_chunk(call, m, j0, count); /* the deviations once more */
        for (int64_t i = 0; i < feature_sizes(call); i++) {
            real *d = m->grad + i * FEATURE_CHUNK * size, *sigma = m->sigma + i * FEATURE_CHUNK * size;
            relu_backward(call, hidden, grad, i, j0, count, d, grad_shape + i * size);
            if (i == 0) continue;
            product((product_args){.a = d, .a_row = 1, .a_column = size, .b = sigma, .b_row = size, .c = grad_deviation, .c_row = size,
                                   .depth = count, .add = 1}, size, size);
            product((product_args){.a = d, .a_row = size, .a_column = 1, .b = features->deviation, .b_row = size,
                                   .c = m->slope + i * FEATURE_CHUNK * size, .c_row = size, .depth = size, .add = 0}, count, size);
        }
        for (int64_t c = 0; c < size; c += LANES)
            if (grid)
                BY_SIDE(grid_spread, call, call, m->calm + c, m->grad + c, m->slope + c, m->sigma + c, m->grad_items + c, m->projected + c, j0, count);
            else
                BY_AREA(spread_sweep, &m->moments[c / LANES], m->calm + j0 * size + c, m, c, m->grad_items + c, m->projected + c, j0, count)
    }
    for (int64_t r = 0; !grid && r + 1 < call->area_width && r < items; r++) /* the last items have no later area to wait for */
        for (int64_t c = 0; c < size; c += LANES) {
            store(m->grad_items + (items - 1 - r) * size + c, m->moments[c / LANES].grad_key[r]);
            store(m->projected + (items - 1 - r) * size + c, m->moments[c / LANES].grad_projected[r]);
        }
    product((product_args){.a = m->projected, .a_row = 1, .a_column = size, .b = m->items, .b_row = size, .c = grad_mean, .c_row = size,
                           .depth = items, .add = 1}, size, size);
    product((product_args){.a = m->projected, .a_row = size, .a_column = 1, .b = features->mean, .b_row = size, .c = m->grad_items,
                           .c_row = size, .depth = size, .add = 1}, items, size);
}

/* Put the sums of `count` tasks where the caller wants them, in their order, so that nothing depends on which thread did which. */
static void feature_finish(const AreaCall *call, const real *sums, int64_t count) {
    const AreaFeatures *features = call->features;
    const int64_t square = call->key_size * call->key_size, all = feature_sums_size(call);
    real *to[4] = {features->grad_mean, features->grad_deviation, features->grad_output, features->grad_shape};
    for (int64_t i = 0; i < all; i += LANES) {
        vec sum = load(sums + i);
        for (int64_t task = 1; task < count; task++) sum += load(sums + task * all + i);
        const int64_t which = i / square < 3 ? i / square : 3;
        store(to[which] + i - which * square, sum);
    }
}

#endif
