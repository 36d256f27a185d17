/* The entry points of area attention: they pick the variant for the processor and the type. */
#include "area.h"

#include "entry.h"

typedef int (*area_function)(const AreaCall *);

DECLARE_VARIANTS(area_forward_f32, AreaCall)
DECLARE_VARIANTS(area_forward_f64, AreaCall)
DECLARE_VARIANTS(area_backward_f32, AreaCall)
DECLARE_VARIANTS(area_backward_f64, AreaCall)

static int run(const AreaCall *call, const area_function functions[3]) {
    int best = regard_target();
    int target = call->target < 0 ? best : call->target;
    if (target > best || !functions[target]) return 2;
    return functions[target](call);
}

EXPORT int regard_area_forward(const AreaCall *call) {
    static const area_function single[3] = VARIANTS(area_forward_f32), twice[3] = VARIANTS(area_forward_f64);
    return run(call, call->storage == STORED_DOUBLE ? twice : single);
}

EXPORT int regard_area_backward(const AreaCall *call) {
    static const area_function single[3] = VARIANTS(area_backward_f32), twice[3] = VARIANTS(area_backward_f64);
    return run(call, call->storage == STORED_DOUBLE ? twice : single);
}
