/* The entry points of area features: they pick the variant for the processor and the type. */
#include "feature.h"

#include "entry.h"

#define ENTRY_OF_TWO(name)                                                                                               \
    DECLARE_VARIANTS(name##_f32, FeatureCall)                                                                            \
    DECLARE_VARIANTS(name##_f64, FeatureCall)                                                                            \
    EXPORT int regard_##name(const FeatureCall *call) {                                                                  \
        static int (*const variants[2][3])(const FeatureCall *) = {VARIANTS(name##_f32), VARIANTS(name##_f64)};          \
        return variants[call->is_double != 0][regard_target()](call);                                                    \
    }

ENTRY_OF_TWO(feature_forward)
ENTRY_OF_TWO(feature_backward)
