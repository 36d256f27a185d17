/* Areas of a sequence with keys of their own (Li et al. 2018, Eq. 9: relu of features of the area, the output matrix moved to the query).
   The score of an area is then a product, not a mean of scores; all else is as before. Scores lie in one buffer for each size, by the
   item at which the area ends. */
#include "area_keyed_grid.h"
#include "area_memory.h"
#include "area_sweep.h"

/* W_d is moved to the queries: q . W_d h = (W_d^T q) . h. */
static void move_queries(const Head *head, Memory *m) {
    const AreaCall *call = head->plan->call;
    const int64_t size = call->key_size;
    product((product_args){.a = call->features->output, .a_row = 1, .a_column = size, .b = m->features.columns, .b_row = TILE,
                           .c = m->query_columns, .c_row = TILE, .depth = size, .add = 0}, size, TILE);
    if (head->plan->backward) transpose(m->query_columns, TILE, size, TILE, m->query_rows, size, 1);
}

/* From the gradients of moved queries (sum_columns) to those of the queries (sum_rows) and of W_d. */
static void move_gradients(const Head *head, Memory *m, int64_t queries) {
    const AreaCall *call = head->plan->call;
    const int64_t size = call->key_size;
    transpose(m->sum_columns, TILE, size, TILE, m->sum_rows, size, 1);
    product((product_args){.a = m->features.columns, .a_row = TILE, .a_column = 1, .b = m->sum_rows, .b_row = size,
                           .c = m->features.sums + 2 * size * size, .c_row = size, .depth = queries, .add = 1}, size, size);
    product((product_args){.a = call->features->output, .a_row = size, .a_column = 1, .b = m->sum_columns, .b_row = TILE,
                           .c = m->query_columns, .c_row = TILE, .depth = size, .add = 0}, size, TILE);
    transpose(m->query_columns, TILE, size, TILE, m->sum_rows, size, (real)call->scale);
}

/* Finish the gradient of the items' keys, from that of the areas' keys. */
static void close_features(const Head *head, Memory *m, const real *grad_key) {
    const AreaCall *call = head->plan->call;
    feature_backward(call, &m->features, head->key.data, grad_key);
    store_rows(head, &call->grad_key, 0, call->keys, call->key_size, call->key_size, m->features.grad_items);
}

static void keyed_scores(const Head *head, Memory *m, int64_t j0, int64_t count) {
    const Plan *plan = head->plan;
    if (plan->call->grid_height > 1) {
        grid_scores(head, m, j0, count);
        return;
    }
    for (int64_t i = 0; i < plan->windows.width; i++) {
        real *scores = m->areas + i * area_buffer(plan);
        int64_t absent = i < plan->call->area_width ? i - j0 : count; /* areas that would begin before the first item, or are too large */
        absent = absent < 0 ? 0 : absent > count ? count : absent;
        for (int64_t k = 0; k < absent * TILE; k++) scores[k] = HIDDEN;
        const int64_t row = area_row(plan->call, i) + j0;
        compare(&head->key, plan->call->key_size, row + absent, count - absent, m->query_columns, scores + absent * TILE);
        /* Before they are hidden from some; backward, who may attend one has no gradient. */
        for (int64_t j = absent; head->bad && !plan->backward && j < count; j++)
            for (int64_t t = 0; head->bad[row + j] && t < TILE; t++) scores[j * TILE + t] = NAN;
    }
}

/* Overwrite the scores of areas that hold a hidden item: `hidden` is 0 or HIDDEN for each item. Returns the largest score. */
static vec keyed_hide(const Plan *plan, Strip *s, const real *hidden, real *areas, int64_t count) {
    vec most = splat(HIDDEN);
    const int width = plan->windows.width;
    const int64_t buffer = area_buffer(plan);
    for (int64_t j = 0; j < count; j++) {
        const vec e = load(hidden + j * TILE);
        for (int i = width - 1; i >= 0; i--) {
            real *score = areas + i * buffer + j * TILE;
            s->run[i] = i ? s->run[i - 1] + e : e;
            const vec seen = select_vec(s->run[i] < 0, splat(HIDDEN), load(score));
            store(score, seen);
            most = maximum(seen, most);
        }
    }
    return most;
}

