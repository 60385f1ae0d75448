"""``run``: what ``tuner`` does in a terminal; and tuning on ratings that are in memory, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.search.configurations import configurations as parse_configurations
from tuner.spec.commands import NotebookOptions
from tuner.spec.options import public
from tuner.spec.settings import Settings
from tuner.spec.specify import specify
from tuner.spec.study_spec import StudySpec
from tuner.study.prerequisites import train_prerequisites
from tuner.study.result import StudyResult
from tuner.study.study import run_study
from tuner.workloads.lookup import find_workload
from tuner.workloads.protocols import finish_of
from tuner.workloads.task import Selection

if TYPE_CHECKING:
    from tuner.datasets.ratings import RatingData
    from tuner.reporting.frame import StudyFrame


@public(Settings)
def run(settings: Settings) -> StudyResult:
    """Tunes a workload: what ``tuner`` does in a terminal.

    An object that was the ``workload`` or the ``search`` of a study must be given again to ``resume`` it.

    Raises:
        InputError: something given cannot be used; nothing has been written.
        ExecutionError: Ray does not start, the folder can no longer be written, or every device is lost.
    """
    return run_given(settings, from_python=True)


def run_given(settings: Settings, *, from_python: bool = False) -> StudyResult:
    """What ``run`` does; beside ``resume`` the options that were given replace the study's own."""
    return run_study(train_prerequisites(specify(settings, from_python=from_python)))


@public(NotebookOptions)
def tune_hyperparameters_parallel(options: NotebookOptions) -> StudyFrame:
    """Tunes GraphSAGE on ratings that are in memory: the call for notebooks and scripts.

    Returns:
        A DataFrame with one row for each trial (a configuration with one seed), best first, and the columns of
        ``results.csv``, which a notebook shows as a table. ``.best`` is the best trial, ``.best_model()`` its model,
        and ``.plot_curves()``, ``.plot_parallel()``, ``.plot_metric()``, ``.plot_timeline()`` and ``.plot_memory()``
        draw it; ``attrs["folder"]`` is the study's folder. ``tuner.compare`` gives the means over seeds.

    Raises:
        InputError: something given cannot be used; nothing has been written.
        ExecutionError: Ray does not start, or the folder can no longer be written.
    """
    from tuner.datasets.ratings import from_tables

    workload = find_workload("graphsage")
    chosen = parse_configurations(options.configurations, workload.schema, finish=finish_of(workload))
    given = options.given()
    if not options.auto_memory:
        given.pop("auto_memory", None)
        if options.memory_gb is None:
            given["model_memory_gb"] = options.model_memory_gb
    settings = Settings.of(given)

    def load_data() -> RatingData:
        tables = options.trainset, options.testset, options.user_features, options.item_features
        return from_tables(*tables, seed=settings.data_seed)

    spec = StudySpec(
        [Selection(workload, load_data, chosen)],
        settings,
        label="notebook",
        command="tune_hyperparameters_parallel()",
        shows_end=True,
        returns_table=True,
        from_python=True,
    )
    return run_study(spec).to_frame()
