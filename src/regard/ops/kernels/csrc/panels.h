/* Weights of many products, copied once into the order in which the products read them. Mirrored by the structures of panels.py. */
#ifndef REGARD_PANELS_H
#define REGARD_PANELS_H

#include <stdint.h>

/* y = W x + b. The weight (outputs, inputs) stands in panels of `regard_panel()` outputs, input by input, the last one filled with zeros. */
typedef struct {
    const float *panels;
    const float *bias; /* or NULL */
    int64_t inputs, outputs;
} PanelLinear;

typedef struct {
    const float *weight; /* (outputs, inputs) */
    float *panels;
    int64_t inputs, outputs;
} PackCall;

#endif
