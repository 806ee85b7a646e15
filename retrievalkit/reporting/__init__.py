"""Output for people, shared by all commands: HTML pages, charts, progress bars, tables and warnings."""
