/* What a step of a beam search keeps of its candidates. Mirrored by `_Call` in beam_cpu.py. */
#ifndef REGARD_BEAM_H
#define REGARD_BEAM_H

#include <stdint.h>

/* What is by sentence is by those still searched; `rows` says which of all each one is. */
typedef struct {
    const int64_t *rows;       /* (sentences) */
    const int64_t *max_length; /* of all sentences: the length at which all ends */
    const float *ceiling;      /* of all sentences: the length penalty at that length */
    const float *totals;       /* (sentences, hypotheses): -inf where there is none */
    const float *log_probs;    /* (sentences, hypotheses, width) of the candidates, -inf where there is none */
    const int64_t *tokens;     /* likewise */
    const float *scores;       /* (sentences, best): the best ended so far, descending, -inf where there are fewer */
    const int64_t *count;      /* (sentences): how many have ended */
    /* Ended now, in order of sentence and place; room for sentences * 2 * beam. */
    int64_t *end_rows, *end_places, *end_nodes, *end_tokens;
    float *end_scores, *end_log_probs;
    /* Sentences that are searched on, in order. */
    int64_t *kept;        /* (sentences): their places among these */
    float *kept_scores;   /* (sentences, best) */
    int64_t *kept_count;  /* (sentences) */
    /* Their hypotheses, best first, (sentences, going) each: -inf where there is none. */
    float *going_totals, *going_log_probs;
    int64_t *going_tokens, *going_beams, *going_nodes;
    int64_t sentences, hypotheses, width, beam, going, best;
    int64_t length;       /* with the candidates */
    int64_t eos;
    double enough;        /* a sentence is done when so many have ended */
    double penalty;       /* by which totals are divided at this length */
    int64_t ended, left;  /* found: how many end, and how many sentences are searched on */
    int64_t bad;          /* found: the first sentence whose candidates hold NaN, or -1 */
} BeamCall;

#endif
