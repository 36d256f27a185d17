/* A step of a Transformer's decoder, for one instruction set. A task is a block of rows, which goes through all layers by itself: rows meet
   in the stores only, and each reads its own past there. */
#include <math.h>

#include "decoder.h"
#include "native.h"
#include "parallel.h"
#include "simd.h"

#include "indexed_rows.h"

enum { PANEL = COLUMNS * LANES };

int VARIANT(panel)(const PackCall *call) {
    (void)call;
    return PANEL;
}

int VARIANT(pack)(const PackCall *call) {
    for (int64_t start = 0; start < call->outputs; start += PANEL)
        for (int64_t k = 0; k < call->inputs; k++)
            for (int64_t j = 0; j < PANEL; j++)
                call->panels[start * call->inputs + k * PANEL + j] = start + j < call->outputs ? call->weight[(start + j) * call->inputs + k] : 0;
    return 0;
}

/* The memory of a task, each (DECODER_ROWS, ...). */
typedef struct {
    real *x, *given, *change; /* width, in whole panels */
    real *wide;               /* the widest product */
    real *scores;             /* one row's: heads x the longer of steps and sources */
} decoder_rooms;

static void decoder_linear(const DecoderLinear *layer, const real *x, int64_t x_row, int64_t rows, real *y, int64_t y_row, int relu) {
    for (int64_t start = 0; start < layer->outputs; start += PANEL) {
        product_args args = {.a = x, .a_row = x_row, .a_column = 1, .b = layer->panels + start * layer->inputs, .b_row = PANEL,
                             .c = y + start, .c_row = y_row, .depth = layer->inputs, .add = 0};
        product(args, rows, PANEL);
    }
    if (!layer->bias && !relu) return;
    for (int64_t row = 0; row < rows; row++) {
        real *to = y + row * y_row;
        for (int64_t i = 0; i < layer->outputs; i++) {
            const real sum = layer->bias ? to[i] + layer->bias[i] : to[i];
            to[i] = relu && !(sum > 0) && sum == sum ? 0 : sum;
        }
    }
}

