/* Residual connection, dropout and layer norm, for one instruction set. A task is a few rows. */
#include <math.h>

#include "calls.h"
#include "native.h"
#include "parallel.h"
#include "simd.h"

typedef struct {
    uint32_t first, second, threshold;
    real scale; /* 0: nothing is dropped */
} residual_key;

static uint64_t residual_mix(uint64_t x) { /* the output function of SplitMix64 (Steele et al. 2014) */
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static residual_key residual_row_key(const ResidualCall *call, int64_t row) {
    const uint64_t mixed = residual_mix(call->seed + 0x9e3779b97f4a7c15u * (uint64_t)(row + 1));
    const double most = 4294967296.0 * call->dropout;
    return (residual_key){(uint32_t)mixed, (uint32_t)(mixed >> 32), (uint32_t)most, call->dropout > 0 ? (real)(1 / (1 - call->dropout)) : 0};
}

/* Lanes of -1 where the elements from `column` on are kept. */
INLINE ivec residual_kept(residual_key key, int64_t column) {
    uvec x;
    for (int lane = 0; lane < LANES; lane++) x[lane] = (uint32_t)lane;
    x = (x + (uint32_t)column) * 0x9e3779b1u ^ key.first;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x = (x ^ (x >> 15)) + key.second;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return (ivec)(x >= key.threshold);
}

INLINE vec residual_drop(vec change, residual_key key, int64_t column) {
    if (key.scale == 0) return change;
    return select_vec(residual_kept(key, column), change * key.scale, (vec){0});
}

/* The last, incomplete vector of a row. */
INLINE vec residual_load(const real *p, int64_t left) {
    if (left >= LANES) return load(p);
    real rest[LANES] = {0};
    memcpy(rest, p, (size_t)left * sizeof(real));
    return load(rest);
}

INLINE void residual_store(real *p, vec x, int64_t left) {
    if (left >= LANES) {
        store(p, x);
        return;
    }
    real rest[LANES];
    store(rest, x);
    memcpy(p, rest, (size_t)left * sizeof(real));
}

INLINE double residual_total(vec x) {
    double total = 0;
    for (int lane = 0; lane < LANES; lane++) total += x[lane];
    return total;
}

static void residual_forward_row(const ResidualCall *call, int64_t row) {
    const int64_t size = call->size;
    const real *x = call->x ? call->x + row * size : NULL, *change = call->change + row * size;
    real *sum = call->sum + row * size;
    const residual_key key = residual_row_key(call, row);
    vec added = {0};
    for (int64_t i = 0; i < size; i += LANES) {
        vec s = residual_drop(residual_load(change + i, size - i), key, i);
        if (x) s += residual_load(x + i, size - i);
        residual_store(sum + i, s, size - i);
        added += s;
    }
    if (!call->weight) return;
    const real mean = (real)(residual_total(added) / (double)size);
    vec squares = {0};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        const vec d = load(sum + i) - mean;
        squares += d * d;
    }
    double total = residual_total(squares);
    for (; i < size; i++) total += ((double)sum[i] - mean) * ((double)sum[i] - mean);
    const real scale = (real)(1 / sqrt(total / (double)size + call->eps));
    call->stats[2 * row] = mean;
    call->stats[2 * row + 1] = scale;
    real *out = call->out + row * size;
    for (i = 0; i < size; i += LANES) {
        const vec normal = (residual_load(sum + i, size - i) - mean) * scale;
        const int64_t left = size - i;
        vec y = normal * residual_load(call->weight + i, left);
        if (call->bias) y += residual_load(call->bias + i, left);
        residual_store(out + i, y, left);
    }
}

static void residual_forward_task(int64_t task, void *scratch, const void *context) {
    (void)scratch;
    const ResidualCall *call = context;
    for (int64_t row = task * RESIDUAL_ROWS; row < (task + 1) * RESIDUAL_ROWS && row < call->rows; row++) residual_forward_row(call, row);
}

/* d sum = scale * (g - mean(g) - n mean(g n)),  g = grad * weight,  n the normalised sum; lanes past the row hold zeros in g. */
static void residual_backward_norm(const ResidualCall *call, int64_t row, real *weight_grad, real *bias_grad) {
    const int64_t size = call->size;
    const real *grad = call->grad + row * size, *sum = call->sum + row * size;
    const real mean = call->stats[2 * row], scale = call->stats[2 * row + 1];
    vec first = {0}, second = {0};
    for (int64_t i = 0; i < size; i += LANES) {
        const int64_t left = size - i;
        const vec d = residual_load(grad + i, left), normal = (residual_load(sum + i, left) - mean) * scale;
        const vec g = d * residual_load(call->weight + i, left);
        first += g;
        second += g * normal;
        residual_store(weight_grad + i, residual_load(weight_grad + i, left) + d * normal, left);
        residual_store(bias_grad + i, residual_load(bias_grad + i, left) + d, left);
    }
    const real a = (real)(residual_total(first) / (double)size), b = (real)(residual_total(second) / (double)size);
    for (int64_t i = 0; i < size; i += LANES) {
        const int64_t left = size - i;
        const vec normal = (residual_load(sum + i, left) - mean) * scale;
        const vec g = residual_load(grad + i, left) * residual_load(call->weight + i, left);
        residual_store(call->sum_grad + row * size + i, (g - a - normal * b) * scale, left);
    }
}

static void residual_backward_task(int64_t task, void *scratch, const void *context) {
    (void)scratch;
    const ResidualCall *call = context;
    const int64_t size = call->size;
    real *parts = call->weight ? call->parts + task * 2 * size : NULL;
    if (parts) memset(parts, 0, (size_t)(2 * size) * sizeof(real));
    for (int64_t row = task * RESIDUAL_ROWS; row < (task + 1) * RESIDUAL_ROWS && row < call->rows; row++) {
        if (parts) residual_backward_norm(call, row, parts, parts + size);
        if (!call->change_grad) continue;
        const real *grad = (parts ? call->sum_grad : call->grad) + row * size;
        const residual_key key = residual_row_key(call, row);
        for (int64_t i = 0; i < size; i += LANES)
            residual_store(call->change_grad + row * size + i, residual_drop(residual_load(grad + i, size - i), key, i), size - i);
    }
}

static int64_t residual_tasks(const ResidualCall *call) { return (call->rows + RESIDUAL_ROWS - 1) / RESIDUAL_ROWS; }

int VARIANT(residual_forward)(const ResidualCall *call) {
    return parallel_for(residual_tasks(call), (int)call->threads, 0, residual_forward_task, call);
}

int VARIANT(residual_backward)(const ResidualCall *call) {
    return parallel_for(residual_tasks(call), (int)call->threads, 0, residual_backward_task, call);
}
