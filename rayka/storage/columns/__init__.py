"""Record batches to Arrow columns and back, compiled with numba."""
