#define REAL_IS_FLOAT 1
#define VECTOR_BYTES 32
#include "bodies.h"
