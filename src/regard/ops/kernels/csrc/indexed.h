/* Attention of queries to items that lie scattered: a table says where each one stands. Mirrored by `_Call` in indexed_cpu.py. */
#ifndef REGARD_INDEXED_H
#define REGARD_INDEXED_H

#include <stdint.h>

typedef struct {
    const float *query;     /* (groups, share, heads, size) */
    const float *keys;      /* (items, heads, size) */
    const float *values;    /* (items, heads, size) */
    const int64_t *places;  /* (groups, length): the items of a group's queries, in order; those past lengths are not looked at */
    const int64_t *lengths; /* (groups), or NULL: all have `length` */
    float *context;         /* (groups, share, heads, size); zeros for a length of 0 */
    float *weights;         /* (groups, share, heads, length), or NULL; zeros past lengths */
    double scale;
    int64_t groups, share, heads, size, length;
    int64_t areas;              /* the most items, next to each other in a table, of an area (mean keys, sums of values); 1: items alone */
    int64_t key_row, value_row; /* elements from one item to the next */
    int64_t threads;
} IndexedCall;

#endif
