/* The most probable outputs of an output layer, for one instruction set. A task is a block of rows; their logits come piece by piece. */
#ifndef REGARD_VOCABULARY_H
#define REGARD_VOCABULARY_H

#include <math.h>

#include "best.h"
#include "calls.h"
#include "native.h"
#include "panels.h"
#include "parallel.h"
#include "simd.h"

enum { VOCABULARY_ROWS = 320, VOCABULARY_PANELS = 8 }; /* of a piece of logits, about, which stays near */
enum { PIECE = VOCABULARY_PANELS * PANEL, VOCABULARY_BLOCK = 2 * ROWS }; /* rows at a time */

/* What is known of a row so far. */
typedef struct {
    best_list best;
    real greatest;    /* of the logits */
    real sums[LANES]; /* of exp(logit - greatest), lane by lane */
    real instead;     /* the logit of the output that is taken where there is none */
} vocabulary_row;

static inline int vocabulary_allows(const VocabularyCall *call, int64_t place) {
    for (int64_t i = 0; i < call->forbidden_count; i++)
        if (call->forbidden[i] == place) return 0;
    return place < call->output.outputs;
}

/* Put what is among the best into their list: rare, once the first pieces are done. */
static __attribute__((noinline)) void vocabulary_insert(const VocabularyCall *call, best_list *best, const real *logits, int64_t start) {
    for (int64_t i = 0; i < PIECE; i += LANES) {
        if (best->found == best->count && !(lanes_maximum(load(logits + i)) > best->values[best->count - 1])) continue;
        for (int64_t j = i; j < i + LANES; j++)
            if ((best->found < best->count || logits[j] > best->values[best->count - 1]) && vocabulary_allows(call, start + j))
                best_insert(best, logits[j], start + j);
    }
}

/* Take notice of a piece of a row's logits, those of the outputs from `start` on. */
static void vocabulary_piece(const VocabularyCall *call, vocabulary_row *row, const real *logits, int64_t start) {
    enum { CHAINS = 4 }; /* side by side: one would wait for itself */
    const real log2_e = (real)1.4426950408889634;
    vec most[CHAINS], sums[CHAINS];
    UNROLL
    for (int i = 0; i < CHAINS; i++) most[i] = splat((real)-INFINITY), sums[i] = (vec){0};
    UNROLL
    for (int i = 0; i < PIECE / LANES; i++) most[i % CHAINS] = maximum(load(logits + i * LANES), most[i % CHAINS]);
    const real greatest = lanes_maximum(maximum(maximum(most[0], most[1]), maximum(most[2], most[3])));
    best_list *best = &row->best;
    if (best->found < best->count || greatest > best->values[best->count - 1]) vocabulary_insert(call, best, logits, start);
    if (greatest > row->greatest) {
        store(row->sums, load(row->sums) * (real)exp((double)row->greatest - greatest));
        row->greatest = greatest;
    }
    /* Less the greatest first: log2(e) times it, rounded, would be off by more than the log-probability of a sure output is. */
    const real base = row->greatest == (real)-INFINITY ? 0 : row->greatest;
    UNROLL
    for (int i = 0; i < PIECE / LANES; i++) sums[i % CHAINS] += exp2_vec((load(logits + i * LANES) - base) * log2_e);
    store(row->sums, load(row->sums) + ((sums[0] + sums[1]) + (sums[2] + sums[3])));
}

/* Logits to log-probabilities. */
static void vocabulary_finish(const VocabularyCall *call, vocabulary_row *row) {
    const real greatest = row->greatest, log_sum = (real)log((double)lanes_sum(load(row->sums))), instead = row->instead - greatest - log_sum;
    real *values = row->best.values;
    for (int64_t i = 0; i < call->count; i++) {
        if (i >= row->best.found) row->best.places[i] = 0;
        values[i] = i < row->best.found ? values[i] - greatest - log_sum : (real)-INFINITY;
        values[i] = values[i] > 0 ? 0 : values[i];
    }
    if (values[0] != (real)-INFINITY) return;
    row->best.places[0] = call->instead;
    values[0] = instead < call->least ? (real)call->least : instead > 0 ? 0 : instead;
}

/* The memory of a task. */
typedef struct {
    int64_t *list; /* rows to do now */
    real *x;       /* theirs, side by side */
    uint8_t *rounded; /* in place of x where the weights have 8 bits */
    real *logits;  /* a piece of so many as are done at once */
    vocabulary_row *known;
    best_list sums;
} vocabulary_rooms;

