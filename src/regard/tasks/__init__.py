"""Wiring: data, model, training, decoding and metrics into tasks."""
