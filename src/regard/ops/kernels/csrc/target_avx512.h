/* x86-64 with AVX-512 F, BW, DQ and VL (Skylake-SP, Zen 4 and later). Elsewhere HAVE_TARGET stays 0. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#endif
#define VECTOR_BYTES 64
#define VARIANT_SUFFIX avx512
#include "variant.h"
#else
#define HAVE_TARGET 0
#endif
