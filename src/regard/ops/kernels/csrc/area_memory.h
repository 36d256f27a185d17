/* Where the numbers of a call lie: the worker's memory, the matrices of one head, rows in and out of any storage. */

/* What all tasks of a call share. */
typedef struct {
    const AreaCall *call;
    Windows windows;
    int64_t key_size, value_size; /* padded to whole vectors */
    int64_t key_rows;             /* keys, or areas where the keys are theirs */
    int64_t tiles, parts;         /* tiles of queries; parts they are cut into, a task each */
    int64_t chunk;                /* keys that are swept together: all of them, but for a sequence's forward pass */
    int backward, direct_key, direct_value; /* gradients are added up in the caller's memory */
    real *partial;                /* backward with several parts: the sums of each, [head][part][partial_size] */
    int64_t block;                /* backward: heads that make one task */
    real *feature_sums;           /* backward with features: [task][feature_sums_size] */
    size_t bytes;
} Plan;

/* A worker's memory. *_rows: TILE x size, *_columns: size x TILE. */
typedef struct {
    real *query_rows, *query_columns, *grad_rows, *grad_columns, *sum_columns, *sum_rows;
    real *scores, *grads;
    real *areas; /* with keys of areas: their scores, then gradients; one such buffer for each size */
    GridState grid;
    FeatureMemory features;
    real *key_copy, *value_copy, *grad_key, *grad_value; /* with features, these keys are those of areas */
    uint8_t *spoilt;
} Memory;

typedef struct {
    const real *data;
    int64_t row;
} Matrix;

typedef struct {
    const Plan *plan;
    int64_t batch, head;
    Matrix key, value;
    const uint8_t *mask;
    const uint8_t *spoilt; /* keys that hold NaN or infinity in key or value; NULL: none does */
} Head;

static int64_t partial_size(const Plan *plan) {
    return plan->key_rows * plan->key_size + plan->call->keys * plan->value_size;
}

/* Numbers in the buffer of one size. */
static int64_t area_buffer(const Plan *plan) { return (plan->chunk + MOST_LENGTH) * TILE; }

/* Divide a worker's memory; returns its end. What is rarely needed stands last and costs nothing until it is touched. */
static char *divide(const Plan *plan, char *memory, Memory *m) {
    const int64_t d = plan->key_size, v = plan->value_size, keys = plan->call->keys, most = larger(d, v);
    const int64_t vectors = plan->call->grid_height > 1 ? grid_vectors(&plan->windows) * LANES : 0;
    const int64_t column = plan->call->grid_height > 1 ? plan->windows.height * plan->windows.columns * LANES : 0;
    m->query_rows = take(&memory, TILE * d);
    m->query_columns = take(&memory, TILE * d);
    m->grad_rows = take(&memory, TILE * v);
    m->grad_columns = take(&memory, TILE * v);
    m->sum_columns = take(&memory, TILE * most);
    m->sum_rows = take(&memory, TILE * most);
    m->scores = take(&memory, (plan->chunk + MOST_LENGTH) * TILE);
    m->grads = take(&memory, plan->backward ? (plan->chunk + MOST_LENGTH) * TILE : 0);
    m->areas = take(&memory, plan->call->features ? plan->windows.width * area_buffer(plan) : 0);
    if (plan->call->features) feature_divide(plan->call, plan->backward, &memory, &m->features);
    m->grid.weight = take(&memory, column);
    m->grid.run = take(&memory, vectors - column);
    m->grid.slope = take(&memory, plan->backward ? column : 0);
    m->grid.run_grad = take(&memory, plan->backward ? vectors - column : 0);
    m->spoilt = (uint8_t *)take(&memory, keys);
    m->grad_key = take(&memory, plan->backward && plan->parts == 1 ? plan->key_rows * d : 0);
    m->grad_value = take(&memory, plan->backward && plan->parts == 1 ? keys * v : 0);
    m->key_copy = take(&memory, plan->key_rows * d);
    m->value_copy = take(&memory, keys * v);
    return memory;
}

static int64_t whole_vectors(int64_t size) { return (size + LANES - 1) / LANES * LANES; }

static Plan make_plan(const AreaCall *call, int backward) {
    Plan plan = {.call = call, .backward = backward};
    const int same = call->storage != STORED_BFLOAT16;
    const int64_t heads = larger(call->batch * call->heads, 1), waiting = backward || call->features ? 1 : 4;
    plan.key_size = whole_vectors(call->key_size);
    plan.value_size = whole_vectors(call->value_size);
    plan.direct_key = same && plan.key_size == call->key_size;
    plan.direct_value = same && plan.value_size == call->value_size;
    plan.tiles = (call->queries + TILE - 1) / TILE;
    plan.chunk = backward || call->grid_height > 1 ? call->keys : CHUNK;
    /* Forward: enough tasks that no thread waits long. Backward a part more costs memory for its sums, and the features of a head are made
       for each of its parts: only where heads are too few. */
    plan.parts = (waiting * call->threads + heads - 1) / heads;
    if (plan.parts > plan.tiles) plan.parts = larger(plan.tiles, 1);
    /* The heads of a task share their sums of the weights' gradients. How many they are depends on no thread, as the result must not. */
    plan.block = call->features && backward && plan.parts == 1 ? larger(heads / 64 < 16 ? heads / 64 : 16, 1) : 1;
    windows_start(&plan.windows, call);
    plan.key_rows = call->keys;
    if (call->features) plan.key_rows = call->area_width * call->keys - call->area_width * (call->area_width - 1) / 2;
    Memory memory;
    plan.bytes = (size_t)(divide(&plan, NULL, &memory) - (char *)NULL);
    return plan;
}

