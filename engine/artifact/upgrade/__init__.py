"""Artifacts of container version 2 made into version 3 (spec/artifact.md §1.6). Standard library only."""
