/* A step of a Transformer's decoder, for one instruction set. A task is a block of rows, which goes through all layers by itself: rows meet
   in the stores only, and each reads its own past there. */
#include <math.h>

#include "decoder.h"
#include "native.h"
#include "parallel.h"
#include "simd.h"

#include "indexed_rows.h"
#include "panel_products.h"

/* The memory of a task, each (DECODER_ROWS, ...). */
typedef struct {
    real *x, *given, *change; /* width, in whole panels */
    real *wide;               /* the widest product */
    real *scores;             /* one row's, with room for areas */
} decoder_rooms;

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
    const int64_t width = call->width, row_size = panel_whole(width), size = width / call->heads;
    const real *given = decoder_before(call, &layer->norms[0], rooms, rows, row_size);
    panel_linear(&layer->project, given, row_size, rows, rooms->wide, call->wide, 0);
    for (int64_t i = 0; i < rows; i++) {
        const real *made = rooms->wide + i * call->wide;
        memcpy(layer->keys + (call->first + start + i) * width, made + width, (size_t)width * sizeof(real));
        memcpy(layer->values + (call->first + start + i) * width, made + 2 * width, (size_t)width * sizeof(real));
    }
    for (int64_t i = 0; i < rows; i++) {
        const indexed_view view = {layer->keys, layer->values, width, width, call->places + (start + i) * call->steps, call->steps,
                                   call->heads, size, (real)(INDEXED_LOG2_E / sqrt((double)size)), layer->areas};
        indexed_query(&view, rooms->wide + i * call->wide, rooms->scores, rooms->given + i * row_size);
    }
    panel_linear(&layer->join, rooms->given, row_size, rows, rooms->change, row_size, 0);
    decoder_after(call, &layer->norms[0], rooms, rows, row_size);
}

static void decoder_source(const DecoderCall *call, const DecoderLayer *layer, const decoder_rooms *rooms, int64_t start, int64_t rows, int shown) {
    const int64_t width = call->width, row_size = panel_whole(width), size = width / call->heads;
    const real *given = decoder_before(call, &layer->norms[1], rooms, rows, row_size);
    panel_linear(&layer->ask, given, row_size, rows, rooms->wide, call->wide, 0);
    for (int64_t i = 0; i < rows; i++) {
        const int64_t row = start + i, group = row / call->share;
        const indexed_view view = {layer->source_keys, layer->source_values, call->source_key_row, call->source_value_row,
                                   call->source_places + group * call->sources,
                                   call->source_lengths ? call->source_lengths[group] : call->sources, call->heads, size,
                                   (real)(INDEXED_LOG2_E / sqrt((double)size)), layer->source_areas};
        indexed_query(&view, rooms->wide + i * call->wide, rooms->scores, rooms->given + i * row_size);
        if (shown) indexed_keep(rooms->scores, call->heads, view.length, call->weights + row * call->heads * call->sources, call->sources);
    }
    panel_linear(&layer->answer, rooms->given, row_size, rows, rooms->change, row_size, 0);
    decoder_after(call, &layer->norms[1], rooms, rows, row_size);
}

static void decoder_task(int64_t task, void *scratch, const void *context) {
    const DecoderCall *call = context;
    const int64_t width = call->width, row_size = panel_whole(width), start = task * DECODER_ROWS;
    const int64_t rows = call->rows - start < DECODER_ROWS ? call->rows - start : DECODER_ROWS;
    decoder_rooms rooms = {.x = scratch};
    rooms.given = rooms.x + panel_room(DECODER_ROWS * row_size);
    rooms.change = rooms.given + panel_room(DECODER_ROWS * row_size);
    rooms.wide = rooms.change + panel_room(DECODER_ROWS * row_size);
    rooms.scores = rooms.wide + panel_room(DECODER_ROWS * call->wide);
    for (int64_t i = 0; i < rows; i++) memcpy(rooms.x + i * row_size, call->x + (start + i) * width, (size_t)width * sizeof(real));
    for (int64_t number = 0; number < call->count; number++) {
        const DecoderLayer *layer = &call->layers[number];
        decoder_self(call, layer, &rooms, start, rows);
        decoder_source(call, layer, &rooms, start, rows, number == call->shown);
        const real *given = decoder_before(call, &layer->norms[2], &rooms, rows, row_size);
        panel_linear(&layer->hidden, given, row_size, rows, rooms.wide, call->wide, 1);
        panel_linear(&layer->output, rooms.wide, call->wide, rows, rooms.change, row_size, 0);
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
    const int64_t row_size = panel_whole(call->width), longest = call->steps > call->sources ? call->steps : call->sources;
    const int64_t numbers = 3 * panel_room(DECODER_ROWS * row_size) + panel_room(DECODER_ROWS * call->wide) + indexed_room(call->heads, longest, call->areas);
    const int64_t tasks = (call->rows + DECODER_ROWS - 1) / DECODER_ROWS;
    return parallel_for(tasks, (int)call->threads, (size_t)numbers * sizeof(real), decoder_task, call);
}
