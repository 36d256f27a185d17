/* Cross-entropy of rows of logits, and its gradient in their place. Mirrored by `_Call` in loss_cpu.py. */
#ifndef REGARD_LOSS_H
#define REGARD_LOSS_H

#include <stdint.h>

typedef struct {
    float *logits;         /* (rows, size); with `gradient` they become the gradient of the smoothed loss */
    const int64_t *target; /* (rows), each 0 to size - 1 */
    float *nll;            /* (rows): log of the sum of exponentials, minus the target's logit */
    float *uniform;        /* (rows): the same minus the mean logit */
    uint8_t *correct;      /* (rows): 1 where no logit before the target is as great as the target's, and none behind it greater */
    double smoothing;
    int64_t rows, size, gradient, threads;
} LossCall;

#endif
