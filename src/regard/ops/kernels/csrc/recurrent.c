/* The entry point of a recurrent decoder's step. */
#include "recurrent.h"

#include "entry.h"

ENTRY(recurrent, RecurrentCall)
