/* Attention to scattered items, for one instruction set. A task is a group: queries that look at the same items. */
#include "indexed.h"
#include "native.h"
#include "parallel.h"
#include "simd.h"

enum { INDEXED_PART = 4 }; /* vectors of a context that are summed up in registers */

INLINE real indexed_dot(const real *a, const real *b, int64_t size) {
    vec sum = {0}, other = {0};
    int64_t i = 0;
    for (; i + 2 * LANES <= size; i += 2 * LANES) {
        sum += load(a + i) * load(b + i);
        other += load(a + i + LANES) * load(b + i + LANES);
    }
    for (; i + LANES <= size; i += LANES) sum += load(a + i) * load(b + i);
    real total = lanes_sum(sum + other);
    for (; i < size; i++) total += a[i] * b[i];
    return total;
}

/* Scores to weights, in place: exp(score - greatest) / sum, the logarithm of 2 already in the scores. */
static void indexed_softmax(real *scores, int64_t length) {
    real greatest = scores[0], total;
    for (int64_t t = 1; t < length; t++) greatest = scores[t] > greatest ? scores[t] : greatest;
    int64_t t = 0;
    vec sum = {0};
    for (; t + LANES <= length; t += LANES) {
        const vec e = exp2_vec(load(scores + t) - greatest);
        store(scores + t, e);
        sum += e;
    }
    total = lanes_sum(sum);
    if (t < length) {
        real rest[LANES] = {0};
        for (int64_t i = t; i < length; i++) rest[i - t] = scores[i] - greatest;
        store(rest, exp2_vec(load(rest)));
        for (int64_t i = t; i < length; i++) total += scores[i] = rest[i - t];
    }
    for (int64_t i = 0; i < length; i++) scores[i] /= total;
}

/* to[0 .. parts * LANES) = sum over t of weights[t] * the item's numbers. */
INLINE void indexed_sum(int parts, const real *weights, const real *values, const int64_t *places, int64_t row, int64_t length, real *to) {
    vec sum[INDEXED_PART];
    UNROLL
    for (int j = 0; j < parts; j++) sum[j] = (vec){0};
    for (int64_t t = 0; t < length; t++) {
        const real *value = values + places[t] * row;
        const vec weight = splat(weights[t]);
        UNROLL
        for (int j = 0; j < parts; j++) sum[j] += weight * load(value + j * LANES);
    }
    UNROLL
    for (int j = 0; j < parts; j++) store(to + j * LANES, sum[j]);
}

static void indexed_head(const IndexedCall *call, int64_t head, const real *weights, const int64_t *places, int64_t length, real *to) {
    const real *values = call->values + head * call->size;
    int64_t i = 0;
    for (; i + INDEXED_PART * LANES <= call->size; i += INDEXED_PART * LANES)
        indexed_sum(INDEXED_PART, weights, values + i, places, call->value_row, length, to + i);
    for (; i + LANES <= call->size; i += LANES) indexed_sum(1, weights, values + i, places, call->value_row, length, to + i);
    for (; i < call->size; i++) {
        real total = 0;
        for (int64_t t = 0; t < length; t++) total += weights[t] * values[places[t] * call->value_row + i];
        to[i] = total;
    }
}

static void indexed_task(int64_t group, void *scratch, const void *context) {
    const IndexedCall *call = context;
    const int64_t *places = call->places + group * call->length;
    const int64_t length = call->lengths ? call->lengths[group] : call->length;
    const real scale = (real)(call->scale * 1.4426950408889634);
    real *scores = scratch; /* (heads, length) */
    for (int64_t row = group * call->share; row < (group + 1) * call->share; row++) {
        const real *query = call->query + row * call->heads * call->size;
        for (int64_t t = 0; t < length; t++) {
            const real *key = call->keys + places[t] * call->key_row;
            for (int64_t head = 0; head < call->heads; head++)
                scores[head * length + t] = scale * indexed_dot(query + head * call->size, key + head * call->size, call->size);
        }
        for (int64_t head = 0; head < call->heads; head++) {
            real *weights = scores + head * length;
            if (length) indexed_softmax(weights, length);
            indexed_head(call, head, weights, places, length, call->context + (row * call->heads + head) * call->size);
            if (!call->weights) continue;
            real *kept = call->weights + (row * call->heads + head) * call->length;
            memcpy(kept, weights, (size_t)length * sizeof(real));
            memset(kept + length, 0, (size_t)(call->length - length) * sizeof(real));
        }
    }
}

int VARIANT(indexed)(const IndexedCall *call) {
    const size_t bytes = (size_t)(call->heads * (call->length + 1)) * sizeof(real);
    return parallel_for(call->groups, (int)call->threads, bytes, indexed_task, call);
}
