/* A call of area attention. `_Call` in area_cpu.py has the same fields in the same order. */
#ifndef REGARD_AREA_H
#define REGARD_AREA_H

#include <stdint.h>

#include "feature.h"
#include "native.h"

enum area_storage { STORED_FLOAT = 0, STORED_DOUBLE = 1, STORED_BFLOAT16 = 2 };

/* Numbers of axes (B, H, rows, D): strides in elements; D is contiguous. */
typedef struct {
    void *data;
    int64_t batch, head, row;
} AreaView;

/* Bytes 0 or 1 of axes (B, H, S, T), in this order; strides 0 where they are the same for all. `query` is 0 or 1, and where it is 1 every
   row is readable up to the next multiple of AREA_TILE queries. */
typedef struct {
    const uint8_t *data;
    int64_t batch, head, key, query;
} AreaMask;

/* Queries that are worked on together. */
enum { AREA_TILE = 32 };

typedef struct {
    AreaView query, key, value, output;
    AreaView grad_output, grad_query, grad_key, grad_value; /* backward only */
    AreaMask mask;                                          /* data NULL: everything is allowed */
    void *sums; /* (B, H, T, 2) contiguous: the largest score and the sum of 2^(score - largest) over the areas. Of the pair only the
                   log-sum matters, but rounded to one number it would spoil rows with large scores. Sum 0: a row without areas; NaN: a
                   spoilt one */
    int64_t batch, heads, queries, keys, key_size, value_size;
    int64_t grid_height, grid_width;     /* 1, S for a sequence */
    int64_t area_height, area_width;     /* the largest area */
    double scale;                        /* scores are scale * q.k */
    int32_t causal;                      /* key j is allowed for query t iff j <= t + S - T */
    int32_t mean_values;                 /* an area's value is the mean, not the sum, of its items' values */
    int32_t storage;                     /* enum area_storage, of all views; sums are double for double, float otherwise */
    int32_t threads;
    int32_t target;                      /* enum regard_target, or -1: the best */
    const AreaFeatures *features;        /* NULL: the key of an area is the mean of its items' keys. Otherwise it is made of them by Eq. 9,
                                            for areas of a sequence, in STORED_FLOAT or STORED_DOUBLE */
} AreaCall;

/* Return 0; 1: out of memory; 2: this library was not built for the target. */
EXPORT int regard_area_forward(const AreaCall *call);
EXPORT int regard_area_backward(const AreaCall *call);

#endif
