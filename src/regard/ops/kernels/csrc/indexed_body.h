/* Attention to scattered items, for one instruction set. A task is a group: queries that look at the same items. */
#include "indexed.h"
#include "native.h"
#include "parallel.h"
#include "simd.h"

#include "indexed_rows.h"

static void indexed_task(int64_t group, void *scratch, const void *context) {
    const IndexedCall *call = context;
    const int64_t width = call->heads * call->size;
    const indexed_view view = {call->keys, call->values, call->key_row, call->value_row, call->places + group * call->length,
                               call->lengths ? call->lengths[group] : call->length, call->heads, call->size,
                               (real)(call->scale * INDEXED_LOG2_E), call->areas};
    for (int64_t row = group * call->share; row < (group + 1) * call->share; row++) {
        indexed_query(&view, call->query + row * width, scratch, call->context + row * width);
        if (call->weights) indexed_keep(scratch, call->heads, view.length, call->weights + row * call->heads * call->length, call->length);
    }
}

int VARIANT(indexed)(const IndexedCall *call) {
    const size_t bytes = (size_t)indexed_room(call->heads, call->length, call->areas) * sizeof(real);
    return parallel_for(call->groups, (int)call->threads, bytes, indexed_task, call);
}
