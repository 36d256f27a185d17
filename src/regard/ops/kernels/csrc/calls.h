/* What Python passes to each kernel. `python -m tests.ops.c_structures` writes the same structures for ctypes. */
#ifndef REGARD_CALLS_H
#define REGARD_CALLS_H

#include <stdint.h>

/* Additive scores: scores[n][t][s] = sum over a of vector[a] * tanh(query[n][t][a] + key[n][s][a]). */
typedef struct {
    const float *query;  /* (batch, targets, width) */
    const float *key;    /* (batch, sources, width) */
    const float *vector; /* (width) */
    float *scores;       /* (batch, targets, sources): written by the forward pass, their gradient in the backward pass */
    float *query_grad;   /* like query; the three gradients are written by the backward pass only */
    float *key_grad;     /* like key */
    float *vector_grad;  /* (batch, width): the caller sums over the batch */
    int64_t batch, targets, sources, width;
    int64_t threads;
} AdditiveCall;

enum { FEATURE_STEP = 16 };

/* What a call of area attention holds for the keys of Eq. 9. All contiguous; F features, the key size, a multiple of FEATURE_STEP. Turned:
   transposed. */
typedef struct {
    const void *mean, *mean_turned;           /* (F, F): W_mu */
    const void *deviation, *deviation_turned; /* (F, F): W_sigma */
    const void *output;                       /* (F, F): W_d */
    const void *shape; /* (A, F): W_e e, what only the size adds; to that of single items W_sigma sqrt(epsilon) is added, their deviation */
    void *grad_mean, *grad_deviation, *grad_output, *grad_shape; /* backward only; that of W_sigma without the part of single items */
    double epsilon;                                              /* added to the variance */
} AreaFeatures;

enum area_storage { STORED_FLOAT = 0, STORED_DOUBLE = 1, STORED_BFLOAT16 = 2 };

/* Numbers of axes (B, H, rows, D): strides in elements; D is contiguous. */
typedef struct {
    void *data;
    int64_t batch, head, row;
} AreaView;

/* Bytes 0 or 1 of axes (B, H, S, T), in this order; strides 0 where they are the same for all. `query` is 0 or 1, and where it is 1 every
   row is readable up to the next multiple of AREA_TILE queries. */
typedef struct {
    const uint8_t *data;
    int64_t batch, head, key, query;
} AreaMask;

/* Queries that are worked on together. */
enum { AREA_TILE = 32 };

/* The largest area: items; length in a sequence; height and width in a grid; length with key mode features. */
enum { MOST_ITEMS = 64, MOST_LENGTH = 64, MOST_SIDE = 4, MOST_KEYED = 16 };

/* Area attention. */
typedef struct {
    AreaView query, key, value, output;
    AreaView grad_output, grad_query, grad_key, grad_value; /* backward only */
    AreaMask mask;                                          /* data NULL: everything is allowed */
    void *sums; /* (B, H, T, 2) contiguous: the largest score and the sum of 2^(score - largest) over the areas. Of the pair only the
                   log-sum matters, but rounded to one number it would spoil rows with large scores. Sum 0: a row without areas; NaN: a
                   spoilt one */
    int64_t batch, heads, queries, keys, key_size, value_size;
    int64_t grid_height, grid_width;     /* 1, S for a sequence */
    int64_t area_height, area_width;     /* the largest area */
    double scale;                        /* scores are scale * q.k */
    int32_t causal;                      /* key j is allowed for query t iff j <= t + S - T */
    int32_t mean_values;                 /* an area's value is the mean, not the sum, of its items' values */
    int32_t storage;                     /* enum area_storage, of all views; sums are double for double, float otherwise */
    int32_t threads;
    const AreaFeatures *features;        /* NULL: the key of an area is the mean of its items' keys. Otherwise it is made of them by Eq. 9,
                                            for areas of a sequence, in STORED_FLOAT or STORED_DOUBLE */
} AreaCall;

