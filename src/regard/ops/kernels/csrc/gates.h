/* One step of a recurrent layer in training: the element-wise part of its cells and the way back, for one instruction set. A task is a few
   rows. Products with the recurrent weight are the caller's. */
#ifndef REGARD_GATES_H
#define REGARD_GATES_H

#include "calls.h"
#include "native.h"
#include "parallel.h"
#include "recurrent_gates.h"
#include "simd.h"

typedef uint16_t half_vec __attribute__((vector_size(2 * LANES)));

/* `count` numbers from the one at `at` on, of bfloat16 or of floats. */
INLINE vec gates_load(const void *from, int64_t at, int64_t count, int half) {
    if (!half) return load_first((const real *)from + at, count);
    half_vec bits = {0};
    if (count == LANES)
        memcpy(&bits, (const uint16_t *)from + at, sizeof bits);
    else
        memcpy(&bits, (const uint16_t *)from + at, (size_t)count * sizeof(uint16_t));
    return (vec)(__builtin_convertvector(bits, uvec) << 16);
}

/* Rounds to nearest, ties to even; a NaN stays one. */
INLINE void gates_store(void *to, int64_t at, vec x, int64_t count, int half) {
    if (!half) {
        store_first((real *)to + at, x, count);
        return;
    }
    const uvec bits = (uvec)x, rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, valid = (uvec)(x == x);
    const half_vec narrow = __builtin_convertvector((rounded & valid) | (~valid & 0x7fc0), half_vec);
    if (count == LANES)
        memcpy((uint16_t *)to + at, &narrow, sizeof narrow);
    else
        memcpy((uint16_t *)to + at, &narrow, (size_t)count * sizeof(uint16_t));
}

/* LSTM:  c' = sig(f) c + sig(i) tanh(g),  h' = sig(o) tanh(c');  GRU:  n = tanh(x_n + sig(r) (u_n + b)),  h' = n + sig(z) (h - n) */
INLINE void gates_forward_row(const GatesCall *call, int64_t row, int lstm, int half) {
    const int64_t size = call->size, below = row * call->projected_row, own = row * (3 + lstm) * size, here = row * size;
    const int stays = call->kept && !call->kept[row];
    real *active = call->active ? call->active + row * 4 * size : NULL, *output = call->output ? call->output + row * call->output_row : NULL;
    for (int64_t i = 0; i < size; i += LANES) {
        const int64_t count = size - i < LANES ? size - i : LANES;
        const vec before = lstm && !stays ? (vec){0} : load_first(call->hidden + here + i, count);
        vec hidden = before, cell = lstm ? load_first(call->cell + here + i, count) : (vec){0};
        if (!stays) {
            vec x[4], u[4], gate[4];
            UNROLL
            for (int k = 0; k < 3 + lstm; k++) {
                x[k] = gates_load(call->projected, below + k * size + i, count, half);
                u[k] = call->recurrent ? gates_load(call->recurrent, own + k * size + i, count, half) : (vec){0};
            }
            gate[0] = gates_sigmoid(x[0] + u[0]);
            gate[1] = gates_sigmoid(x[1] + u[1]);
            if (lstm) {
                gate[2] = tanh_vec(x[2] + u[2]);
                gate[3] = gates_sigmoid(x[3] + u[3]);
                cell = gate[1] * cell + gate[0] * gate[2];
                hidden = gate[3] * tanh_vec(cell);
            } else {
                gate[3] = u[2] + load_first(call->bias + i, count);
                gate[2] = tanh_vec(x[2] + gate[0] * gate[3]);
                hidden = gate[2] + gate[1] * (before - gate[2]);
            }
            if (active) {
                UNROLL
                for (int k = 0; k < 4; k++) store_first(active + k * size + i, gate[k], count);
            }
        }
        store_first(call->next_hidden + here + i, hidden, count);
        if (lstm) store_first(call->next_cell + here + i, cell, count);
        if (half && call->half_hidden) gates_store(call->half_hidden, here + i, hidden, count, 1);
        if (output) store_first(output + i, stays ? (vec){0} : hidden, count);
    }
}

