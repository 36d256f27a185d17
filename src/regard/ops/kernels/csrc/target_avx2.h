/* x86-64 with AVX2 and FMA (Haswell and later). The file is empty elsewhere: HAVE_TARGET stays 0. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define VECTOR_BYTES 32
#define VARIANT_SUFFIX avx2
#include "variant.h"
#else
#define HAVE_TARGET 0
#endif
