"""Writing a study's folder: the journal of attempts, the CSV with a row for each trial, and the best weights."""

import errno
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Literal, Self

from tuner.errors import ExecutionError, InputError, ParameterError, joined, one_line, option
from tuner.machine import safe_files
from tuner.machine.safe_files import PARTIAL
from tuner.objective import Objective
from tuner.records.attempts import NOT_KEPT, Attempt, Times, to_csv, with_defaults
from tuner.records.files import ATTEMPTS, BEST, CHECKPOINTS, PRUNE, RESULTS, STUDY, SUGGESTIONS, TRACEBACKS, best_name
from tuner.records.journal import Journal, open_locked
from tuner.records.ranking import best_first, contenders, ranked, stands
from tuner.records.recorded_study import RecordedStudy
from tuner.records.study_record import StudyRecord, Suggestion, read_study
from tuner.records.weights import whose
from tuner.trial import ConfigValue, MemoryEstimate, Outcome, Status
from tuner.workloads.session import TRIALS

ENDED: tuple[Status, ...] = ("completed", "pruned", "diverged", "infeasible")  # trials that never run again
GOES_ON: tuple[Status, ...] = ("interrupted", "paused")  # those that run again if the study is resumed
# The table is rewritten every CSV_SECONDS, or less often if it is long: at most CSV_ROWS rows are written a second.
# The journal is always up to date.
CSV_SECONDS = 1.0
CSV_ROWS = 50
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class StudyFolder:
    """The only writer of a study's folder. The files can be read at any moment, also after a kill."""

    def __init__(
        self, path: Path, objectives: Mapping[str, Objective], *, new: bool = False, journal: Journal | None = None
    ) -> None:
        """Makes the folder with its parents and locks it until it is closed or the process ends.

        Args:
            path: the folder.
            objectives: what each workload's trials are compared by.
            new: raise FileExistsError if the folder exists.
            journal: the one of a folder that is resumed.

        Raises:
            InputError: the folder has files, another run is writing there, or it cannot be written.
        """
        self.path, self._objectives, self.journal = path, objectives, journal or _new_journal(path, new=new)
        self.notes: list[str] = []  # about damage that was found when the study was resumed
        self.seeds = 1  # of each configuration
        self.keep: Literal["all", "best", "none"] = "all"  # which of the folders of ended trials stay
        self.defaults: Mapping[str, Mapping[str, ConfigValue]] = {}  # of the hyperparameters of each workload
        self.code: int | None = None  # the version of the code that trials run
        self.clock: Callable[[], float] = time.monotonic
        self._rows = {row.trial_id: row for row in self.journal.rows}
        self._in_best: dict[str, str] = {}  # whose weights ``best.pt`` has, by workload
        self._weights: dict[str, set[str]] = {}  # trials whose weights are kept or staged
        self._folders: dict[str, set[str]] = {}  # trials with a folder that may be removed
        self._csv_due = 0.0
        self._suggests = False  # whether this process wrote the last suggestion

    @classmethod
    def resume(cls, path: Path, objectives: Mapping[str, Objective], seeds: int = 1) -> Self:
        """Opens and locks the folder of an interrupted study, and repairs the damage of a kill.

        Raises:
            InputError: the folder has no study, another run is writing there, or it cannot be written.
        """
        study = read_study(path, option("resume", str(path)))
        _check_links(path)
        try:
            folder = cls(path, objectives, journal=Journal(path / ATTEMPTS, study))
            folder.seeds = seeds
            try:
                folder._tidy()
            except BaseException:
                folder.journal.close()
                raise
        except OSError as error:
            raise _refusal("resume", path, error) from error
        return folder

    def _tidy(self) -> None:
        """Makes all other files agree with the journal."""
        self.notes = self.journal.repair()
        for pattern in (f"*{PARTIAL}", f"{CHECKPOINTS}/*{PARTIAL}", f"{CHECKPOINTS}/*{PRUNE}"):
            for path in self.path.glob(pattern):
                safe_files.remove(path)
        for workload in self._objectives:
            self._find_weights(workload)
            self._keep_weights(workload, self._contenders(workload, self._weights[workload]))
        for path in self.path.glob(f"{CHECKPOINTS}/*"):
            if row := self._rows.get(path.name.removesuffix(".pt")):
                self._drop_checkpoint(row)
        self._write_csv()

    def record(
        self,
        outcome: Outcome,
        estimate: MemoryEstimate,
        weights: Callable[[], bytes],
        times: Times | None = None,
        order: int | None = None,
    ) -> Attempt:
        """Records an ended attempt: its weights if it may become the best, its line in the journal, and the table.

        The weights are written before the line, so that a finished trial never lacks them. They are renamed after it,
        so that the best weights always have a line. If they cannot be fetched or written, the line says so.

        Raises:
            ExecutionError: the disk is full, or the folder can no longer be written.
        """
        row = replace(Attempt.of(outcome, estimate, times, order), code_version=self.code)
        with self._writing():
            there = self._weights.setdefault(row.workload, set())
            candidates = there | ({row.trial_id} if row.status != "paused" else set())
            wanted = self._contenders(row.workload, candidates, row)
            stages = row.trial_id in wanted and row.status != "paused"
            row, staged = self._stage(row, weights) if stages else (row, None)
            try:
                self._log(outcome)
            finally:  # the line is more important than the traceback
                self._append(row, staged)
            if staged:
                there.add(row.trial_id)
            lost = row.trial_id in wanted and row.trial_id not in there
            self._keep_weights(row.workload, self._contenders(row.workload, there) if lost else wanted)
            self._drop_checkpoint(row)
            self._drop_folders(row, candidates, wanted)
            if self.clock() >= self._csv_due:
                self._write_csv()
        return row

    def record_waiting(self, ended: Sequence[tuple[Outcome, MemoryEstimate, int]]) -> list[Attempt]:
        """Records trials that never began, at once: a study may have thousands of them as it is told to end.

        Raises:
            ExecutionError: the disk is full, or the folder can no longer be written.
        """
        rows = [
            replace(Attempt.of(outcome, estimate, None, order), code_version=self.code)
            for outcome, estimate, order in ended
        ]
        with self._writing():
            self.journal.append(*rows)
        self._rows |= {row.trial_id: row for row in rows}
        return rows

    def describe(self, study: StudyRecord) -> None:
        """Writes ``study.json``."""
        with self._writing():
            safe_files.replace_file(self.path / STUDY, study.to_json())

    def suggested(self, suggestion: Suggestion) -> None:
        """Appends what a search has suggested to ``suggestions.jsonl``, before it runs."""
        line, path = suggestion.to_line(), self.path / SUGGESTIONS
        with self._writing():
            if self._suggests:
                safe_files.append_file(path, line)
                return
            safe_files.append_file(path, b"\n" + line if path.exists() else line)  # a kill may have cut off a line
            safe_files.sync_folder(self.path)
            self._suggests = True

    def keep_pauses(self, names: Collection[str]) -> None:
        """Removes the checkpoints of paused members of a population, except these."""
        for path in (self.path / CHECKPOINTS).glob("*@*"):
            if path.name.removesuffix(".pt") not in names:
                safe_files.remove(path)

    def attempts(self) -> list[Attempt]:
        """All lines of the journal in order, with those of earlier runs."""
        return list(self.journal.rows)

    def recorded(self, record: StudyRecord) -> RecordedStudy:
        """The study as it is now: what ``open_study`` would read, but with the defaults that its table shows."""
        attempts = with_defaults(self.attempts(), self.defaults)
        return RecordedStudy(self.path, self.path.resolve().name, attempts, record, self._objectives)

    def rows(self) -> list[Attempt]:
        """The rows of the table for people: the latest attempt of each trial that has ended, in the order of trials.

        A row also has the hyperparameters that only others of its workload set, at their defaults.
        """
        rows = with_defaults(list(self._rows.values()), self.defaults)
        return sorted(best_first(rows, self._objectives), key=attrgetter("trial_id"))

    def reported(self, trial_id: str) -> tuple[dict[str, float], int]:
        """The metrics and the epochs of a trial that was interrupted or has paused; none of another one."""
        row = self._rows.get(trial_id)
        if row is None or row.status not in GOES_ON:
            return {}, 0
        return {name: value for name, value in row.metrics.items() if value is not None}, row.epochs

    @property
    def checkpoints(self) -> Path:
        """The folder of trials' checkpoints, ``<trial_id>.pt``; made on first use."""
        path = self.path / CHECKPOINTS
        with self._writing():
            path.mkdir(exist_ok=True)
        return path

    def close(self) -> None:
        """Writes the table and unlocks the folder. A second call does nothing."""
        if self.journal.closed:
            return
        with self._writing(), closing(self.journal):
            for workload in self._objectives:
                self._keep_weights(workload, self._contenders(workload, self._weights.get(workload, ()), at_end=True))
            self._write_csv()
        with suppress(OSError):  # trials that wrote nothing have left no folder there
            (self.path / TRIALS).rmdir()

    def _stage(self, row: Attempt, weights: Callable[[], bytes]) -> tuple[Attempt, Path | None]:
        """Writes the weights, which may be the best, and returns their file. If that fails, the line says so.

        An empty file says that a program has reported no checkpoint. It is not written where no other file is.
        """
        staged = self._staged(row.workload, row.trial_id)
        try:
            content = weights()
            if not content and row.status != "completed" and row.trial_id in self._weights[row.workload]:
                return row, None  # those of an earlier attempt stay
            if content or next(self.path.glob(f"{self._best_path(row.workload).name}*"), None):
                safe_files.write_file(staged, content)
        except Exception as error:  # the result is recorded in any case
            why = one_line(error, 200) or type(error).__name__
            other_error = "" if why in row.error else row.error
            return replace(row, error=joined(f"{NOT_KEPT}: {why}", other_error)), None
        return row, staged

    def _contenders(
        self, workload: str, candidates: Collection[str], new: Attempt | None = None, *, at_end: bool = False
    ) -> list[str]:
        """The ids of those candidates that are the best or may become it; ``new`` is a row not yet written."""
        rows_by_id = {**self._rows, new.trial_id: new} if new else self._rows
        rows = [rows_by_id[key] for key in candidates]
        if self.seeds > 1:  # else no other row counts, however many there are
            names = {row.name for row in rows}
            rows = [row for row in rows_by_id.values() if row.workload == workload and row.name in names]
        order = ranked(rows, self._objectives[workload])
        ended = Counter(row.name for row in order if (row.status not in GOES_ON if at_end else row.status in ENDED))
        unfinished = {row.name for row in order if ended[row.name] < self.seeds}  # seeds may still end otherwise
        standing = [row for row in order if row.trial_id in candidates and stands(row, self._objectives[workload])]
        return [row.trial_id for row in contenders(standing, self._objectives[workload], unfinished)]

    def _keep_weights(self, workload: str, wanted: list[str]) -> None:
        """Makes ``best.pt`` the weights of the first wanted trial, and drops those of trials that are not wanted."""
        there = self._weights.get(workload, set())
        if not wanted:
            return
        best, before, path = wanted[0], self._in_best.get(workload), self._best_path(workload)
        staged = self._staged(workload, best)
        if best != before and before in wanted and path.exists():
            _set_aside(path, self._staged(workload, before))
        if staged.exists() and staged.stat().st_size:
            safe_files.move(staged, path)
        elif best != before or staged.exists():
            path.unlink(missing_ok=True)
            staged.unlink(missing_ok=True)
        for trial_id in there.difference(wanted):
            self._staged(workload, trial_id).unlink(missing_ok=True)
        self._in_best[workload], self._weights[workload] = best, set(wanted)

    def _find_weights(self, workload: str) -> None:
        """Finds the weights that an earlier process has left, and removes those of trials without a line."""
        path = self._best_path(workload)
        files = {file: file.name.removeprefix(f"{path.name}.") for file in self.path.glob(f"{path.name}.*")}
        for file in [file for file, trial_id in files.items() if trial_id not in self._rows]:
            file.unlink()
        self._weights[workload] = {trial_id for trial_id in files.values() if trial_id in self._rows}
        rows = [row for row in self._rows.values() if row.workload == workload and row.weights_kept]
        if self.seeds > 1:  # further ones may have changed which one is the best
            of = whose(path)
            rows = [row for row in rows if (row.name, row.seed) == of]
        for row in ranked(rows, self._objectives[workload])[:1]:
            self._in_best[workload] = row.trial_id
            self._weights[workload].add(row.trial_id)

    def _staged(self, workload: str, trial_id: str) -> Path:
        path = self._best_path(workload)
        return path.with_name(f"{path.name}.{trial_id}")

    def _best_path(self, workload: str) -> Path:
        return self.path / (best_name(workload) if len(self._objectives) > 1 else BEST)

    def _log(self, outcome: Outcome) -> None:
        if outcome.traceback:
            text = f"== {outcome.trial.trial_id} {outcome.trial.name}\n{outcome.traceback}\n"
            safe_files.append_file(self.path / TRACEBACKS, text.encode(errors="replace"))

    def _append(self, row: Attempt, staged: Path | None) -> None:
        try:
            self.journal.append(row)
        except OSError:
            if staged:
                with suppress(OSError):
                    staged.unlink()
            raise
        self._rows[row.trial_id] = row

    def _drop_checkpoint(self, row: Attempt) -> None:
        if row.status in ENDED:
            (self.path / CHECKPOINTS / f"{row.trial_id}.pt").unlink(missing_ok=True)
            shutil.rmtree(self.path / CHECKPOINTS / row.trial_id, ignore_errors=True)

    def _drop_folders(self, new: Attempt, candidates: Collection[str], wanted: Sequence[str]) -> None:
        """Removes folders that are no longer needed after a ``new`` trial; of the candidates, ``wanted`` are kept."""
        if self.keep == "all":
            return
        if new.workload not in self._folders:  # an earlier process may have left some
            rows = [self._rows.get(folder.name) for folder in (self.path / TRIALS).glob("*")]
            self._folders[new.workload] = {row.trial_id for row in rows if row and row.workload == new.workload}
        there = self._folders[new.workload] | {new.trial_id}
        best_ids = wanted if there == candidates else self._contenders(new.workload, there)
        self._folders[new.workload] = kept = set(best_ids if self.keep == "best" else ())
        for trial_id in there - kept:
            if self._rows[trial_id].status in ENDED:
                shutil.rmtree(self.path / TRIALS / trial_id, ignore_errors=True)

    def _write_csv(self) -> None:
        safe_files.replace_file(self.path / RESULTS, to_csv(self.rows()).encode(errors="replace"))
        self._csv_due = self.clock() + max(CSV_SECONDS, len(self._rows) / CSV_ROWS)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ExecutionError(f"{self.path} can no longer be written: {error.strerror}") from error