/* What a step of a beam search keeps of its candidates. What is by sentence is by those still searched; `rows` says which of all each one is. */
typedef struct {
    const int64_t *rows;       /* (sentences), 0 to all - 1 */
    const int64_t *max_length; /* of all sentences: the length at which all ends */
    const float *ceiling;      /* of all sentences: the length penalty at that length */
    const float *totals;       /* (sentences, hypotheses): -inf where there is none */
    const float *log_probs;    /* (sentences, hypotheses, width) of the candidates, -inf where there is none */
    const int64_t *tokens;     /* likewise */
    const float *scores;       /* (sentences, best): the best ended so far, descending, -inf where there are fewer */
    const int64_t *count;      /* (sentences): how many have ended */
    /* Forced phrases, or NULL: the state of each in an automaton, and the tokens with an entry of their own, -1 after the last. */
    const int64_t *states;     /* (sentences, hypotheses, phrases), 0 to known - 1 */
    const int64_t *alphabet;   /* (sentences, phrases, letters) */
    const int64_t *following;  /* (known, entries): the state after another token that may not follow a phrase, that may, after each letter */
    const int64_t *missing;    /* (known): how many tokens a state lacks */
    const uint8_t *follow;     /* (vocabulary): whether a token may follow a phrase; NULL: all may */
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
    int64_t *going_states; /* (sentences, going, phrases) */
    int64_t sentences, hypotheses, width, beam, going, best, all;
    int64_t phrases, letters, known, entries, vocabulary;
    int64_t length;       /* with the candidates */
    int64_t eos;
    double enough;        /* a sentence is done when so many have ended */
    double penalty;       /* by which totals are divided at this length */
    int64_t ended, left;  /* found: how many end, and how many sentences are searched on */
    int64_t bad;          /* found: the first sentence whose candidates hold NaN, or -1 */
} BeamCall;

enum { BEST_MOST = 64 };

/* The greatest log-probabilities of each row of logits. */
typedef struct {
    const float *logits;  /* (rows, size) */
    float *values;        /* (rows, count): the greatest logits as log-probabilities, in descending order */
    int64_t *places;      /* (rows, count): where they stand; equal ones in ascending order */
    int64_t rows, size, count; /* 1 <= count <= min(size, BEST_MOST) */
    int64_t threads;
} BestCall;

/* A product whose weight is copied once into the order in which products read it: y = W x + b. The weight (outputs, inputs) stands in panels of `regard_panel()` outputs, input by input, the last one filled with zeros. With `bytes` it is rounded to 8 bits, and so is each row of x while it is multiplied; the inputs of a panel then come four by four. */
typedef struct {
    const float *panels;
    const float *bias;      /* or NULL */
    const int8_t *bytes;    /* in place of panels, or NULL */
    const float *scales;    /* with bytes: of each output, in whole panels */
    const int32_t *offsets; /* with bytes: 128 times the sum of each output's bytes, in whole panels */
    int64_t inputs, outputs;
} PanelLinear;

/* Packing a weight. */
typedef struct {
    const float *weight; /* (outputs, inputs) */
    float *panels;
    int64_t inputs, outputs;
} PackCall;

/* Packing a weight rounded to 8 bits; see PanelLinear. */
typedef struct {
    const float *weight; /* (outputs, inputs) */
    int8_t *bytes;       /* (quads, panels, 4): outputs in whole panels, inputs in whole fours */
    float *scales;       /* (panels) */
    int32_t *offsets;    /* (panels) */
    int64_t inputs, outputs;
} PackBytesCall;

/* Products of many rows. */
typedef struct {
    PanelLinear layer;
    const float *x; /* (rows, inputs) */
    float *y;       /* (rows, panels): outputs in whole panels */
    int64_t rows, inputs, panels;
    int64_t threads;
} RowsCall;

typedef struct {
    const float *weight, *bias; /* (width); NULL: no norm */
} DecoderNorm;

/* Keys of areas by Eq. 9: W_d relu(W_mu mean + W_sigma deviation + what the size adds), for each head. */
typedef struct {
    PanelLinear moments; /* W_mu and W_sigma side by side; without outputs: keys are not learned */
    PanelLinear output;  /* W_d */
    const float *shape;  /* (areas, size of a head) */
} DecoderKeys;

