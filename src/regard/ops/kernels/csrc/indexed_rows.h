/* Attention of one query to scattered items; for the bodies that do it for many. Included after simd.h. */
#ifndef REGARD_INDEXED_ROWS_H
#define REGARD_INDEXED_ROWS_H

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
static inline void indexed_softmax(real *scores, int64_t length) {
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

static inline void indexed_head(const real *values, int64_t row, int64_t size, const real *weights, const int64_t *places, int64_t length, real *to) {
    int64_t i = 0;
    for (; i + INDEXED_PART * LANES <= size; i += INDEXED_PART * LANES)
        indexed_sum(INDEXED_PART, weights, values + i, places, row, length, to + i);
    for (; i + LANES <= size; i += LANES) indexed_sum(1, weights, values + i, places, row, length, to + i);
    for (; i < size; i++) {
        real total = 0;
        for (int64_t t = 0; t < length; t++) total += weights[t] * values[places[t] * row + i];
        to[i] = total;
    }
}

/* What one query attends to. */
typedef struct {
    const real *keys, *values;   /* (items, heads, size) */
    int64_t key_row, value_row;  /* elements from one item to the next */
    const int64_t *places;       /* (length) */
    int64_t length, heads, size;
    real scale;                  /* with the logarithm of 2 in it: weights are powers of 2 */
} indexed_view;

/* The context (heads, size) of a query; its weights stay in scores (heads, length). */
static inline void indexed_query(const indexed_view *view, const real *query, real *scores, real *context) {
    const int64_t size = view->size, length = view->length;
    for (int64_t t = 0; t < length; t++) {
        const real *key = view->keys + view->places[t] * view->key_row;
        for (int64_t head = 0; head < view->heads; head++)
            scores[head * length + t] = view->scale * indexed_dot(query + head * size, key + head * size, size);
    }
    for (int64_t head = 0; head < view->heads; head++) {
        if (length) indexed_softmax(scores + head * length, length);
        indexed_head(view->values + head * size, view->value_row, size, scores + head * length, view->places, length, context + head * size);
    }
}

/* Copy weights (heads, length) to rows of `room` numbers, the rest zeros. */
static inline void indexed_keep(const real *weights, int64_t heads, int64_t length, real *to, int64_t room) {
    for (int64_t head = 0; head < heads; head++) {
        memcpy(to + head * room, weights + head * length, (size_t)length * sizeof(real));
        memset(to + head * room + length, 0, (size_t)(room - length) * sizeof(real));
    }
}

static const double INDEXED_LOG2_E = 1.4426950408889634;

#endif
