/* Shared by all native kernels: the version of the interface and the processor's best instruction set. */
#ifndef REGARD_NATIVE_H
#define REGARD_NATIVE_H

/* Raised, together with ABI in native.py, whenever a struct or a function that Python sees changes. */
#define REGARD_ABI 9

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

enum regard_target { TARGET_BASELINE = 0, TARGET_AVX2 = 1, TARGET_AVX512 = 2 };

/* The best instruction set that this processor has and this library was built for. */
EXPORT int regard_target(void);
/* Use none better than `target` from now on, where kernels do not say themselves which; for tests. */
EXPORT void regard_limit(int target);
EXPORT int regard_abi(void);
EXPORT const char *regard_threads(void);

#endif
