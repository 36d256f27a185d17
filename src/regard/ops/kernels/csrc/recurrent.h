/* A step of a recurrent decoder, for one instruction set. A task is a block of sentences. Hypotheses that continue the same one share the
   products of its state, and those with the same last token the products of that. */
#ifndef REGARD_RECURRENT_H
#define REGARD_RECURRENT_H

#include "calls.h"
#include "indexed.h"
#include "native.h"
#include "panels.h"
#include "parallel.h"
#include "recurrent_gates.h"
#include "simd.h"

enum { RECURRENT_ROWS = 320 }; /* of a task, about: enough to read the weights seldom, few enough to stay near */

/* Workers fill one table: who finds a word UNKNOWN and makes it WRITTEN writes it down, and only what is KNOWN is read. */
enum { RECURRENT_WORD_UNKNOWN, RECURRENT_WORD_WRITTEN, RECURRENT_WORD_KNOWN };

/* What a task works on: its rows, the different parents and tokens among them, and its memory. */
typedef struct {
    const RecurrentCall *call;
    int64_t start, rows;      /* its rows */
    int64_t parents, words;   /* how many different ones */
    int64_t *parent, *word;   /* of each row: which one */
    int64_t *parent_row, *word_row; /* of each different one: the first row that has it */
    int64_t *places;          /* 0, 1, 2 ... */
    int64_t wide;             /* numbers of a row of gates */
    real *held;               /* parents x width: their states */
    real *embedded;           /* words x embedded */
    real *word_gates, *extra, *recurrent; /* gates */
    const real **word_from;   /* of each different word: its gates */
    real *query, *context;
    real *from_state, *from_word, *from_context; /* parts of the readout */
    real *scores;
} recurrent_task;

/* Numbers ids 0, 1, ... in the order in which they are met: number[i] of ids[i], first[n] where number n was met; returns how many.
   `slots` has room for `size` entries, a power of 2 above count. */
static int64_t recurrent_different(const int64_t *ids, int64_t count, int64_t *number, int64_t *first, int64_t *slots, int64_t size) {
    int64_t found = 0;
    memset(slots, 0xff, (size_t)size * sizeof(int64_t));
    for (int64_t i = 0; i < count; i++) {
        uint64_t at = (uint64_t)ids[i] * 0x9E3779B97F4A7C15u >> 32 & (uint64_t)(size - 1);
        while (slots[at] >= 0 && ids[first[slots[at]]] != ids[i]) at = (at + 1) & (uint64_t)(size - 1);
        if (slots[at] < 0) {
            first[found] = i;
            slots[at] = found++;
        }
        number[i] = slots[at];
    }
    return found;
}

static void recurrent_scores(const RecurrentCall *call, const real *query, const real *keys, int64_t length, real *scores) {
    const int64_t size = call->attended;
    for (int64_t s = 0; s < length; s++) {
        const real *key = keys + s * size;
        if (!call->vector) {
            scores[s] = (real)call->score_scale * indexed_dot(query, key, size);
            continue;
        }
        const int64_t whole = size / LANES * LANES, rest = size - whole;
        vec sum = {0};
        for (int64_t a = 0; a < whole; a += LANES) sum += load(call->vector + a) * tanh_vec(load(query + a) + load(key + a));
        if (rest) sum += load_first(call->vector + whole, rest) * tanh_vec(load_first(query + whole, rest) + load_first(key + whole, rest));
        scores[s] = lanes_sum(sum);
    }
}

/* The context of `row`, whose query is given, and its weights. */
static void recurrent_attend(const recurrent_task *task, int64_t row, const real *query, real *context) {
    const RecurrentCall *call = task->call;
    const int64_t sentence = call->sentences[(task->start + row) / call->share], length = call->lengths[sentence];
    real *weights = call->weights + (task->start + row) * call->sources;
    recurrent_scores(call, query, call->keys + sentence * call->sources * call->attended, length, weights);
    if (length) indexed_softmax(weights, length);
    memset(weights + length, 0, (size_t)(call->sources - length) * sizeof(real));
    indexed_head(call->values + sentence * call->sources * call->depth, call->depth, call->depth, weights, task->places, length, context);
}

/* Attend with `queries`, one of each parent or of each row. */
static void recurrent_context(const recurrent_task *task, const real *states, int64_t state_row, int64_t count, int by_parent) {
    const RecurrentCall *call = task->call;
    const int64_t wide = panel_whole(call->query.outputs), depth = panel_whole(call->depth);
    if (call->query.outputs) panel_linear(&call->query, states, state_row, count, task->query, wide, 0);
    for (int64_t i = 0; i < count; i++) {
        const real *query = call->query.outputs ? task->query + i * wide : states + i * state_row;
        recurrent_attend(task, by_parent ? task->parent_row[i] : i, query, task->context + i * depth);
    }
    for (int64_t row = 0; by_parent && row < task->rows; row++) {
        const int64_t other = task->parent_row[task->parent[row]];
        real *weights = call->weights + task->start * call->sources;
        if (other != row) memcpy(weights + row * call->sources, weights + other * call->sources, (size_t)call->sources * sizeof(real));
    }
}

