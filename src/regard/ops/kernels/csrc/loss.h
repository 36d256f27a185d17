/* Cross-entropy, for one instruction set. A task is a row, which stays in the innermost caches from its first pass to its last. */
#include <math.h>

#include "calls.h"
#include "native.h"
#include "parallel.h"
#include "simd.h"

typedef struct {
    real greatest;
    double total;
} loss_scan;

static loss_scan loss_look(const real *p, int64_t size) {
    loss_scan found = {p[0], 0};
    int64_t i = 0;
    if (size >= LANES) {
        vec most = load(p), sum = {0};
        for (; i + LANES <= size; i += LANES) {
            const vec x = load(p + i);
            most = maximum(x, most);
            sum += x;
        }
        for (int lane = 0; lane < LANES; lane++) {
            found.greatest = most[lane] > found.greatest ? most[lane] : found.greatest;
            found.total += sum[lane];
        }
    }
    for (; i < size; i++) {
        found.greatest = p[i] > found.greatest ? p[i] : found.greatest;
        found.total += p[i];
    }
    return found;
}

/* The sum of exp(p[i] - greatest); with `keep` the exponentials are written over the logits. */
INLINE double loss_exponentials(real *p, int64_t size, real greatest, int keep) {
    const real log2_e = (real)1.4426950408889634;
    vec sum = {0};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        const vec e = exp2_vec((load(p + i) - greatest) * log2_e);
        if (keep) store(p + i, e);
        sum += e;
    }
    double total = 0;
    for (int lane = 0; lane < LANES; lane++) total += sum[lane];
    for (; i < size; i++) {
        const real e = (real)exp((double)p[i] - greatest);
        if (keep) p[i] = e;
        total += e;
    }
    return total;
}

static uint8_t loss_is_first(const real *p, int64_t target, real greatest) {
    if (p[target] != greatest) return 0;
    for (int64_t i = 0; i < target; i++)
        if (p[i] == greatest) return 0;
    return 1;
}

/* What a row gives besides its gradient. */
typedef struct {
    real *nll, *uniform;
    uint8_t *correct;
} loss_results;

/* Writes the results of row number `row`, and with `keep` exponentials over the logits p; returns the sum of these, and the greatest logit in
   *greatest. It is taken off first: added to the log of the sum, a large one would round that away. */
INLINE double loss_row(real *p, int64_t size, int64_t target, int keep, loss_results to, int64_t row, double *greatest) {
    const loss_scan found = loss_look(p, size);
    const real picked = p[target];
    to.correct[row] = loss_is_first(p, target, found.greatest);
    const double total = loss_exponentials(p, size, found.greatest, keep), rest = log(total);
    *greatest = found.greatest;
    to.nll[row] = (real)(rest + (*greatest - picked));
    to.uniform[row] = (real)(rest + (*greatest - found.total / (double)size));
    return total;
}

/* Row number `row` of the logits: in its place, or of bfloat16 a copy. */
static real *loss_open(real *logits, const uint16_t *half, int64_t row, int64_t size, real *copy) {
    if (logits) return logits + row * size;
    widen_row(half + row * size, copy, size);
    return copy;
}

static void loss_close(const real *p, uint16_t *half, int64_t row, int64_t size) {
    if (half) narrow_row(p, half + row * size, size);
}

static void loss_task(int64_t row, void *scratch, const void *context) {
    const LossCall *call = context;
    const int64_t size = call->size, target = call->target[row];
    const loss_results to = {call->nll, call->uniform, call->correct};
    real *p = loss_open(call->logits, call->half, row, size, scratch);
    double greatest;
    if (!call->gradient) {
        loss_row(p, size, target, 0, to, row, &greatest);
        return;
    }
    const double total = loss_row(p, size, target, 1, to, row, &greatest);
    const real factor = (real)(1 / total), even = (real)(call->smoothing / (double)size);
    for (int64_t i = 0; i < size; i++) p[i] = p[i] * factor - even;
    p[target] -= (real)(1 - call->smoothing);
    loss_close(p, call->half, row, size);
}

int VARIANT(loss)(const LossCall *call) {
    if (!within(call->target, call->rows, call->size)) return REGARD_OUTSIDE;
    return parallel_for(call->rows, (int)call->threads, call->half ? (size_t)call->size * sizeof(real) : 0, loss_task, call);
}

/* In place of exponentials their shares p and q, and log p - log q in place of the difference of the logits; sums of p and of q times it. */
static void loss_shares(real *p, real *q, real *ratio, int64_t size, const double factor[2], double apart, double sums[2]) {
    const vec by_p = splat((real)factor[0]), by_q = splat((real)factor[1]), less = splat((real)apart);
    vec sum_p = {0}, sum_q = {0};
    for (int64_t i = 0; i < size; i += LANES) {
        const int64_t count = size - i < LANES ? size - i : LANES;
        const vec x = load_first(p + i, count) * by_p, y = load_first(q + i, count) * by_q, r = load_first(ratio + i, count) - less;
        store_first(p + i, x, count);
        store_first(q + i, y, count);
        store_first(ratio + i, r, count);
        sum_p += x * r; /* x and y are 0 behind the row */
        sum_q += y * r;
    }
    sums[0] = sums[1] = 0;
    for (int lane = 0; lane < LANES; lane++) {
        sums[0] += sum_p[lane];
        sums[1] += sum_q[lane];
    }
}

static void loss_pair_task(int64_t row, void *scratch, const void *context) {
    const LossPairCall *call = context;
    const int64_t size = call->size, target = call->target[row];
    const loss_results to = {call->nll, call->uniform, call->correct};
    real *ratio = scratch, *p = loss_open(call->logits, call->half, row, size, ratio + size);
    real *q = loss_open(call->logits, call->half, call->rows + row, size, ratio + 2 * size);
    for (int64_t i = 0; i < size; i++) ratio[i] = p[i] == q[i] ? 0 : p[i] - q[i]; /* a class that both exclude has two of -infinity */
    double greatest[2], factor[2], sums[2];
    factor[0] = 1 / loss_row(p, size, target, 1, to, row, &greatest[0]);
    factor[1] = 1 / loss_row(q, size, target, 1, to, call->rows + row, &greatest[1]);
    loss_shares(p, q, ratio, size, factor, greatest[0] - greatest[1] + log(factor[1] / factor[0]), sums);
    call->divergence[row] = (real)(sums[0] - sums[1]);
    const real quarter = (real)(call->alpha / 4), even = (real)(call->smoothing / (double)size / 2), mean = (real)0.5;
    const real of_p = (real)sums[0], of_q = (real)sums[1];
    for (int64_t i = 0; i < size; i++) {
        const real x = p[i], y = q[i], change = quarter * (x - y);
        p[i] = x * (quarter * (ratio[i] - of_p) + mean) + change - even;
        q[i] = y * (quarter * (of_q - ratio[i]) + mean) - change - even;
    }
    const real right = (real)((1 - call->smoothing) / 2);
    p[target] -= right;
    q[target] -= right;
    loss_close(p, call->half, row, size);
    loss_close(q, call->half, call->rows + row, size);
}

int VARIANT(loss_pair)(const LossPairCall *call) {
    if (!within(call->target, call->rows, call->size)) return REGARD_OUTSIDE;
    return parallel_for(call->rows, (int)call->threads, (call->half ? 3 : 1) * (size_t)call->size * sizeof(real), loss_pair_task, call);
}
