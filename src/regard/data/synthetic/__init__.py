"""Synthetic data sets with known alignments: dates, scenes, and toy sequences."""
