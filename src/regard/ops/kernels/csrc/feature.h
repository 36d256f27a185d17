/* What a call of area attention holds for the keys of Eq. 9. `_Features` in area_cpu.py has the same fields in the same order. */
#ifndef REGARD_FEATURE_H
#define REGARD_FEATURE_H

#include <stdint.h>

/* All contiguous; F features, the key size, a multiple of FEATURE_STEP. Turned: transposed. */
enum { FEATURE_STEP = 16 };

typedef struct {
    const void *mean, *mean_turned;           /* (F, F): W_mu */
    const void *deviation, *deviation_turned; /* (F, F): W_sigma */
    const void *output;                       /* (F, F): W_d */
    const void *shape; /* (A, F): W_e e, what only the size adds; to that of single items W_sigma sqrt(epsilon) is added, their deviation */
    void *grad_mean, *grad_deviation, *grad_output, *grad_shape; /* backward only; that of W_sigma without the part of single items */
    double epsilon;                                              /* added to the variance */
} AreaFeatures;

#endif