def _new_journal(path: Path, *, new: bool) -> Journal:
    """The journal of a folder that is made for it, locked; see ``StudyFolder``."""
    try:
        path.mkdir(parents=True, exist_ok=not new)
        check_empty(path)
        journal = Journal(path / ATTEMPTS)
    except OSError as error:
        if new and isinstance(error, FileExistsError):
            raise
        raise _refusal("output", path, error) from error
    try:
        check_empty(path)  # again: another run may have written before we had the lock
    except BaseException:
        journal.close()
        raise
    return journal


def _set_aside(path: Path, staged: Path) -> None:
    """Gives a file a second name, under which it stays when another file replaces it."""
    try:
        os.link(path, staged)
    except OSError:  # a file system without links
        path.replace(staged)


def check_empty(path: Path) -> None:
    """Refuses a folder with files, except those of a study that was killed at its start."""
    again = f", or resume its study with {option('resume', str(path))}" if (path / STUDY).is_file() else ""
    for file in path.iterdir():
        if file.name == f"{STUDY}{PARTIAL}" or (file.name == ATTEMPTS and file.stat().st_size == 0):
            continue
        raise ParameterError("output", str(path), f"the folder is not empty; give a new one{again}")


def check_unused(path: Path) -> None:
    """Refuses the folder of a study if another run is writing there, if it cannot be written, or for a link in it."""
    _check_links(path)
    if (path / ATTEMPTS).exists():  # else nobody writes there, and ``Journal`` would make one
        try:
            open_locked(path / ATTEMPTS).close()
        except OSError as error:
            raise _refusal("resume", path, error) from error


def _check_links(path: Path) -> None:
    """Refuses a folder with symbolic links: through them files elsewhere would be written or removed."""
    for file in (*path.glob("*"), *path.glob(f"{CHECKPOINTS}/*"), *path.glob(f"{TRIALS}/*")):
        if file.is_symlink():
            rule = f"{file} is a symbolic link, and a study does not write through links"
            raise ParameterError("resume", str(path), rule, "replace it by what it points to, or remove it")


def _refusal(parameter: str, path: Path, error: OSError) -> InputError:
    if isinstance(error, BlockingIOError):
        reason = "another run is writing there: wait for it or end it"
    elif error.errno in NO_LOCKS:
        reason = "its file system has no locks; give a folder on another file system"
    else:
        reason = f"cannot be written: {error.strerror}; make it writable or give another folder"
    return ParameterError(parameter, str(path), reason)
