"""`rkit analyse-views`: which vector of a document answers which query."""
