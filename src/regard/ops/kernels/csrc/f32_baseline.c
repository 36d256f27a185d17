#define REAL_IS_FLOAT 1
#define VECTOR_BYTES 16
#include "bodies.h"