/* From the gradients of the state after the step to those of the gates and of the state before it, but for what the gates' products give. */
INLINE void gates_backward_row(const GatesCall *call, int64_t row, int lstm, int half) {
    const int64_t size = call->size, below = row * call->projected_row, own = row * (3 + lstm) * size, here = row * size;
    const int stays = call->kept && !call->kept[row];
    const real *active = call->active + row * 4 * size, *output = call->grad_output ? call->grad_output + row * call->output_row : NULL;
    for (int64_t i = 0; i < size; i += LANES) {
        const int64_t count = size - i < LANES ? size - i : LANES;
        vec d = load_first(call->grad_hidden + here + i, count), kept = {0}, of_x[4] = {{0}}, of_u[4] = {{0}};
        if (call->recurrent) d += gates_load(call->recurrent, here + i, count, half);
        if (stays) {
            kept = d;
        } else {
            vec gate[4];
            UNROLL
            for (int k = 0; k < 4; k++) gate[k] = load_first(active + k * size + i, count);
            if (output) d += load_first(output + i, count);
            if (lstm) {
                const vec shown = tanh_vec(load_first(call->next_cell + here + i, count));
                const vec cell = load_first(call->grad_cell + here + i, count) + d * gate[3] * (1 - shown * shown);
                of_x[0] = cell * gate[2] * gate[0] * (1 - gate[0]);
                of_x[1] = cell * load_first(call->cell + here + i, count) * gate[1] * (1 - gate[1]);
                of_x[2] = cell * gate[0] * (1 - gate[2] * gate[2]);
                of_x[3] = d * shown * gate[3] * (1 - gate[3]);
                store_first(call->grad_cell + here + i, cell * gate[1], count);
                UNROLL
                for (int k = 0; k < 4; k++) of_u[k] = of_x[k];
            } else {
                of_x[2] = d * (1 - gate[1]) * (1 - gate[2] * gate[2]);
                of_x[1] = d * (load_first(call->hidden + here + i, count) - gate[2]) * gate[1] * (1 - gate[1]);
                of_x[0] = of_x[2] * gate[3] * gate[0] * (1 - gate[0]);
                of_u[0] = of_x[0];
                of_u[1] = of_x[1];
                of_u[2] = of_x[2] * gate[0];
                kept = d * gate[1];
            }
        }
        store_first(call->grad_hidden + here + i, kept, count);
        UNROLL
        for (int k = 0; k < 3 + lstm; k++) {
            gates_store(call->grad_projected, below + k * size + i, of_x[k], count, half);
            if (call->grad_recurrent) gates_store(call->grad_recurrent, own + k * size + i, of_u[k], count, half);
        }
    }
}

#define GATES_TASK(name, row_function)                                                                                       \
    static void name(int64_t task, void *scratch, const void *context) {                                                     \
        (void)scratch;                                                                                                       \
        const GatesCall *call = context;                                                                                     \
        const int64_t end = (task + 1) * GATES_ROWS < call->rows ? (task + 1) * GATES_ROWS : call->rows;                     \
        for (int64_t row = task * GATES_ROWS; row < end; row++) {                                                            \
            if (call->bias)                                                                                                  \
                call->half ? row_function(call, row, 0, 1) : row_function(call, row, 0, 0);                                  \
            else                                                                                                             \
                call->half ? row_function(call, row, 1, 1) : row_function(call, row, 1, 0);                                  \
        }                                                                                                                    \
    }

GATES_TASK(gates_forward_task, gates_forward_row)
GATES_TASK(gates_backward_task, gates_backward_row)

static int64_t gates_tasks(const GatesCall *call) { return (call->rows + GATES_ROWS - 1) / GATES_ROWS; }

int VARIANT(gates_forward)(const GatesCall *call) {
    return parallel_for(gates_tasks(call), (int)call->threads, 0, gates_forward_task, call);
}

int VARIANT(gates_backward)(const GatesCall *call) {
    return parallel_for(gates_tasks(call), (int)call->threads, 0, gates_backward_task, call);
}

#endif
