"""Changes of the schema, oldest first. A file here never changes once it was released."""
