"""`rkit mine-negatives`: hits become hard negatives, by way of filters that say what they dropped."""
