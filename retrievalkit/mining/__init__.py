"""`rkit mine-negatives`: turns hits into hard negatives, with filters that report what they dropped."""
