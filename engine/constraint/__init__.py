"""Constraints on answers: what may be asked for, how it becomes a grammar, and masks of the tokens that may come next.

The API reads what clients send (`constraint`), has it compiled once in a bounded process (`checker`), and hands the
grammar's text to the engine as opaque bytes. The engine keeps a worker process of its own (`masks`, `worker`), which
compiles the text again and writes the masks into shared memory. Nothing here imports torch.
"""
