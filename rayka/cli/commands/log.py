"""`rayka log dump`: shows and checks the files of a Kafka log directory; needs no broker."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import Group, json_option

if TYPE_CHECKING:
    from rayka.cli.text.inspection import Damage, OldMessage, Scan
    from rayka.storage.format.batch import BatchHeader

EXAMPLES = """\
examples:
  rayka log dump ~/.local/share/rayka           every segment below, with its indexes
  rayka log dump /var/lib/kafka/orders-0        a partition directory of any Kafka
  rayka log dump orders-0/00000000000000000000.log --records
  rayka log dump DIR --quiet                    only damage and the totals
  rayka log dump DIR --json | jq .              one object for each batch

The command checks the CRC of every batch, that offsets rise, that every index entry points to its batch, and the CRC of
producer snapshots. A broker that is writing may show an unfinished batch at the very end.
Exit codes: 0 no damage, 1 something is damaged, 2 wrong usage, 3 no segments found.
"""


@click.group("log", cls=Group, epilog=EXAMPLES)
def command() -> None:
    """Show and check log files on disk."""


@command.command("dump", epilog=EXAMPLES)
@click.argument("path", metavar="DIR|FILE")
@click.option("--records", is_flag=True, help="Show the records too, decompressed.")
@click.option("--quiet", is_flag=True, help="Show only damage and the totals.")
@json_option("One JSON object for each batch, file or damage.")
def dump(path: str, records: bool, quiet: bool, as_json: bool) -> Exit:
    """Show and check segments and their indexes: a log directory, a partition's directory or one segment."""
    paths = list(_segments_below(Path(path)))
    dump = _Dump(_JsonLines() if as_json else _Text(), records=records, quiet=quiet)
    for segment in paths:
        dump.segment(segment)
    for directory in dict.fromkeys(segment.parent for segment in paths if Path(path).is_dir()):
        dump.snapshots(directory)
    dump.totals()
    return Exit.FAILED if dump.damaged else Exit.DONE


def _segments_below(path: Path) -> Iterator[Path]:
    """Raises CliError(NOT_FOUND) if there is no segment."""
    from rayka.cli.text import inspection

    if path.is_file():
        if not inspection.SEGMENT.fullmatch(path.name):
            raise CliError(f"{path} is not named like a segment: 20 digits and .log", Exit.USAGE)
        yield path
        return
    if not path.is_dir():
        raise CliError(f"{path} does not exist", Exit.NOT_FOUND)
    directories = sorted({found.parent for found in path.rglob("*.log*") if inspection.SEGMENT.fullmatch(found.name)})
    if not directories:
        raise CliError(f"no segments below {path}", Exit.NOT_FOUND)
    for directory in directories:
        yield from inspection.segments(directory)


class _Dump:
    """Walks over files and hands what it finds to `output`."""

    def __init__(self, output: _Text | _JsonLines, *, records: bool, quiet: bool) -> None:
        self._output = output
        self._records = records
        self._quiet = quiet
        self._counts = {"segments": 0, "batches": 0, "records": 0, "bytes": 0}
        self.damaged = 0

    def segment(self, path: Path) -> None:
        """One segment and its indexes."""
        from rayka.cli.text import inspection

        scan = inspection.Scan()
        self._show("segment", path=str(path), base_offset=inspection.base_offset_of(path), size=path.stat().st_size)
        buffer = inspection.contents(path)
        for position, batch in inspection.scan_segment(path, buffer, scan):
            self._batch(buffer, path, position, batch, scan)
        if scan.damage:
            self._damage(scan.damage)
        self._counts["segments"] += 1
        self._counts["bytes"] += scan.size
        self._indexes(path, scan)

    def _batch(self, buffer: Any, path: Path, position: int, batch: BatchHeader | OldMessage, scan: Scan) -> None:
        from rayka.cli.text import inspection

        self._counts["batches"] += 1
        if isinstance(batch, inspection.OldMessage):
            self._counts["records"] += 1
            self._show("message", position=position, offset=batch.offset, size=batch.size_in_bytes, magic=batch.magic)
            return
        self._counts["records"] += batch.record_count
        if not self._quiet:
            self._output.show("batch", _batch_fields(position, batch))
        if self._records:
            self._show_records(buffer, path, position, batch, scan)

    def _show_records(self, buffer: Any, path: Path, position: int, batch: BatchHeader, scan: Scan) -> None:
        from rayka.cli.text import inspection
        from rayka.cli.text.record_text import text_of
        from rayka.errors import RaykaError
        from rayka.storage.format.records import read_batch

        try:
            records = read_batch(buffer, position, batch)
        except RaykaError as error:
            self._damage(inspection.Damage(path, position, error.message))
            return
        for record in records:
            headers = [[name, text_of(value)] for name, value in record.headers]
            key, value = text_of(record.key), text_of(record.value)
            fields = {"offset": record.offset, "timestamp": record.timestamp, "key": key, "value": value}
            self._output.show("record", fields | {"headers": headers})

    def _indexes(self, path: Path, scan: Scan) -> None:
        from rayka.cli.text import inspection

        stem, _, transit = path.name.partition(".log")
        index, time_index, aborted = (path.with_name(stem + kind + transit) for kind in _INDEXES)
        for file, check in ((index, inspection.check_offset_index), (time_index, inspection.check_time_index)):
            if file.exists():
                entries, damage = check(file, scan)
                self._file(file, damage, entries=entries)
        if aborted.exists():
            transactions, damage = inspection.check_aborted_index(aborted)
            self._file(aborted, damage, entries=len(transactions))

    def snapshots(self, directory: Path) -> None:
        """The producer snapshots of a partition."""
        from rayka.cli.text import inspection

        for path in sorted(directory.glob("*.snapshot")):
            producers, damage = inspection.check_snapshot(path)
            self._file(path, damage, producers=len(producers))

    def _file(self, path: Path, damage: list[Damage], **fields: int) -> None:
        self._show("file", path=str(path), **fields)
        for one in damage:
            self._damage(one)

    def _damage(self, damage: Damage) -> None:
        self.damaged += 1
        self._output.show("damage", {"path": str(damage.path), "position": damage.position, "message": damage.message})

    def _show(self, kind: str, **fields: object) -> None:
        if not self._quiet:
            self._output.show(kind, fields)

    def totals(self) -> None:
        """The last line."""
        self._output.show("totals", self._counts | {"damaged": self.damaged})


