/* What every processor of the architecture has: SSE2 on x86-64, NEON on arm64. */
#define VECTOR_BYTES 16
#define VARIANT_SUFFIX baseline
#include "variant.h"