/* Do the first `count` rows of the list. */
static void vocabulary_rows(const VocabularyCall *call, const vocabulary_rooms *rooms, int64_t count) {
    const int64_t inputs = call->output.inputs, outputs = call->output.outputs, whole = panel_whole(outputs);
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = rooms->list[i];
        if (call->output.bytes) {
            bytes_round(call->x + row * inputs, inputs, rooms->rounded + i * bytes_row(inputs));
        } else {
            memcpy(rooms->x + i * inputs, call->x + row * call->width, (size_t)call->width * sizeof(real));
            if (call->width < inputs) rooms->x[(i + 1) * inputs - 1] = 1;
        }
        rooms->known[i] = (vocabulary_row){.best = {.count = call->count, .values = call->log_probs + row * call->count,
                                                    .places = call->places + row * call->count}, .greatest = (real)-INFINITY};
    }
    for (int64_t first = 0; first < whole; first += PIECE) {
        const int64_t size = whole - first < PIECE ? whole - first : PIECE, real_ones = outputs - first < PIECE ? outputs - first : PIECE;
        for (int64_t i = 0; i < count; i++) {
            real *piece = rooms->logits + i % VOCABULARY_BLOCK * PIECE;
            const int64_t rows = i % VOCABULARY_BLOCK ? 0 : count - i < VOCABULARY_BLOCK ? count - i : VOCABULARY_BLOCK; /* to do now */
            if (rows && call->output.bytes)
                bytes_some(&call->output, first / PANEL, size / PANEL, rooms->rounded + i * bytes_row(inputs), rows, piece, PIECE);
            else if (rows)
                panel_some(&call->output, first / PANEL, size / PANEL, rooms->x + i * inputs, inputs, rows, piece, PIECE);
            for (int64_t j = 0; call->output.bias && j < real_ones && j < PIECE; j++) piece[j] += call->output.bias[first + j];
            for (int64_t j = real_ones; j < PIECE; j++) piece[j] = (real)-INFINITY;
            vocabulary_piece(call, &rooms->known[i], piece, first);
            if (call->instead >= first && call->instead < first + size) rooms->known[i].instead = piece[call->instead - first];
        }
    }
    for (int64_t i = 0; i < count; i++) vocabulary_finish(call, &rooms->known[i]);
}

/* The least sum that matters, as far as the first `count` of the rows from `row` on tell. */
static real vocabulary_bound(const VocabularyCall *call, best_list sums, int64_t row, int64_t count) {
    for (int64_t i = row * call->count; i < (row + count) * call->count; i++)
        if (call->places[i] != call->instead) best_insert(&sums, call->totals[i / call->count] + call->log_probs[i], 0);
    return sums.found == sums.count ? sums.values[sums.count - 1] : (real)-INFINITY;
}

/* Nothing of a row matters: it gets what can neither win nor end a hypothesis. */
static void vocabulary_skip(const VocabularyCall *call, int64_t row) {
    for (int64_t i = row * call->count; i < (row + 1) * call->count; i++) {
        call->places[i] = call->instead == 0;
        call->log_probs[i] = (real)call->least;
    }
}

static int64_t vocabulary_tasks(const VocabularyCall *call) {
    const int64_t least = (call->rows + VOCABULARY_ROWS - 1) / VOCABULARY_ROWS, tasks = least < call->threads ? call->threads : least;
    return tasks < call->rows / call->share ? tasks : call->rows / call->share;
}

/* Set up the memory for `rows`; returns how many bytes it takes. */
static size_t vocabulary_room(const VocabularyCall *call, int64_t rows, void *scratch, vocabulary_rooms *rooms) {
    char *at = scratch;
    const int64_t inputs = call->output.inputs, numbers = call->output.bytes ? bytes_row(inputs) / (int64_t)sizeof(real) : inputs;
    rooms->x = (real *)at;
    rooms->rounded = (uint8_t *)at;
    rooms->logits = (real *)(at += (size_t)panel_room(rows * numbers) * sizeof(real));
    rooms->list = (int64_t *)(at += (size_t)(VOCABULARY_BLOCK * PIECE) * sizeof(real));
    rooms->known = (vocabulary_row *)(at += (size_t)panel_room(rows) * sizeof(int64_t));
    rooms->sums = (best_list){.count = call->need, .places = (int64_t *)(at += (size_t)rows * sizeof(vocabulary_row))};
    rooms->sums.values = (real *)(at += (size_t)call->need * sizeof(int64_t));
    return (size_t)(at - (char *)scratch) + (size_t)call->need * sizeof(real);
}

/* Where sums matter, the better half of the rows first: they may tell that nothing of the others does, since a log-probability is at most 0. */
static void vocabulary_run(int64_t task, void *scratch, const void *context) {
    const VocabularyCall *call = context;
    const int64_t tasks = vocabulary_tasks(call), sentences = call->rows / call->share, share = call->share;
    const int64_t start = task * sentences / tasks * share, rows = (task + 1) * sentences / tasks * share - start;
    const int64_t half = call->totals ? (share + 1) / 2 : share;
    vocabulary_rooms rooms;
    vocabulary_room(call, rows, scratch, &rooms);
    int64_t count = 0;
    for (int64_t i = 0; i < rows; i++)
        if (i % share < half) rooms.list[count++] = start + i;
    vocabulary_rows(call, &rooms, count);
    if (half == share) return;
    count = 0;
    for (int64_t first = start; first < start + rows; first += share) {
        const real bound = vocabulary_bound(call, rooms.sums, first, half);
        for (int64_t row = first + half; row < first + share; row++)
            if (call->totals[row] < bound)
                vocabulary_skip(call, row);
            else
                rooms.list[count++] = row;
    }
    vocabulary_rows(call, &rooms, count);
}

int VARIANT(vocabulary)(const VocabularyCall *call) {
    if (!call->rows) return 0;
    vocabulary_rooms rooms;
    const int64_t tasks = vocabulary_tasks(call), sentences = call->rows / call->share;
    const size_t bytes = vocabulary_room(call, (sentences + tasks - 1) / tasks * call->share, NULL, &rooms);
    return parallel_for(tasks, (int)call->threads, bytes, vocabulary_run, call);
}

#endif
