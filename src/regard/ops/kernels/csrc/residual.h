/* A residual connection with dropout and, if asked for, a layer norm, in one pass. Mirrored by `_Call` in residual_cpu.py.

       sum = x + keep * change / (1 - p);  out = (sum - mean) / sqrt(variance + eps) * weight + bias

   Whether an element is kept is a function of seed, row and column: the backward pass finds it again. */
#ifndef REGARD_RESIDUAL_H
#define REGARD_RESIDUAL_H

#include <stdint.h>

enum { RESIDUAL_ROWS = 16 }; /* of a task; partial gradients of weight and bias are one pair of rows each */

typedef struct {
    const float *x;      /* (rows, size), or NULL: zeros */
    const float *change; /* (rows, size) */
    const float *weight; /* (size), or NULL: no norm */
    const float *bias;   /* (size) */
    float *sum;          /* (rows, size); without a norm the result */
    float *out;          /* (rows, size) */
    float *stats;        /* (rows, 2): mean and 1 / sqrt(variance + eps) */
    const float *grad;   /* (rows, size), of the result */
    float *sum_grad;     /* (rows, size): of the sum, and so of x; NULL without a norm, where it is `grad` */
    float *change_grad;  /* (rows, size), or NULL without dropout, where it is that of the sum */
    float *parts;        /* (tasks, 2, size): gradients of weight and bias */
    uint64_t seed;
    double dropout, eps;
    int64_t rows, size, threads;
} ResidualCall;

#endif
