/* The element-wise part of recurrent cells, for one instruction set. */
#ifndef REGARD_RECURRENT_GATES_H
#define REGARD_RECURRENT_GATES_H

#include "simd.h"

/* The gates of one row, in torch's order, each `size` numbers. */
typedef struct {
    const real *below;     /* from the layer below, with biases */
    const real *extra;     /* from a second input, or NULL */
    const real *recurrent; /* from the hidden state */
    const real *bias;      /* (size), a GRU's */
    const real *state;     /* hidden, and cell of an LSTM behind it */
    real *to;              /* likewise */
    int64_t size;
} recurrent_gates;

INLINE vec gates_sigmoid(vec x) { return (real)0.5 * tanh_vec((real)0.5 * x) + (real)0.5; }

INLINE vec gates_below(const recurrent_gates *gates, int64_t at, int64_t count) {
    const vec below = load_first(gates->below + at, count);
    return gates->extra ? below + load_first(gates->extra + at, count) : below;
}

INLINE vec gates_sum(const recurrent_gates *gates, int64_t at, int64_t count) {
    return gates_below(gates, at, count) + load_first(gates->recurrent + at, count);
}

/* r = sig(x_r + u_r);  z = sig(x_z + u_z);  n = tanh(x_n + r (u_n + b));  h' = n + z (h - n) */
static void recurrent_gru(const recurrent_gates *gates) {
    const int64_t size = gates->size;
    for (int64_t i = 0; i < size; i += LANES) {
        const int64_t count = size - i < LANES ? size - i : LANES;
        const vec reset = gates_sigmoid(gates_sum(gates, i, count)), update = gates_sigmoid(gates_sum(gates, size + i, count));
        const vec inner = load_first(gates->recurrent + 2 * size + i, count) + load_first(gates->bias + i, count);
        const vec fresh = tanh_vec(gates_below(gates, 2 * size + i, count) + reset * inner);
        store_first(gates->to + i, fresh + update * (load_first(gates->state + i, count) - fresh), count);
    }
}

/* c' = sig(f) c + sig(i) tanh(g);  h' = sig(o) tanh(c') */
static void recurrent_lstm(const recurrent_gates *gates) {
    const int64_t size = gates->size;
    for (int64_t i = 0; i < size; i += LANES) {
        const int64_t count = size - i < LANES ? size - i : LANES;
        const vec in = gates_sigmoid(gates_sum(gates, i, count)), forget = gates_sigmoid(gates_sum(gates, size + i, count));
        const vec fresh = tanh_vec(gates_sum(gates, 2 * size + i, count)), out = gates_sigmoid(gates_sum(gates, 3 * size + i, count));
        const vec cell = forget * load_first(gates->state + size + i, count) + in * fresh;
        store_first(gates->to + size + i, cell, count);
        store_first(gates->to + i, out * tanh_vec(cell), count);
    }
}

#endif
