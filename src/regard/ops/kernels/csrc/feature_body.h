/* Features of all areas of a sequence (Li et al. 2018, Eq. 9, up to the relu), for one instruction set and one type:

       hidden = relu(W_mu mu + W_sigma sigma + W_e e)        mu, sigma: mean and deviation of the area's items

   W_mu commutes with the mean, so items are projected once (by the caller) and only averaged here. Mean and squares about it grow item by
   item, the area of i + 1 items that ends at x from that of i items that ends before it:

       step = x - mu',  mu = mu' + step / (i + 1),  squares = squares' + step^2 i / (i + 1),  sigma = sqrt(squares / (i + 1) + epsilon)

   Backward, with d = dhidden where hidden > 0:  dW_sigma = d^T sigma,  dsigma = d W_sigma,  and for each item x of the area
   dprojected += d / (i + 1),  dx += dsigma (x - mu) / (sigma (i + 1)).

   Lanes are features; products are taken for CHUNK areas of one size at a time. */
#include <math.h>

#include "feature.h"
#include "parallel.h"
#include "simd.h"

enum { CHUNK = 64, MOST = 16 };

/* What is carried from chunk to chunk for LANES features; [i]: areas of i + 1 items, [r]: the item r steps back. */
typedef struct {
    vec mean[MOST], squares[MOST], projected[MOST];
    vec item[MOST], grad_key[MOST], grad_projected[MOST];
} Moments;

typedef struct {
    Moments *moments;           /* size / LANES */
    real *sigma, *grad, *slope; /* [area][CHUNK][size]: deviations; backward: gradient before the relu, gradient of the deviation */
} FeatureMemory;

static int64_t feature_divide(const FeatureCall *call, char *memory, FeatureMemory *m) {
    const size_t buffer = (size_t)(call->area * CHUNK * call->size) * sizeof(real);
    m->moments = (Moments *)memory;
    memory += (size_t)(call->size / LANES) * sizeof(Moments);
    m->sigma = (real *)memory;
    m->grad = (real *)(memory + buffer);
    m->slope = (real *)(memory + 2 * buffer);
    return (int64_t)((size_t)(call->size / LANES) * sizeof(Moments) + 3 * buffer);
}

INLINE vec sqrt_vec(vec x) {
    vec root;
    for (int i = 0; i < LANES; i++) root[i] = REAL_IS_FLOAT ? __builtin_sqrtf(x[i]) : (real)__builtin_sqrt(x[i]);
    return root;
}

/* Row `feature_row(i) + j` belongs to the area of i + 1 items that ends at j. */
static int64_t feature_row(const FeatureCall *call, int64_t i) { return i * call->items - i * (i - 1) / 2 - i; }

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

INLINE void sigma_sweep(int area, const FeatureCall *call, Moments *s, const real *key, real *sigma, int64_t count) {
    const int64_t size = call->size;
    for (int64_t j = 0; j < count; j++) {
        moments_step(area, s, load(key + j * size));
        UNROLL
        for (int i = 0; i < area; i++)
            store(sigma + (i * CHUNK + j) * size, sqrt_vec(s->squares[i] * ((real)1 / (i + 1)) + (real)call->epsilon));
    }
}

/* hidden of the areas that end in [j0, j0 + count), as far as mean and shape go. */
INLINE void mean_sweep(int area, const FeatureCall *call, Moments *s, const real *projected, const real *shape, real *hidden, int64_t j0,
                       int64_t count) {
    const int64_t size = call->size;
    for (int64_t j = 0; j < count; j++) {
        const vec x = load(projected + j * size);
        UNROLL
        for (int i = area - 1; i >= 0; i--) {
            s->projected[i] = i ? s->projected[i - 1] + x : x;
            if (j0 + j < i) continue; /* it would begin before the first item */
            store(hidden + (feature_row(call, i) + j0 + j) * size, s->projected[i] * ((real)1 / (i + 1)) + load(shape + i * size));
        }
    }
}

