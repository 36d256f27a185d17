/* Products of 8-bit weights in panels with rows that are rounded to 8 bits on the way, for one instruction set.

   A row becomes x = s (q - 128) with q in 1..255, a weight w = t b with |b| <= BYTES_MOST, so that y = s t (sum of q b - 128 sum of b). The
   sum is a whole number: exact, and the same on every processor that rounds weights alike. Before VNNI two products are added in 16 bits,
   where 7-bit weights cannot overflow: 2 * 255 * 63 < 2^15. */
#ifndef REGARD_BYTES_H
#define REGARD_BYTES_H

#if VECTOR_BYTES > 16
#include <immintrin.h>
#endif

#include <math.h>

#include "calls.h"
#include "native.h"
#include "simd.h"

enum { BYTES_ROOM = 1 << 16, BYTES_ROWS = 64 }; /* of rounded rows, at most: they stay near */
typedef uint8_t byte_lanes __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef int32_t loose_ints __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));

INLINE int64_t bytes_quads(int64_t inputs) { return (inputs + 3) / 4; }
/* Bytes of a rounded row, with its scale behind it. Rows a power of two apart would all stand in the same few sets of the cache. */
INLINE int64_t bytes_row(int64_t inputs) { return 4 * bytes_quads(inputs) + 64; }
INLINE float bytes_most(void) { return VECTOR_BYTES > 16 && regard_target() < TARGET_VNNI ? 63 : 127; }

/* Round a row, zeros behind it to whole fours; its scale is NaN if it is not finite. */
static void bytes_round(const real *x, int64_t inputs, uint8_t *to) {
    const real magic = 12582912.0f + 128; /* 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits */
    vec most = {0}, wrong = {0};
    for (int64_t i = 0; i < inputs; i += LANES) {
        const vec part = load_first(x + i, inputs - i < LANES ? inputs - i : LANES);
        most = maximum(maximum(part, -part), most);
        wrong += part * 0;
    }
    const real greatest = lanes_maximum(most), up = greatest > 1e-30f ? 127 / greatest : 0;
    for (int64_t i = 0; i < inputs; i += LANES) {
        const int64_t count = inputs - i < LANES ? inputs - i : LANES;
        const byte_lanes rounded = __builtin_convertvector((uvec)(load_first(x + i, count) * up + magic), byte_lanes);
        memcpy(to + i, &rounded, (size_t)count);
    }
    memset(to + inputs, 128, (size_t)(4 * bytes_quads(inputs) - inputs));
    const float scale = greatest / 127 + lanes_sum(wrong);
    memcpy(to + 4 * bytes_quads(inputs), &scale, sizeof scale);
}

typedef struct {
    const PanelLinear *layer;
    const uint8_t *rounded; /* (rows, row_size) */
    const int8_t *panel;
    int64_t quads, row_size, start; /* fours of inputs; bytes of a rounded row; the first output */
    real *y;
    int64_t y_row;
} bytes_args;

/* y of some rows for one panel; `dot` adds the products of four bytes to each lane. */
#define BYTES_BLOCK(name, attribute, dot)                                                                                        \
    INLINE attribute void bytes_block_##name(const bytes_args *p, int64_t first, int rows) {                                     \
        ivec sum[ROWS][COLUMNS];                                                                                                 \
        const uint8_t *a = p->rounded + first * p->row_size;                                                                     \
        const int8_t *b = p->panel;                                                                                              \
        UNROLL                                                                                                                   \
        for (int i = 0; i < rows; i++) {                                                                                         \
            UNROLL                                                                                                               \
            for (int j = 0; j < COLUMNS; j++) sum[i][j] = (ivec){0};                                                             \
        }                                                                                                                        \
        for (int64_t k = 0; k < p->quads; k++, a += 4, b += 4 * PANEL) {                                                         \
            ivec right[COLUMNS];                                                                                                 \
            for (int j = 0; j < COLUMNS; j++) __builtin_prefetch(b + AHEAD * PANEL + j * VECTOR_BYTES);                          \
            UNROLL                                                                                                               \
            for (int j = 0; j < COLUMNS; j++) right[j] = *(const loose_ints *)(b + j * VECTOR_BYTES);                            \
            UNROLL                                                                                                               \
            for (int i = 0; i < rows; i++) {                                                                                     \
                int32_t four;                                                                                                    \
                memcpy(&four, a + i * p->row_size, sizeof four);                                                                 \
                const ivec left = isplat(four);                                                                                  \
                UNROLL                                                                                                           \
                for (int j = 0; j < COLUMNS; j++) sum[i][j] = dot(sum[i][j], left, right[j]);                                    \
            }                                                                                                                    \
        }                                                                                                                        \
        UNROLL                                                                                                                   \
        for (int j = 0; j < COLUMNS; j++) {                                                                                      \
            const int64_t start = p->start + j * LANES;                                                                          \
            const vec scale = load(p->layer->scales + start);                                                                    \
            const ivec offset = *(const loose_ints *)(p->layer->offsets + start);                                                \
            UNROLL                                                                                                               \
            for (int i = 0; i < rows; i++) {                                                                                     \
                float row_scale;                                                                                                 \
                memcpy(&row_scale, p->rounded + (first + i) * p->row_size + 4 * p->quads, sizeof row_scale);                     \
                const vec found = __builtin_convertvector(sum[i][j] - offset, vec) * (scale * row_scale);                        \
                store(p->y + (first + i) * p->y_row + j * LANES, found);                                                         \
            }                                                                                                                    \
        }                                                                                                                        \
    }                                                                                                                            \
    static attribute __attribute__((noinline)) void bytes_rows_##name(const bytes_args *p, int64_t rows) {                       \
        int64_t i = 0;                                                                                                           \
        for (; i + ROWS <= rows; i += ROWS) bytes_block_##name(p, i, ROWS);                                                      \
        for (; i + 2 <= rows; i += 2) bytes_block_##name(p, i, 2);                                                               \
        if (i < rows) bytes_block_##name(p, i, 1);                                                                               \
    }

