"""Writing artifacts (spec/artifact.md §1.4)."""

from engine.artifact.planning import (
    FILE_LIMIT,
    PlannedObject,
    ResourceSpec,
    TensorSpec,
    payload_size,
    plan_files,
    plan_objects,
)

__all__ = ["FILE_LIMIT", "PlannedObject", "ResourceSpec", "TensorSpec", "payload_size", "plan_files", "plan_objects"]
