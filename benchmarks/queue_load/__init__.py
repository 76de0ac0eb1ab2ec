"""A load for the queue: people that ingest's own publisher reports, an engine of a given speed, and a book of what
became of every crop. Used by the storms of kills (`tests/faults`) and by :mod:`benchmarks.overload`."""
