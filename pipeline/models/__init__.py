"""Which vision-language models there are by name, what they need, and how they get onto this machine."""
