/* Where the numbers of a call lie: the worker's memory, the matrices of one head, rows in and out of any storage, and the products
   of a tile with keys, values and gradients. */
#ifndef REGARD_AREA_MEMORY_H
#define REGARD_AREA_MEMORY_H

#include "area_features.h"
#include "area_sweep.h"
#include "calls.h"
#include "simd.h"

enum { TILE = AREA_TILE, STRIPS = TILE / LANES, CHUNK = 128, GATHERED = 16 * CHUNK, BLOCK = 16 };

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* What all tasks of a call share. */
typedef struct {
    const AreaCall *call;
    Windows windows;
    int64_t key_size, value_size; /* padded to whole vectors */
    int64_t key_rows;             /* keys, or areas where the keys are theirs */
    int64_t tiles, parts;         /* tiles of queries; parts they are cut into, a task each */
    int64_t chunk;                /* keys that are swept together: all of them, but for a sequence's forward pass */
    int backward, direct_key, direct_value; /* gradients are added up in the caller's memory */
    real *partial;                /* backward with several parts: the sums of each, [head][part][partial_size] */
    int64_t block;                /* backward: heads that make one task */
    real *feature_sums;           /* backward with features: [task][feature_sums_size] */
    size_t bytes;
} Plan;

/* A worker's memory. *_rows: TILE x size, *_columns: size x TILE. */
typedef struct {
    real *query_rows, *query_columns, *grad_rows, *grad_columns, *sum_columns, *sum_rows;
    int64_t sums, gathered, moved; /* numbers of sum_columns, rows summed there and in sum_rows, see gather */
    real *scores, *grads;
    real *areas; /* with keys of areas: their scores, then gradients; one such buffer for each size */
    GridState grid;
    FeatureMemory features;
    real *key_copy, *value_copy, *grad_key, *grad_value; /* with features, these keys are those of areas */
    uint8_t *spoilt;
} Memory;

typedef struct {
    const real *data;
    int64_t row;
} Matrix;

typedef struct {
    const Plan *plan;
    int64_t batch, head;
    Matrix key, value;
    const uint8_t *mask;
    const uint8_t *spoilt; /* keys that hold NaN or infinity in key or value; NULL: none does */
    const uint8_t *bad;    /* with keys of areas: those whose key is not finite; NULL: none */
} Head;

static int64_t partial_size(const Plan *plan) {
    return plan->key_rows * plan->key_size + plan->call->keys * plan->value_size;
}

/* Numbers in the buffer of one size. */
static int64_t area_buffer(const Plan *plan) { return (plan->chunk + MOST_LENGTH) * TILE; }

/* Divide a worker's memory; returns its end. What is rarely needed stands last and costs nothing until it is touched. */
static char *divide(const Plan *plan, char *memory, Memory *m) {
    const int64_t d = plan->key_size, v = plan->value_size, keys = plan->call->keys, most = larger(d, v);
    const int64_t vectors = plan->call->grid_height > 1 ? grid_vectors(&plan->windows) * LANES : 0;
    const int64_t column = plan->call->grid_height > 1 ? plan->windows.height * plan->windows.columns * LANES : 0;
    m->query_rows = take(&memory, TILE * d);
    m->query_columns = take(&memory, TILE * d);
    m->grad_rows = take(&memory, TILE * v);
    m->grad_columns = take(&memory, TILE * v);
    m->sum_columns = take(&memory, TILE * most);
    m->sum_rows = take(&memory, TILE * most);
    m->scores = take(&memory, (plan->chunk + MOST_LENGTH) * TILE);
    m->grads = take(&memory, plan->backward ? (plan->chunk + MOST_LENGTH) * TILE : 0);
    m->areas = take(&memory, plan->call->features ? larger(plan->windows.width, feature_sizes(plan->call)) * area_buffer(plan) : 0);
    if (plan->call->features) feature_divide(plan->call, plan->backward, &memory, &m->features);
    m->grid.weight = take(&memory, column);
    m->grid.run = take(&memory, vectors - column);
    m->grid.slope = take(&memory, plan->backward ? column : 0);
    m->grid.run_grad = take(&memory, plan->backward ? vectors - column : 0);
    m->spoilt = (uint8_t *)take(&memory, keys);
    m->grad_key = take(&memory, plan->backward && plan->parts == 1 ? plan->key_rows * d : 0);
    m->grad_value = take(&memory, plan->backward && plan->parts == 1 ? keys * v : 0);
    m->key_copy = take(&memory, plan->key_rows * d);
    m->value_copy = take(&memory, keys * v);
    if (plan->call->features) {
        m->features.large = (uint8_t *)take(&memory, keys);
        m->features.bad = (uint8_t *)take(&memory, plan->key_rows);
        m->features.calm_copy = take(&memory, keys * d);
    }
    return memory;
}

