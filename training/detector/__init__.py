"""A YOLO26n for people, trained from scratch on pictures put together from cut-out people, and on labelled video."""
