/* A recurrent layer over whole sources, for one instruction set. A task is a block of sentences. */
#include "calls.h"
#include "native.h"
#include "panels.h"
#include "parallel.h"
#include "recurrent_gates.h"
#include "simd.h"

enum { ENCODER_ROWS = 64 }; /* sentences of a task, at most */

static int64_t encoder_tasks(const EncoderCall *call) {
    const int64_t least = (call->batch + ENCODER_ROWS - 1) / ENCODER_ROWS, tasks = least < call->threads ? call->threads : least;
    return tasks < call->batch ? tasks : call->batch;
}

static void encoder_step(const EncoderCall *call, int64_t sentence, int64_t position, const real *recurrent, real *state) {
    const int64_t size = call->hidden, place = sentence * call->sources + position;
    real *to = call->states + place * call->state_row;
    if (position >= call->lengths[sentence]) {
        memset(to, 0, (size_t)size * sizeof(real));
        return;
    }
    const recurrent_gates gates = {.below = call->gates + place * call->recurrent.outputs, .recurrent = recurrent, .bias = call->bias,
                                   .state = state, .to = state, .size = size};
    if (call->bias)
        recurrent_gru(&gates);
    else
        recurrent_lstm(&gates);
    memcpy(to, state, (size_t)size * sizeof(real));
}

static void encoder_run(int64_t task, void *scratch, const void *context) {
    const EncoderCall *call = context;
    const int64_t tasks = encoder_tasks(call), start = task * call->batch / tasks, rows = (task + 1) * call->batch / tasks - start;
    const int64_t wide = panel_whole(call->recurrent.outputs), parts = (call->bias ? 1 : 2) * call->hidden;
    real *recurrent = scratch, *states = call->final + start * parts;
    memset(states, 0, (size_t)(rows * parts) * sizeof(real));
    for (int64_t step = 0; step < call->sources; step++) {
        const int64_t position = call->backward ? call->sources - 1 - step : step;
        panel_linear(&call->recurrent, states, parts, rows, recurrent, wide, 0);
        for (int64_t row = 0; row < rows; row++) encoder_step(call, start + row, position, recurrent + row * wide, states + row * parts);
    }
}

int VARIANT(encoder)(const EncoderCall *call) {
    if (!call->batch) return REGARD_DONE;
    if (!within(call->lengths, call->batch, call->sources + 1)) return REGARD_OUTSIDE;
    return parallel_for(encoder_tasks(call), (int)call->threads, (size_t)(ENCODER_ROWS * panel_whole(call->recurrent.outputs)) * sizeof(real),
                        encoder_run, call);
}
