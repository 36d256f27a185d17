/* One step of a recurrent decoder with an attention, from tokens to what the output layer sees. Mirrored by the structures of
   recurrent_cpu.py. */
#ifndef REGARD_RECURRENT_H
#define REGARD_RECURRENT_H

#include <stdint.h>

#include "panels.h"

enum { RECURRENT_ROWS = 320 }; /* of a task, about: enough to read the weights seldom, few enough to stay near */

typedef struct {
    PanelLinear input;     /* of what comes from below, with a bias: the embedded word, or the layer's below */
    PanelLinear recurrent; /* of the layer's own hidden state */
    const float *bias;     /* (hidden) of a GRU's new state, behind the reset; NULL: an LSTM */
} RecurrentLayer;

/* A product without outputs is left out. That of the context is where the values are already what it would make of them. */
typedef struct {
    const RecurrentLayer *layers;
    PanelLinear extra;          /* to the gates of the first layer: from the context (attend first), or from the last readout (fed) */
    PanelLinear query;          /* of an additive score; none: the state is the query */
    PanelLinear state, word, context; /* the parts of the readout, the state's with its bias; deep: the first of all pairs, then the second */
    const float *vector;        /* (attended) of an additive score; NULL: the inner product */
    const float *table;         /* (vocabulary, embedded) */
    float *word_gates;          /* (vocabulary, gates in whole panels): what the first layer makes of the words met so far; or NULL */
    int32_t *word_known;        /* (vocabulary): whether it is there, a RECURRENT_WORD_... */
    const float *keys, *values; /* (sentences, sources, attended) and (sentences, sources, depth) */
    const float *past;          /* (parents, width): of each layer hidden, and cell of an LSTM; then the last readout, if it is fed */
    float *next;                /* (rows, width), likewise */
    float *readout;             /* (rows, read) */
    float *weights;             /* (rows, sources); zeros past the lengths */
    const int64_t *tokens;      /* (rows) */
    const int64_t *parents;     /* (rows): which row of the past each continues */
    const int64_t *sentences;   /* (rows / share) */
    const int64_t *lengths;     /* (sentences) */
    int64_t count, hidden, embedded, attended, depth, read; /* layers, and sizes */
    int64_t vocabulary;
    int64_t rows, share, sources, width;
    int64_t first, fed, deep;   /* attend first; feed the readout back; maxout instead of tanh */
    double embedding_scale, score_scale;
    int64_t threads;
} RecurrentCall;

/* Workers fill one table: who finds a word UNKNOWN and makes it WRITTEN writes it down, and only what is KNOWN is read. */
enum { RECURRENT_WORD_UNKNOWN, RECURRENT_WORD_WRITTEN, RECURRENT_WORD_KNOWN };

/* What a call returns beside 0 for success and 1 for no memory. */
enum { RECURRENT_OUTSIDE = 2 }; /* a token is outside the vocabulary */

#endif