/* The new state of a layer, of all rows. */
static void recurrent_layer(const recurrent_task *task, int64_t number) {
    const RecurrentCall *call = task->call;
    const RecurrentLayer *layer = &call->layers[number];
    const int64_t size = call->hidden, wide = task->wide, parts = layer->bias ? 1 : 2, from = number * parts * size;
    const int extra = number == 0 && call->extra.outputs > 0;
    real *next = call->next + task->start * call->width;
    panel_linear(&layer->recurrent, task->held + from, call->width, task->parents, task->recurrent, wide, 0);
    if (number > 0) panel_linear(&layer->input, next + from - parts * size, call->width, task->rows, task->word_gates, wide, 0);
    for (int64_t row = 0; row < task->rows; row++) {
        const int64_t parent = task->parent[row];
        const recurrent_gates gates = {.below = number > 0 ? task->word_gates + row * wide : task->word_from[task->word[row]],
                                       .extra = extra ? task->extra + parent * wide : NULL, .recurrent = task->recurrent + parent * wide,
                                       .bias = layer->bias, .state = task->held + parent * call->width + from,
                                       .to = next + row * call->width + from, .size = size};
        if (layer->bias)
            recurrent_gru(&gates);
        else
            recurrent_lstm(&gates);
    }
}

static void recurrent_read(const recurrent_task *task) {
    const RecurrentCall *call = task->call;
    const int64_t wide = panel_whole(call->state.outputs), depth = panel_whole(call->depth), read = call->read;
    const real *top = call->next + task->start * call->width + (call->count - 1) * (call->layers->bias ? 1 : 2) * call->hidden;
    panel_linear(&call->state, top, call->width, task->rows, task->from_state, wide, 0);
    const int projected = !call->context.outputs;
    if (!projected) panel_linear(&call->context, task->context, depth, call->first ? task->parents : task->rows, task->from_context, wide, 0);
    if (call->word.outputs) panel_linear(&call->word, task->embedded, call->embedded, task->words, task->from_word, wide, 0);
    for (int64_t row = 0; row < task->rows; row++) {
        const real *state = task->from_state + row * wide, *context = (projected ? task->context : task->from_context) + (call->first ? task->parent[row] : row) * wide;
        const real *word = call->word.outputs ? task->from_word + task->word[row] * wide : NULL;
        real *to = call->readout + (task->start + row) * read;
        for (int64_t i = 0; i < read; i += LANES) {
            const int64_t count = read - i < LANES ? read - i : LANES;
            vec sum = load_first(state + i, count) + load_first(context + i, count);
            if (word) sum += load_first(word + i, count);
            if (call->deep) {
                vec other = load_first(state + read + i, count) + load_first(context + read + i, count);
                if (word) other += load_first(word + read + i, count);
                store_first(to + i, select_vec((sum > other) | (sum != sum), sum, other), count);
            } else {
                store_first(to + i, tanh_vec(sum), count);
            }
        }
        if (call->fed) memcpy(call->next + (task->start + row + 1) * call->width - read, to, (size_t)read * sizeof(real));
    }
}

/* Give the task its memory, from `scratch` on; returns how many bytes it takes. */
static size_t recurrent_room(recurrent_task *task, int64_t rows, void *scratch) {
    const RecurrentCall *call = task->call;
    const int64_t gates = panel_whole(call->layers->recurrent.outputs), read = panel_whole(call->state.outputs);
    const int64_t sizes[] = {call->width, call->embedded, gates, gates, gates, panel_whole(call->query.outputs), panel_whole(call->depth),
                             read, read, read};
    real **rooms[] = {&task->held, &task->embedded, &task->word_gates, &task->extra, &task->recurrent, &task->query, &task->context,
                      &task->from_state, &task->from_word, &task->from_context};
    int64_t **tables[] = {&task->parent, &task->word, &task->parent_row, &task->word_row};
    char *at = scratch;
    task->wide = gates;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        *rooms[i] = (real *)at;
        at += (size_t)panel_room(rows * sizes[i]) * sizeof(real);
    }
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        *tables[i] = (int64_t *)at;
        at += (size_t)panel_room(rows) * sizeof(int64_t);
    }
    task->word_from = (const real **)at;
    at += (size_t)panel_room(rows) * sizeof(real *);
    task->places = (int64_t *)at;
    return (size_t)(at - (char *)scratch) + (size_t)panel_room(call->sources) * sizeof(int64_t);
}

