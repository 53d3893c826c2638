"""An owner's cache of published capability versions; finds the versions that match a range.

A card may name any version of any capability. A range matches only versions in the capability's
line of versions, which has one owner and a bounded length. A selection examines only a few of the
matching versions. Decision versions-and-schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from core.capabilities.semver import parse_range, parse_version, version_id
from core.capabilities.version_choice import PublishedVersion, by_preference, find_within
from core.errors import NodeErrorCode
from core.workflow.actions import SelectAgent
from core.workflow.events import Failure, Verdict

# The `details` of a failure whose target does not offer the capability.
NOT_OFFERED: Final = "capability_not_offered"
# Size of the cache of ranges with their versions.
KNOWN_MAX: Final = 4_096
# Maximum number of versions with agents that a selection examines. By default, this is also the
# maximum length of a line of versions.
LOOKED_AT_MAX: Final = 100
# Maximum number of versions that a selection tries in each of two steps (see `split`).
TRIED_MAX: Final = 4


class PublishedVersions:
    """The published versions of each capability, in the order of preference."""

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
        """Split a selection that names a range into selections of one version each.

        The selection of the target, if there is one, comes first. After that come versions that
        have agents, in the order of preference. The first `TRIED_MAX` versions are always tried,
        because their failures tell why there is no agent. Among the later versions, only versions
        for which `can_take` is true are tried, again at most `TRIED_MAX`.

        Args:
            is_offered: says whether any agent offers a version, by the version's id.
            target_version: the version of the capability that the target offers, or None.
            can_take: says at low cost whether an agent of a version could take the node.
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
        """Return the ids of the published versions in a range, in the order of preference.

        Args:
            versions: a valid range; it was checked when the workflow was published.
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
        """Return the most informative failure of a selection by range.

        This is the first failure other than "no candidate" or "capability not offered". If there
        is no such failure, it is the first failure.
        """
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
