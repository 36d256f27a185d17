/* A greedy search, for one instruction set: steps of a decoder, and what the most probable token of each row means for it. The steps are
   those of decoder.h or recurrent.h, whose tables are written here; rows that have ended leave them. */
#include "calls.h"
#include "decoder.h"
#include "native.h"
#include "recurrent.h"
#include "simd.h"
#include "vocabulary.h"

/* A function of its own: the product is rounded before a position is added to it. */
static __attribute__((noinline)) void greedy_scaled(const real *from, real scale, int64_t width, real *to) {
    for (int64_t j = 0; j < width; j++) to[j] = from[j] * scale;
}

/* Embed the last token of each row. */
static void greedy_embed(const GreedyCall *call) {
    const int64_t width = call->width;
    const real *position = call->positions + call->now[GREEDY_LENGTH] * width;
    for (int64_t i = 0; i < call->now[GREEDY_ROWS]; i++) {
        real *x = call->x + i * width;
        greedy_scaled(call->table + call->last[i] * width, (real)call->scale, width, x);
        for (int64_t j = 0; j < width; j++) x[j] += position[j];
    }
}

/* The past of each row is that of the row it was, and the item that the step will write. Both tables stand in `places`, by turns. */
static void greedy_places(const GreedyCall *call) {
    DecoderCall *step = call->decoder;
    const int64_t rows = call->now[GREEDY_ROWS], length = call->now[GREEDY_LENGTH], half = call->sentences * call->most;
    const int64_t *old = call->places + (length + 1) % 2 * half;
    int64_t *new = call->places + length % 2 * half;
    step->first += step->rows;
    for (int64_t i = 0; i < rows; i++) {
        memcpy(new + i * (length + 1), old + call->kept[i] * length, (size_t)length * sizeof(int64_t));
        new[i * (length + 1) + length] = step->first + i;
    }
    step->places = new;
    step->steps = length + 1;
    step->rows = rows;
}

/* Let the sources of rows that have ended leave the tables. */
static void greedy_sources(const GreedyCall *call) {
    const int64_t rows = call->now[GREEDY_ROWS];
    for (int64_t number = 0; call->decoder && number < call->decoder->count; number++) {
        const DecoderLayer *layer = &call->decoder->layers[number];
        int64_t *places = (int64_t *)layer->source_places, *lengths = (int64_t *)layer->source_lengths;
        for (int64_t i = 0; i < rows; i++) {
            memmove(places + i * layer->sources, places + call->kept[i] * layer->sources, (size_t)layer->sources * sizeof(int64_t));
            if (lengths) lengths[i] = lengths[call->kept[i]];
        }
    }
    int64_t *sentences = call->recurrent ? (int64_t *)call->recurrent->sentences : NULL;
    for (int64_t i = 0; sentences && i < rows; i++) sentences[i] = sentences[call->kept[i]];
}

/* Take the most probable token of each row. Those that end leave. */
static void greedy_take(const GreedyCall *call) {
    const int64_t rows = call->now[GREEDY_ROWS], length = ++call->now[GREEDY_LENGTH];
    int64_t count = 0;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t place = call->output->places[i], token = call->names ? call->names[place] : place;
        const int64_t sentence = call->live[i], at = sentence * call->most + length - 1;
        call->tokens[at] = token;
        call->log_probs[at] = call->output->log_probs[i];
        call->totals[sentence] += call->log_probs[at];
        call->lengths[sentence] = length;
        if (call->totals[sentence] != call->totals[sentence] && call->now[GREEDY_BAD] < 0) call->now[GREEDY_BAD] = sentence;
        if (place == call->output->instead || length >= call->limits[sentence]) continue;
        call->kept[count] = i;
        call->live[count] = sentence;
        call->last[count++] = token;
    }
    call->now[GREEDY_ROWS] = count;
    if (count < rows) greedy_sources(call);
}

static int greedy_step(const GreedyCall *call) {
    const int64_t rows = call->now[GREEDY_ROWS];
    if (call->decoder) {
        if (!within(call->last, rows, call->vocabulary)) return REGARD_OUTSIDE;
        greedy_embed(call);
        greedy_places(call);
        return VARIANT(decoder)(call->decoder);
    }
    RecurrentCall *step = call->recurrent;
    step->rows = rows;
    const int status = VARIANT(recurrent)(step);
    real *past = (real *)step->past;
    step->past = step->next;
    step->next = past;
    step->states = rows;
    return status;
}

int VARIANT(greedy)(const GreedyCall *call) {
    VocabularyCall *output = call->output;
    if (!within(call->limits, call->sentences, call->most + 1)) return REGARD_OUTSIDE;
    for (int64_t turn = 0; turn < call->turns && call->now[GREEDY_ROWS] && call->now[GREEDY_BAD] < 0; turn++) {
        int status = greedy_step(call);
        if (status != REGARD_DONE) return status;
        output->rows = call->now[GREEDY_ROWS];
        output->forbidden_count = call->forbidden - (call->now[GREEDY_LENGTH] >= call->min_length);
        status = VARIANT(vocabulary)(output);
        if (status != REGARD_DONE) return status;
        greedy_take(call);
    }
    return REGARD_DONE;
}