/* Find out who is different in a task, and gather what they are. */
static void recurrent_gather(recurrent_task *task) {
    const RecurrentCall *call = task->call;
    int64_t size = 2;
    while (size <= task->rows) size *= 2;
    int64_t *slots = (int64_t *)task->recurrent; /* free so far, and larger: at least LANES gates of 4 bytes a row */
    task->parents = recurrent_different(call->parents + task->start, task->rows, task->parent, task->parent_row, slots, size);
    task->words = recurrent_different(call->tokens + task->start, task->rows, task->word, task->word_row, slots, size);
    for (int64_t i = 0; i < task->parents; i++)
        memcpy(task->held + i * call->width, call->past + call->parents[task->start + task->parent_row[i]] * call->width,
               (size_t)call->width * sizeof(real));
    for (int64_t s = 0; s < call->sources; s++) task->places[s] = s;
}

/* What the first layer makes of the words: read where a step before it or another worker has left it, else computed and left there. */
static void recurrent_words(const recurrent_task *task) {
    const RecurrentCall *call = task->call;
    int64_t *fresh = (int64_t *)task->recurrent, found = 0; /* words to compute; free so far */
    for (int64_t i = 0; i < task->words; i++) {
        const int64_t token = call->tokens[task->start + task->word_row[i]];
        const int known = call->word_gates && __atomic_load_n(&call->word_known[token], __ATOMIC_ACQUIRE) == RECURRENT_WORD_KNOWN;
        task->word_from[i] = known ? call->word_gates + token * task->wide : task->word_gates + found * task->wide;
        if (known) continue;
        for (int64_t j = 0; j < call->embedded; j++)
            task->embedded[found * call->embedded + j] = call->table[token * call->embedded + j] * (real)call->embedding_scale;
        fresh[found++] = token;
    }
    panel_linear(&call->layers->input, task->embedded, call->embedded, found, task->word_gates, task->wide, 0);
    for (int64_t i = 0; call->word_gates && i < found; i++) {
        int32_t *known = &call->word_known[fresh[i]], before = RECURRENT_WORD_UNKNOWN;
        if (!__atomic_compare_exchange_n(known, &before, RECURRENT_WORD_WRITTEN, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue;
        memcpy(call->word_gates + fresh[i] * task->wide, task->word_gates + i * task->wide, (size_t)task->wide * sizeof(real));
        __atomic_store_n(known, RECURRENT_WORD_KNOWN, __ATOMIC_RELEASE);
    }
}

static int64_t recurrent_tasks(const RecurrentCall *call) {
    const int64_t sentences = call->rows / call->share, least = (call->rows + RECURRENT_ROWS - 1) / RECURRENT_ROWS;
    const int64_t tasks = least < call->threads ? call->threads : least;
    return tasks < sentences ? tasks : sentences;
}

static void recurrent_run(int64_t number, void *scratch, const void *context) {
    const RecurrentCall *call = context;
    const int64_t tasks = recurrent_tasks(call), sentences = call->rows / call->share;
    recurrent_task task = {.call = call, .start = number * sentences / tasks * call->share};
    task.rows = (number + 1) * sentences / tasks * call->share - task.start;
    recurrent_room(&task, task.rows, scratch);
    recurrent_gather(&task);
    recurrent_words(&task);
    const int64_t depth = panel_whole(call->depth), top = (call->count - 1) * (call->layers->bias ? 1 : 2) * call->hidden;
    if (call->first) {
        recurrent_context(&task, task.held + top, call->width, task.parents, 1);
        panel_linear(&call->extra, task.context, depth, task.parents, task.extra, task.wide, 0);
    } else if (call->fed) {
        panel_linear(&call->extra, task.held + call->width - call->read, call->width, task.parents, task.extra, task.wide, 0);
    }
    for (int64_t layer = 0; layer < call->count; layer++) recurrent_layer(&task, layer);
    if (!call->first) recurrent_context(&task, call->next + task.start * call->width + top, call->width, task.rows, 0);
    recurrent_read(&task);
}

int VARIANT(recurrent)(const RecurrentCall *call) {
    if (!call->rows) return 0;
    if (!within(call->tokens, call->rows, call->vocabulary) || !within(call->parents, call->rows, call->states)) return REGARD_OUTSIDE;
    if (!within(call->sentences, call->rows / call->share, call->batch)) return REGARD_OUTSIDE;
    if (!within(call->lengths, call->batch, call->sources + 1)) return REGARD_OUTSIDE;
    recurrent_task task = {.call = call};
    const int64_t tasks = recurrent_tasks(call), sentences = call->rows / call->share;
    const size_t bytes = recurrent_room(&task, (sentences + tasks - 1) / tasks * call->share, NULL);
    return parallel_for(tasks, (int)call->threads, bytes, recurrent_run, call);
}

#endif
