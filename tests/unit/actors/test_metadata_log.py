"""The controller's log: read again as it was written, with snapshots as often as the setting says."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayka.actors.controller.log import MetadataLog
from rayka.metadata.image import MetadataImage
from rayka.metadata.records import RegisterBrokerRecord


def written(path: Path, count: int, bytes_between_snapshots: int) -> MetadataImage:
    log = MetadataLog(str(path), bytes_between_snapshots)
    image = log.load()
    for epoch in range(count):
        records = [
            RegisterBrokerRecord(
                1, image.next_broker_epoch, f"node-{epoch}", "h", 9092, directory_ids=("id",), log_dirs=("/a",)
            )
        ]
        log.append(records, image)
        image = image.apply_all(records)
        log.snapshot_if_due(image)
    log.close()
    return image


@pytest.mark.parametrize(("bytes_between_snapshots", "snapshots"), [(20 << 20, 0), (1000, 1)])
def test_a_log_is_read_again(tmp_path: Path, bytes_between_snapshots: int, snapshots: int) -> None:
    image = written(tmp_path, 50, bytes_between_snapshots)
    assert len(list(tmp_path.glob("*/*.checkpoint"))) == snapshots
    again = MetadataLog(str(tmp_path), bytes_between_snapshots)
    assert again.load() == image
    again.close()