static int64_t whole_vectors(int64_t size) { return (size + LANES - 1) / LANES * LANES; }

static Plan make_plan(const AreaCall *call, int backward) {
    Plan plan = {.call = call, .backward = backward};
    const int same = call->storage != STORED_BFLOAT16;
    const int64_t heads = larger(call->batch * call->heads, 1), waiting = backward || call->features ? 1 : 4;
    plan.key_size = whole_vectors(call->key_size);
    plan.value_size = whole_vectors(call->value_size);
    plan.direct_key = same && plan.key_size == call->key_size;
    plan.direct_value = same && plan.value_size == call->value_size;
    plan.tiles = (call->queries + TILE - 1) / TILE;
    plan.chunk = backward || call->grid_height > 1 ? call->keys : CHUNK;
    /* Forward: enough tasks that no thread waits long. Backward a part more costs memory for its sums, and the features of a head are made
       for each of its parts: only where heads are too few. */
    plan.parts = (waiting * call->threads + heads - 1) / heads;
    if (plan.parts > plan.tiles) plan.parts = larger(plan.tiles, 1);
    /* The heads of a task share their sums of the weights' gradients. How many they are depends on no thread, as the result must not. */
    plan.block = call->features && backward && plan.parts == 1 ? larger(heads / 64 < 16 ? heads / 64 : 16, 1) : 1;
    windows_start(&plan.windows, call);
    plan.key_rows = call->keys;
    if (call->features) plan.key_rows = area_row(call, feature_sizes(call)) + (call->grid_height > 1 ? 0 : call->area_width);
    Memory memory;
    plan.bytes = (size_t)(divide(&plan, NULL, &memory) - (char *)NULL);
    return plan;
}

static int64_t offset_of(const AreaView *view, int64_t batch, int64_t head, int64_t row) {
    return batch * view->batch + head * view->head + row * view->row;
}

/* Copy `count` rows of `size` numbers, starting at `row`, into rows of `padded` reals; rows marked in `skip`, and those from count to
   `rows`, become 0. */
static void load_rows(const Head *head, const AreaView *view, int64_t row, int64_t count, int64_t rows, int64_t size,
                      int64_t padded, const uint8_t *skip, real *to) {
    for (int64_t i = 0; i < rows; i++, to += padded) {
        int64_t found = i < count && !(skip && skip[i]) ? size : 0;
        const int64_t start = found ? offset_of(view, head->batch, head->head, row + i) : 0;
#if REAL_IS_FLOAT
        if (head->plan->call->storage == STORED_BFLOAT16)
            widen_row((const uint16_t *)view->data + start, to, found);
        else
#endif
            memcpy(to, (const real *)view->data + start, (size_t)found * sizeof(real));
        for (int64_t j = found; j < padded; j++) to[j] = 0;
    }
}

static void store_rows(const Head *head, const AreaView *view, int64_t row, int64_t count, int64_t size, int64_t padded,
                       const real *from) {
    for (int64_t i = 0; i < count; i++, from += padded) {
        const int64_t start = offset_of(view, head->batch, head->head, row + i);
#if REAL_IS_FLOAT
        if (head->plan->call->storage == STORED_BFLOAT16)
            narrow_row(from, (uint16_t *)view->data + start, size);
        else
#endif
            memcpy((real *)view->data + start, from, (size_t)size * sizeof(real));
    }
}

