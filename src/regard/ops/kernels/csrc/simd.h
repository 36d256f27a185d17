/* Vectors of REAL for one instruction set. Included once per type and instruction set, by the kernels of bodies.h, after
   REAL_IS_FLOAT and target.h; everything is static.

   vec is VECTOR_BYTES wide, `ivec` the integers of the same width that comparisons give (0 or -1). The operators + - * < & work on
   vectors lane by lane: they are an extension of GCC and Clang, so that one text serves SSE2, NEON, AVX2 and AVX-512. */
#ifndef REGARD_SIMD_H
#define REGARD_SIMD_H

#include <stdint.h>
#include <string.h>

#if REAL_IS_FLOAT
typedef float real;
typedef int32_t lane_int;
typedef uint32_t lane_bits;
#define REAL_BYTES 4
#else
typedef double real;
typedef int64_t lane_int;
typedef uint64_t lane_bits;
#define REAL_BYTES 8
#endif

#define LANES (VECTOR_BYTES / REAL_BYTES)
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef real vec __attribute__((vector_size(VECTOR_BYTES)));
typedef lane_int ivec __attribute__((vector_size(VECTOR_BYTES)));
typedef lane_bits uvec __attribute__((vector_size(VECTOR_BYTES))); /* sums and shifts of these may overflow */
/* The same at any address. */
typedef real loose_vec __attribute__((vector_size(VECTOR_BYTES), aligned(REAL_BYTES), may_alias));
typedef int8_t loose_bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

INLINE vec load(const real *p) { return *(const loose_vec *)p; }
INLINE void store(real *p, vec x) { *(loose_vec *)p = x; }
/* The first `count` <= LANES numbers at p, zeros behind them. */
INLINE vec load_first(const real *p, int64_t count) {
    if (count == LANES) return load(p);
    vec x = {0};
    memcpy(&x, p, (size_t)count * sizeof(real));
    return x;
}

INLINE void store_first(real *p, vec x, int64_t count) {
    if (count == LANES)
        store(p, x);
    else
        memcpy(p, &x, (size_t)count * sizeof(real));
}

#if REAL_IS_FLOAT
/* A bfloat16 is the upper half of a float. */
static void widen_row(const uint16_t *from, real *to, int64_t size) {
    uint32_t *bits = (uint32_t *)(void *)to;
    for (int64_t i = 0; i < size; i++) bits[i] = (uint32_t)from[i] << 16;
}

