"""A partition as a replica (pure): high watermark, and the produce and fetch requests that wait for it."""
