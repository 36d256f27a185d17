/* The products of a tile with keys, values and gradients. */

/* Which items the rows of a chunk's results belong to: `item` first, from row `row` on, `count` of them. A sequence's results come
   area - 1 items late, so the first rows of the first chunk belong to none and the last chunk has that many more. */
typedef struct {
    int64_t item, row, count;
} Done;

/* result (+)= rows [item, item + count) of a matrix, transposed, times rows of a chunk: size x TILE. */
static void gather(const Matrix *matrix, int64_t size, Done done, const real *chunk, real *result) {
    product((product_args){.a = matrix->data + done.item * matrix->row, .a_row = 1, .a_column = matrix->row, .b = chunk + done.row * TILE,
                           .b_row = TILE, .c = result, .c_row = TILE, .depth = done.count, .add = 1}, size, TILE);
}

/* chunk = rows [j0, j0 + count) of a matrix times columns of the tile: count x TILE. Summed by BLOCK features: a score's rounding error is
   what all else follows from. */
static void compare(const Matrix *matrix, int64_t size, int64_t j0, int64_t count, const real *columns, real *chunk) {
    for (int64_t k = 0; k < size; k += BLOCK)
        product((product_args){.a = matrix->data + j0 * matrix->row + k, .a_row = matrix->row, .a_column = 1, .b = columns + k * TILE,
                               .b_row = TILE, .c = chunk, .c_row = TILE, .depth = size - k < BLOCK ? size - k : BLOCK, .add = k > 0},
                count, TILE);
}

/* sums of the items += rows of a chunk times the tile's first rows, `queries` of them: count x size. */
static void scatter(Matrix sums, int64_t size, Done done, const real *chunk, const real *rows, int64_t queries) {
    product((product_args){.a = chunk + done.row * TILE, .a_row = TILE, .a_column = 1, .b = rows, .b_row = size,
                           .c = (real *)sums.data + done.item * sums.row, .c_row = sums.row, .depth = queries, .add = 1}, done.count, size);
}
