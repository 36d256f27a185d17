#define REAL_IS_FLOAT 1
#include "target_baseline.h"
#if HAVE_TARGET
#include "panels_body.h"
#include "target_end.h"
#endif
