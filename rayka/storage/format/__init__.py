"""Record batches and records as bytes: headers, builders, codecs, control records, varints."""
