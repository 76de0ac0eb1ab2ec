"""``python -m pipeline.cli``: the same command, for parts that start other parts with their own interpreter."""

from pipeline.cli import main

if __name__ == "__main__":
    main()
