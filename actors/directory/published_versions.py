"""The versions of capabilities that an owner knows to be published, and which a range means.

A card may say any version of any capability; a range means only versions that the capability's line
has, which has one owner and a bounded number of them. A node looks at a few of these, however many
there are. Decision versions-and-schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from core.capabilities.choosing_versions import PublishedVersion, by_preference, find_within
from core.capabilities.semver import parse_range, parse_version, version_id
from core.errors import NodeErrorCode
from core.workflow.actions import SelectAgent
from core.workflow.events import Failure, Verdict

# Of a target, as `agent_directory.py` says it.
NOT_OFFERED: Final = "capability_not_offered"
# Ranges whose versions are remembered.
KNOWN_MAX: Final = 4_096
# Versions with agents that a selection looks at: as many as a capability has by default.
LOOKED_AT_MAX: Final = 100
# Versions that it tries to take an agent of, besides the one that its target offers.
TRIED_MAX: Final = 4


class PublishedVersions:
    """Published versions by capability, in the order in which they are chosen."""

    def __init__(self) -> None:
        self._lines: dict[str, list[PublishedVersion]] = {}
        self._known: dict[tuple[str, str], tuple[str, ...]] = {}

    def apply_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Store versions from rows (`capability_id, version, status`)."""
        changed: dict[str, dict[str, PublishedVersion]] = {}
        for row in rows:
            one = PublishedVersion(parse_version(row["version"]), row["status"] == "deprecated")
            changed.setdefault(row["capability_id"], {})[row["version"]] = one
        for capability_id, versions in changed.items():
            kept = (
                one
                for one in self._lines.get(capability_id, ())
                if str(one.version) not in versions
            )
            self._lines[capability_id] = by_preference([*kept, *versions.values()])
        if changed:
            self._known.clear()

    def split(
        self,
        action: SelectAgent,
        is_offered: Callable[[str], bool],
        target_version: str | None,
        can_take: Callable[[str], bool],
    ) -> Iterator[SelectAgent]:
        """Yield a selection that names versions as selections of one version each, in order.

        A target is looked for before another agent takes its place. Versions without an agent are
        passed over. Of the others the first `TRIED_MAX` are tried whatever comes of it, and tell
        why there is no agent; of those behind them, as many again that `can_take` says have one.

        Args:
            is_offered: says whether a version, by its id, has agents.
            target_version: the version of the capability that the target offers, None for none.
            can_take: says at little cost whether an agent of a version could take the node.
        """
        found = self.find_within(action.capability_id, action.versions)
        if action.target_agent_id is not None and found:
            own = version_id(action.capability_id, target_version or "")
            sought = own if own in found else found[0]
            yield replace(action, capability_id=sought, versions="", allow_fallback=False)
            if not action.allow_fallback:
                return
        ids = islice(filter(is_offered, found), LOOKED_AT_MAX)
        for some in (ids, filter(can_take, ids)):
            for one in islice(some, TRIED_MAX):
                yield replace(action, capability_id=one, versions="", target_agent_id=None)

    def find_within(self, capability_id: str, versions: str) -> tuple[str, ...]:
        """Return the ids of the published versions of a range, the one to be tried first first.

        Args:
            versions: a range that was checked when it was published.
        """
        asked = (capability_id, versions)
        found = self._known.get(asked)
        if found is None:
            line = self._lines.get(capability_id, [])
            wanted = find_within(line, parse_range(versions))
            found = tuple(version_id(capability_id, str(one.version)) for one in wanted)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[asked] = found
        return found

    def find_most_telling(self, refused: Sequence[Failure], action: SelectAgent) -> Failure:
        """Return why no agent of a range was selected: that one is not offered tells least."""
        for one in refused:
            if one.details != NOT_OFFERED and one.code is not NodeErrorCode.NO_CANDIDATE:
                return one
        if refused:
            return refused[0]
        capability_id, versions = action.capability_id, action.versions
        message = f"no published version of {capability_id!r} matches {versions!r}"
        if self.find_within(capability_id, versions):
            message = f"no agent offers a version of {capability_id!r} that matches {versions!r}"
        return Failure(NodeErrorCode.NO_CANDIDATE, message, Verdict.FINAL)
