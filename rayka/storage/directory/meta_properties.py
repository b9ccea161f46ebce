"""`meta.properties`: which cluster and node a log directory belongs to."""

from __future__ import annotations

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
        """What the file says; None if it is missing or is not of version 1."""
        try:
            lines = files.read_file(os.path.join(directory, FILE_NAME)).decode("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return None
        fields = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        try:
            directory_id = decode_uuid(fields["directory.id"])
            return cls(fields["cluster.id"], int(fields["node.id"]), directory_id)
        except (KeyError, ValueError):
            return None

    @classmethod
    def settle(cls, files: RealFiles, directory: str, wanted: MetaProperties | None) -> MetaProperties | None:
        """What holds for the directory; `wanted` is written where nothing is.

        Raises INCONSISTENT_CLUSTER_ID if the directory belongs to another cluster or node.
        """
        known = cls.read(files, directory)
        if wanted is None or known == wanted:
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