/* As line_sweep, but the scores of areas are given, and their gradients replace them; w goes to `weights`. */
INLINE void keyed_sweep(int area, enum sweep_mode mode, const Plan *plan, Strip *s, real *areas, const real *grads, real *weights,
                        int64_t count) {
    const Windows *w = &plan->windows;
    const int64_t buffer = area_buffer(plan);
    const vec base = s->base, delta = s->delta, inverse = s->inverse;
    vec run_grad[MOST_LENGTH], weight[MOST_LENGTH], part = (vec){0};
    UNROLL
    for (int i = 0; i < area; i++) run_grad[i] = s->run_grad[i], weight[i] = s->weight[i];
    for (int64_t j = 0; j < count; j++) {
        if (mode != FORWARD) {
            const vec g = load(grads + j * TILE);
            UNROLL
            for (int i = area - 1; i > 0; i--) run_grad[i] = run_grad[i - 1] + g;
            run_grad[0] = g;
        }
        vec p_suffix = (vec){0}, total = (vec){0};
        UNROLL
        for (int i = area - 1; i >= 0; i--) {
            real *score = areas + i * buffer + j * TILE;
            const vec p = exp2_vec((load(score) - base) * LOG2E);
            if (mode == FORWARD) total += p;
            if (mode == DELTA) {
                total += p * run_grad[i] * w->share[i];
                continue;
            }
            if (mode == BACKWARD) store(score, p * (run_grad[i] * w->share[i] - delta) * inverse);
            p_suffix += p * w->share[i];
            const vec done = i ? weight[i - 1] + p_suffix : p_suffix;
            if (i == area - 1) store(weights + j * TILE, mode == BACKWARD ? done * inverse : done);
            else weight[i] = done;
        }
        part += total;
        if (j % 16 == 15 || j == count - 1) add_to_sum(&s->sum, &s->lost, part), part = (vec){0};
    }
    UNROLL
    for (int i = 0; i < area; i++) s->run_grad[i] = run_grad[i], s->weight[i] = weight[i];
}

INLINE void keyed_sweep_any(enum sweep_mode mode, const Plan *plan, Strip *s, real *areas, const real *grads, real *weights,
                            int64_t count) {
    switch (plan->windows.width) {
    case 1: keyed_sweep(1, mode, plan, s, areas, grads, weights, count); break;
    case 2: keyed_sweep(2, mode, plan, s, areas, grads, weights, count); break;
    case 3: keyed_sweep(3, mode, plan, s, areas, grads, weights, count); break;
    case 4: keyed_sweep(4, mode, plan, s, areas, grads, weights, count); break;
    case 5: keyed_sweep(5, mode, plan, s, areas, grads, weights, count); break;
    case 8: keyed_sweep(8, mode, plan, s, areas, grads, weights, count); break;
    default: keyed_sweep(16, mode, plan, s, areas, grads, weights, count);
    }
}

static void keyed_forward(const Head *head, Memory *m, Strip *s, int strip, int64_t count) {
    real *areas = m->areas + strip * LANES, *items = m->scores + strip * LANES;
    vec hidden[MOST_LENGTH];
    const vec most = keyed_hide(head->plan, s, items, areas, count);
    const int area = head->plan->windows.width;
    memcpy(hidden, s->run, area * sizeof(vec)); /* no scores, so no base is to be taken off */
    shrink_sums(m, strip, raise_base(s, area, most));
    memcpy(s->run, hidden, area * sizeof(vec));
    keyed_sweep_any(FORWARD, head->plan, s, areas, NULL, items, count);
}

static void keyed_backward(const Head *head, Memory *m, Strip *s, int strip, int64_t count) {
    real *areas = m->areas + strip * LANES, *items = m->scores + strip * LANES, *grads = m->grads + strip * LANES;
    keyed_hide(head->plan, s, items, areas, count);
    keyed_sweep_any(DELTA, head->plan, s, areas, grads, items, count);
    s->delta = s->sum * s->inverse;
    strip_start(s, head->plan->windows.width);
    keyed_sweep_any(BACKWARD, head->plan, s, areas, grads, items, count);
}

/* Gradients of the query (into sum_columns) and of the areas' keys, from those of their scores, for items [first, last). */
static void keyed_products(const Head *head, Memory *m, int64_t first, int64_t last, Matrix grad_key,
                           int64_t queries) {
    const Plan *plan = head->plan;
    const AreaCall *call = plan->call;
    for (int64_t i = 0; i < feature_sizes(call); i++) {
        const real *grads = m->areas + i * area_buffer(plan);
        for (int64_t j = first + area_absent(call, i, first, last - first); j < last; j += CHUNK) {
            const Done done = {area_row(call, i) + j, j - first, last - j < CHUNK ? last - j : CHUNK};
            gather(m, &head->key, call->key_size, done, grads);
            scatter(grad_key, plan->key_size, done, grads, m->query_rows, queries);
        }
    }
}
