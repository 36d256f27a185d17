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

/* Whole vectors first: what is copied by a number of bytes that the compiler does not know costs a call each. */
INLINE void bytes_round_part(vec part, real up, uint8_t *to, int64_t count) {
    const real magic = 12582912.0f + 128; /* 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits */
    const byte_lanes rounded = __builtin_convertvector((uvec)(part * up + magic), byte_lanes);
    if (count == LANES)
        *(byte_lanes *)to = rounded;
    else
        memcpy(to, &rounded, (size_t)count);
}

/* Round a row, zeros behind it to whole fours; its scale is NaN if it is not finite. */
static void bytes_round(const real *x, int64_t inputs, uint8_t *to) {
    enum { CHAINS = 4 }; /* side by side: one would wait for itself */
    const int64_t left = inputs % LANES, whole = inputs - left;
    vec most[CHAINS], wrong[CHAINS];
    UNROLL
    for (int i = 0; i < CHAINS; i++) most[i] = wrong[i] = (vec){0};
    for (int64_t start = 0; start < whole; start += CHAINS * LANES) {
        UNROLL
        for (int i = 0; i < CHAINS; i++) {
            if (start + i * LANES >= whole) break;
            const vec part = load(x + start + i * LANES);
            most[i] = maximum(maximum(part, -part), most[i]);
            wrong[i] += part * 0;
        }
    }
    const vec last = left ? load_first(x + whole, left) : (vec){0};
    most[0] = maximum(maximum(last, -last), most[0]);
    wrong[0] += last * 0;
    const real greatest = lanes_maximum(maximum(maximum(most[0], most[1]), maximum(most[2], most[3])));
    const real up = greatest > 1e-30f ? 127 / greatest : 0;
    for (int64_t i = 0; i < whole; i += LANES) bytes_round_part(load(x + i), up, to + i, LANES);
    if (left) bytes_round_part(last, up, to + whole, left);
    memset(to + inputs, 128, (size_t)(4 * bytes_quads(inputs) - inputs));
    const float scale = greatest / 127 + lanes_sum((wrong[0] + wrong[1]) + (wrong[2] + wrong[3]));
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

#if HAVE_TILES && REAL_IS_FLOAT
/* AMX: tiles of 16 rows of 64 bytes. A panel is two tiles wide, rows come in sixteens, inputs in 64s; what is left over is for VNNI. */
enum { TILE_ROWS = 16, TILE_BYTES = 64, TILE_QUADS = TILE_BYTES / 4 };
#define BYTES_TILES __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,amx-tile,amx-int8")))

/* Sums of one or two times 16 rows for one panel: of tiles 0 to 3. */
INLINE BYTES_TILES void bytes_tiles_sums(const bytes_args *p, int64_t first, int two, int32_t sums[2 * TILE_ROWS][PANEL]) {
    const uint8_t *a = p->rounded + first * p->row_size;
    const int8_t *b = p->panel;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < p->quads; k += TILE_QUADS, a += TILE_BYTES, b += TILE_QUADS * 4 * PANEL) {
        _tile_loadd(6, b, 4 * PANEL);
        _tile_loadd(7, b + TILE_BYTES, 4 * PANEL);
        _tile_loadd(4, a, p->row_size);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        if (!two) continue;
        _tile_loadd(5, a + TILE_ROWS * p->row_size, p->row_size);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    _tile_stored(0, sums[0], sizeof *sums);
    _tile_stored(1, sums[0] + LANES, sizeof *sums);
    if (!two) return;
    _tile_stored(2, sums[TILE_ROWS], sizeof *sums);
    _tile_stored(3, sums[TILE_ROWS] + LANES, sizeof *sums);
}

/* y of as many rows as fill tiles, for `count` panels. Returns how many rows these are. */
static BYTES_TILES __attribute__((noinline)) int64_t bytes_tiles(const bytes_args *given, int64_t count, int64_t rows) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    int32_t sums[2 * TILE_ROWS][PANEL];
    const int64_t whole = rows - rows % TILE_ROWS;
    if (!whole || given->quads % TILE_QUADS) return 0;
    for (int i = 0; i < 8; i++) shape.bytes[i] = TILE_BYTES, shape.rows[i] = TILE_ROWS;
    _tile_loadconfig(&shape);
    bytes_args p = *given;
    for (int64_t panel = 0; panel < count; panel++) {
        for (int64_t first = 0; first < whole;) {
            const int64_t some = first + 2 * TILE_ROWS <= whole ? 2 * TILE_ROWS : TILE_ROWS;
            bytes_tiles_sums(&p, first, some > TILE_ROWS, sums);
            for (int64_t i = 0; i < some; i++) {
                float row_scale;
                memcpy(&row_scale, p.rounded + (first + i) * p.row_size + 4 * p.quads, sizeof row_scale);
                UNROLL
                for (int j = 0; j < COLUMNS; j++) {
                    const int64_t start = p.start + j * LANES;
                    const ivec sum = *(const loose_ints *)(sums[i] + j * LANES), offset = *(const loose_ints *)(p.layer->offsets + start);
                    const vec found = __builtin_convertvector(sum - offset, vec) * (load(p.layer->scales + start) * row_scale);
                    store(p.y + (first + i) * p.y_row + j * LANES, found);
                }
            }
            first += some;
        }
        p.panel += PANEL * 4 * p.quads;
        p.start += PANEL;
        p.y += PANEL;
    }
    _tile_release();
    return whole;
}
#endif
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
    const int64_t quads = bytes_quads(layer->inputs), row_size = bytes_row(layer->inputs);
#if VECTOR_BYTES == 64 && HAVE_TILES && REAL_IS_FLOAT
    if (regard_target() >= TARGET_TILES) {
        const bytes_args args = {.layer = layer, .rounded = rounded, .quads = quads, .row_size = row_size, .start = first * PANEL,
                                 .panel = layer->bytes + first * PANEL * 4 * quads, .y = y, .y_row = y_row};
        const int64_t done = bytes_tiles(&args, count, rows);
        rounded += done * row_size, rows -= done, y += done * y_row;
    }
#endif
    for (int64_t panel = 0; panel < count; panel++) {
        const bytes_args args = {.layer = layer, .rounded = rounded, .quads = quads, .row_size = row_size,
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
