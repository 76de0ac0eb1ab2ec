"""Between the cameras and the words: configuration, messages, queue, describer, store, supervisor, command line."""
