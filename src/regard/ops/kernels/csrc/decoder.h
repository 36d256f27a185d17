/* One step of a Transformer's decoder, without embedding and output layer. Mirrored by the structures of decoder_cpu.py. */
#ifndef REGARD_DECODER_H
#define REGARD_DECODER_H

#include <stdint.h>

#include "panels.h"

enum { DECODER_ROWS = 64 }; /* of a task: enough to read the weights seldom, few enough to stay near */

typedef struct {
    const float *weight, *bias; /* (width); NULL: no norm */
} DecoderNorm;

/* Keys of areas by Eq. 9: W_d relu(W_mu mean + W_sigma deviation + what the size adds), for each head. */
typedef struct {
    PanelLinear moments; /* W_mu and W_sigma side by side; without outputs: keys are not learned */
    PanelLinear output;  /* W_d */
    const float *shape;  /* (areas, size of a head) */
} DecoderKeys;

typedef struct {
    PanelLinear project;       /* query, key and value of self-attention, one below the other */
    PanelLinear join;          /* its output */
    PanelLinear ask, answer;   /* query and output of the attention to the source */
    PanelLinear hidden, output; /* the feed-forward, with relu between */
    DecoderNorm norms[3];        /* of self-attention, source and feed-forward */
    float *keys, *values;        /* (items, width), what was read; the newest items are written here */
    float *area_keys, *area_values; /* with learned keys (items * areas, width): those that end at an item, the shortest first */
    const float *source_keys, *source_values; /* (source items, ...) */
    const int64_t *source_places;  /* (rows / share, sources) */
    const int64_t *source_lengths; /* (rows / share), or NULL: all */
    int64_t sources, source_key_row, source_value_row;
    int64_t areas, source_areas; /* the most items of an area of self-attention and of the source; 1: items alone */
    DecoderKeys learned;         /* of self-attention */
} DecoderLayer;

typedef struct {
    const DecoderLayer *layers;
    DecoderNorm norm;              /* of what comes out */
    const float *x;                /* (rows, width) */
    float *out;                    /* (rows, width) */
    float *weights;                /* (rows, heads, sources of the shown layer); zeros past the lengths */
    const int64_t *places;         /* (rows, steps): a row's past in the store, its newest item last */
    int64_t count, shown;          /* layers, and the one whose weights are wanted */
    int64_t rows, share, width, heads, wide; /* wide: the most outputs of a product, in whole panels */
    int64_t steps;
    int64_t first;                 /* where the newest item of row 0 stands in the stores; the others follow */
    int64_t pre;                   /* norms before the parts, or after the residuals */
    double eps;
    int64_t threads;
} DecoderCall;

#endif
