"""The verbs of the command line, a module a task or purpose. What a verb needs is imported when it is used."""
