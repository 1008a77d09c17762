"""OpenAI Responses (spec/serving.md §8)."""
