/* The entry points of residual connections. */
#include "residual.h"

#include "entry.h"

ENTRY(residual_forward, ResidualCall)
ENTRY(residual_backward, ResidualCall)
