"""Alembic's folder: `env.py` connects it to our tables, `versions/` holds one file for each change of the schema."""
