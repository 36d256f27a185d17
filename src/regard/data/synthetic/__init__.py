"""Generated data sets whose truth is known: dates, scenes, and toy sequences."""
