/* The entry point of attention to scattered items. */
#include "indexed.h"

#include "entry.h"

ENTRY(indexed, IndexedCall)
