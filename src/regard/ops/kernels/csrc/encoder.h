/* A recurrent layer over whole sources, in one direction. Mirrored by `_Call` in encoder_cpu.py. */
#ifndef REGARD_ENCODER_H
#define REGARD_ENCODER_H

#include <stdint.h>

#include "panels.h"

enum { ENCODER_ROWS = 64 }; /* sentences of a task, at most */

typedef struct {
    PanelLinear recurrent;  /* of the hidden state */
    const float *bias;      /* (hidden) of a GRU's new state; NULL: an LSTM */
    const float *gates;     /* (batch, sources, gates): from the input, with biases */
    const int64_t *lengths; /* (batch) */
    float *states;          /* (batch, sources, state_row): `hidden` numbers each, zeros past the lengths */
    float *final;           /* (batch, hidden), and behind it an LSTM's cell: (batch, 2 hidden) */
    int64_t batch, sources, hidden, state_row;
    int64_t backward;
    int64_t threads;
} EncoderCall;

#endif
