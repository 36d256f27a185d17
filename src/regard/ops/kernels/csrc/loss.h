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

static void loss_task(int64_t row, void *scratch, const void *context) {
    (void)scratch;
    const LossCall *call = context;
    const int64_t size = call->size, target = call->target[row];
    real *p = call->logits + row * size;
    const loss_scan found = loss_look(p, size);
    const real picked = p[target];
    call->correct[row] = loss_is_first(p, target, found.greatest);
    const double total = call->gradient ? loss_exponentials(p, size, found.greatest, 1) : loss_exponentials(p, size, found.greatest, 0);
    const double norm = found.greatest + log(total);
    call->nll[row] = (real)(norm - picked);
    call->uniform[row] = (real)(norm - found.total / (double)size);
    if (!call->gradient) return;
    const real factor = (real)(1 / total), even = (real)(call->smoothing / (double)size);
    for (int64_t i = 0; i < size; i++) p[i] = p[i] * factor - even;
    p[target] -= (real)(1 - call->smoothing);
}

int VARIANT(loss)(const LossCall *call) {
    if (!within(call->target, call->rows, call->size)) return REGARD_OUTSIDE;
    return parallel_for(call->rows, (int)call->threads, 0, loss_task, call);
}
