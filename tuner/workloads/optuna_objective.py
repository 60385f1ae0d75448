"""An Optuna objective as a trial: what it asks of its ``trial`` is answered by the study's process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import optuna

from tuner.errors import WorkloadError, one_line
from tuner.trial import Config
from tuner.workloads.program import Function
from tuner.workloads.session import ProgramPruned, Session

VALUE = "value"
# What an objective may ask of its trial.
CALLS = (
    *("suggest_float", "suggest_int", "suggest_categorical", "suggest_uniform", "suggest_loguniform"),
    *("suggest_discrete_uniform", "report", "should_prune", "set_user_attr", "set_constraint"),
)
ATTRIBUTES = ("number", "params", "distributions", "user_attrs", "system_attrs", "constraints", "datetime_start")
# What it may ask of its trial's study.
STUDY_CALLS = ("get_trials", "stop")
STUDY_ATTRIBUTES = (
    *("best_params", "best_trial", "best_trials", "best_value", "direction", "directions", "metric_names"),
    *("study_name", "trials", "user_attrs"),
)


@dataclass(frozen=True)
class Call:
    """A call of a method of Optuna's trial or study, or an attribute of it if there are no arguments."""

    name: str
    arguments: tuple[object, ...] | None = None
    keywords: Mapping[str, object] | None = None
    of_study: bool = False

    @property
    def allowed(self) -> bool:
        """Whether an objective may ask this."""
        calls, attributes = (STUDY_CALLS, STUDY_ATTRIBUTES) if self.of_study else (CALLS, ATTRIBUTES)
        return self.name in (attributes if self.arguments is None else calls)


@dataclass(frozen=True)
class Uncaught:
    """Tells the study's process of an exception that is to end the study."""

    text: str


class OptunaObjective(Function):
    """A function of an ``optuna.Trial`` that returns a value, or one for each direction."""

    asks = takes_infinite = True

    def __init__(
        self,
        objective: Callable[..., object],
        values: Sequence[str] = (VALUE,),
        catch: tuple[type[Exception], ...] = (Exception,),
    ) -> None:
        """Takes the names of the values that it returns, and the exceptions that let the study go on."""
        super().__init__(objective)
        self._catch = catch
        self.takes_data = self.needs_data = False
        self.values = tuple(values)

    @property
    def spec(self) -> None:
        """None: it goes with a study of Optuna's, which only Python can give."""

    def run(self, config: Config, data: object, session: Session) -> Mapping[str, float] | None:
        """Calls the objective; its values are the final metrics."""
        try:
            returned = self.function(RemoteTrial(session))
        except optuna.TrialPruned:
            raise ProgramPruned from None
        except Exception as error:
            if not isinstance(error, self._catch):
                session.ask(Uncaught(f"{type(error).__name__}: {one_line(error)}"))
            raise
        values: list[Any] = list(returned) if isinstance(returned, Sequence) else [returned]
        try:
            numbers = [float(value) for value in values]
        except (TypeError, ValueError):
            raise WorkloadError(f"{self.name} returned {returned!r:.60}: expected a number") from None
        if len(numbers) != len(self.values):
            raise WorkloadError(f"{self.name} returned {len(numbers)} values: expected {len(self.values)}")
        return dict(zip(self.values, numbers, strict=True))


class RemoteStudy:
    """The study of an objective's trial, to be read."""

    of_study = True

    def __init__(self, session: Session) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        """A method or an attribute of Optuna's object, which is in the study's process."""
        if Call(name, (), of_study=self.of_study).allowed:
            return partial(self._call, name)
        if (attribute := Call(name, of_study=self.of_study)).allowed:
            return self._session.ask(attribute)
        whole = f"trial.study.{name}" if self.of_study else f"trial.{name}"
        raise AttributeError(f"{whole} is not available within a trial: its process is not the study's")

    def _call(self, name: str, *arguments: object, **keywords: object) -> object:
        return self._session.ask(Call(name, arguments, keywords, self.of_study))


class RemoteTrial(RemoteStudy):
    """The trial that an objective gets: each call goes to the study's process, where the ``optuna.Trial`` is."""

    of_study = False

    @property
    def study(self) -> RemoteStudy:
        """The trial's study, to be read."""
        return RemoteStudy(self._session)

    def report(self, value: float, step: int) -> None:
        """See ``optuna.Trial``; the study shows the value, too."""
        self._call("report", float(value), step)
        self._session.report({self._session.metric: value}, int(step))