typedef struct {
    PanelLinear project;       /* query, key and value of self-attention, one below the other */
    PanelLinear join;          /* its output */
    PanelLinear ask, answer;   /* query and output of the attention to the source */
    PanelLinear hidden, output; /* the feed-forward, with relu between */
    DecoderNorm norms[3];        /* of self-attention, source and feed-forward */
    float *keys, *values;        /* (items, width), what was read; the newest items are written here */
    float *area_keys, *area_values; /* with learned keys (items * areas, width): those that end at an item, the shortest first */
    const float *source_keys, *source_values; /* (source items, ...) */
    const int64_t *source_places;  /* (rows / share, sources), 0 to source_items - 1 */
    const int64_t *source_lengths; /* (rows / share), 0 to sources, or NULL: all */
    int64_t sources, source_items, source_key_row, source_value_row;
    int64_t items;               /* that there is room for in keys and values */
    int64_t areas, source_areas; /* the most items of an area of self-attention and of the source; 1: items alone */
    DecoderKeys learned;         /* of self-attention */
} DecoderLayer;

/* One step of a Transformer's decoder, without embedding and output layer. */
typedef struct {
    const DecoderLayer *layers;
    DecoderNorm norm;              /* of what comes out */
    const float *x;                /* (rows, width) */
    float *out;                    /* (rows, width) */
    float *weights;                /* (rows, heads, sources of the shown layer); zeros past the lengths */
    const int64_t *places;         /* (rows, steps), 0 to items - 1: a row's past in the store, its newest item last */
    int64_t count, shown;          /* layers, and the one whose weights are wanted */
    int64_t rows, share, width, heads, wide; /* wide: the most outputs of a product, in whole panels */
    int64_t steps;
    int64_t first;                 /* where the newest item of row 0 stands in the stores; the others follow */
    int64_t pre;                   /* norms before the parts, or after the residuals */
    double eps;
    int64_t threads;
} DecoderCall;

/* A recurrent layer over whole sources, in one direction. */
typedef struct {
    PanelLinear recurrent;  /* of the hidden state */
    const float *bias;      /* (hidden) of a GRU's new state; NULL: an LSTM */
    const float *gates;     /* (batch, sources, gates): from the input, with biases */
    const int64_t *lengths; /* (batch), 0 to sources */
    float *states;          /* (batch, sources, state_row): `hidden` numbers each, zeros past the lengths */
    float *final;           /* (batch, hidden), and behind it an LSTM's cell: (batch, 2 hidden) */
    int64_t batch, sources, hidden, state_row;
    int64_t backward;
    int64_t threads;
} EncoderCall;

/* Attention of queries to items that lie scattered: a table says where each one stands. */
typedef struct {
    const float *query;     /* (groups, share, heads, size) */
    const float *keys;      /* (items, heads, size) */
    const float *values;    /* (items, heads, size) */
    const int64_t *places;  /* (groups, length): each 0 to items - 1: the items of a group's queries, in order */
    const int64_t *lengths; /* (groups), each 0 to length, or NULL: all have `length` */
    float *context;         /* (groups, share, heads, size); zeros for a length of 0 */
    float *weights;         /* (groups, share, heads, length), or NULL; zeros past lengths */
    double scale;
    int64_t groups, share, heads, size, length, items;
    int64_t areas;              /* the most items, next to each other in a table, of an area (mean keys, sums of values); 1: items alone */
    int64_t key_row, value_row; /* elements from one item to the next */
    int64_t threads;
} IndexedCall;

/* Cross-entropy of rows of logits, and its gradient in their place. */
typedef struct {
    float *logits;         /* (rows, size); with `gradient` they become the gradient of the smoothed loss */
    uint16_t *half;        /* the same in bfloat16, in place of `logits` */
    const int64_t *target; /* (rows), each 0 to size - 1 */
    float *nll;            /* (rows): log of the sum of exponentials, minus the target's logit */
    float *uniform;        /* (rows): the same minus the mean logit */
    uint8_t *correct;      /* (rows): 1 where no logit before the target is as great as the target's, and none behind it greater */
    double smoothing;
    int64_t rows, size, gradient, threads;
} LossCall;

