"""Text in, numbers out: reading lines and pairs, vocabularies, batches, and the generated sets."""
