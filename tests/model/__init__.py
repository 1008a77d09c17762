"""Tests of the text stack."""
