"""Training in PyTorch: one loop, exact resume, several processes."""

from typing import TYPE_CHECKING

from regard.lazy_names import lazy_names

if TYPE_CHECKING:
    from regard.training.checkpoint import TrainingState, latest_checkpoint, load_checkpoint, load_weights, save_checkpoint
    from regard.training.distributed import ProcessGroup, processes
    from regard.training.lock import run_lock
    from regard.training.loop import train
    from regard.training.micro_batch import automatic_micro_batches
    from regard.training.optimizer import build_optimizer, learning_rate
    from regard.training.signals import Stopped, StopSignal
    from regard.training.training_job import BatchIndices, Progress, TrainingJob, TrainResult
    from regard.training.weights import weights_sha256

__all__ = [
    "BatchIndices",
    "ProcessGroup",
    "Progress",
    "StopSignal",
    "Stopped",
    "TrainResult",
    "TrainingJob",
    "TrainingState",
    "automatic_micro_batches",
    "build_optimizer",
    "latest_checkpoint",
    "learning_rate",
    "load_checkpoint",
    "load_weights",
    "processes",
    "run_lock",
    "save_checkpoint",
    "train",
    "weights_sha256",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "checkpoint": "TrainingState latest_checkpoint load_checkpoint load_weights save_checkpoint",
        "distributed": "ProcessGroup processes",
        "lock": "run_lock",
        "loop": "train",
        "micro_batch": "automatic_micro_batches",
        "optimizer": "build_optimizer learning_rate",
        "signals": "Stopped StopSignal",
        "training_job": "BatchIndices Progress TrainingJob TrainResult",
        "weights": "weights_sha256",
    },
)
