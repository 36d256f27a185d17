"""Displays attention records in the terminal, as a picture, or as one offline page."""

from regard.viewer.history import group_by_example, read_history, save_animation
from regard.viewer.items import Grid, Tokens
from regard.viewer.maps import AreaMap, AttentionMap
from regard.viewer.notebook import Page, view
from regard.viewer.outputs import HypothesisRecord, PredictionRecord, TrainingPoint
from regard.viewer.page import StartingPoint, page_records, render_page, save_page
from regard.viewer.picture import save_picture
from regard.viewer.record import AttentionRecord, read_records, write_records
from regard.viewer.terminal import render_alignment

__all__ = [
    "AreaMap",
    "AttentionMap",
    "AttentionRecord",
    "Grid",
    "HypothesisRecord",
    "Page",
    "PredictionRecord",
    "StartingPoint",
    "Tokens",
    "TrainingPoint",
    "group_by_example",
    "page_records",
    "read_history",
    "read_records",
    "render_alignment",
    "render_page",
    "save_animation",
    "save_page",
    "save_picture",
    "view",
    "write_records",
]


def __dir__() -> list[str]:
    return sorted(__all__)
