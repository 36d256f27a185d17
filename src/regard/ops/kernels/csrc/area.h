/* Area attention with mean keys and sum (or mean) values, forward and backward, for one instruction set and one type.

   Mean keys make the score of an area the mean of its items' scores, and sum values make the output a sum over items (Li et al. 2018,
   Eq. 3 and 4), so nothing larger than ordinary attention has to exist:

       e = scale q k^T;   w = window pass of e;   o = w v                                         forward
       g = do v^T;   w, ds = window pass of e and g;   dq = ds k,  dk = ds^T q,  dv = w^T do      backward

   All inner matrices lie transposed: a row for each key, AREA_TILE queries side by side, so that a vector holds one number of several
   queries and the window pass needs no shifts across lanes. A tile of queries walks along the keys in
   chunks that stay in the first-level cache; nothing but largest score and sum of each row is kept for the backward pass. */
#include <math.h>

#include "area_keyed.h"
#include "area_memory.h"
#include "area_sweep.h"
#include "calls.h"
#include "parallel.h"
#include "simd.h"

/* Say whether query t of this head may attend item j. */
static int allowed(const Head *head, int64_t t, int64_t j) {
    const AreaCall *call = head->plan->call;
    if (call->causal && j > t + call->keys - call->queries) return 0;
    return !head->mask || head->mask[j * call->mask.key + t * call->mask.query];
}

/* Narrow [*first, *last) to the keys that some query of the tile may attend; for a grid, to whole rows of it. */
static void key_range(const Head *head, int64_t t0, int64_t *first, int64_t *last) {
    const AreaCall *call = head->plan->call;
    int64_t low = 0, high = call->keys;
    if (call->causal) {
        int64_t past = t0 + TILE + call->keys - call->queries;
        high = past < 0 ? 0 : past < high ? past : high;
    }
    if (head->mask) {
        const int64_t width = call->mask.query ? TILE : 1;
        const uint8_t *rows = head->mask + t0 * call->mask.query, none[TILE] = {0};
        while (high > low && memcmp(rows + (high - 1) * call->mask.key, none, width) == 0) high--;
        while (low < high && memcmp(rows + low * call->mask.key, none, width) == 0) low++;
    }
    const int64_t whole = call->grid_height > 1 ? call->grid_width : 1;
    *first = low / whole * whole;
    *last = (high + whole - 1) / whole * whole;
}

/* Overwrite what is hidden, for keys [j0, j0 + count): scores by HIDDEN, gradients (where there are any) by 0. */
static void hide(const Head *head, int64_t t0, int64_t j0, int64_t count, real *scores, real *grads) {
    const AreaCall *call = head->plan->call;
    const int64_t offset = call->keys - call->queries;
    int64_t begin = 0;
    if (!head->mask) {
        if (!call->causal) return;
        begin = t0 + offset + 1 - j0; /* all of the tile may attend what lies before */
        if (begin < 0) begin = 0;
    }
    ivec lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    for (int64_t i = begin; i < count; i++) {
        const int64_t j = j0 + i;
        const uint8_t *flags = head->mask ? head->mask + j * call->mask.key + t0 * call->mask.query : NULL;
        for (int strip = 0; strip < STRIPS; strip++) {
            real *score = scores + i * TILE + strip * LANES, *grad = grads ? grads + i * TILE + strip * LANES : NULL;
            ivec keep = isplat(-1);
            if (flags) keep = call->mask.query ? load_flags(flags + strip * LANES) : isplat(-(lane_int)*flags);
            if (call->causal) keep &= lane >= (lane_int)(j - offset - t0 - strip * LANES);
            store(score, select_vec(keep, load(score), splat(HIDDEN)));
            if (grad) store(grad, select_vec(keep, load(grad), (vec){0}));
        }
    }
}

static Done done_items(const Plan *plan, int64_t first, int64_t j0, int64_t count, int last) {
    if (plan->call->grid_height > 1) return (Done){j0, 0, count};
    const int64_t late = plan->windows.width - 1, item = j0 - late, row = item < first ? first - item : 0;
    return (Done){item + row, row, larger(count + (last ? late : 0) - row, 0)};
}

static void strips_start(Strip *strips, int area) {
    for (int i = 0; i < STRIPS; i++) {
        strip_start(&strips[i], area);
        strips[i].most = splat(HIDDEN);
        strips[i].sum = strips[i].lost = strips[i].base = strips[i].delta = (vec){0};
    }
}

