/* A step of a Transformer's decoder, for one instruction set. A task is a block of rows, which goes through all layers by itself: rows meet
   in the stores only, and each reads its own past there. */
#ifndef REGARD_DECODER_H
#define REGARD_DECODER_H

#include <math.h>

#include "calls.h"
#include "indexed.h"
#include "native.h"
#include "panels.h"
#include "parallel.h"
#include "simd.h"

enum { DECODER_ROWS = 64 }; /* of a task: enough to read the weights seldom, few enough to stay near */

/* The memory of a task, each (DECODER_ROWS, ...). */
typedef struct {
    real *x, *given, *change; /* width, in whole panels */
    real *wide;               /* the widest product */
    real *scores;             /* one row's, with room for areas */
    real *mean, *squares;     /* of learned keys, (DECODER_ROWS, heads, size) */
    real *moments, *key;      /* what their products are given, (.., 2 size), and what they make, in whole panels */
    int64_t *places;          /* of one row's areas */
} decoder_rooms;

static const double DECODER_EPSILON = 1e-6; /* added to a variance */

/* The sum of x - less, or of its squares, in double precision. */
INLINE double decoder_sum(const real *x, double less, int64_t width, int squared) {
    enum { CHAINS = 16 }; /* side by side: one would wait for itself */
    double sums[CHAINS] = {0}, total = 0;
    int64_t i = 0;
    for (; i + CHAINS <= width; i += CHAINS) {
        UNROLL
        for (int j = 0; j < CHAINS; j++) {
            const double part = (double)x[i + j] - less;
            sums[j] += squared ? part * part : part;
        }
    }
    for (; i < width; i++) {
        const double part = (double)x[i] - less;
        sums[0] += squared ? part * part : part;
    }
    for (int j = 0; j < CHAINS; j++) total += sums[j];
    return total;
}

static void decoder_norm(const DecoderNorm *norm, const real *x, real *to, int64_t width, double eps) {
    const real mean = (real)(decoder_sum(x, 0, width, 0) / (double)width);
    const real scale = (real)(1 / sqrt(decoder_sum(x, mean, width, 1) / (double)width + eps));
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

/* Take one more item into the areas of `count` items that end at the newest of each row: mean and squares of keys, as Chan et al. merge
   them, and sums of values. */
static void decoder_grow(const DecoderCall *call, const DecoderLayer *layer, const decoder_rooms *rooms, int64_t start, int64_t rows, int64_t count) {
    const int64_t width = call->width, size = width / call->heads;
    const real share = 1 / (real)count, between = (real)(count - 1) / (real)count;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t place = call->places[(start + i) * call->steps + call->steps - count];
        const real *key = layer->keys + place * width, *value = layer->values + place * width;
        real *mean = rooms->mean + i * width, *squares = rooms->squares + i * width, *moments = rooms->moments + i * 2 * width;
        real *sum = layer->area_values + ((call->first + start + i) * layer->areas + count - 1) * width;
        for (int64_t j = 0; j < width; j++) {
            const real step = count > 1 ? key[j] - mean[j] : 0;
            mean[j] = count > 1 ? mean[j] + step * share : key[j];
            squares[j] = count > 1 ? squares[j] + step * step * between : 0;
            sum[j] = count > 1 ? sum[j - width] + value[j] : value[j];
        }
        for (int64_t head = 0; head < call->heads; head++)
            for (int64_t j = 0; j < size; j++) {
                moments[head * 2 * size + j] = mean[head * size + j];
                moments[head * 2 * size + size + j] = (real)sqrt(squares[head * size + j] * share + (real)DECODER_EPSILON);
            }
    }
}

/* Make the learned keys, and the values, of all areas that end at the newest item of each row. */
static void decoder_areas(const DecoderCall *call, const DecoderLayer *layer, const decoder_rooms *rooms, int64_t start, int64_t rows) {
    const int64_t width = call->width, heads = call->heads, size = width / heads, row_size = panel_whole(size);
    for (int64_t count = 1; count <= layer->areas && count <= call->steps; count++) {
        const real *shape = layer->learned.shape + (count - 1) * size;
        decoder_grow(call, layer, rooms, start, rows, count);
        panel_linear(&layer->learned.moments, rooms->moments, 2 * size, rows * heads, rooms->key, row_size, 0);
        for (int64_t i = 0; i < rows * heads; i++) {
            real *hidden = rooms->moments + i * size;
            for (int64_t j = 0; j < size; j++) {
                const real sum = rooms->key[i * row_size + j] + shape[j];
                hidden[j] = !(sum > 0) && sum == sum ? 0 : sum;
            }
        }
        panel_linear(&layer->learned.output, rooms->moments, size, rows * heads, rooms->key, row_size, 0);
        for (int64_t i = 0; i < rows; i++) {
            real *to = layer->area_keys + ((call->first + start + i) * layer->areas + count - 1) * width;
            for (int64_t head = 0; head < heads; head++)
                memcpy(to + head * size, rooms->key + (i * heads + head) * row_size, (size_t)size * sizeof(real));
        }
    }
}

