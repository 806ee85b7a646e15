"""`rkit analyse-views`: shows which vector of a document answers which query."""