static void forward_chunk(const Head *head, Memory *m, Strip *strips, int64_t count, int last) {
    const Plan *plan = head->plan;
    for (int i = 0; i < STRIPS; i++) {
        real *scores = m->scores + i * LANES;
        if (plan->call->features && plan->call->grid_height > 1) {
            grid_keyed_forward(head, m, &strips[i], i, count);
            continue;
        }
        if (plan->call->features) {
            keyed_forward(head, m, &strips[i], i, count);
            if (last) line_flush(plan->windows.width, strips[i].weight, splat(1), scores + count * TILE);
            continue;
        }
        shrink_sums(m, i, raise_base(&strips[i], plan->windows.width, largest(scores, count)));
        if (plan->call->grid_height > 1) {
            grid_forward(&plan->windows, &m->grid, &strips[i], scores, count / plan->windows.columns);
            continue;
        }
        line_forward(&plan->windows, &strips[i], scores, count);
        if (last) line_flush(plan->windows.width, strips[i].weight, splat(1), scores + count * TILE);
    }
}

/* Divide the sums by the softmax's denominator and write the rows and what the sums were. */
static void forward_finish(const Head *head, Memory *m, const Strip *strips, int64_t t0, int64_t first, int64_t last) {
    const Plan *plan = head->plan;
    const AreaCall *call = plan->call;
    const int64_t count = call->queries - t0 < TILE ? call->queries - t0 : TILE;
    real inverse[TILE], *sums = (real *)call->sums + ((head->batch * call->heads + head->head) * call->queries + t0) * 2;
    for (int i = 0; i < STRIPS; i++) {
        const vec sum = strips[i].sum;
        store(inverse + i * LANES, select_vec(sum == 0, (vec){0}, 1 / sum));
        for (int lane = 0; lane < LANES && i * LANES + lane < count; lane++) {
            sums[2 * (i * LANES + lane)] = strips[i].base[lane];
            sums[2 * (i * LANES + lane) + 1] = sum[lane];
        }
    }
    for (int64_t j = first; head->spoilt && j < last; j++)
        for (int64_t t = 0; head->spoilt[j] && t < count; t++)
            if (allowed(head, t0 + t, j)) inverse[t] = sums[2 * t + 1] = NAN;
    gather_end(m);
    for (int64_t i = 0; i < plan->value_size; i++)
        for (int j = 0; j < TILE; j += LANES)
            store(m->sum_columns + i * TILE + j, load(m->sum_columns + i * TILE + j) * load(inverse + j));
    transpose(m->sum_columns, TILE, plan->value_size, TILE, m->sum_rows, plan->value_size, 1);
    store_rows(head, &call->output, t0, count, call->value_size, plan->value_size, m->sum_rows);
}

static void load_queries(const Head *head, Memory *m, int64_t t0, const uint8_t *skip) {
    const Plan *plan = head->plan;
    const int64_t left = plan->call->queries - t0;
    load_rows(head, &plan->call->query, t0, left < TILE ? left : TILE, TILE, plan->call->key_size, plan->key_size, skip, m->query_rows);
    real *columns = plan->call->features ? m->features.columns : m->query_columns;
    transpose(m->query_rows, plan->key_size, TILE, plan->key_size, columns, TILE, (real)plan->call->scale);
    if (plan->call->features) move_queries(head, m);
}

/* Score keys [j0, j0 + count) for the tile; what is hidden is overwritten, in the gradients (where there are any) by 0. */
static void score(const Head *head, Memory *m, int64_t t0, int64_t j0, int64_t count, real *grads) {
    if (head->plan->call->features) {
        keyed_scores(head, m, j0, count);
        memset(m->scores, 0, (size_t)(count * TILE) * sizeof(real)); /* will hold HIDDEN for items that are */
    } else {
        compare(&head->key, head->plan->call->key_size, j0, count, m->query_columns, m->scores);
    }
    hide(head, t0, j0, count, m->scores, grads);
}

static void forward_tile(const Head *head, Memory *m, int64_t t0) {
    const Plan *plan = head->plan;
    const AreaCall *call = plan->call;
    Strip strips[STRIPS];
    int64_t first, last;
    strips_start(strips, plan->windows.width);
    key_range(head, t0, &first, &last);
    load_queries(head, m, t0, NULL);
    gather_start(m, plan->value_size);
    for (int64_t j0 = first; j0 < last; j0 += plan->chunk) {
        const int64_t count = last - j0 < plan->chunk ? last - j0 : plan->chunk;
        const int final = j0 + count == last;
        score(head, m, t0, j0, count, NULL);
        forward_chunk(head, m, strips, count, final);
        gather(m, &head->value, call->value_size, done_items(plan, first, j0, count, final), m->scores);
    }
    forward_finish(head, m, strips, t0, first, last);
}

