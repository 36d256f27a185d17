/* The greatest log-probabilities of each row of logits. Mirrored by `_Call` in best_cpu.py. */
#ifndef REGARD_BEST_H
#define REGARD_BEST_H

#include <stdint.h>

enum { BEST_BLOCK = 64, BEST_MOST = 64 };

typedef struct {
    const float *logits;  /* (rows, size) */
    float *values;        /* (rows, count): the greatest logits as log-probabilities, in descending order */
    int64_t *places;      /* (rows, count): where they stand; equal ones in ascending order */
    int64_t rows, size, count; /* 1 <= count <= min(size, BEST_MOST) */
    int64_t threads;
} BestCall;

#endif
