/* One instruction set, named by VECTOR_BYTES: how the compiler is told, and VARIANT(name), the exported name of its variant of a kernel.
   HAVE_TARGET is 0 where the processor's family does not have it; bodies.h takes the pragma of clang off again. */
#if VECTOR_BYTES == 16 /* what every processor of the family has: SSE2 on x86-64, NEON on arm64 */
#define HAVE_TARGET 1
#define VARIANT_SUFFIX baseline
#elif !defined(__x86_64__) || defined(REGARD_BASELINE)
#define HAVE_TARGET 0
#elif VECTOR_BYTES == 32 /* Haswell and later */
#define HAVE_TARGET 1
#define VARIANT_SUFFIX avx2
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#else /* Skylake-SP, Zen 4 and later */
#define HAVE_TARGET 1
#define VARIANT_SUFFIX avx512
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#endif
#endif

#if REAL_IS_FLOAT
#define REAL_SUFFIX f32
#else
#define REAL_SUFFIX f64
#endif
#define VARIANT_JOIN(name, real, target) name##_##real##_##target
#define VARIANT_EXPAND(name, real, target) VARIANT_JOIN(name, real, target)
#define VARIANT(name) VARIANT_EXPAND(name, REAL_SUFFIX, VARIANT_SUFFIX)
