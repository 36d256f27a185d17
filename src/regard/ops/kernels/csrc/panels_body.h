/* Packing a weight into panels, for one instruction set. */
#include "native.h"
#include "simd.h"

#include "panel_products.h"

int VARIANT(panel)(const PackCall *call) {
    (void)call;
    return PANEL;
}

int VARIANT(pack)(const PackCall *call) {
    const int64_t inputs = call->inputs;
    for (int64_t start = 0; start < call->outputs; start += PANEL) {
        real *panel = call->panels + start * inputs;
        int64_t k = 0;
        if (start + PANEL <= call->outputs)
            for (; k + LANES <= inputs; k += LANES) transpose(call->weight + start * inputs + k, inputs, PANEL, LANES, panel + k * PANEL, PANEL, 1);
        for (; k < inputs; k++)
            for (int64_t j = 0; j < PANEL; j++) panel[k * PANEL + j] = start + j < call->outputs ? call->weight[(start + j) * inputs + k] : 0;
    }
    return 0;
}
