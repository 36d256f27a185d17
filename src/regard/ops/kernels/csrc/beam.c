/* A step of a beam search after the model's: few numbers, much to decide, so one plain loop for every processor. */
#include <math.h>
#include <stdlib.h>

#include "calls.h"
#include "native.h"

/* A hypothesis one token longer: its sum of log-probabilities, and which of its sentence's candidates it is. With phrases also how many of
   their tokens it lacks, and how many better ones lack as many. */
typedef struct {
    float total;
    int64_t place, missing, turn;
} Longer;

/* The state of a phrase of a sentence after a token. */
static int64_t beam_follow(const BeamCall *call, int64_t sentence, int64_t phrase, int64_t state, int64_t token) {
    const int64_t *letters = call->alphabet + (sentence * call->phrases + phrase) * call->letters;
    int64_t entry = !call->follow || call->follow[token];
    for (int64_t i = 0; i < call->letters; i++)
        if (letters[i] == token) entry = 2 + i;
    return call->following[state * call->entries + entry];
}

static int64_t beam_missing(const BeamCall *call, int64_t sentence, int64_t place) {
    const int64_t node = sentence * call->hypotheses + place / call->width;
    const int64_t token = call->tokens[sentence * call->hypotheses * call->width + place];
    int64_t found = 0;
    for (int64_t i = 0; i < call->phrases; i++)
        found += call->missing[beam_follow(call, sentence, i, call->states[node * call->phrases + i], token)];
    return found;
}

/* The better total first, a tie in their order. */
static int by_total(const void *left, const void *right) {
    const Longer *one = left, *other = right;
    if (one->total != other->total) return one->total < other->total ? 1 : -1;
    return one->place < other->place ? -1 : 1;
}

static int by_turn(const void *left, const void *right) {
    const Longer *one = left, *other = right;
    if (one->turn != other->turn) return one->turn < other->turn ? -1 : 1;
    return one->missing < other->missing ? -1 : one->missing > other->missing;
}

/* The candidates of a sentence with phrases: of those that lack as many tokens first the best each, then the second (Post and Vilar 2018).
   Those without room for what they lack are left out, unless all are. `all` has room for every candidate. */
static int64_t beam_turns(const BeamCall *call, int64_t sentence, Longer *all) {
    const float *totals = call->totals + sentence * call->hypotheses;
    const float *log_probs = call->log_probs + sentence * call->hypotheses * call->width;
    const int64_t room = call->max_length[call->rows[sentence]] - call->length;
    int64_t found = 0, fit = 0;
    for (int64_t place = 0; place < call->hypotheses * call->width; place++) {
        const float total = totals[place / call->width] + log_probs[place];
        if (isnan(total)) return -1;
        if (total == -INFINITY) continue;
        all[found] = (Longer){total, place, beam_missing(call, sentence, place), 0};
        fit += all[found++].missing <= room;
    }
    if (fit) {
        int64_t kept = 0;
        for (int64_t i = 0; i < found; i++)
            if (all[i].missing <= room) all[kept++] = all[i];
        found = kept;
    }
    qsort(all, (size_t)found, sizeof(Longer), by_total);
    for (int64_t i = 0; i < found; i++)
        for (int64_t j = i; j-- > 0;)
            if (all[j].missing == all[i].missing) {
                all[i].turn = all[j].turn + 1;
                break;
            }
    qsort(all, (size_t)found, sizeof(Longer), by_turn);
    return found;
}

/* The `most` best candidates of a sentence, best first, a tie in their order; returns how many, or -1 for NaN. */
static int64_t beam_rank(const BeamCall *call, int64_t sentence, Longer *best, int64_t most) {
    const float *totals = call->totals + sentence * call->hypotheses;
    const float *log_probs = call->log_probs + sentence * call->hypotheses * call->width;
    int64_t found = 0;
    for (int64_t place = 0; place < call->hypotheses * call->width; place++) {
        const float total = totals[place / call->width] + log_probs[place];
        if (isnan(total)) return -1;
        if (total == -INFINITY || (found == most && !(total > best[found - 1].total))) continue;
        int64_t at = found < most ? found++ : most - 1;
        for (; at > 0 && total > best[at - 1].total; at--) best[at] = best[at - 1];
        best[at] = (Longer){total, place, 0, 0};
    }
    return found;
}

