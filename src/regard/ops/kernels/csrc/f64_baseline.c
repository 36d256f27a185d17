#define REAL_IS_FLOAT 0
#define VECTOR_BYTES 16
#include "bodies.h"
