"""Look at attention: records to the terminal, to a picture, or to one offline page."""

from regard.viewer.page import render_page, save_page
from regard.viewer.picture import save_picture
from regard.viewer.record import AttentionRecord, read_records, write_records
from regard.viewer.terminal import render_alignment

__all__ = ["AttentionRecord", "read_records", "render_alignment", "render_page", "save_page", "save_picture", "write_records"]
