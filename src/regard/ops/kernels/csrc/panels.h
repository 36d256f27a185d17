/* Weights in panels and products with them, for one instruction set. What a row becomes does not depend on the rows beside it. */
#ifndef REGARD_PANELS_H
#define REGARD_PANELS_H

#include "bytes.h"
#include "calls.h"
#include "native.h"
#include "parallel.h"
#include "simd.h"

enum { PANEL_ROWS = 64 }; /* of a task */

INLINE int64_t panel_whole(int64_t outputs) { return (outputs + PANEL - 1) / PANEL * PANEL; }

/* y = W x for the outputs of `count` panels from panel `first` on, without the bias; y has room for whole panels. */
static inline void panel_some(const PanelLinear *layer, int64_t first, int64_t count, const real *x, int64_t x_row, int64_t rows, real *y, int64_t y_row) {
    for (int64_t panel = 0; panel < count; panel++) {
        const product_args args = {.a = x, .a_row = x_row, .a_column = 1, .b = layer->panels + (first + panel) * PANEL * layer->inputs,
                                   .b_row = PANEL, .c = y + panel * PANEL, .c_row = y_row, .depth = layer->inputs, .add = 0};
        product_columns(&args, rows, COLUMNS, AHEAD, args.b, args.c);
    }
}

/* y = W x + b, rows of y panel_whole(outputs) wide or more; where asked for, what is below 0 becomes 0. */
static inline void panel_linear(const PanelLinear *layer, const real *x, int64_t x_row, int64_t rows, real *y, int64_t y_row, int relu) {
    const int64_t count = panel_whole(layer->outputs) / PANEL;
    if (layer->bytes)
        bytes_all(layer, count, x, x_row, rows, y, y_row);
    else
        panel_some(layer, 0, count, x, x_row, rows, y, y_row);
    if (!layer->bias && !relu) return;
    for (int64_t row = 0; row < rows; row++) {
        real *to = y + row * y_row;
        for (int64_t i = 0; i < layer->outputs; i++) {
            const real sum = layer->bias ? to[i] + layer->bias[i] : to[i];
            to[i] = relu && !(sum > 0) && sum == sum ? 0 : sum;
        }
    }
}

/* Numbers of a room that ends with a cache line. */
INLINE int64_t panel_room(int64_t count) { return (count + 63) / 64 * 64; }

int VARIANT(panel)(const PackCall *call) {
    (void)call;
    return PANEL;
}

int VARIANT(pack)(const PackCall *call) {
    const int64_t inputs = call->inputs;
    for (int64_t start = 0; start < call->outputs; start += PANEL) {
        real *panel = call->panels + start * inputs;
        int64_t k = 0;
        if (start + PANEL <= call->outputs)
            for (; k + LANES <= inputs; k += LANES) transpose(call->weight + start * inputs + k, inputs, PANEL, LANES, panel + k * PANEL, PANEL, 1);
        for (; k < inputs; k++)
            for (int64_t j = 0; j < PANEL; j++) panel[k * PANEL + j] = start + j < call->outputs ? call->weight[(start + j) * inputs + k] : 0;
    }
    return 0;
}

int VARIANT(pack_bytes)(const PackBytesCall *call) {
    for (int64_t output = 0; output < panel_whole(call->outputs); output++) bytes_pack(call, output);
    return REGARD_DONE;
}

static void panel_task(int64_t task, void *scratch, const void *context) {
    (void)scratch;
    const RowsCall *call = context;
    const int64_t start = task * PANEL_ROWS, rows = call->rows - start < PANEL_ROWS ? call->rows - start : PANEL_ROWS;
    panel_linear(&call->layer, call->x + start * call->inputs, call->inputs, rows, call->y + start * call->panels, call->panels, 0);
}

int VARIANT(rows)(const RowsCall *call) {
    return parallel_for((call->rows + PANEL_ROWS - 1) / PANEL_ROWS, (int)call->threads, 0, panel_task, call);
}

#endif
