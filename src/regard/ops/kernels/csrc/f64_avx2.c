#define REAL_IS_FLOAT 0
#define VECTOR_BYTES 32
#include "bodies.h"
