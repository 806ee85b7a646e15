"""`rkit mine-negatives`: turns hits into hard negatives by filters, and reports the hits that each filter dropped."""