static void forward_part(int64_t task, void *memory, const void *context) {
    const Plan *plan = context;
    Memory m;
    divide(plan, memory, &m);
    const Head head = open_head(plan, task / plan->parts, &m);
    const int64_t part = task % plan->parts;
    for (int64_t tile = part * plan->tiles / plan->parts; tile < (part + 1) * plan->tiles / plan->parts; tile++)
        forward_tile(&head, &m, tile * TILE);
}

/* Read the queries of a tile, their outputs' gradients and what the forward pass left of them. Rows that had nothing to attend to, and
   spoilt ones, are taken as zeros: no gradient. */
static void backward_start(const Head *head, Memory *m, Strip *strips, int64_t t0) {
    const Plan *plan = head->plan;
    const AreaCall *call = plan->call;
    const int64_t count = call->queries - t0 < TILE ? call->queries - t0 : TILE;
    const real *sums = (const real *)call->sums + ((head->batch * call->heads + head->head) * call->queries + t0) * 2;
    uint8_t skip[TILE];
    strips_start(strips, plan->windows.width);
    for (int64_t t = 0; t < TILE; t++) {
        skip[t] = t >= count || !(sums[2 * t + 1] > 0);
        strips[t / LANES].base[t % LANES] = skip[t] ? 0 : sums[2 * t];
        strips[t / LANES].inverse[t % LANES] = skip[t] ? 0 : 1 / sums[2 * t + 1];
    }
    load_queries(head, m, t0, skip);
    load_rows(head, &call->grad_output, t0, count, TILE, call->value_size, plan->value_size, skip, m->grad_rows);
    transpose(m->grad_rows, plan->value_size, TILE, plan->value_size, m->grad_columns, TILE, 1);
}

static void backward_sweep(const Head *head, Memory *m, Strip *strips, int64_t count) {
    const Windows *w = &head->plan->windows;
    for (int i = 0; i < STRIPS; i++) {
        real *scores = m->scores + i * LANES, *grads = m->grads + i * LANES;
        if (head->plan->call->features && head->plan->call->grid_height > 1) {
            grid_keyed_backward(head, m, &strips[i], i, count);
            continue;
        }
        if (head->plan->call->features) {
            keyed_backward(head, m, &strips[i], i, count);
            line_flush(w->width, strips[i].weight, strips[i].inverse, scores + count * TILE);
            continue;
        }
        if (head->plan->call->grid_height > 1) {
            grid_backward(w, &m->grid, &strips[i], scores, grads, count / w->columns);
            continue;
        }
        line_backward(w, &strips[i], scores, grads, count);
        line_flush(w->width, strips[i].weight, strips[i].inverse, scores + count * TILE);
        line_flush(w->width, strips[i].slope, strips[i].inverse, grads + count * TILE);
    }
}

static void backward_tile(const Head *head, Memory *m, int64_t t0, Matrix grad_key, Matrix grad_value) {
    const Plan *plan = head->plan;
    const AreaCall *call = plan->call;
    const int64_t queries = call->queries - t0 < TILE ? call->queries - t0 : TILE;
    Strip strips[STRIPS];
    int64_t first, last;
    key_range(head, t0, &first, &last);
    backward_start(head, m, strips, t0);
    compare(&head->value, call->value_size, first, last - first, m->grad_columns, m->grads);
    score(head, m, t0, first, last - first, m->grads);
    if (last > first) backward_sweep(head, m, strips, last - first);
    gather_start(m, plan->key_size);
    const Done all = done_items(plan, first, first, last - first, 1);
    for (int64_t i = 0; i < all.count; i += CHUNK) { /* the three products one after another on what the cache holds */
        const Done done = {all.item + i, all.row + i, all.count - i < CHUNK ? all.count - i : CHUNK};
        scatter(grad_value, plan->value_size, done, m->scores, m->grad_rows, queries);
        if (call->features) continue;
        gather(m, &head->key, call->key_size, done, m->grads);
        scatter(grad_key, plan->key_size, done, m->grads, m->query_rows, queries);
    }
    if (call->features) keyed_products(head, m, first, last, grad_key, queries);
    gather_end(m);
    if (call->features) move_gradients(head, m, queries);
    else transpose(m->sum_columns, TILE, plan->key_size, TILE, m->sum_rows, plan->key_size, 1);
    store_rows(head, &call->grad_query, t0, queries, call->key_size, plan->key_size, m->sum_rows);
}

