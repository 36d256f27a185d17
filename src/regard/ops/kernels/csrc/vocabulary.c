/* The entry point of an output layer's most probable outputs. */
#include "vocabulary.h"

#include "entry.h"

ENTRY(vocabulary, VocabularyCall)
