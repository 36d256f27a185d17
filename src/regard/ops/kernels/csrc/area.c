/* The entry points of area attention: they pick the variant for the processor and the type. */
#include "area.h"

typedef int (*area_function)(const AreaCall *);

#define DECLARE(target)                                                                                             \
    int area_forward_f32_##target(const AreaCall *), area_forward_f64_##target(const AreaCall *);                   \
    int area_backward_f32_##target(const AreaCall *), area_backward_f64_##target(const AreaCall *);

DECLARE(baseline)
#if defined(__x86_64__)
DECLARE(avx2)
DECLARE(avx512)
#endif

static int run(const AreaCall *call, const area_function functions[3]) {
    int best = regard_target();
    int target = call->target < 0 ? best : call->target;
    if (target > best || !functions[target]) return 2;
    return functions[target](call);
}

#if defined(__x86_64__)
#define VARIANTS(name) {name##_baseline, name##_avx2, name##_avx512}
#else
#define VARIANTS(name) {name##_baseline, 0, 0}
#endif

EXPORT int regard_area_forward(const AreaCall *call) {
    static const area_function single[3] = VARIANTS(area_forward_f32), twice[3] = VARIANTS(area_forward_f64);
    return run(call, call->storage == STORED_DOUBLE ? twice : single);
}

EXPORT int regard_area_backward(const AreaCall *call) {
    static const area_function single[3] = VARIANTS(area_backward_f32), twice[3] = VARIANTS(area_backward_f64);
    return run(call, call->storage == STORED_DOUBLE ? twice : single);
}
