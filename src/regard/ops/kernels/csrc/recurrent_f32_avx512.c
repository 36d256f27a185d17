#define REAL_IS_FLOAT 1
#include "target_avx512.h"
#if HAVE_TARGET
#include "recurrent_body.h"
#include "target_end.h"
#endif
