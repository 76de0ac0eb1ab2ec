"""Commands with commands of their own, a file a group; each is light and imports what it needs when it runs."""
