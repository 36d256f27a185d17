/* Attention to scattered items, for one instruction set. A task is a group: queries that look at the same items. */
#ifndef REGARD_INDEXED_H
#define REGARD_INDEXED_H

#include "calls.h"
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

/* x = 2^(factor x), in place; returns the sum. */
static inline real indexed_exp(real *x, int64_t length, real factor) {
    int64_t t = 0;
    vec sum = {0};
    for (; t + LANES <= length; t += LANES) {
        const vec e = exp2_vec(load(x + t) * factor);
        store(x + t, e);
        sum += e;
    }
    real total = lanes_sum(sum);
    if (t < length) {
        real rest[LANES] = {0};
        for (int64_t i = t; i < length; i++) rest[i - t] = x[i] * factor;
        store(rest, exp2_vec(load(rest)));
        for (int64_t i = t; i < length; i++) total += x[i] = rest[i - t];
    }
    return total;
}

static const double INDEXED_LOG2_E = 1.4426950408889634;

/* Take the greatest score off all. First of all, so that whatever is added up or multiplied later is near 0 where it matters, and may only
   overflow to -infinity, a weight of 0. */
static inline void indexed_lower(real *scores, int64_t length) {
    real greatest = scores[0];
    for (int64_t t = 1; t < length; t++) greatest = scores[t] > greatest ? scores[t] : greatest;
    for (int64_t t = 0; t < length; t++) scores[t] -= greatest;
}

/* Scores to weights, in place: exp(score - greatest) / sum. */
static inline void indexed_softmax(real *scores, int64_t length) {
    indexed_lower(scores, length);
    const real total = indexed_exp(scores, length, (real)INDEXED_LOG2_E);
    for (int64_t i = 0; i < length; i++) scores[i] /= total;
}

/* The same over all areas of up to `areas` items that follow each other, the score of an area being the mean of its items': what stays in
   scores is for each item the sum of the weights of the areas that hold it. */
static inline void indexed_areas(real *restrict scores, int64_t length, int64_t areas, real *restrict room) {
    const int64_t longest = areas < length ? areas : length;
    real total = 0;
    indexed_lower(scores, length); /* no mean is above the greatest score of an item */
    /* Row a of room: the areas of a + 1 items, each at its last one, from a on. First sums of scores, then weights. */
    memcpy(room, scores, (size_t)length * sizeof(real));
    for (int64_t a = 1; a < longest; a++)
        for (int64_t t = a; t < length; t++) room[a * length + t] = room[(a - 1) * length + t] + scores[t - a];
    for (int64_t a = 0; a < longest; a++) total += indexed_exp(room + a * length + a, length - a, (real)INDEXED_LOG2_E / (real)(a + 1));
    /* Then those of all areas of more than a items: they hold the item a before their last one. */
    for (int64_t a = longest - 2; a >= 0; a--)
        for (int64_t t = a + 1; t < length; t++) room[a * length + t] += room[(a + 1) * length + t];
    memcpy(scores, room, (size_t)length * sizeof(real));
    for (int64_t a = 1; a < longest; a++)
        for (int64_t t = a; t < length; t++) scores[t - a] += room[a * length + t];
    for (int64_t t = 0; t < length; t++) scores[t] /= total;
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
    real scale;                  /* of the scores */
    int64_t areas;               /* the most items of an area; 1: items alone */
} indexed_view;

/* How many numbers `scores` of a query has room for. */
static inline int64_t indexed_room(int64_t heads, int64_t length, int64_t areas) {
    return heads * (length + 1) + (areas > 1 ? (areas < length ? areas : length) * length : 0);
}

/* The context (heads, size) of a query; its weights stay in scores (heads, length), behind which there is room for areas. */
static inline void indexed_query(const indexed_view *view, const real *query, real *scores, real *context) {
    const int64_t size = view->size, length = view->length;
    for (int64_t t = 0; t < length; t++) {
        const real *key = view->keys + view->places[t] * view->key_row;
        for (int64_t head = 0; head < view->heads; head++)
            scores[head * length + t] = view->scale * indexed_dot(query + head * size, key + head * size, size);
    }
    for (int64_t head = 0; head < view->heads; head++) {
        if (length && view->areas > 1)
            indexed_areas(scores + head * length, length, view->areas, scores + view->heads * length);
        else if (length)
            indexed_softmax(scores + head * length, length);
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

static void indexed_task(int64_t group, void *scratch, const void *context) {
    const IndexedCall *call = context;
    const int64_t width = call->heads * call->size;
    const indexed_view view = {call->keys, call->values, call->key_row, call->value_row, call->places + group * call->length,
                               call->lengths ? call->lengths[group] : call->length, call->heads, call->size,
                               (real)call->scale, call->areas};
    for (int64_t row = group * call->share; row < (group + 1) * call->share; row++) {
        indexed_query(&view, call->query + row * width, scratch, call->context + row * width);
        if (call->weights) indexed_keep(scratch, call->heads, view.length, call->weights + row * call->heads * call->length, call->length);
    }
}

int VARIANT(indexed)(const IndexedCall *call) {
    if (!within(call->places, call->groups * call->length, call->items)) return REGARD_OUTSIDE;
    if (call->lengths && !within(call->lengths, call->groups, call->length + 1)) return REGARD_OUTSIDE;
    const size_t bytes = (size_t)indexed_room(call->heads, call->length, call->areas) * sizeof(real);
    return parallel_for(call->groups, (int)call->threads, bytes, indexed_task, call);
}

#endif
