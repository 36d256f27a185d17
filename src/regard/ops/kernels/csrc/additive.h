/* Additive scores: scores[n][t][s] = sum over a of vector[a] * tanh(query[n][t][a] + key[n][s][a]). Mirrored by `_Call` in additive_cpu.py. */
#ifndef REGARD_ADDITIVE_H
#define REGARD_ADDITIVE_H

#include <stdint.h>

typedef struct {
    const float *query;  /* (batch, targets, width) */
    const float *key;    /* (batch, sources, width) */
    const float *vector; /* (width) */
    float *scores;       /* (batch, targets, sources): written by the forward pass, their gradient in the backward pass */
    float *query_grad;   /* like query; the three gradients are written by the backward pass only */
    float *key_grad;     /* like key */
    float *vector_grad;  /* (batch, width): the caller sums over the batch */
    int64_t batch, targets, sources, width;
    int64_t threads;
} AdditiveCall;

#endif
