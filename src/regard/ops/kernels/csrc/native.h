/* Shared by all native kernels: the version of the interface and the processor's best instruction set. */
#ifndef REGARD_NATIVE_H
#define REGARD_NATIVE_H

#include <stdint.h>

/* Raised, together with ABI in native.py, whenever a struct or a function that Python sees changes. */
#define REGARD_ABI 20

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* What every call returns. */
enum regard_status {
    REGARD_DONE = 0,
    REGARD_NO_MEMORY = 1, /* for the threads */
    REGARD_OUTSIDE = 2    /* a place, length, target or token names nothing; nothing was computed. Python looks which one it was */
};

/* VNNI is AVX-512 that also multiplies bytes; with tiles (AMX) it multiplies matrices of them. */
enum regard_target { TARGET_BASELINE = 0, TARGET_AVX2 = 1, TARGET_AVX512 = 2, TARGET_VNNI = 3, TARGET_TILES = 4 };

/* Whether the compiler and the system know tiles: Linux lets a process use them once it has asked. */
#if defined(__x86_64__) && !defined(REGARD_BASELINE) && defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define HAVE_TILES 1
#else
#define HAVE_TILES 0
#endif

/* The best instruction set that this processor has and this library was built for. */
EXPORT int regard_target(void);
/* Use none better than `target` from now on; for tests. */
EXPORT void regard_limit(int target);
EXPORT int regard_abi(void);
EXPORT const char *regard_threads(void);

/* Whether `count` numbers all lie in [0, end); no branch a number, so that they are compared side by side. */
static inline int within(const int64_t *numbers, int64_t count, int64_t end) {
    int64_t outside = 0;
    for (int64_t i = 0; i < count; i++) outside |= (numbers[i] < 0) | (numbers[i] >= end);
    return !outside;
}

#endif