/* Round to nearest, ties to even; a NaN must not round to infinity. */
static void narrow_row(const real *from, uint16_t *to, int64_t size) {
    for (int64_t i = 0; i < size; i++) {
        uint32_t bits;
        memcpy(&bits, from + i, sizeof bits);
        to[i] = from[i] != from[i] ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}
#endif

INLINE vec splat(real x) { return x - (vec){0}; } /* not x + 0: that would lose the sign of -0 */
INLINE ivec isplat(lane_int x) { return x - (ivec){0}; }
INLINE vec select_vec(ivec which, vec yes, vec no) { return (vec)((which & (ivec)yes) | (~which & (ivec)no)); }
INLINE vec maximum(vec a, vec b) { return select_vec(a > b, a, b); }

/* Add to a long sum, and keep what rounding loses of it for the next call (Kahan 1965). */
INLINE void add_to_sum(vec *sum, vec *lost, vec part) {
    const vec with = part - *lost, next = *sum + with;
    *lost = (next - *sum) - with;
    *sum = next;
}

/* LANES bytes, each 0 or 1, as lanes of 0 or -1. */
INLINE ivec load_flags(const uint8_t *p) {
    return __builtin_convertvector(*(const loose_bytes *)p, ivec) != 0;
}

/* 2^x = 2^n 2^r with n = round(x), |r| <= 1/2; the polynomial is the minimax one of the relative error (float 2e-9, double 3e-18 before
   rounding). x <= 126 is the caller's business; below -126 (-1022) the result is exactly 0, NaN stays NaN. */
INLINE vec exp2_vec(vec x) {
#if REAL_IS_FLOAT
    static const real c[] = {1.0000000005541648f, 0.693147205737196f, 0.240226468906452f, 0.055503287771053f, 0.00961848895633118f,
                             0.0013399931177124f, 0.000153458121621133f};
    const real magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits */
    const int mantissa = 23;
    const real least = -126.0f;
#else
    static const real c[] = {0.9999999999999999971, 0.69314718055994533046, 0.24022650695910156204, 0.055504108664819921605,
                             0.0096181291075883352443, 0.0013333558146789921722, 0.00015403530462514432062, 0.000015252733489988525649,
                             1.321543308967639918e-6, 1.0178198021671930844e-7, 7.0741056135081427963e-9, 4.4352827069572771511e-10};
    const real magic = 6755399441055744.0; /* 1.5 * 2^52 */
    const int mantissa = 52;
    const real least = -1022.0;
#endif
    enum { DEGREE = (int)(sizeof c / sizeof *c) - 1 };
    vec shifted = x + magic;
    vec whole = shifted - magic, r = x - whole;
    vec p = splat(c[DEGREE]);
    UNROLL
    for (int i = DEGREE - 1; i >= 0; i--) p = p * r + c[i];
    /* A NaN's low bits must not reach the exponent: as an integer a NaN is 0 or the least, whose shifted bits are 0. */
#if REAL_IS_FLOAT
    uvec count = (uvec)__builtin_convertvector(whole, ivec);
#else
    uvec count = (uvec)shifted & (uvec)(x == x);
#endif
    vec scaled = (vec)((uvec)p + (count << mantissa));
    return select_vec(x < least, (vec){0}, scaled);
}

#if REAL_IS_FLOAT
/* tanh x = x P(x^2) / Q(x^2), fitted on |x| <= 8.3 for the least relative error, 3e-8 before rounding; beyond, tanh is 1 in this precision. */
INLINE vec tanh_vec(vec x) {
    static const real p[] = {1.0f, 0.12961792945861816f, 0.0029668202623724937f, 9.696031156636309e-06f, -1.410776206967057e-08f, 2.179863407836269e-11f};
    static const real q[] = {1.0f, 0.46295103430747986f, 0.023950856178998947f, 0.0002345177053939551f};
    const real most = 8.3f;
    vec square = x * x, above = splat(p[5]), below = splat(q[3]);
    UNROLL
    for (int i = 4; i >= 0; i--) above = above * square + p[i];
    UNROLL
    for (int i = 2; i >= 0; i--) below = below * square + q[i];
    return select_vec(x > most, splat(1), select_vec(x < -most, splat(-1), x * above / below));
}
#endif

/* Interleave the lower (upper) halves of two vectors. */
#if LANES == 16
#define ZIP_LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif LANES == 8
#define ZIP_LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#elif LANES == 4
#define ZIP_LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#else
#define ZIP_LOW(a, b) __builtin_shufflevector(a, b, 0, 2)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 1, 3)
#endif

/* to[c][r] = from[r][c] * factor for LANES x LANES numbers: log2(LANES) perfect shuffles of the rows transpose a square. */
INLINE void transpose_square(const real *from, int64_t from_row, real *to, int64_t to_row, real factor) {
    vec a[LANES], b[LANES];
    UNROLL
    for (int i = 0; i < LANES; i++) a[i] = load(from + i * from_row) * factor;
    UNROLL
    for (int width = 1; width < LANES; width *= 2) {
        UNROLL
        for (int i = 0; i < LANES / 2; i++) {
            b[2 * i] = ZIP_LOW(a[i], a[i + LANES / 2]);
            b[2 * i + 1] = ZIP_HIGH(a[i], a[i + LANES / 2]);
        }
        UNROLL
        for (int i = 0; i < LANES; i++) a[i] = b[i];
    }
    UNROLL
    for (int i = 0; i < LANES; i++) store(to + i * to_row, a[i]);
}

/* to (columns x rows) = from (rows x columns) transposed, times factor; both multiples of LANES. */
static inline void transpose(const real *from, int64_t from_row, int64_t rows, int64_t columns, real *to, int64_t to_row, real factor) {
    for (int64_t r = 0; r < rows; r += LANES)
        for (int64_t c = 0; c < columns; c += LANES) transpose_square(from + r * from_row + c, from_row, to + c * to_row + r, to_row, factor);
}

/* All lanes into one: halves are joined until one lane holds it. */
#if LANES == 16
#define JOIN_HALVES(join, x)                                                                           \
    x = join(x, __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)); \
    x = join(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)); \
    x = join(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)); \
    x = join(x, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14))
#elif LANES == 8
#define JOIN_HALVES(join, x)                                            \
    x = join(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3)); \
    x = join(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5)); \
    x = join(x, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6))
#elif LANES == 4
#define JOIN_HALVES(join, x)                                \
    x = join(x, __builtin_shufflevector(x, x, 2, 3, 0, 1)); \
    x = join(x, __builtin_shufflevector(x, x, 1, 0, 3, 2))
#else
#define JOIN_HALVES(join, x) x = join(x, __builtin_shufflevector(x, x, 1, 0))
#endif

INLINE vec sum_of(vec a, vec b) { return a + b; }

INLINE real lanes_sum(vec x) {
    JOIN_HALVES(sum_of, x);
    return x[0];
}

