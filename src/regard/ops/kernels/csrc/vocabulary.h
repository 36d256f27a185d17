/* The most probable of an output layer's outputs, without ever writing all logits down. Mirrored by `_Call` in vocabulary_cpu.py. */
#ifndef REGARD_VOCABULARY_H
#define REGARD_VOCABULARY_H

#include <stdint.h>

#include "panels.h"

enum { VOCABULARY_ROWS = 320, VOCABULARY_PANELS = 8 }; /* of a piece of logits, about, which stays near */

typedef struct {
    PanelLinear output;      /* without bias; a bias may be the weight of an input behind the others, which is 1 */
    const float *x;          /* (rows, width): all inputs, or all but that one */
    const int64_t *forbidden; /* (forbidden_count): outputs that are none of the best, though they count in the sum */
    float *log_probs;        /* (rows, count): the greatest, in descending order, -inf behind the last; at most 0 */
    int64_t *places;         /* (rows, count): where they stand; equal ones in ascending order */
    int64_t rows, width, count, forbidden_count;
    int64_t instead;         /* the output that is taken where none is left, or all are impossible */
    double least;            /* its log-probability is no lower */
    const float *totals;     /* (rows), what log-probabilities are added to, or NULL */
    int64_t share, need;     /* of the sums of `share` rows only the `need` greatest matter, and what of `instead` is as great */
    int64_t threads;
} VocabularyCall;

#endif
