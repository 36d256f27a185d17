/* The entry points of additive scores: they pick the variant for the processor. */
#include "additive.h"

#include "native.h"

typedef int (*additive_function)(const AdditiveCall *);

int additive_forward_f32_baseline(const AdditiveCall *), additive_backward_f32_baseline(const AdditiveCall *);
#if defined(__x86_64__)
int additive_forward_f32_avx2(const AdditiveCall *), additive_backward_f32_avx2(const AdditiveCall *);
int additive_forward_f32_avx512(const AdditiveCall *), additive_backward_f32_avx512(const AdditiveCall *);
#define VARIANTS(name) {name##_f32_baseline, name##_f32_avx2, name##_f32_avx512}
#else
#define VARIANTS(name) {name##_f32_baseline, 0, 0}
#endif

EXPORT int regard_additive_forward(const AdditiveCall *call) {
    static const additive_function variants[3] = VARIANTS(additive_forward);
    return variants[regard_target()](call);
}

EXPORT int regard_additive_backward(const AdditiveCall *call) {
    static const additive_function variants[3] = VARIANTS(additive_backward);
    return variants[regard_target()](call);
}
