/* Additive scores for one instruction set: nothing of size targets x sources x width is ever stored. */
#include "calls.h"
#include "native.h"
#include "parallel.h"
#include "simd.h"

INLINE real lane_sum(vec x) {
    real sum = 0;
    UNROLL
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}

static void additive_forward_task(int64_t n, void *scratch, const void *context) {
    (void)scratch;
    const AdditiveCall *call = context;
    const int64_t width = call->width, whole = width / LANES * LANES;
    const real *query = call->query + n * call->targets * width, *key = call->key + n * call->sources * width;
    real *scores = call->scores + n * call->targets * call->sources;
    for (int64_t s = 0; s < call->sources; s++)
        for (int64_t t = 0; t < call->targets; t++) {
            const real *q = query + t * width, *k = key + s * width;
            vec sum = {0};
            for (int64_t a = 0; a < whole; a += LANES) sum += load(call->vector + a) * tanh_vec(load(q + a) + load(k + a));
            if (whole < width) {
                const int64_t rest = width - whole;
                sum += load_first(call->vector + whole, rest) * tanh_vec(load_first(q + whole, rest) + load_first(k + whole, rest));
            }
            scores[t * call->sources + s] = lane_sum(sum);
        }
}

enum { ADDITIVE_BLOCK = 8, ADDITIVE_PART = 16 }; /* sources that are computed side by side; targets that are summed before they join a long sum */

/* Numbers of a worker's memory: what rounding has lost of the queries' gradients. */
INLINE int64_t additive_lost(const AdditiveCall *call) { return call->targets * LANES; }

/* d scores / d(q + k) = vector * (1 - tanh^2); tanh is computed again instead of kept. */
static void additive_backward_task(int64_t n, void *scratch, const void *context) {
    const AdditiveCall *call = context;
    const int64_t width = call->width;
    const real *query = call->query + n * call->targets * width, *key = call->key + n * call->sources * width;
    const real *grad = call->scores + n * call->targets * call->sources;
    real *query_grad = call->query_grad + n * call->targets * width, *key_grad = call->key_grad + n * call->sources * width;
    real *vector_grad = call->vector_grad + n * width, *query_lost = scratch;
    memset(query_grad, 0, (size_t)(call->targets * width) * sizeof(real));
    for (int64_t a = 0; a < width; a += LANES) {
        const int64_t count = width - a < LANES ? width - a : LANES;
        const vec vector = load_first(call->vector + a, count);
        vec vector_sum = {0}, vector_lost = {0};
        memset(query_lost, 0, (size_t)additive_lost(call) * sizeof(real));
        for (int64_t s = 0; s < call->sources; s += ADDITIVE_BLOCK) {
            const int64_t block = call->sources - s < ADDITIVE_BLOCK ? call->sources - s : ADDITIVE_BLOCK;
            vec k[ADDITIVE_BLOCK], key_sum[ADDITIVE_BLOCK] = {{0}}, key_lost[ADDITIVE_BLOCK] = {{0}}, key_part[ADDITIVE_BLOCK] = {{0}};
            for (int64_t i = 0; i < block; i++) k[i] = load_first(key + (s + i) * width + a, count);
            for (int64_t t = 0; t < call->targets; t++) {
                const vec q = load_first(query + t * width + a, count);
                const real *g = grad + t * call->sources + s;
                vec query_part = {0}, vector_part = {0};
                for (int64_t i = 0; i < block; i++) {
                    const vec tanh = tanh_vec(q + k[i]);
                    const vec inner = g[i] * vector * (1 - tanh * tanh);
                    query_part += inner;
                    key_part[i] += inner;
                    vector_part += g[i] * tanh;
                }
                vec query_sum = load_first(query_grad + t * width + a, count), lost = load(query_lost + t * LANES);
                add_to_sum(&query_sum, &lost, query_part);
                store_first(query_grad + t * width + a, query_sum, count);
                store(query_lost + t * LANES, lost);
                add_to_sum(&vector_sum, &vector_lost, vector_part);
                if (t % ADDITIVE_PART != ADDITIVE_PART - 1 && t != call->targets - 1) continue;
                for (int64_t i = 0; i < block; i++) add_to_sum(&key_sum[i], &key_lost[i], key_part[i]), key_part[i] = (vec){0};
            }
            for (int64_t i = 0; i < block; i++) store_first(key_grad + (s + i) * width + a, key_sum[i], count);
        }
        store_first(vector_grad + a, vector_sum, count);
    }
}

int VARIANT(additive_forward)(const AdditiveCall *call) {
    return parallel_for(call->batch, (int)call->threads, 0, additive_forward_task, call);
}

int VARIANT(additive_backward)(const AdditiveCall *call) {
    return parallel_for(call->batch, (int)call->threads, (size_t)additive_lost(call) * sizeof(real), additive_backward_task, call);
}
