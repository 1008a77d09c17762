"""Makes the embedded model `nano`: its tokenizer, a seeded random checkpoint, and the artifact."""
