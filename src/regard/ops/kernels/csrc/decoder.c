/* The entry points of a decoder's step. */
#include "decoder.h"

#include "entry.h"

ENTRY(decoder, DecoderCall)
