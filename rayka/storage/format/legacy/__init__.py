"""Message sets of magic 0 and 1, the formats before record batches (2017), converted to record batches and back."""