/* Note a hypothesis that ends, and its score among the best of its sentence. */
static void beam_end(BeamCall *call, int64_t sentence, int64_t place, Longer one, float *scores) {
    const int64_t at = call->ended++, candidate = sentence * call->hypotheses * call->width + one.place;
    float score = one.total / (float)call->penalty;
    call->end_rows[at] = call->rows[sentence];
    call->end_places[at] = place;
    call->end_nodes[at] = candidate / call->width;
    call->end_tokens[at] = call->tokens[candidate];
    call->end_log_probs[at] = call->log_probs[candidate];
    call->end_scores[at] = score;
    for (int64_t i = 0; i < call->best; i++)
        if (score > scores[i]) {
            const float other = scores[i];
            scores[i] = score;
            score = other;
        }
}

/* Note a hypothesis that goes on in a place of the sentence kept next; NULL: nobody does. */
static void beam_go(const BeamCall *call, int64_t sentence, int64_t place, const Longer *one) {
    const int64_t at = call->left * call->going + place, nodes = sentence * call->hypotheses;
    const int64_t candidate = one ? nodes * call->width + one->place : 0, beam = one ? one->place / call->width : 0;
    call->going_totals[at] = one ? one->total : -INFINITY;
    call->going_log_probs[at] = one ? call->log_probs[candidate] : -INFINITY;
    call->going_tokens[at] = one ? call->tokens[candidate] : call->eos;
    call->going_beams[at] = beam;
    call->going_nodes[at] = nodes + beam;
    for (int64_t i = 0; i < call->phrases; i++) {
        const int64_t state = call->states[(nodes + beam) * call->phrases + i];
        call->going_states[at * call->phrases + i] = beam_follow(call, sentence, i, state, call->going_tokens[at]);
    }
}

/* Returns whether the sentence is searched on; what belongs to it then lies at `left`. */
static int beam_sentence(BeamCall *call, int64_t sentence, const Longer *best, int64_t found) {
    const int64_t row = call->rows[sentence], before = call->ended;
    const int at_limit = call->max_length[row] == call->length;
    float *scores = call->kept_scores + call->left * call->best;
    int64_t going = 0;
    float most = -INFINITY;
    for (int64_t i = 0; i < call->best; i++) scores[i] = call->scores[sentence * call->best + i];
    for (int64_t i = 0; i < found; i++) {
        const int64_t candidate = sentence * call->hypotheses * call->width + best[i].place;
        if (call->tokens[candidate] == call->eos) {
            if (i < call->beam) beam_end(call, sentence, i, best[i], scores);
        } else if (going < call->beam) {
            if (at_limit) beam_end(call, sentence, i, best[i], scores);
            if (best[i].total > most) most = best[i].total;
            beam_go(call, sentence, going++, &best[i]);
        }
    }
    for (int64_t i = going; i < call->going; i++) beam_go(call, sentence, i, NULL);
    call->kept[call->left] = sentence;
    call->kept_count[call->left] = call->count[sentence] + (call->ended - before);
    const float hope = most / call->ceiling[row];
    return !(at_limit || (double)call->kept_count[call->left] >= call->enough || hope <= scores[call->best - 1]);
}

static int beam_phrases_known(const BeamCall *call) {
    const int64_t nodes = call->sentences * call->hypotheses;
    return within(call->states, nodes * call->phrases, call->known) && within(call->following, call->known * call->entries, call->known) &&
           (!call->follow || within(call->tokens, nodes * call->width, call->vocabulary));
}

EXPORT int regard_beam(BeamCall *call) {
    if (!within(call->rows, call->sentences, call->all) || (call->phrases && !beam_phrases_known(call))) return REGARD_OUTSIDE;
    const int64_t most = 2 * call->beam, every = call->hypotheses * call->width;
    Longer *best = malloc((size_t)(call->phrases && every > most ? every : most) * sizeof(Longer));
    if (!best) return REGARD_NO_MEMORY;
    call->ended = call->left = 0;
    call->bad = -1;
    for (int64_t sentence = 0; sentence < call->sentences && call->bad < 0; sentence++) {
        int64_t found = call->phrases ? beam_turns(call, sentence, best) : beam_rank(call, sentence, best, most);
        if (found < 0)
            call->bad = sentence;
        else
            call->left += beam_sentence(call, sentence, best, found < most ? found : most);
    }
    free(best);
    return 0;
}
