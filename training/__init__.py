"""How the weights in ``models/`` were made. Reproducible from the material named in ``training/README.md``."""
