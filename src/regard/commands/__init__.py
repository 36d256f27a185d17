"""The commands of the command line, one module per task or purpose; dependencies are imported on use."""
