"""Counts tries by section and kind, and keeps how to repeat those that failed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from scripts.attacks.answers import Answer

BAR = 0.999  # the least share of tries that are answered as they should be


@dataclass
class Tally:
    """What came of all tries."""

    seed: int
    tries: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)
    codes: list[int] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def take(
        self,
        section: str,
        kind: str,
        number: int | str,
        faults: Sequence[str],
        what: str,
        answer: Answer | None = None,
    ) -> bool:
        """Counts one try, and prints it if it failed; returns whether it did not."""
        self.tries[section, kind] += 1
        if answer:
            self.codes.append(answer.code)
            self.slowest = max(self.slowest, answer.seconds)
        if faults:
            self.failed[section, kind] += 1
            print(f"failed: {kind}: {'; '.join(faults)[:600]}\n  {what}", file=sys.stderr)
            again = f"scripts/benchmark attack {section} --seed {self.seed} --only {number} --keep FOLDER"
            print(f"  again: {again}", file=sys.stderr)
            if answer:
                text = "\n".join("  | " + line[:300] for line in answer.text().splitlines()[-12:])
                print(text, file=sys.stderr, flush=True)
        return not faults

    @property
    def share(self) -> float:
        """Of all tries those that were answered as they should be."""
        return 1 - sum(self.failed.values()) / max(1, sum(self.tries.values()))

    def table(self) -> str:
        """The counts."""
        rows = [f"{'section':14}{'kind':26}{'tries':>7}{'failed':>8}"]
        rows += [f"{s:14}{k:26}{n:7,}{self.failed[s, k]:8,}" for (s, k), n in sorted(self.tries.items())]
        total, failed = sum(self.tries.values()), sum(self.failed.values())
        rows.append(f"{'all':40}{total:7,}{failed:8,}  {100 * self.share:.2f} % answered")
        return "\n".join([*rows, *(f"skipped: {why}" for why in self.skipped), *self.notes])
