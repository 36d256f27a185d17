"""Training on plain torch: one loop, exact resume, several processes."""

from regard.training.checkpoint import TrainingState, latest_checkpoint, load_checkpoint, load_weights, save_checkpoint
from regard.training.distributed import World, processes
from regard.training.job import Job, PlannedBatch, Progress, TrainResult
from regard.training.loop import train
from regard.training.optimizer import build_optimizer, learning_rate
from regard.training.stop import Stopped, StopSignal
from regard.training.weights import weights_sha256

__all__ = [
    "Job",
    "PlannedBatch",
    "Progress",
    "StopSignal",
    "Stopped",
    "TrainResult",
    "TrainingState",
    "World",
    "build_optimizer",
    "latest_checkpoint",
    "learning_rate",
    "load_checkpoint",
    "load_weights",
    "processes",
    "save_checkpoint",
    "train",
    "weights_sha256",
]
