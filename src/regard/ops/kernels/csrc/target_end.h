/* The last line of every file that began with a target header: clang wants its attribute taken off again. */
#if defined(__clang__) && defined(__x86_64__) && VECTOR_BYTES > 16
#pragma clang attribute pop
#endif
