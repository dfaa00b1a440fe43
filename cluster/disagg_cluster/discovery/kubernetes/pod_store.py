"""The pods of this node, kept from the streamed JSON of a list and the events of a watch; pure.

The pods of one node can be a hundred megabytes of JSON if their owners want them to be; only one
object at a time is held here.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from enum import Enum

from disagg_cluster.discovery.kubernetes.pods import Pod, member, read_pod
from disagg_exporter.errors import DisaggError

# A request to the API server is at most 3 MiB, and `<` is written in six characters.
MAX_OBJECT_CHARACTERS = 20 * 1024 * 1024

_ITEMS = re.compile(r'"items"\s*:\s*(\[|null)')
_VERSION = re.compile(r'"resourceVersion"\s*:\s*"([0-9A-Za-z_-]{0,64})"')
_GAP = re.compile(r"[\s,]*")
# Limit of the text before the items: the list's own metadata takes some hundred characters.
_HEAD_CHARACTERS = 64 * 1024


class StreamError(DisaggError):
    """The API server sent something other than what was requested."""


class ListReader:
    """Parses a list of the API from its bytes: `feed` yields the items that are complete.

    The servers write the list's metadata before its items, and this parser relies on it.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._parse = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0
        self._try_at = 0
        self._version: str | None = None
        self._done = False

    @property
    def resource_version(self) -> str:
        """The version to watch from; raises `StreamError` unless the whole list was fed."""
        if self._version is None or not self._done:
            raise StreamError("the list of pods is cut off")
        return self._version

    def feed(self, data: bytes) -> Iterator[object]:
        """Add the next bytes, none at the end; yield the items that they complete.

        Raises:
            StreamError: This is no list of the API, or one of its objects is too large.
        """
        self._text += self._decode(data)
        if self._done or (self._version is None and not self._find_items()):
            return
        if data and len(self._text) < self._try_at:
            return
        while not self._done:
            start = _end(_GAP.match(self._text, self._at))
            if self._text.startswith("]", start):
                self._done, self._text = True, ""
                return
            try:
                item, end = self._parse(self._text, start)
            except ValueError:
                break
            except RecursionError:
                raise StreamError("an object of the API is nested too deep") from None
            self._at = end
            yield item
        self._await_more()

    def _find_items(self) -> bool:
        items = _ITEMS.search(self._text)
        if items is None:
            if len(self._text) > _HEAD_CHARACTERS:
                raise StreamError("the API server's answer is no list")
            return False
        version = _VERSION.search(self._text, 0, items.start())
        if version is None:
            raise StreamError("the API server's list has no resource version before its items")
        self._version = version[1]
        self._text = self._text[items.end() :]
        self._done = items[1] == "null"
        return not self._done

    def _await_more(self) -> None:
        """Drop what was parsed, and retry at twice the length, not after every chunk."""
        self._text, self._at = self._text[self._at :], 0
        if len(self._text) > MAX_OBJECT_CHARACTERS:
            raise StreamError(f"an object of the API has over {MAX_OBJECT_CHARACTERS} characters")
        self._try_at = 2 * len(self._text)


def _end(match: re.Match[str] | None) -> int:
    return match.end() if match else 0


# A kubelet takes 110 pods, large nodes 250; pods beyond this are counted and not kept.
MAX_PODS = 1024


class WatchOutcome(Enum):
    """What to do after an event of the watch."""

    WATCH = "go on"
    LIST = "list anew: the server has forgotten what we know"
    REST = "list anew, after a while: the server has an error"


class PodStore:
    """Pods by their UID; `pods` is one whole tuple, replaced at each change.

    Args:
        node: The pods' node; a server that ignores our selector would send all pods.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._by_uid: dict[str, Pod] = {}
        self._pods: tuple[Pod, ...] = ()
        self._left_out = 0
        self._version = ""

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The pods as last reported."""
        return self._pods

    @property
    def left_out(self) -> int:
        """How many pods exceeded the limit at the last list or since."""
        return self._left_out

    @property
    def resource_version(self) -> str:
        """The version up to which events were received; empty if a list is needed first."""
        return self._version

    def invalidate(self) -> None:
        """Have the next list replace everything; until then the known pods stay valid."""
        self._version = ""

    def replace(self, pods: Iterable[Pod], resource_version: str) -> None:
        """Replace all that was known by a whole list."""
        self._by_uid.clear()
        self._left_out = 0
        for pod in pods:
            self._add(pod)
        self._version = resource_version
        self._pods = tuple(self._by_uid.values())

    def apply(self, event: object) -> WatchOutcome:
        """Apply one event of the watch."""
        kind, value = member(event, "type"), member(event, "object")
        if kind == "ERROR":
            # 410: our resource version is older than the server keeps.
            return WatchOutcome.LIST if member(value, "code") == 410 else WatchOutcome.REST
        version = member(member(value, "metadata"), "resourceVersion")
        if isinstance(version, str) and len(version) <= 64:
            self._version = version
        pod = read_pod(value) if kind in ("ADDED", "MODIFIED", "DELETED") else None
        if pod is None:
            return WatchOutcome.WATCH
        if kind == "DELETED":
            self._by_uid.pop(pod.uid, None)
        else:
            self._add(pod)
        self._pods = tuple(self._by_uid.values())
        return WatchOutcome.WATCH

    def _add(self, pod: Pod) -> None:
        if pod.node != self._node:
            return
        if pod.uid not in self._by_uid and len(self._by_uid) >= MAX_PODS:
            self._left_out += 1
            return
        self._by_uid[pod.uid] = pod
