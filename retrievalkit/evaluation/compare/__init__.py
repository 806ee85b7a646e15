"""`rkit compare`: paired tests between runs, as a table, a page and plots."""
