"""The settings of tiered storage (KIP-405): Kafka's names, and in the place of a plug-in's configs those of the store.

The store's are named as those of the best-known plug-in for Kafka, behind Kafka's prefix `rsm.config.`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from urllib.parse import urlsplit

from rayka.config.definition import (
    BOOLEAN,
    CLUSTER_WIDE,
    DOUBLE,
    INT,
    LONG,
    LONG_MAX,
    PASSWORD,
    SHORT,
    STRING,
    ConfigDef,
    ConfigValue,
)
from rayka.errors import ErrorCode, RaykaError

SYSTEM_ENABLE = "remote.log.storage.system.enable"
STORE_URL = "rsm.config.url"


def _url(value: ConfigValue) -> str | None:
    url = urlsplit("" if value is None else str(value))
    is_place = (url.scheme == "file" and not url.netloc and url.path) or (url.scheme == "s3" and url.netloc)
    if value is None or (is_place and not {"@", "?", "#", "%"} & set(str(value))):
        return None
    return "it must be file:///DIRECTORY or s3://BUCKET/PREFIX, as it is, without credentials or a query"


def _store() -> Iterator[ConfigDef]:
    yield ConfigDef(
        SYSTEM_ENABLE, BOOLEAN, "false",
        f"Whether topics may keep older segments in the remote store that `{STORE_URL}` names. Those with "
        "`remote.storage.enable` do.",
    )  # fmt: skip
    yield ConfigDef(
        STORE_URL, STRING, None,
        "The remote store: `file:///DIRECTORY` (a network file system, or another disk) or `s3://BUCKET/PREFIX`. All "
        "nodes must reach the same one. S3 needs the package `obstore`.", check=_url,
    )  # fmt: skip
    yield ConfigDef(
        "rsm.config.storage.s3.endpoint.url", STRING, None,
        "The address of a store that speaks S3's protocol, if it is not Amazon's own.",
    )  # fmt: skip
    yield ConfigDef(
        "rsm.config.storage.s3.region", STRING, None, "The region of the bucket; by default that of the environment.",
    )  # fmt: skip
    yield ConfigDef(
        "rsm.config.storage.aws.access.key.id", PASSWORD, None,
        "The access key. Without it the environment's credentials are used: `AWS_ACCESS_KEY_ID` and others, or those "
        "of the machine's role.", sensitive=True,
    )  # fmt: skip
    yield ConfigDef(
        "rsm.config.storage.aws.secret.access.key", PASSWORD, None, "The secret of the access key.", sensitive=True,
    )  # fmt: skip


def _reading() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "rsm.config.chunk.size", INT, "4194304",
        "About how many bytes of a segment are fetched from the store at once. Chunks end where batches do.",
        lower=4096,
    )  # fmt: skip
    yield ConfigDef(
        "rsm.config.fetch.chunk.cache.size", LONG, "536870912",
        "How many bytes of fetched chunks each partition actor keeps on its disk, for further readers.",
        lower=0,
    )  # fmt: skip
    yield ConfigDef(
        "remote.log.index.file.cache.total.size.bytes", LONG, "1073741824",
        "How many bytes of indexes of remote segments each partition actor keeps on its disk.",
        lower=1, update_mode=CLUSTER_WIDE,
    )  # fmt: skip
    yield ConfigDef(
        "remote.log.reader.threads", INT, "10", "How many reads from the store a partition actor has under way.",
        lower=1, update_mode=CLUSTER_WIDE,
    )  # fmt: skip
    yield ConfigDef(
        "remote.log.reader.max.pending.tasks", INT, "100",
        "How many more reads may wait for a thread. Beyond that fetches return no records, and clients try again.",
        lower=1,
    )  # fmt: skip
    yield ConfigDef(
        "remote.fetch.max.wait.ms", INT, "500",
        "How long a fetch waits for records from the store. Records that come later are cached for the next fetch.",
        lower=1, update_mode=CLUSTER_WIDE,
    )  # fmt: skip
    yield ConfigDef(
        "remote.list.offsets.request.timeout.ms", LONG, "30000",
        "How long the search for an offset by time waits for the store.", lower=1, update_mode=CLUSTER_WIDE,
    )  # fmt: skip
    yield ConfigDef(
        "remote.log.manager.fetch.max.bytes.per.second", LONG, str(LONG_MAX),
        "How fast each partition actor may fetch from the store.", lower=1, update_mode=CLUSTER_WIDE,
    )  # fmt: skip


def _copying() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "remote.log.manager.task.interval.ms", LONG, "30000",
        "How often an actor looks for segments to copy to the store, and for those to delete there.",
        lower=1,
    )  # fmt: skip
    yield ConfigDef(
        "remote.log.manager.copier.thread.pool.size", INT, "10",
        "How many partitions of an actor are copied at a time.", lower=1, update_mode=CLUSTER_WIDE,
    )  # fmt: skip
    yield ConfigDef(
        "remote.log.manager.expiration.thread.pool.size", INT, "10",
        "For how many partitions of an actor segments are deleted from the store at a time.",
        lower=1, update_mode=CLUSTER_WIDE,
    )  # fmt: skip
    yield ConfigDef(
        "remote.log.manager.copy.max.bytes.per.second", LONG, str(LONG_MAX),
        "How fast each partition actor may copy to the store.", lower=1, update_mode=CLUSTER_WIDE,
    )  # fmt: skip
    yield ConfigDef(
        "remote.log.manager.task.retry.backoff.ms", LONG, "500",
        "How long a partition waits after its first failed copy or deletion.", lower=1, importance="low",
    )  # fmt: skip
    yield ConfigDef(
        "remote.log.manager.task.retry.backoff.max.ms", LONG, "30000",
        "How long it waits at most, after many failures in a row.", lower=1, importance="low",
    )  # fmt: skip
    yield ConfigDef(
        "remote.log.manager.task.retry.jitter", DOUBLE, "0.2",
        "The random part of the wait, 0 to 0.5.", lower=0, upper=0.5, importance="low",
    )  # fmt: skip


def _metadata() -> Iterator[ConfigDef]:
    topic = "rlmm.config.remote.log.metadata.topic."
    yield ConfigDef(
        f"{topic}num.partitions", INT, "50", "How many partitions `__remote_log_metadata` gets.", lower=1,
        importance="low",
    )  # fmt: skip
    yield ConfigDef(
        f"{topic}replication.factor", SHORT, "3", "How many replicas they get, at most one for each broker.", lower=1,
        importance="low",
    )  # fmt: skip
    yield ConfigDef(
        f"{topic}min.isr", SHORT, "2", "How many of them must be in sync.", lower=1, importance="low",
    )  # fmt: skip
    yield ConfigDef(
        f"{topic}retention.ms", LONG, "-1",
        "How long its records are kept; -1 for ever. It must be longer than the retention of every topic.", lower=-1,
        importance="low",
    )  # fmt: skip


REMOTE_CONFIGS: Mapping[str, ConfigDef] = {
    definition.name: definition for group in (_store, _reading, _copying, _metadata) for definition in group()
}

Resolve = Callable[[str], ConfigValue]


def check_remote_configs(resolve: Resolve, broker: Mapping[str, str]) -> None:
    """Raises INVALID_CONFIG if a topic's configs, which `resolve` gives by name, do not go with tiered storage."""
    if not resolve("remote.storage.enable"):
        return
    if not _is_true(broker, SYSTEM_ENABLE):
        raise _invalid(
            "Tiered Storage functionality is disabled in the broker. "
            f"Topic cannot be configured with remote log storage. Start the broker with {SYSTEM_ENABLE}=true."
        )
    policy = resolve("cleanup.policy")
    if policy != ("delete",):
        raise _invalid("Remote log storage only supports topics with cleanup.policy=delete.")
    for unit in ("ms", "bytes"):
        local, whole = resolve(f"local.retention.{unit}"), resolve(f"retention.{unit}")
        assert isinstance(local, int)
        assert isinstance(whole, int)
        if local != -2 and whole >= 0 and not 0 <= local <= whole:
            reason = f"Value must not be more than retention.{unit} property value: {whole}"
            raise _invalid(f"Invalid value {local} for configuration local.retention.{unit}: {reason}")


def check_remote_change(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raises INVALID_CONFIG if a topic that has tiered storage is to have none, and its remote segments would stay."""
    is_disabled = _is_true(before, "remote.storage.enable") and not _is_true(after, "remote.storage.enable")
    if is_disabled and not _is_true(after, "remote.log.delete.on.disable"):
        raise _invalid(
            "It is invalid to disable remote storage without deleting remote data. To keep the remote data and turn it "
            "to read only, set `remote.storage.enable=true,remote.log.copy.disable=true`. To disable remote storage "
            "and delete all remote data, set `remote.storage.enable=false,remote.log.delete.on.disable=true`."
        )


def _is_true(configs: Mapping[str, str], name: str) -> bool:
    return configs.get(name, "").strip().lower() == "true"


def _invalid(message: str) -> RaykaError:
    return RaykaError(ErrorCode.INVALID_CONFIG, message)
