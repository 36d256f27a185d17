#define REAL_IS_FLOAT 1
#define VECTOR_BYTES 64
#include "bodies.h"