_INDEXES = (".index", ".timeindex", ".txnindex")


def _batch_fields(position: int, batch: BatchHeader) -> dict[str, object]:
    fields: dict[str, object] = {
        "position": position,
        "size": batch.size_in_bytes,
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "records": batch.record_count,
        "codec": batch.codec.name.lower(),
        "timestamp_type": batch.timestamp_type.name,
        "max_timestamp": batch.max_timestamp,
        "leader_epoch": batch.partition_leader_epoch,
        "crc": batch.crc,
    }
    if batch.has_producer_id:
        fields |= {
            "producer_id": batch.producer_id,
            "producer_epoch": batch.producer_epoch,
            "base_sequence": batch.base_sequence,
        }
    fields |= {"transactional": True} if batch.is_transactional else {}
    return fields | ({"control": True} if batch.is_control else {})


class _JsonLines:
    """One object a line, with its kind first."""

    def show(self, kind: str, fields: dict[str, Any]) -> None:
        print(json.dumps({"kind": kind, **fields}, ensure_ascii=False))


class _Text:
    """Lines for people; damage goes to standard error as well as into its place."""

    def show(self, kind: str, fields: dict[str, Any]) -> None:
        print(getattr(self, f"_{kind}")(fields), file=sys.stderr if kind == "damage" else sys.stdout)

    def _segment(self, fields: dict[str, Any]) -> str:
        return f"{fields['path']}  {fields['size']} bytes"

    def _batch(self, fields: dict[str, Any]) -> str:
        from rayka.cli.text.record_text import time_text

        offsets = f"{fields['base_offset']}..{fields['last_offset']}"
        time = f"{time_text(fields['max_timestamp'])} ({fields['timestamp_type']})"
        text = f"  @{fields['position']:<10} offsets {offsets:<20} {fields['records']} records, {fields['size']} bytes"
        text += f", {fields['codec']}, up to {time}, epoch {fields['leader_epoch']}, crc {fields['crc']:#010x}"
        if "producer_id" in fields:
            text += f", producer {fields['producer_id']}/{fields['producer_epoch']} from {fields['base_sequence']}"
        return text + "".join(f", {flag}" for flag in ("transactional", "control") if flag in fields)

    def _message(self, fields: dict[str, Any]) -> str:
        return f"  @{fields['position']:<10} offset {fields['offset']}, {fields['size']} bytes, magic {fields['magic']}"

    def _record(self, fields: dict[str, Any]) -> str:
        return "    " + json.dumps(fields, ensure_ascii=False)

    def _file(self, fields: dict[str, Any]) -> str:
        what = ", ".join(f"{count} {name}" for name, count in fields.items() if name != "path")
        return f"{fields['path']}  {what}"

    def _damage(self, fields: dict[str, Any]) -> str:
        return f"DAMAGED {fields['path']} at byte {fields['position']}: {fields['message']}"

    def _totals(self, fields: dict[str, Any]) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in fields.items() if name != "damaged")
        return f"{counts}; " + ("no damage" if not fields["damaged"] else f"{fields['damaged']} damaged")
