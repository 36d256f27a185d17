/* The greatest of many numbers. Included after simd.h. */
#ifndef REGARD_BEST_LIST_H
#define REGARD_BEST_LIST_H

/* The `count` greatest numbers met so far, descending, with their places; met in ascending order of place, so that ties stay so. */
typedef struct {
    int64_t count, found;
    real *values;
    int64_t *places;
} best_list;

static inline void best_insert(best_list *list, real value, int64_t place) {
    int64_t at = list->found < list->count ? list->found : list->count - 1;
    if (list->found == list->count && !(value > list->values[at])) return;
    for (; at > 0 && value > list->values[at - 1]; at--) {
        list->values[at] = list->values[at - 1];
        list->places[at] = list->places[at - 1];
    }
    list->values[at] = value;
    list->places[at] = place;
    if (list->found < list->count) list->found++;
}

#endif