/* The same for two passes over the same targets, which shall agree; always with the gradient. */
typedef struct {
    float *logits;         /* (2, rows, size); they become the gradient of the mean loss and of alpha / 4 times the divergence */
    uint16_t *half;        /* the same in bfloat16, in place of `logits` */
    const int64_t *target; /* (rows), each 0 to size - 1 */
    float *nll;            /* (2, rows), as uniform and correct, of each pass: see LossCall */
    float *uniform;
    uint8_t *correct;
    float *divergence; /* (rows): KL(p || q) + KL(q || p) of the softmax of both passes */
    double smoothing, alpha;
    int64_t rows, size, threads;
} LossPairCall;

typedef struct {
    PanelLinear input;     /* of what comes from below, with a bias: the embedded word, or the layer's below */
    PanelLinear recurrent; /* of the layer's own hidden state */
    const float *bias;     /* (hidden) of a GRU's new state, behind the reset; NULL: an LSTM */
} RecurrentLayer;

/* One step of a recurrent decoder with an attention, from tokens to what the output layer sees. A product without outputs is left out. That of the context is where the values are already what it would make of them. */
typedef struct {
    const RecurrentLayer *layers;
    PanelLinear extra;          /* to the gates of the first layer: from the context (attend first), or from the last readout (fed) */
    PanelLinear query;          /* of an additive score; none: the state is the query */
    PanelLinear state, word, context; /* the parts of the readout, the state's with its bias; deep: the first of all pairs, then the second */
    const float *vector;        /* (attended) of an additive score; NULL: the inner product */
    const float *table;         /* (vocabulary, embedded) */
    float *word_gates;          /* (vocabulary, gates in whole panels): what the first layer makes of the words met so far; or NULL */
    int32_t *word_known;        /* (vocabulary): whether it is there, a RECURRENT_WORD_... */
    const float *keys, *values; /* (batch, sources, attended) and (batch, sources, depth) */
    const float *past;          /* (states, width): of each layer hidden, and cell of an LSTM; then the last readout, if it is fed */
    float *next;                /* (rows, width), likewise */
    float *readout;             /* (rows, read) */
    float *weights;             /* (rows, sources); zeros past the lengths */
    const int64_t *tokens;      /* (rows) */
    const int64_t *parents;     /* (rows), 0 to states - 1: which row of the past each continues */
    const int64_t *sentences;   /* (rows / share), 0 to batch - 1 */
    const int64_t *lengths;     /* (batch), 0 to sources */
    int64_t count, hidden, embedded, attended, depth, read; /* layers, and sizes */
    int64_t vocabulary;
    int64_t rows, share, sources, width;
    int64_t states, batch;      /* rows of the past, and sentences that there are keys of */
    int64_t first, fed, deep;   /* attend first; feed the readout back; maxout instead of tanh */
    double embedding_scale, score_scale;
    int64_t threads;
} RecurrentCall;

enum { GATES_ROWS = 16 }; /* of a task */

/* One step of a recurrent layer in training, `rows` sequences side by side. G gates of `size` numbers: i f g o of an LSTM, r z n of a GRU.
   With `half`, what is marked so is in bfloat16. */
typedef struct {
    const void *projected;    /* (rows, G size), rows `projected_row` apart, half: what comes from below, with biases; forward only */
    const void *recurrent;    /* half: what the hidden state adds, (rows, G size); backward: what comes back through it, (rows, size); or NULL */
    const float *bias;        /* (size): b of a GRU, within the reset; NULL: an LSTM */
    const uint8_t *kept;      /* (rows): 0 where the state stays and the output is 0; NULL: nowhere */
    const float *hidden;      /* (rows, size), as all that follow: before the step; of an LSTM with `kept` only */
    const float *cell;        /* LSTM only */
    float *next_hidden;       /* after the step */
    float *next_cell;
    uint16_t *half_hidden;    /* next_hidden in bfloat16, or NULL */
    float *output;            /* rows `output_row` apart, or NULL */
    float *active;            /* (rows, 4 size): the gates, and behind those of a GRU u_n + b; forward NULL: not kept */
    const float *grad_output; /* rows `output_row` apart, or NULL */
    float *grad_hidden;       /* of the state after the step, then of that before it, but for what comes back through the products */
    float *grad_cell;
    void *grad_projected;     /* like projected, half */
    void *grad_recurrent;     /* (rows, G size), half, or NULL */
    int64_t projected_row, output_row; /* in elements */
    int64_t rows, size, half, threads;
} GatesCall;