/* Say whether all numbers of a matrix are finite: x - x is 0 for those, NaN for the others. */
static int is_finite(const Matrix *matrix, int64_t rows, int64_t size) {
    vec sum = {0};
    real rest = 0;
    for (int64_t i = 0; i < rows; i++) {
        const real *row = matrix->data + i * matrix->row;
        int64_t j = 0;
        for (; j + LANES <= size; j += LANES) sum += load(row + j) - load(row + j);
        for (; j < size; j++) rest += row[j] - row[j];
    }
    for (int i = 0; i < LANES; i++) rest += sum[i];
    return rest == 0;
}

static Matrix open_matrix(const Head *head, const AreaView *view, int64_t rows, int64_t size, int64_t padded, real *copy) {
    const AreaCall *call = head->plan->call;
    if (call->storage != STORED_BFLOAT16) return (Matrix){(const real *)view->data + offset_of(view, head->batch, head->head, 0), view->row};
    load_rows(head, view, 0, rows, rows, size, padded, NULL, copy);
    return (Matrix){copy, padded};
}

/* Mark the areas whose key, or deviation, is not finite, and take their keys as zeros: those whom the mask hides them from must not see it.
   Those who may attend them get NaN. */
static void mark_bad(Head *head, Memory *m) {
    const AreaCall *call = head->plan->call;
    const int64_t size = call->key_size;
    for (int64_t i = 0; i < feature_sizes(call); i++) {
        /* Of i + 1 items along a sequence, of h + 1 rows and w + 1 columns on a grid. */
        const int64_t h = call->grid_height > 1 ? i / call->area_width : 0, w = i - h * call->area_width;
        for (int64_t j = area_absent(call, i, 0, call->keys); j < call->keys; j++) {
            const int64_t row = area_row(call, i) + j;
            const Matrix key = {m->key_copy + row * size, 0};
            uint8_t *bad = m->features.bad + row;
            *bad = !is_finite(&key, 1, size);
            for (int64_t up = 0; i && up <= h && up <= j / call->grid_width; up++)
                for (int64_t left = 0; left <= w && left <= j % call->grid_width; left++) *bad |= m->features.large[j - up * call->grid_width - left];
            if (*bad) memset(m->key_copy + row * size, 0, (size_t)size * sizeof(real));
        }
    }
    head->bad = m->features.bad;
}

/* Make the keys of all areas of a head. An item that nobody may attend is taken as zeros, although finite: what is huge could overflow. */
static void open_features(Head *head, Memory *m) {
    const AreaCall *call = head->plan->call;
    uint8_t *skip = m->features.skip;
    for (int64_t j = 0; j < call->keys; j++) {
        skip[j] = head->spoilt && head->spoilt[j];
        if (head->mask && !memchr(head->mask + j * call->mask.key, 1, call->mask.query ? (size_t)call->queries : 1)) skip[j] = 1;
    }
    load_rows(head, &call->key, 0, call->keys, call->keys, call->key_size, call->key_size, skip, m->features.items);
    const int any = feature_calm(call, &m->features);
    feature_forward(call, &m->features, m->key_copy);
    head->key = (Matrix){m->key_copy, call->key_size};
    if (any || !is_finite(&head->key, head->plan->key_rows, call->key_size)) mark_bad(head, m);
}

/* Find the keys and values of one head. Rows that are not finite are marked and zeroed in a copy: 0 times NaN would reach those whom the
   mask hides them from. */
static Head open_head(const Plan *plan, int64_t index, Memory *m) {
    const AreaCall *call = plan->call;
    Head head = {.plan = plan, .batch = index / call->heads, .head = index % call->heads};
    if (call->mask.data) head.mask = call->mask.data + head.batch * call->mask.batch + head.head * call->mask.head;
    head.key = open_matrix(&head, &call->key, call->keys, call->key_size, plan->key_size, m->key_copy);
    head.value = open_matrix(&head, &call->value, call->keys, call->value_size, plan->value_size, m->value_copy);
    if (!is_finite(&head.key, call->keys, call->key_size) || !is_finite(&head.value, call->keys, call->value_size)) {
        for (int64_t j = 0; j < call->keys; j++) {
            const Matrix key = {head.key.data + j * head.key.row, 0}, value = {head.value.data + j * head.value.row, 0};
            m->spoilt[j] = !is_finite(&key, 1, call->key_size) || !is_finite(&value, 1, call->value_size);
        }
        head.spoilt = m->spoilt;
        load_rows(&head, &call->value, 0, call->keys, call->keys, call->value_size, plan->value_size, m->spoilt, m->value_copy);
        head.value = (Matrix){m->value_copy, plan->value_size};
        if (!call->features) {
            load_rows(&head, &call->key, 0, call->keys, call->keys, call->key_size, plan->key_size, m->spoilt, m->key_copy);
            head.key = (Matrix){m->key_copy, plan->key_size};
        }
    }
    if (call->features) open_features(&head, m);
    return head;
}