INLINE real lanes_maximum(vec x) {
    JOIN_HALVES(maximum, x);
    return x[0];
}

/* Small matrix products. The left factor is read number by number (so it needs no packing and may be transposed by its strides), the right
   one and the result row by row in vectors:

       c[i][:] (+)= sum over k of a[i * a_row + k * a_column] * b[k][:]

   What is added to c is first summed by itself: sums of sums round off less than one long sum. */
typedef struct {
    const real *a;
    int64_t a_row, a_column;
    const real *b;
    int64_t b_row;
    real *c;
    int64_t c_row;
    int64_t depth; /* number of k */
    int add;       /* add to c, or overwrite it */
} product_args;

/* The registers hold ROWS x COLUMNS vectors of c: enough sums in flight to hide the latency of an addition, few enough to stay there. */
#if VECTOR_BYTES == 64
enum { ROWS = 8, COLUMNS = 2 };
#elif VECTOR_BYTES == 32
enum { ROWS = 6, COLUMNS = 2 };
#else
enum { ROWS = 4, COLUMNS = 2 };
#endif
/* Outputs of a weight that is packed for them; it is read once from afar, and AHEAD hides how far: inputs asked for before they are needed. */
enum { PANEL = COLUMNS * LANES, AHEAD = 32 };

/* `ahead` rows of b are asked for before they are needed; 0: none. */
INLINE void product_block(const product_args *p, int rows, int columns, int ahead, const real *a, const real *b, real *c) {
    vec sum[ROWS][COLUMNS];
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int j = 0; j < columns; j++) sum[i][j] = (vec){0};
    }
    for (int64_t k = 0; k < p->depth; k++) {
        vec right[COLUMNS];
        for (int j = 0; ahead && j < columns * VECTOR_BYTES; j += 64) __builtin_prefetch((const char *)(b + ahead * p->b_row) + j);
        UNROLL
        for (int j = 0; j < columns; j++) right[j] = load(b + j * LANES);
        UNROLL
        for (int i = 0; i < rows; i++) {
            vec left = splat(a[i * p->a_row]);
            UNROLL
            for (int j = 0; j < columns; j++) sum[i][j] += left * right[j];
        }
        a += p->a_column;
        b += p->b_row;
    }
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int j = 0; j < columns; j++) {
            real *to = c + i * p->c_row + j * LANES;
            store(to, p->add ? load(to) + sum[i][j] : sum[i][j]);
        }
    }
}

/* Fewer than ROWS rows, all at once: row by row, each addition would wait for the one before. Not inlined: it is long, and rarely called. */
static __attribute__((noinline, unused)) void product_rest(const product_args *p, int rows, int columns, const real *a, const real *b,
                                                           real *c) {
#define PRODUCT_REST(n)                                                             \
    case n:                                                                         \
        if (n < ROWS && columns == 1) product_block(p, n < ROWS ? n : 1, 1, 0, a, b, c); \
        else if (n < ROWS) product_block(p, n < ROWS ? n : 1, COLUMNS, 0, a, b, c);      \
        break
    switch (rows) {
        PRODUCT_REST(1);
        PRODUCT_REST(2);
        PRODUCT_REST(3);
        PRODUCT_REST(4);
        PRODUCT_REST(5);
        PRODUCT_REST(6);
        PRODUCT_REST(7);
    }
#undef PRODUCT_REST
}

INLINE void product_columns(const product_args *p, int64_t rows, int columns, int ahead, const real *b, real *c) {
    int64_t i = 0;
    for (; i + ROWS <= rows; i += ROWS) product_block(p, ROWS, columns, ahead, p->a + i * p->a_row, b, c + i * p->c_row);
    if (i < rows) product_rest(p, (int)(rows - i), columns, p->a + i * p->a_row, b, c + i * p->c_row);
}

/* rows x columns of c; columns is a multiple of LANES. */
static inline void product(product_args p, int64_t rows, int64_t columns) {
    int64_t j = 0;
    for (; j + COLUMNS * LANES <= columns; j += COLUMNS * LANES) product_columns(&p, rows, COLUMNS, 0, p.b + j, p.c + j);
    for (; j < columns; j += LANES) product_columns(&p, rows, 1, 0, p.b + j, p.c + j);
}

/* Take `count` numbers from a worker's memory. Buffers of whole pages would all begin at the same place of a page, and a processor takes a
   load for one of what was just stored at that place of another page: it waits. */
static real *take(char **free_memory, int64_t count) {
    char *start = *free_memory;
    *free_memory += ((size_t)count * sizeof(real) + 63) / 64 * 64 + 192;
    return (real *)start;
}

#endif
