"""The `partition.metadata` file: which topic id a partition directory belongs to."""

from __future__ import annotations

import os
import uuid

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.directory.checkpoints import decode_uuid, encode_uuid
from rayka.storage.files import RealFiles

FILE_NAME = "partition.metadata"


def read(files: RealFiles, directory: str) -> uuid.UUID | None:
    """The topic id, None if the file is missing or does not say."""
    try:
        lines = files.read_file(os.path.join(directory, FILE_NAME)).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return None
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    try:
        return decode_uuid(fields["topic_id"])
    except (KeyError, ValueError):
        return None


def settle(files: RealFiles, directory: str, topic_id: uuid.UUID | None) -> uuid.UUID | None:
    """Write the topic id if none is known yet; the one that holds. Raises INCONSISTENT_TOPIC_ID for another one."""
    known = read(files, directory)
    if topic_id is None or known == topic_id:
        return known
    if known is not None:
        raise RaykaError(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"{directory} belongs to topic id {encode_uuid(known)}, not {encode_uuid(topic_id)}",
        )
    text = f"version: 0\ntopic_id: {encode_uuid(topic_id)}\n"
    files.write_file(os.path.join(directory, FILE_NAME), text.encode("ascii"))
    return topic_id
