"""The remote store that the settings name: a directory, or a bucket of S3 by way of obstore."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

from rayka.config import BrokerConfig
from rayka.config.remote import STORE_URL
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.files import RealFiles
from rayka.storage.remote.directory_store import DirectoryStore
from rayka.storage.remote.segment_copy import PIECE_BYTES
from rayka.storage.remote.store import RemoteStore

_TIMEOUT = "30s"
_RETRIES = 2
_S3_SETTINGS = {
    "rsm.config.storage.s3.endpoint.url": "endpoint",
    "rsm.config.storage.s3.region": "region",
    "rsm.config.storage.aws.access.key.id": "access_key_id",
    "rsm.config.storage.aws.secret.access.key": "secret_access_key",
}


def open_store(config: BrokerConfig) -> RemoteStore:
    """The store, which need not be there yet. Raises INVALID_CONFIG if it can't be used here."""
    url = urlsplit(config[STORE_URL])
    if url.scheme == "file":
        return _open_directory(url.path)
    settings = {known: config[name] for name, known in _S3_SETTINGS.items() if config[name] is not None}
    return S3Store(url.netloc, url.path.strip("/"), settings)


def _open_directory(path: str) -> DirectoryStore:
    """The store. From now on another directory in its place is an error; if it isn't there, later calls look again."""
    store = DirectoryStore(RealFiles(), path)
    with contextlib.suppress(OSError):
        store.open()
    return store


class S3Store:
    """`RemoteStore` in a bucket. What the settings leave out comes from the environment, as for Amazon's own tools.

    An object of more than one piece is sent as a multipart upload, which is ended or given up by the library.
    """

    def __init__(self, bucket: str, prefix: str, settings: dict[str, Any]) -> None:
        try:
            import obstore
            from obstore.store import S3Store as Bucket
        except ImportError:
            message = f"{STORE_URL} names a bucket of S3, which needs the package obstore: pip install obstore"
            raise RaykaError(ErrorCode.INVALID_CONFIG, message) from None
        self._obstore = obstore
        is_plain = str(settings.get("endpoint", "")).startswith("http://")
        self._bucket = Bucket(
            bucket,
            prefix=prefix or None,
            client_options={"timeout": _TIMEOUT, "allow_http": is_plain},
            retry_config={"max_retries": _RETRIES},
            **settings,
        )

    def create(self) -> None:
        """See `RemoteStore.create`. The bucket is the operator's to create."""

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """See `RemoteStore.put`."""
        with _Translated():
            self._obstore.put(self._bucket, name, iter(pieces), chunk_size=PIECE_BYTES)

    def get(self, name: str, position: int, size: int) -> bytes:
        """See `RemoteStore.get`. An empty object has no range."""
        with _Translated():
            if not self._obstore.head(self._bucket, name)["size"]:
                return b""
            return bytes(self._obstore.get_range(self._bucket, name, start=position, length=size))

    def delete(self, name: str) -> None:
        """See `RemoteStore.delete`."""
        try:
            with _Translated():
                self._obstore.delete(self._bucket, name)
        except FileNotFoundError:
            return

    def list(self, prefix: str) -> Iterator[str]:
        """See `RemoteStore.list`."""
        with _Translated():
            for found in self._obstore.list(self._bucket, prefix=prefix.rpartition("/")[0] or None):
                for entry in found:
                    if entry["path"].startswith(prefix):
                        yield entry["path"]


class _Translated:
    """Lets every error of the library be an OSError, as `RemoteStore` has it."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from obstore.exceptions import BaseError, NotFoundError

        if isinstance(error, NotFoundError):
            raise FileNotFoundError(str(error)) from error
        if isinstance(error, BaseError):
            raise OSError(str(error)) from error