/* Which items the rows of a chunk's results belong to: `item` first, from row `row` on, `count` of them. A sequence's results come
   area - 1 items late, so the first rows of the first chunk belong to none and the last chunk has that many more. */
typedef struct {
    int64_t item, row, count;
} Done;

/* Begin sums over the items of a tile: size x TILE. Until they end, sum_columns holds the latest and sum_rows all others, as sums of sums
   round off less than one long sum. */
static void gather_start(Memory *m, int64_t size) {
    m->sums = size * TILE;
    memset(m->sum_columns, 0, (size_t)m->sums * sizeof(real));
    m->gathered = m->moved = 0;
}

static void gather_up(Memory *m) {
    for (int64_t i = 0; i < m->sums; i += LANES) {
        store(m->sum_rows + i, m->moved ? load(m->sum_rows + i) + load(m->sum_columns + i) : load(m->sum_columns + i));
        store(m->sum_columns + i, (vec){0});
    }
    m->moved += m->gathered;
    m->gathered = 0;
}

/* Sums += rows [item, item + count) of a matrix, transposed, times rows of a chunk. */
static void gather(Memory *m, const Matrix *matrix, int64_t size, Done done, const real *chunk) {
    for (int64_t i = 0; i < done.count; i += CHUNK) {
        const int64_t depth = done.count - i < CHUNK ? done.count - i : CHUNK;
        product((product_args){.a = matrix->data + (done.item + i) * matrix->row, .a_row = 1, .a_column = matrix->row,
                               .b = chunk + (done.row + i) * TILE, .b_row = TILE, .c = m->sum_columns, .c_row = TILE, .depth = depth, .add = 1},
                size, TILE);
        if ((m->gathered += depth) >= GATHERED) gather_up(m);
    }
}

/* Multiply what a strip has summed so far. */
static void shrink_sums(Memory *m, int strip, vec shrink) {
    for (int64_t i = strip * LANES; i < m->sums; i += TILE) {
        store(m->sum_columns + i, load(m->sum_columns + i) * shrink);
        if (m->moved) store(m->sum_rows + i, load(m->sum_rows + i) * shrink);
    }
}

/* End the sums: sum_columns holds all of them, and sum_rows is free. */
static void gather_end(Memory *m) {
    for (int64_t i = 0; m->moved && i < m->sums; i += LANES) store(m->sum_columns + i, load(m->sum_columns + i) + load(m->sum_rows + i));
}

/* chunk = rows [j0, j0 + count) of a matrix times columns of the tile: count x TILE. Summed by BLOCK features: a score's rounding error is
   what all else follows from. */
static void compare(const Matrix *matrix, int64_t size, int64_t j0, int64_t count, const real *columns, real *chunk) {
    for (int64_t k = 0; k < size; k += BLOCK)
        product((product_args){.a = matrix->data + j0 * matrix->row + k, .a_row = matrix->row, .a_column = 1, .b = columns + k * TILE,
                               .b_row = TILE, .c = chunk, .c_row = TILE, .depth = size - k < BLOCK ? size - k : BLOCK, .add = k > 0},
                count, TILE);
}

/* sums of the items += rows of a chunk times the tile's first rows, `queries` of them: count x size. */
static void scatter(Matrix sums, int64_t size, Done done, const real *chunk, const real *rows, int64_t queries) {
    product((product_args){.a = chunk + done.row * TILE, .a_row = TILE, .a_column = 1, .b = rows, .b_row = size,
                           .c = (real *)sums.data + done.item * sums.row, .c_row = sums.row, .depth = queries, .add = 1}, done.count, size);
}

#endif
