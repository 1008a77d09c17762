"""How good a model is, measured by running it: importance of its channels, perplexity, distance to another model."""
