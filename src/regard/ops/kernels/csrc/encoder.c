/* The entry point of a recurrent layer over whole sources. */
#include "encoder.h"

#include "entry.h"

ENTRY(encoder, EncoderCall)
