/* The entry points of packing. */
#include "panels.h"

#include "entry.h"

ENTRY(pack, PackCall)
ENTRY(panel, PackCall)