#if VECTOR_BYTES == 64
INLINE ivec bytes_dot(ivec sum, ivec left, ivec right) {
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)left, (__m512i)right);
    return sum + (ivec)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
}
#define BYTES_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")))
#define BYTES_DOT_VNNI(sum, left, right) (ivec) _mm512_dpbusd_epi32((__m512i)(sum), (__m512i)(left), (__m512i)(right))
BYTES_BLOCK(vnni, BYTES_VNNI, BYTES_DOT_VNNI)
#elif VECTOR_BYTES == 32
INLINE ivec bytes_dot(ivec sum, ivec left, ivec right) {
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)left, (__m256i)right);
    return sum + (ivec)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
#else
INLINE ivec bytes_dot(ivec sum, ivec left, ivec right) {
    UNROLL
    for (int i = 0; i < 4; i++) sum += (left >> (8 * i) & 255) * ((ivec)((uvec)right << (24 - 8 * i)) >> 24);
    return sum;
}
#endif
BYTES_BLOCK(any, , bytes_dot)

static void bytes_panel(const bytes_args *p, int64_t rows) {
#if VECTOR_BYTES == 64
    if (regard_target() >= TARGET_VNNI) {
        bytes_rows_vnni(p, rows);
        return;
    }
#endif
    bytes_rows_any(p, rows);
}

/* y of rounded rows for `count` panels from panel `first` on, as panel_some. */
static void bytes_some(const PanelLinear *layer, int64_t first, int64_t count, const uint8_t *rounded, int64_t rows, real *y, int64_t y_row) {
    const int64_t quads = bytes_quads(layer->inputs);
    for (int64_t panel = 0; panel < count; panel++) {
        const bytes_args args = {.layer = layer, .rounded = rounded, .quads = quads, .row_size = bytes_row(layer->inputs),
                                 .start = (first + panel) * PANEL, .panel = layer->bytes + (first + panel) * PANEL * 4 * quads,
                                 .y = y + panel * PANEL, .y_row = y_row};
        bytes_panel(&args, rows);
    }
}

/* y of all panels. */
static void bytes_all(const PanelLinear *layer, int64_t count, const real *x, int64_t x_row, int64_t rows, real *y, int64_t y_row) {
    const int64_t row_size = bytes_row(layer->inputs), fit = BYTES_ROOM / row_size, most = fit < 1 ? 1 : fit < BYTES_ROWS ? fit : BYTES_ROWS;
    uint8_t rounded[most * row_size];
    for (int64_t start = 0; start < rows; start += most) {
        const int64_t size = rows - start < most ? rows - start : most;
        for (int64_t i = 0; i < size; i++) bytes_round(x + (start + i) * x_row, layer->inputs, rounded + i * row_size);
        bytes_some(layer, 0, count, rounded, size, y + start * y_row, y_row);
    }
}

/* Round the weights of an output; those behind its inputs are zeros. */
static void bytes_pack(const PackBytesCall *call, int64_t output) {
    const int64_t quads = bytes_quads(call->inputs);
    const real *weight = call->weight + output * call->inputs;
    int8_t *panel = call->bytes + output / PANEL * PANEL * 4 * quads + output % PANEL * 4;
    const int there = output < call->outputs;
    float greatest = 0, wrong = 0;
    for (int64_t i = 0; there && i < call->inputs; i++) {
        const float size = weight[i] < 0 ? -weight[i] : weight[i];
        greatest = size > greatest ? size : greatest;
        wrong += weight[i] * 0;
    }
    const float up = greatest > 1e-30f ? bytes_most() / greatest : 0;
    int32_t sum = 0;
    for (int64_t i = 0; i < 4 * quads; i++) {
        const int8_t byte = there && i < call->inputs && !(wrong != wrong) ? (int8_t)lrintf(weight[i] * up) : 0;
        panel[i / 4 * 4 * PANEL + i % 4] = byte;
        sum += byte;
    }
    call->scales[output] = there ? greatest / bytes_most() + wrong : 0;
    call->offsets[output] = 128 * sum;
}

#endif
