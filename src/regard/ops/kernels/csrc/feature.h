/* A call for the hidden features of the areas of a sequence. `_FeatureCall` in feature_cpu.py has the same fields in the same order. */
#ifndef REGARD_FEATURE_H
#define REGARD_FEATURE_H

#include <stdint.h>

#include "native.h"

/* All contiguous. N areas by length, then by start; F features, a multiple of FEATURE_STEP. */
enum { FEATURE_STEP = 16 };

typedef struct {
    const void *key;         /* (B H, S, F), finite */
    const void *projected;   /* (B H, S, F): W_mu key; forward only */
    const void *matrix;      /* (F, F): forward W_sigma transposed, backward W_sigma */
    const void *shape;       /* (A, F): W_e e, what only the size adds; forward only */
    void *hidden;            /* (B H, N, F) */
    const void *grad_hidden; /* (B H, N, F), and so the rest: backward only */
    void *grad_key;          /* (B H, S, F) by way of the deviation alone */
    void *grad_projected;    /* (B H, S, F) */
    void *grad_matrix;       /* (B H, F, F) of W_sigma, for each head */
    void *grad_shape;        /* (B H, A, F) */
    int64_t heads, items, size, area;
    double epsilon;          /* added to the variance */
    int32_t is_double, threads;
} FeatureCall;

/* Return 0, or 1: out of memory. */
EXPORT int regard_feature_forward(const FeatureCall *call);
EXPORT int regard_feature_backward(const FeatureCall *call);

#endif