static void decoder_norm(const DecoderNorm *norm, const real *x, real *to, int64_t width, double eps) {
    double total = 0, squares = 0;
    for (int64_t i = 0; i < width; i++) total += x[i];
    const real mean = (real)(total / (double)width);
    for (int64_t i = 0; i < width; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    const real scale = (real)(1 / sqrt(squares / (double)width + eps));
    for (int64_t i = 0; i < width; i++) to[i] = (x[i] - mean) * scale * norm->weight[i] + norm->bias[i];
}

/* What a part of a layer is given: x, or with pre-norm its norm. */
static const real *decoder_before(const DecoderCall *call, const DecoderNorm *norm, const decoder_rooms *rooms, int64_t rows, int64_t row_size) {
    if (!call->pre) return rooms->x;
    for (int64_t i = 0; i < rows; i++) decoder_norm(norm, rooms->x + i * row_size, rooms->given + i * row_size, call->width, call->eps);
    return rooms->given;
}

/* x = x + change, with post-norm its norm. */
static void decoder_after(const DecoderCall *call, const DecoderNorm *norm, const decoder_rooms *rooms, int64_t rows, int64_t row_size) {
    for (int64_t i = 0; i < rows; i++) {
        real *x = rooms->x + i * row_size;
        const real *change = rooms->change + i * row_size;
        for (int64_t j = 0; j < call->width; j++) x[j] += change[j];
        if (!call->pre) decoder_norm(norm, x, x, call->width, call->eps);
    }
}

static void decoder_self(const DecoderCall *call, const DecoderLayer *layer, const decoder_rooms *rooms, int64_t start, int64_t rows) {
    const int64_t width = call->width, row_size = (width + PANEL - 1) / PANEL * PANEL, size = width / call->heads;
    const real *given = decoder_before(call, &layer->norms[0], rooms, rows, row_size);
    decoder_linear(&layer->project, given, row_size, rows, rooms->wide, call->wide, 0);
    for (int64_t i = 0; i < rows; i++) {
        const real *made = rooms->wide + i * call->wide;
        memcpy(layer->keys + (call->first + start + i) * width, made + width, (size_t)width * sizeof(real));
        memcpy(layer->values + (call->first + start + i) * width, made + 2 * width, (size_t)width * sizeof(real));
    }
    for (int64_t i = 0; i < rows; i++) {
        const indexed_view view = {layer->keys, layer->values, width, width, call->places + (start + i) * call->steps, call->steps,
                                   call->heads, size, (real)(INDEXED_LOG2_E / sqrt((double)size))};
        indexed_query(&view, rooms->wide + i * call->wide, rooms->scores, rooms->given + i * row_size);
    }
    decoder_linear(&layer->join, rooms->given, row_size, rows, rooms->change, row_size, 0);
    decoder_after(call, &layer->norms[0], rooms, rows, row_size);
}

static void decoder_source(const DecoderCall *call, const DecoderLayer *layer, const decoder_rooms *rooms, int64_t start, int64_t rows, int shown) {
    const int64_t width = call->width, row_size = (width + PANEL - 1) / PANEL * PANEL, size = width / call->heads;
    const real *given = decoder_before(call, &layer->norms[1], rooms, rows, row_size);
    decoder_linear(&layer->ask, given, row_size, rows, rooms->wide, call->wide, 0);
    for (int64_t i = 0; i < rows; i++) {
        const int64_t row = start + i, group = row / call->share;
        const indexed_view view = {layer->source_keys, layer->source_values, call->source_key_row, call->source_value_row,
                                   call->source_places + group * call->sources,
                                   call->source_lengths ? call->source_lengths[group] : call->sources, call->heads, size,
                                   (real)(INDEXED_LOG2_E / sqrt((double)size))};
        indexed_query(&view, rooms->wide + i * call->wide, rooms->scores, rooms->given + i * row_size);
        if (shown) indexed_keep(rooms->scores, call->heads, view.length, call->weights + row * call->heads * call->sources, call->sources);
    }
    decoder_linear(&layer->answer, rooms->given, row_size, rows, rooms->change, row_size, 0);
    decoder_after(call, &layer->norms[1], rooms, rows, row_size);
}

static int64_t decoder_part(int64_t count) { return (count + 63) / 64 * 64; } /* whole cache lines */

static void decoder_task(int64_t task, void *scratch, const void *context) {
    const DecoderCall *call = context;
    const int64_t width = call->width, row_size = (width + PANEL - 1) / PANEL * PANEL, start = task * DECODER_ROWS;
    const int64_t rows = call->rows - start < DECODER_ROWS ? call->rows - start : DECODER_ROWS;
    decoder_rooms rooms = {.x = scratch};
    rooms.given = rooms.x + decoder_part(DECODER_ROWS * row_size);
    rooms.change = rooms.given + decoder_part(DECODER_ROWS * row_size);
    rooms.wide = rooms.change + decoder_part(DECODER_ROWS * row_size);
    rooms.scores = rooms.wide + decoder_part(DECODER_ROWS * call->wide);
    for (int64_t i = 0; i < rows; i++) memcpy(rooms.x + i * row_size, call->x + (start + i) * width, (size_t)width * sizeof(real));
    for (int64_t number = 0; number < call->count; number++) {
        const DecoderLayer *layer = &call->layers[number];
        decoder_self(call, layer, &rooms, start, rows);
        decoder_source(call, layer, &rooms, start, rows, number == call->shown);
        const real *given = decoder_before(call, &layer->norms[2], &rooms, rows, row_size);
        decoder_linear(&layer->hidden, given, row_size, rows, rooms.wide, call->wide, 1);
        decoder_linear(&layer->output, rooms.wide, call->wide, rows, rooms.change, row_size, 0);
        decoder_after(call, &layer->norms[2], &rooms, rows, row_size);
    }
    for (int64_t i = 0; i < rows; i++) {
        real *to = call->out + (start + i) * width;
        if (call->norm.weight)
            decoder_norm(&call->norm, rooms.x + i * row_size, to, width, call->eps);
        else
            memcpy(to, rooms.x + i * row_size, (size_t)width * sizeof(real));
    }
}

int VARIANT(decoder)(const DecoderCall *call) {
    const int64_t row_size = (call->width + PANEL - 1) / PANEL * PANEL, longest = call->steps > call->sources ? call->steps : call->sources;
    const int64_t numbers = 3 * decoder_part(DECODER_ROWS * row_size) + decoder_part(DECODER_ROWS * call->wide) + call->heads * (longest + 1);
    const int64_t tasks = (call->rows + DECODER_ROWS - 1) / DECODER_ROWS;
    return parallel_for(tasks, (int)call->threads, (size_t)numbers * sizeof(real), decoder_task, call);
}
