"""Hidden files: their locks tell whether somebody still works on them."""

import os
from pathlib import Path

import pytest

from engine.artifact.unfinished import create, find_unfinished, publish, remove_unfinished, unfinished_note, write_new
from engine.exits import ArtifactError


def test_files_in_use_are_kept(tmp_path: Path) -> None:
    target = tmp_path / "a[1].ninfer"
    mine, descriptor = create(target)
    part, other = create(tmp_path / "a[1].ninfer.part-0001")
    os.close(other)
    assert [(item.path, item.owned) for item in find_unfinished(target)] == [(mine, True), (part, False)]
    assert unfinished_note(target) == f"left by a run that was killed: {part} (0 bytes); --clean removes them"
    assert [item.path for item in remove_unfinished(target)] == [part]
    assert mine.exists()
    os.close(descriptor)
    assert [item.path for item in remove_unfinished(target)] == [mine]
    assert unfinished_note(target) is None


def test_only_files_of_this_output_are_found(tmp_path: Path) -> None:
    for name in ("ab", "a.ninfer2", "a.part"):
        os.close(create(tmp_path / name)[1])
    (tmp_path / ".a.12345678.1.tmp").symlink_to(tmp_path / "elsewhere")
    assert find_unfinished(tmp_path / "a") == []


def test_publishing_never_replaces(tmp_path: Path) -> None:
    target = tmp_path / "a"
    write_new(target, b"first")
    with pytest.raises(ArtifactError, match="exists already"):
        write_new(target, b"second")
    temporary, descriptor = create(target)
    os.close(descriptor)
    with pytest.raises(ArtifactError, match="appeared while"):
        publish(temporary, target)
    assert target.read_bytes() == b"first"
