/* The entry point of the cross-entropy. */
#include "loss.h"

#include "entry.h"

ENTRY(loss, LossCall)
