/* The exported functions: each kernel's calls the variant of the processor that runs it. */
#include "native.h"

#include "calls.h"

#if HAVE_TILES
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

EXPORT int regard_abi(void) { return REGARD_ABI; }

static int limit = TARGET_TILES;

EXPORT void regard_limit(int target) { limit = target; }

/* Whether this process may multiply matrices of bytes. Asked for once; a second thread that asks meanwhile gets the same answer. */
static int has_tiles(void) {
#if HAVE_TILES && defined(SYS_arch_prctl)
    enum { UNKNOWN, YES, NO };
    static int known = UNKNOWN;
    if (known == UNKNOWN) {
        const unsigned both = 1u << 24 | 1u << 25; /* of EDX: AMX-TILE and AMX-INT8 */
        const long request_permission = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA of the kernel */
        unsigned eax, ebx, ecx, edx;
        const int there = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & both) == both;
        known = there && !syscall(SYS_arch_prctl, request_permission, tile_data) ? YES : NO;
    }
    return known == YES;
#else
    return 0;
#endif
}

static int best_target(void) {
#if defined(__x86_64__) && !defined(REGARD_BASELINE)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
        return !__builtin_cpu_supports("avx512vnni") ? TARGET_AVX512 : has_tiles() ? TARGET_TILES : TARGET_VNNI;
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

#if defined(__x86_64__) && !defined(REGARD_BASELINE)
#define DECLARE_VARIANTS(name, call) int name##_baseline(const call *), name##_avx2(const call *), name##_avx512(const call *);
#define VARIANTS(name) {name##_baseline, name##_avx2, name##_avx512, name##_avx512, name##_avx512}
#else
#define DECLARE_VARIANTS(name, call) int name##_baseline(const call *);
#define VARIANTS(name) {name##_baseline, 0, 0, 0, 0}
#endif

/* Defines the function `pick`, which calls the variant of a kernel, name_f32 or name_f64. */
#define PICK(pick, name, call)                                         \
    DECLARE_VARIANTS(name, call)                                       \
    pick(const call *arguments) {                                      \
        static int (*const variants[5])(const call *) = VARIANTS(name); \
        return variants[regard_target()](arguments);                   \
    }

/* regard_name(const call *) for a kernel of floats. */
#define ENTRY(name, call) PICK(EXPORT int regard_##name, name##_f32, call)

/* The same for one of floats and doubles. */
#define ENTRY_OF_BOTH(name, call)                                                             \
    PICK(static int name##_single, name##_f32, call)                                          \
    PICK(static int name##_double, name##_f64, call)                                          \
    EXPORT int regard_##name(const call *arguments) {                                         \
        return (arguments->storage == STORED_DOUBLE ? name##_double : name##_single)(arguments); \
    }

#ifndef REGARD_WITHOUT_AREA
ENTRY_OF_BOTH(area_forward, AreaCall)
ENTRY_OF_BOTH(area_backward, AreaCall)
#endif
ENTRY(additive_forward, AdditiveCall)
ENTRY(additive_backward, AdditiveCall)
ENTRY(best, BestCall)
ENTRY(decoder, DecoderCall)
ENTRY(encoder, EncoderCall)
ENTRY(gates_forward, GatesCall)
ENTRY(gates_backward, GatesCall)
ENTRY(greedy, GreedyCall)
ENTRY(indexed, IndexedCall)
ENTRY(loss, LossCall)
ENTRY(loss_pair, LossPairCall)
ENTRY(pack, PackCall)
ENTRY(pack_bytes, PackBytesCall)
ENTRY(panel, PackCall)
ENTRY(recurrent, RecurrentCall)
ENTRY(residual_forward, ResidualCall)
ENTRY(residual_backward, ResidualCall)
ENTRY(rows, RowsCall)
ENTRY(vocabulary, VocabularyCall)
