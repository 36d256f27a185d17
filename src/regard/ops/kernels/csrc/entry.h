/* The exported functions: each calls the variant of the processor that runs it. */
#ifndef REGARD_ENTRY_H
#define REGARD_ENTRY_H

#include "native.h"

#if defined(__x86_64__)
#define DECLARE_VARIANTS(name, call) int name##_baseline(const call *), name##_avx2(const call *), name##_avx512(const call *);
#define VARIANTS(name) {name##_baseline, name##_avx2, name##_avx512}
#else
#define DECLARE_VARIANTS(name, call) int name##_baseline(const call *);
#define VARIANTS(name) {name##_baseline, 0, 0}
#endif

/* regard_name(const call *) for a kernel of floats. */
#define ENTRY(name, call)                                                     \
    DECLARE_VARIANTS(name##_f32, call)                                        \
    EXPORT int regard_##name(const call *arguments) {                         \
        static int (*const variants[3])(const call *) = VARIANTS(name##_f32); \
        return variants[regard_target()](arguments);                          \
    }

#endif
