#define REAL_IS_FLOAT 0
#define VECTOR_BYTES 64
#include "bodies.h"
