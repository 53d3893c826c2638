"""Prints how well descriptions are planned: `python -m bench.planning [--show]`. Decision planning.

`--show` prints each case that is not as expected, of those that are not set aside.
"""

from __future__ import annotations

import sys

from bench.planning.evaluation import planned, read_cases, read_offers, scores


def main() -> None:
    """Print the scores."""
    offers, cases = read_offers(), read_cases()
    for name, is_set_aside in (("looked at", False), ("set aside", True)):
        chosen = [case for case in cases if case.is_set_aside is is_set_aside]
        print(f"{name}: {len(chosen)} descriptions over {len(offers)} capabilities")
        for what, score in scores(chosen, offers).items():
            print(f"  {what}: precision {score.precision:.2f}, recall {score.recall:.2f}")
    if "--show" in sys.argv:
        for case in cases:
            found = planned(case, offers)
            if not case.is_set_aside and (found.nodes, found.maps) != (case.nodes, case.maps):
                print(f"\n{case.says}")
                print("  missing", sorted(case.nodes - found.nodes), sorted(case.maps - found.maps))
                print("  surplus", sorted(found.nodes - case.nodes), sorted(found.maps - case.maps))


if __name__ == "__main__":
    main()
