"""Text in, numbers out: reading lines and pairs, vocabularies, batches, and the generated sets."""

from regard.data.batching import PlannedBatch, SequenceBatch, collate, plan_batches
from regard.data.dates import DateExample, generate_dates, split_dates
from regard.data.lines import iter_lines, read_lines, single_line
from regard.data.parallel import hold_out, read_pairs, write_parallel
from regard.data.toys import ToyExample, generate_toys
from regard.data.vocabulary import BOS, EOS, PAD, UNK, Encoded, Vocabulary

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "UNK",
    "DateExample",
    "Encoded",
    "PlannedBatch",
    "SequenceBatch",
    "ToyExample",
    "Vocabulary",
    "collate",
    "generate_dates",
    "generate_toys",
    "hold_out",
    "iter_lines",
    "plan_batches",
    "read_lines",
    "read_pairs",
    "single_line",
    "split_dates",
    "write_parallel",
]