static int64_t offset_of(const AreaView *view, int64_t batch, int64_t head, int64_t row) {
    return batch * view->batch + head * view->head + row * view->row;
}

/* Copy `count` rows of `size` numbers, starting at `row`, into rows of `padded` reals; rows marked in `skip`, and those from count to
   `rows`, become 0. */
static void load_rows(const Head *head, const AreaView *view, int64_t row, int64_t count, int64_t rows, int64_t size,
                      int64_t padded, const uint8_t *skip, real *to) {
    for (int64_t i = 0; i < rows; i++, to += padded) {
        int64_t found = i < count && !(skip && skip[i]) ? size : 0;
        const int64_t start = found ? offset_of(view, head->batch, head->head, row + i) : 0;
#if REAL_IS_FLOAT
        if (head->plan->call->storage == STORED_BFLOAT16) {
            const uint16_t *from = (const uint16_t *)view->data + start;
            uint32_t *bits = (uint32_t *)(void *)to; /* a bfloat16 is the upper half of a float */
            for (int64_t j = 0; j < found; j++) bits[j] = (uint32_t)from[j] << 16;
        } else
#endif
            memcpy(to, (const real *)view->data + start, (size_t)found * sizeof(real));
        for (int64_t j = found; j < padded; j++) to[j] = 0;
    }
}

static void store_rows(const Head *head, const AreaView *view, int64_t row, int64_t count, int64_t size, int64_t padded,
                       const real *from) {
    for (int64_t i = 0; i < count; i++, from += padded) {
        const int64_t start = offset_of(view, head->batch, head->head, row + i);
#if REAL_IS_FLOAT
        if (head->plan->call->storage == STORED_BFLOAT16) {
            uint16_t *to = (uint16_t *)view->data + start;
            for (int64_t j = 0; j < size; j++) {
                uint32_t bits;
                memcpy(&bits, from + j, sizeof bits);
                /* Round to nearest, ties to even; a NaN must not round to infinity. */
                to[j] = from[j] != from[j] ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
            }
        } else
#endif
            memcpy((real *)view->data + start, from, (size_t)size * sizeof(real));
    }
}

/* Say whether all numbers of a matrix are finite: x - x is 0 for those, NaN for the others. */
static int is_finite(const Matrix *matrix, int64_t rows, int64_t size) {
    vec sum = {0};
    real rest = 0;
    for (int64_t i = 0; i < rows; i++) {
        const real *row = matrix->data + i * matrix->row;
        int64_t j = 0;
        for (; j + LANES <= size; j += LANES) sum += load(row + j) - load(row + j);
        for (; j < size; j++) rest += row[j] - row[j];
    }
    for (int i = 0; i < LANES; i++) rest += sum[i];
    return rest == 0;
}

static Matrix open_matrix(const Head *head, const AreaView *view, int64_t rows, int64_t size, int64_t padded, real *copy) {
    const AreaCall *call = head->plan->call;
    if (call->storage != STORED_BFLOAT16) return (Matrix){(const real *)view->data + offset_of(view, head->batch, head->head, 0), view->row};
    load_rows(head, view, 0, rows, rows, size, padded, NULL, copy);
    return (Matrix){copy, padded};
}

/* Make the keys of all areas of a head. An item that nobody may attend is taken as zeros, although finite: what is huge could overflow. */
static void open_features(Head *head, Memory *m) {
    const AreaCall *call = head->plan->call;
    uint8_t *skip = m->features.skip;
    for (int64_t j = 0; j < call->keys; j++) {
        skip[j] = head->spoilt && head->spoilt[j];
        if (head->mask && !memchr(head->mask + j * call->mask.key, 1, call->mask.query ? (size_t)call->queries : 1)) skip[j] = 1;
    }
    load_rows(head, &call->key, 0, call->keys, call->keys, call->key_size, call->key_size, skip, m->features.items);
    feature_forward(call, &m->features, m->key_copy);
    head->key = (Matrix){m->key_copy, call->key_size};
}

/* Find the keys and values of one head. Rows that are not finite are marked and zeroed in a copy: 0 times NaN would reach those whom the
   mask hides them from. */
static Head open_head(const Plan *plan, int64_t index, Memory *m) {
    const AreaCall *call = plan->call;
    Head head = {.plan = plan, .batch = index / call->heads, .head = index % call->heads};
    if (call->mask.data) head.mask = call->mask.data + head.batch * call->mask.batch + head.head * call->mask.head;
    head.key = open_matrix(&head, &call->key, call->keys, call->key_size, plan->key_size, m->key_copy);
    head.value = open_matrix(&head, &call->value, call->keys, call->value_size, plan->value_size, m->value_copy);
    if (!is_finite(&head.key, call->keys, call->key_size) || !is_finite(&head.value, call->keys, call->value_size)) {
        for (int64_t j = 0; j < call->keys; j++) {
            const Matrix key = {head.key.data + j * head.key.row, 0}, value = {head.value.data + j * head.value.row, 0};
            m->spoilt[j] = !is_finite(&key, 1, call->key_size) || !is_finite(&value, 1, call->value_size);
        }
        head.spoilt = m->spoilt;
        load_rows(&head, &call->value, 0, call->keys, call->keys, call->value_size, plan->value_size, m->spoilt, m->value_copy);
        head.value = (Matrix){m->value_copy, plan->value_size};
        if (!call->features) {
            load_rows(&head, &call->key, 0, call->keys, call->keys, call->key_size, plan->key_size, m->spoilt, m->key_copy);
            head.key = (Matrix){m->key_copy, plan->key_size};
        }
    }
    if (call->features) open_features(&head, m);
    return head;
}
