"""Records the attention of any PyTorch model without changing the model."""

from regard.observe.call import AttentionCall, Unseen
from regard.observe.recording import Recording
from regard.observe.show import view
from regard.observe.stitch import stitched
from regard.observe.watch import watch
from regard.observe.weights import attention_weights

__all__ = ["AttentionCall", "Recording", "Unseen", "attention_weights", "stitched", "view", "watch"]


def __dir__() -> list[str]:
    return sorted(__all__)
