"""`meta.properties`: which cluster and node a log directory belongs to."""

from __future__ import annotations

import contextlib
import os
import uuid
from dataclasses import dataclass

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.directory.checkpoints import decode_uuid, encode_uuid
from rayka.storage.files import RealFiles

FILE_NAME = "meta.properties"
VERSION = "1"


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The identity of a log directory. `directory_id` is the directory's own."""

    cluster_id: str
    node_id: int
    directory_id: uuid.UUID

    @classmethod
    def read(cls, files: RealFiles, directory: str) -> MetaProperties | None:
        """What the file says; None if it is missing, or of a Kafka before 3.7, whose directories had no id.

        Raises INCONSISTENT_CLUSTER_ID if it is there and does not say.
        """
        path = os.path.join(directory, FILE_NAME)
        try:
            lines = files.read_file(path).decode("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return None
        fields = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        if lines and lines[0].startswith("#") and _is_before_directory_ids(fields):
            return None
        try:
            directory_id = decode_uuid(fields["directory.id"])
            return cls(fields["cluster.id"], int(fields["node.id"]), directory_id)
        except (KeyError, ValueError):
            raise RaykaError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"{path} has no valid cluster.id, node.id and directory.id: put back a copy, or the lines that it had",
            ) from None

    @classmethod
    def settle(cls, files: RealFiles, directory: str, wanted: MetaProperties | None) -> MetaProperties | None:
        """What holds for the directory; `wanted` is written where nothing is.

        A file that cannot be read is never replaced: with another id in it the partitions in the directory would count
        as missing. Raises INCONSISTENT_CLUSTER_ID then, and if the directory belongs to another cluster or node.
        """
        if wanted is None:
            with contextlib.suppress(RaykaError):
                return cls.read(files, directory)
            return None
        known = cls.read(files, directory)
        if known == wanted:
            return known
        if known is None:
            files.write_file(os.path.join(directory, FILE_NAME), wanted.encode(), sync=True)
            return wanted
        if (known.cluster_id, known.node_id) != (wanted.cluster_id, wanted.node_id):
            raise RaykaError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"{directory} belongs to node {known.node_id} of cluster {known.cluster_id},"
                f" not to node {wanted.node_id} of cluster {wanted.cluster_id}",
            )
        return known

    def encode(self) -> bytes:
        """The bytes of the file."""
        fields = {
            "version": VERSION,
            "cluster.id": self.cluster_id,
            "node.id": str(self.node_id),
            "directory.id": encode_uuid(self.directory_id),
        }
        return "".join(f"{name}={value}\n" for name, value in fields.items()).encode("utf-8")


def _is_before_directory_ids(fields: dict[str, str]) -> bool:
    """Whether these are all the lines that Kafka wrote, below a comment, before it gave directories an id (KIP-858)."""
    known = {"0": {"broker.id"}, "1": {"node.id", "cluster.id"}}.get(fields.get("version", ""))
    return known is not None and known <= fields.keys() and "directory.id" not in fields
