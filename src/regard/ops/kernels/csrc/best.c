/* The entry point of the greatest log-probabilities. */
#include "best.h"

#include "entry.h"

ENTRY(best, BestCall)