/* Memory for the sums of one head's key or value gradients, zeroed: the caller's own where it can be, else `own`. */
static Matrix open_sums(const Head *head, const AreaView *view, int direct, int64_t rows, int64_t size, real *own) {
    Matrix sums = {own, size};
    if (direct) sums = (Matrix){(real *)view->data + offset_of(view, head->batch, head->head, 0), view->row};
    for (int64_t j = 0; j < rows; j++) memset((real *)sums.data + j * sums.row, 0, (size_t)size * sizeof(real));
    return sums;
}

/* One part of one head. */
static void backward_head(const Plan *plan, int64_t index, Memory *m) {
    const AreaCall *call = plan->call;
    const Head head = open_head(plan, index / plan->parts, m);
    const int64_t part = index % plan->parts;
    const int alone = plan->parts == 1, direct_key = alone && plan->direct_key && !call->features;
    real *partial = alone ? NULL : plan->partial + index * partial_size(plan);
    Matrix grad_key = open_sums(&head, &call->grad_key, direct_key, plan->key_rows, plan->key_size, alone ? m->grad_key : partial);
    Matrix grad_value = open_sums(&head, &call->grad_value, alone && plan->direct_value, call->keys, plan->value_size,
                                  alone ? m->grad_value : partial + plan->key_rows * plan->key_size);
    for (int64_t tile = part * plan->tiles / plan->parts; tile < (part + 1) * plan->tiles / plan->parts; tile++)
        backward_tile(&head, m, tile * TILE, grad_key, grad_value);
    if (!alone) return;
    if (call->features) close_features(&head, m, m->grad_key);
    else if (!plan->direct_key) store_rows(&head, &call->grad_key, 0, plan->key_rows, call->key_size, plan->key_size, m->grad_key);
    if (!plan->direct_value) store_rows(&head, &call->grad_value, 0, call->keys, call->value_size, plan->value_size, m->grad_value);
}

static void backward_part(int64_t task, void *memory, const void *context) {
    const Plan *plan = context;
    const int64_t all = plan->call->batch * plan->call->heads * plan->parts, end = (task + 1) * plan->block;
    Memory m;
    divide(plan, memory, &m);
    if (plan->call->features) {
        m.features.sums = plan->feature_sums + task * feature_sums_size(plan->call);
        memset(m.features.sums, 0, (size_t)feature_sums_size(plan->call) * sizeof(real));
    }
    for (int64_t index = task * plan->block; index < end && index < all; index++) backward_head(plan, index, &m);
}

/* Add up the parts of one head in their order, whoever made them. */
static void join_parts(int64_t task, void *memory, const void *context) {
    const Plan *plan = context;
    const AreaCall *call = plan->call;
    Head head = {.plan = plan, .batch = task / call->heads, .head = task % call->heads};
    const int64_t size = partial_size(plan);
    real *sums = plan->partial + task * plan->parts * size;
    for (int64_t part = 1; part < plan->parts; part++)
        for (int64_t i = 0; i < size; i += LANES) store(sums + i, load(sums + i) + load(sums + part * size + i));
    if (call->features) {
        Memory m;
        divide(plan, memory, &m);
        m.features.sums = plan->feature_sums + task * plan->parts * feature_sums_size(call); /* those of the head's first part */
        head = open_head(plan, task, &m);
        close_features(&head, &m, sums);
    } else {
        store_rows(&head, &call->grad_key, 0, plan->key_rows, call->key_size, plan->key_size, sums);
    }
    store_rows(&head, &call->grad_value, 0, call->keys, call->value_size, plan->value_size, sums + plan->key_rows * plan->key_size);
}

int VARIANT(area_forward)(const AreaCall *call) {
    Plan plan = make_plan(call, 0);
    return parallel_for(call->batch * call->heads * plan.parts, call->threads, plan.bytes, forward_part, &plan);
}

int VARIANT(area_backward)(const AreaCall *call) {
    Plan plan = make_plan(call, 1);
    const int64_t heads = call->batch * call->heads, tasks = (heads * plan.parts + plan.block - 1) / plan.block;
    int failed = 0;
    if (plan.parts > 1) failed |= !(plan.partial = malloc((size_t)(heads * plan.parts * partial_size(&plan)) * sizeof(real)));
    if (call->features) failed |= !(plan.feature_sums = malloc((size_t)(tasks * feature_sums_size(call)) * sizeof(real)));
    if (!failed) failed = parallel_for(tasks, call->threads, plan.bytes, backward_part, &plan);
    if (!failed && plan.parts > 1) failed = parallel_for(heads, call->threads, plan.bytes, join_parts, &plan);
    if (!failed && call->features) feature_finish(call, plan.feature_sums, tasks);
    free(plan.partial);
    free(plan.feature_sums);
    return failed;
}
