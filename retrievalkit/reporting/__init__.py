"""What people look at, for every command: pages, progress bars and tables."""
