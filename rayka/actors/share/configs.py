"""The settings of share groups in one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rayka.config import BrokerConfig
from rayka.metadata.image import MetadataImage
from rayka.metadata.records import ConfigResource, ResourceType
from rayka.share.config import ShareGroupConfig

_MOST_RESOLVED = 10_000


class Configured(Protocol):
    """The broker as this process sees it."""

    @property
    def image(self) -> MetadataImage:
        """The newest image."""

    @property
    def config(self) -> BrokerConfig:
        """The broker's settings."""


class ShareGroupConfigs:
    """Keeps what was resolved while no setting of the cluster changes."""

    def __init__(self, view: Configured) -> None:
        self._view = view
        self._configs: object = None
        self._resolved: dict[str, ShareGroupConfig] = {}

    def of(self, group_id: str) -> ShareGroupConfig:
        """The newest settings of a group."""
        configs = self._view.image.configs
        if configs is not self._configs or len(self._resolved) > _MOST_RESOLVED:
            self._configs = configs
            self._resolved = {}
        found = self._resolved.get(group_id)
        if found is None:
            group: Mapping[str, str] = configs.get(ConfigResource(ResourceType.GROUP, group_id), {})
            found = self._resolved[group_id] = ShareGroupConfig.resolve(self._view.config, group)
        return found