/* List the areas of a row's past: those that end at an item, one item after the other. Returns how many. */
static int64_t decoder_places(const DecoderCall *call, const DecoderLayer *layer, int64_t row, int64_t *to) {
    int64_t count = 0;
    for (int64_t t = 0; t < call->steps; t++)
        for (int64_t longer = 0; longer < layer->areas && longer <= t; longer++)
            to[count++] = call->places[row * call->steps + t] * layer->areas + longer;
    return count;
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
    const int learned = layer->learned.moments.outputs > 0;
    if (learned) decoder_areas(call, layer, rooms, start, rows);
    for (int64_t i = 0; i < rows; i++) {
        indexed_view view = {layer->keys, layer->values, width, width, call->places + (start + i) * call->steps, call->steps,
                             call->heads, size, (real)(1 / sqrt((double)size)), layer->areas};
        if (learned) {
            view.keys = layer->area_keys, view.values = layer->area_values, view.places = rooms->places, view.areas = 1;
            view.length = decoder_places(call, layer, start + i, rooms->places);
        }
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
        const indexed_view view = {layer->source_keys, layer->source_values, layer->source_key_row, layer->source_value_row,
                                   layer->source_places + group * layer->sources,
                                   layer->source_lengths ? layer->source_lengths[group] : layer->sources, call->heads, size,
                                   (real)(1 / sqrt((double)size)), layer->source_areas};
        indexed_query(&view, rooms->wide + i * call->wide, rooms->scores, rooms->given + i * row_size);
        if (shown) indexed_keep(rooms->scores, call->heads, view.length, call->weights + row * call->heads * layer->sources, layer->sources);
    }
    panel_linear(&layer->answer, rooms->given, row_size, rows, rooms->change, row_size, 0);
    decoder_after(call, &layer->norms[1], rooms, rows, row_size);
}

/* Set up the memory of a task; returns how many numbers it takes. */
static int64_t decoder_room(const DecoderCall *call, real *scratch, decoder_rooms *rooms) {
    const int64_t rows = panel_room(DECODER_ROWS * panel_whole(call->width)), heads = call->heads;
    int64_t scores = 0, areas = 0;
    for (int64_t number = 0; number < call->count; number++) {
        const DecoderLayer *layer = &call->layers[number];
        const int64_t source = indexed_room(heads, layer->sources, layer->source_areas);
        const int64_t own = layer->learned.moments.outputs ? indexed_room(heads, call->steps * layer->areas, 1) : indexed_room(heads, call->steps, layer->areas);
        if (layer->learned.moments.outputs && layer->areas > areas) areas = layer->areas;
        scores = own > scores ? own : scores;
        scores = source > scores ? source : scores;
    }
    real *at = scratch;
    rooms->x = at;
    rooms->given = at += rows;
    rooms->change = at += rows;
    rooms->wide = at += rows;
    rooms->scores = at += panel_room(DECODER_ROWS * call->wide);
    at += panel_room(scores);
    if (!areas) return at - scratch;
    rooms->mean = at;
    rooms->squares = at += rows;
    rooms->moments = at += rows;
    rooms->key = at += 2 * rows;
    rooms->places = (int64_t *)(at += panel_room(DECODER_ROWS * heads * panel_whole(call->width / heads)));
    return at - scratch + call->steps * areas * (int64_t)(sizeof(int64_t) / sizeof(real));
}

static void decoder_task(int64_t task, void *scratch, const void *context) {
    const DecoderCall *call = context;
    const int64_t width = call->width, row_size = panel_whole(width), start = task * DECODER_ROWS;
    const int64_t rows = call->rows - start < DECODER_ROWS ? call->rows - start : DECODER_ROWS;
    decoder_rooms rooms;
    decoder_room(call, scratch, &rooms);
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

/* Whether all places and lengths name something that is there. */
static int decoder_within(const DecoderCall *call) {
    const int64_t groups = call->rows / call->share;
    for (int64_t number = 0; number < call->count; number++) {
        const DecoderLayer *layer = &call->layers[number];
        if (call->first < 0 || call->first + call->rows > layer->items) return 0;
        if (!within(call->places, call->rows * call->steps, layer->items)) return 0;
        if (!within(layer->source_places, groups * layer->sources, layer->source_items)) return 0;
        if (layer->source_lengths && !within(layer->source_lengths, groups, layer->sources + 1)) return 0;
    }
    return 1;
}

int VARIANT(decoder)(const DecoderCall *call) {
    if (!call->rows) return REGARD_DONE;
    if (!decoder_within(call)) return REGARD_OUTSIDE;
    decoder_rooms rooms;
    const int64_t numbers = decoder_room(call, NULL, &rooms);
    const int64_t tasks = (call->rows + DECODER_ROWS - 1) / DECODER_ROWS;
    return parallel_for(tasks, (int)call->threads, (size_t)numbers * sizeof(real), decoder_task, call);
}

#endif
