/* Every kernel, for the instruction set and the type that VECTOR_BYTES and REAL_IS_FLOAT name. */
#include "target.h"
#if HAVE_TARGET

#ifndef REGARD_WITHOUT_AREA /* a test's build, of which area attention would take most of the time */
#include "area.h"
#endif
#if REAL_IS_FLOAT
#include "additive.h"
#include "best.h"
#include "decoder.h"
#include "encoder.h"
#include "gates.h"
#include "greedy.h"
#include "indexed.h"
#include "loss.h"
#include "panels.h"
#include "recurrent.h"
#include "residual.h"
#include "vocabulary.h"
#endif

#if defined(__clang__) && VECTOR_BYTES > 16
#pragma clang attribute pop
#endif
#endif