enum { RESIDUAL_ROWS = 16 }; /* of a task; partial gradients of weight and bias are one pair of rows each */

/* A residual connection with dropout and, if asked for, a layer norm, in one pass.

       sum = x + keep * change / (1 - p);  out = (sum - mean) / sqrt(variance + eps) * weight + bias

   Whether an element is kept is a function of seed, row and column: the backward pass finds it again. */
typedef struct {
    const float *x;      /* (rows, size), or NULL: zeros */
    const float *change; /* (rows, size) */
    const float *weight; /* (size), or NULL: no norm */
    const float *bias;   /* (size), or NULL: zeros */
    float *sum;          /* (rows, size); without a norm the result */
    float *out;          /* (rows, size) */
    float *stats;        /* (rows, 2): mean and 1 / sqrt(variance + eps) */
    const float *grad;   /* (rows, size), of the result */
    float *sum_grad;     /* (rows, size): of the sum, and so of x; NULL without a norm, where it is `grad` */
    float *change_grad;  /* (rows, size), or NULL without dropout, where it is that of the sum */
    float *parts;        /* (tasks, 2, size): gradients of weight and bias */
    uint64_t seed;
    double dropout, eps;
    int64_t rows, size, threads;
} ResidualCall;

/* The most probable of an output layer's outputs, without ever writing all logits down. */
typedef struct {
    PanelLinear output;      /* without bias; a bias may be the weight of an input behind the others, which is 1 */
    const float *x;          /* (rows, width): all inputs, or all but that one */
    const int64_t *forbidden; /* (forbidden_count): outputs that are none of the best, though they count in the sum */
    float *log_probs;        /* (rows, count): the greatest, in descending order, -inf behind the last; at most 0 */
    int64_t *places;         /* (rows, count): where they stand; equal ones in ascending order */
    int64_t rows, width, count, forbidden_count;
    int64_t instead;         /* the output that is taken where none is left, or all are impossible */
    double least;            /* its log-probability is no lower */
    const float *totals;     /* (rows), what log-probabilities are added to, or NULL */
    int64_t share, need;     /* of the sums of `share` rows only the `need` greatest matter, and what of `instead` is as great */
    int64_t threads;
} VocabularyCall;

/* Of the numbers that change while a greedy search runs: its rows, how many tokens each has, the first sentence whose logits are none, or -1. */
enum { GREEDY_ROWS, GREEDY_LENGTH, GREEDY_BAD };

/* Steps of a greedy search, one row a sentence: a decoder's step, the most probable token of each row, and the rows that have not ended. */
typedef struct {
    DecoderCall *decoder;     /* of a Transformer: its places, rows, steps and first are written here, and its layers' tables of the source */
    RecurrentCall *recurrent; /* or of a recurrent decoder: its rows, states, past, next and sentences are written here */
    VocabularyCall *output;   /* `instead` ends a sentence */
    const float *table;       /* (vocabulary, width): the embedding, times scale; of a Transformer only, as the next four */
    const float *positions;   /* (most, width) */
    float *x;                 /* (sentences, width): what the step is given */
    int64_t *places;          /* (2, sentences, most): room */
    double scale;
    const int64_t *names;     /* (outputs): the token of each output, or NULL where each is its own */
    const int64_t *limits;    /* (sentences), 0 to most: tokens of each at most */
    int64_t *live, *last, *kept; /* (sentences): of each row the sentence, the last token, and which row it was in the step before */
    int64_t *tokens;          /* (sentences, most): found */
    float *log_probs;         /* likewise */
    float *totals;            /* (sentences): sums of those, from 0 on */
    int64_t *lengths;         /* (sentences): how many */
    int64_t *now;             /* (3): GREEDY_... */
    int64_t sentences, most, width, vocabulary;
    int64_t forbidden;        /* tokens that are never taken; the last of them is allowed from min_length tokens on */
    int64_t min_length;
    int64_t turns;            /* steps of this call, at most */
} GreedyCall;

#endif
