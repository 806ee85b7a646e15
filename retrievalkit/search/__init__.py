"""`rkit search`: opens, searches and fuses indexes, and displays hits."""
