/* The entry points of additive scores. */
#include "additive.h"

#include "entry.h"

ENTRY(additive_forward, AdditiveCall)
ENTRY(additive_backward, AdditiveCall)
