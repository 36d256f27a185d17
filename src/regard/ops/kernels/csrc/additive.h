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

/* d scores / d(q + k) = vector * (1 - tanh^2); tanh is computed again instead of kept. */
static void additive_backward_task(int64_t n, void *scratch, const void *context) {
    (void)scratch;
    const AdditiveCall *call = context;
    const int64_t width = call->width;
    const real *query = call->query + n * call->targets * width, *key = call->key + n * call->sources * width;
    const real *grad = call->scores + n * call->targets * call->sources;
    real *query_grad = call->query_grad + n * call->targets * width, *key_grad = call->key_grad + n * call->sources * width;
    real *vector_grad = call->vector_grad + n * width;
    memset(query_grad, 0, (size_t)(call->targets * width) * sizeof(real));
    for (int64_t a = 0; a < width; a += LANES) {
        const int64_t count = width - a < LANES ? width - a : LANES;
        const vec vector = load_first(call->vector + a, count);
        vec vector_sum = {0};
        for (int64_t s = 0; s < call->sources; s++) {
            const vec k = load_first(key + s * width + a, count);
            vec key_sum = {0};
            for (int64_t t = 0; t < call->targets; t++) {
                const vec tanh = tanh_vec(load_first(query + t * width + a, count) + k);
                const vec g = splat(grad[t * call->sources + s]);
                const vec inner = g * vector * (1 - tanh * tanh);
                store_first(query_grad + t * width + a, load_first(query_grad + t * width + a, count) + inner, count);
                key_sum += inner;
                vector_sum += g * tanh;
            }
            store_first(key_grad + s * width + a, key_sum, count);
        }
        store_first(vector_grad + a, vector_sum, count);
    }
}

int VARIANT(additive_forward)(const AdditiveCall *call) {
    return parallel_for(call->batch, (int)call->threads, 0, additive_forward_task, call);
}

int VARIANT(additive_backward)(const AdditiveCall *call) {
    return parallel_for(call->batch, (int)call->threads, 0, additive_backward_task, call);
}