/* From the gradients of the areas that end in a chunk to those of their items; what is complete lies area - 1 items back. */
INLINE void spread_sweep(int area, const FeatureCall *call, Moments *s, const real *key, const FeatureMemory *m, int64_t c, real *grad_key,
                         real *grad_projected, int64_t j0, int64_t count) {
    const int64_t size = call->size, late = area - 1;
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
        vec apart[MOST] = {{0}}, mean[MOST] = {{0}}, sum = (vec){0};
        UNROLL
        for (int i = 0; i < area; i++) {
            apart[i] = s->item[i] - s->item[0];
            sum += apart[i];
            mean[i] = sum * ((real)1 / (i + 1));
        }
        vec suffix = (vec){0};
        UNROLL
        for (int i = area - 1; i >= 0; i--) {
            const int64_t here = (i * CHUNK + j) * size + c;
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
    switch (call->area) {                                        \
    case 2: function(2, call, __VA_ARGS__); break;               \
    case 3: function(3, call, __VA_ARGS__); break;               \
    case 4: function(4, call, __VA_ARGS__); break;               \
    case 5: function(5, call, __VA_ARGS__); break;               \
    default: function((int)call->area, call, __VA_ARGS__); break; \
    }

static void sigma_chunk(const FeatureCall *call, FeatureMemory *m, const real *key, int64_t count) {
    for (int64_t c = 0; c < call->size; c += LANES) BY_AREA(sigma_sweep, &m->moments[c / LANES], key + c, m->sigma + c, count)
}

static void forward_head(int64_t head, void *memory, const void *context) {
    const FeatureCall *call = context;
    const int64_t size = call->size, areas = feature_row(call, call->area) + call->area;
    const real *key = (const real *)call->key + head * call->items * size;
    const real *projected = (const real *)call->projected + head * call->items * size, *shape = call->shape;
    real *hidden = (real *)call->hidden + head * areas * size;
    FeatureMemory m;
    feature_divide(call, memory, &m);
    memset(m.moments, 0, (size_t)(size / LANES) * sizeof(Moments));
    for (int64_t j0 = 0; j0 < call->items; j0 += CHUNK) {
        const int64_t count = call->items - j0 < CHUNK ? call->items - j0 : CHUNK;
        sigma_chunk(call, &m, key + j0 * size, count);
        for (int64_t c = 0; c < size; c += LANES)
            BY_AREA(mean_sweep, &m.moments[c / LANES], projected + j0 * size + c, shape + c, hidden + c, j0, count)
        for (int64_t i = 0; i < call->area; i++) {
            const int64_t first = j0 > i ? 0 : i - j0;
            if (first >= count) continue;
            real *rows = hidden + (feature_row(call, i) + j0 + first) * size;
            product((product_args){.a = m.sigma + (i * CHUNK + first) * size, .a_row = size, .a_column = 1, .b = call->matrix,
                                   .b_row = size, .c = rows, .c_row = size, .depth = size, .add = 1}, count - first, size);
            for (int64_t k = 0; k < (count - first) * size; k += LANES) {
                const vec x = load(rows + k);
                store(rows + k, select_vec(x < 0, (vec){0}, x)); /* a NaN stays */
            }
        }
    }
}

/* Gradients before the relu of one size's areas that end in [j0, j0 + count), 0 for those that do not exist. */
static void relu_backward(const FeatureCall *call, const real *hidden, const real *grad, int64_t i, int64_t j0, int64_t count, real *to,
                          real *grad_shape) {
    const int64_t size = call->size, first = j0 > i ? 0 : i - j0, row = feature_row(call, i) + j0;
    for (int64_t j = 0; j < count; j++)
        for (int64_t c = 0; c < size; c += LANES) {
            vec d = (vec){0};
            if (j >= first) d = select_vec(load(hidden + (row + j) * size + c) > 0, load(grad + (row + j) * size + c), d);
            store(to + j * size + c, d);
            store(grad_shape + c, load(grad_shape + c) + d);
        }
}

static void backward_head(int64_t head, void *memory, const void *context) {
    const FeatureCall *call = context;
    const int64_t size = call->size, items = call->items, areas = feature_row(call, call->area) + call->area;
    const real *key = (const real *)call->key + head * items * size;
    const real *hidden = (const real *)call->hidden + head * areas * size, *grad = (const real *)call->grad_hidden + head * areas * size;
    real *grad_key = (real *)call->grad_key + head * items * size, *grad_projected = (real *)call->grad_projected + head * items * size;
    real *grad_matrix = (real *)call->grad_matrix + head * size * size, *grad_shape = (real *)call->grad_shape + head * call->area * size;
    FeatureMemory m;
    feature_divide(call, memory, &m);
    memset(m.moments, 0, (size_t)(size / LANES) * sizeof(Moments));
    memset(grad_matrix, 0, (size_t)(size * size) * sizeof(real));
    memset(grad_shape, 0, (size_t)(call->area * size) * sizeof(real));
    for (int64_t j0 = 0; j0 < items; j0 += CHUNK) {
        const int64_t count = items - j0 < CHUNK ? items - j0 : CHUNK;
        sigma_chunk(call, &m, key + j0 * size, count); /* the deviations once more */
        for (int64_t i = 0; i < call->area; i++) {
            real *d = m.grad + i * CHUNK * size, *sigma = m.sigma + i * CHUNK * size;
            relu_backward(call, hidden, grad, i, j0, count, d, grad_shape + i * size);
            product((product_args){.a = d, .a_row = 1, .a_column = size, .b = sigma, .b_row = size, .c = grad_matrix, .c_row = size,
                                   .depth = count, .add = 1}, size, size);
            product((product_args){.a = d, .a_row = size, .a_column = 1, .b = call->matrix, .b_row = size,
                                   .c = m.slope + i * CHUNK * size, .c_row = size, .depth = size, .add = 0}, count, size);
        }
        for (int64_t c = 0; c < size; c += LANES)
            BY_AREA(spread_sweep, &m.moments[c / LANES], key + j0 * size + c, &m, c, grad_key + c, grad_projected + c, j0, count)
    }
    for (int64_t r = 0; r + 1 < call->area && r < items; r++) /* the last items have no later area to wait for */
        for (int64_t c = 0; c < size; c += LANES) {
            store(grad_key + (items - 1 - r) * size + c, m.moments[c / LANES].grad_key[r]);
            store(grad_projected + (items - 1 - r) * size + c, m.moments[c / LANES].grad_projected[r]);
        }
}

int VARIANT(feature_forward)(const FeatureCall *call) {
    FeatureMemory m;
    const size_t bytes = (size_t)feature_divide(call, NULL, &m);
    return parallel_for(call->heads, call->threads, bytes, forward_head, call);
}

int VARIANT(feature_backward)(const FeatureCall *call) {
    FeatureMemory m;
    const size_t bytes = (size_t)feature_divide(call, NULL, &m);
    return parallel_for(call->heads, call->threads, bytes, backward_head, call);
}
