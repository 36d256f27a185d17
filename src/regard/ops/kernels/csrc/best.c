/* The entry point of the greatest log-probabilities: it picks the variant for the processor. */
#include "best.h"

#include "native.h"

typedef int (*best_function)(const BestCall *);

int best_f32_baseline(const BestCall *);
#if defined(__x86_64__)
int best_f32_avx2(const BestCall *);
int best_f32_avx512(const BestCall *);
#define VARIANTS(name) {name##_f32_baseline, name##_f32_avx2, name##_f32_avx512}
#else
#define VARIANTS(name) {name##_f32_baseline, 0, 0}
#endif

EXPORT int regard_best(const BestCall *call) {
    static const best_function variants[3] = VARIANTS(best);
    return variants[regard_target()](call);
}
