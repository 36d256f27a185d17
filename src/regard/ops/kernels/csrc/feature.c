/* The entry points of area features: they pick the variant for the processor and the type. */
#include "feature.h"

typedef int (*feature_function)(const FeatureCall *);

#define DECLARE(target)                                                                                                     \
    int feature_forward_f32_##target(const FeatureCall *), feature_forward_f64_##target(const FeatureCall *);               \
    int feature_backward_f32_##target(const FeatureCall *), feature_backward_f64_##target(const FeatureCall *);

DECLARE(baseline)
#if defined(__x86_64__)
DECLARE(avx2)
DECLARE(avx512)
#define VARIANTS(name) {name##_baseline, name##_avx2, name##_avx512}
#else
#define VARIANTS(name) {name##_baseline, 0, 0}
#endif

EXPORT int regard_feature_forward(const FeatureCall *call) {
    static const feature_function single[3] = VARIANTS(feature_forward_f32), twice[3] = VARIANTS(feature_forward_f64);
    return (call->is_double ? twice : single)[regard_target()](call);
}

EXPORT int regard_feature_backward(const FeatureCall *call) {
    static const feature_function single[3] = VARIANTS(feature_backward_f32), twice[3] = VARIANTS(feature_backward_f64);
    return (call->is_double ? twice : single)[regard_target()](call);
}
