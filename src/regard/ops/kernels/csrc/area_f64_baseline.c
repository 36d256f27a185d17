#define REAL_IS_FLOAT 0
#include "target_baseline.h"
#if HAVE_TARGET
#include "area_body.h"
#include "target_end.h"
#endif
