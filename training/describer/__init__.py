"""A small vision-language model for crops of people: a tower trained on photographs, words by SmolLM2-135M."""
