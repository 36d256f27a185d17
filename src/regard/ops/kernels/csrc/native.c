#include "native.h"

EXPORT int regard_abi(void) { return REGARD_ABI; }

static int limit = TARGET_AVX512;

EXPORT void regard_limit(int target) { limit = target; }

static int best_target(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
        return TARGET_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return TARGET_AVX2;
#endif
    return TARGET_BASELINE;
}

EXPORT int regard_target(void) {
    const int best = best_target();
    return best < limit ? best : limit;
}

EXPORT const char *regard_threads(void) {
#if defined(_OPENMP)
    return "OpenMP";
#elif defined(REGARD_PTHREADS)
    return "POSIX threads";
#else
    return "one thread";
#endif
}
