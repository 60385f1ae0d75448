"""Population-based training: its options, and how the values of a hyperparameter change.

Source: M. Jaderberg et al., Population Based Training of Neural Networks, arXiv:1711.09846, 2017. Factors and
probabilities are the defaults of Ray Tune.
"""

from dataclasses import dataclass
from random import Random

from tuner.errors import InputError, option
from tuner.search.domains import WHOLE, Domain, Space
from tuner.trial import AUTO, Config, ConfigValue
from tuner.values import value_key

FACTORS = 0.8, 1.2


@dataclass(frozen=True)
class PopulationBasedTraining:
    """The options of ``pbt``; others than these values raise ``ValueError``."""

    interval: int = 0  # the epochs between two looks at a member; 0 for a tenth of all
    epochs: int = 0  # how many there are, where the configuration does not say it
    quantile: float = 0.25  # the part of the population that takes over, and from which is taken over
    resample: float = 0.25  # how likely a value is drawn anew from the space, and not changed by a factor
    mutate: str = ""  # the hyperparameters that change, with commas between them; empty for all of the space

    def __post_init__(self) -> None:
        for name, value in (("interval", self.interval), ("epochs", self.epochs)):
            if value < 0:
                raise ValueError(f"{name} is {value}: give a number of epochs")
        if not 0 < self.quantile <= 0.5:
            raise ValueError(f"quantile is {self.quantile}: give more than 0 and at most 0.5")
        if not 0 <= self.resample <= 1:
            raise ValueError(f"resample is {self.resample}: give a probability from 0 to 1")

    def keys(self, space: Space, config: Config) -> list[str]:
        """The hyperparameters of a configuration that change. Those on which others depend stay as they are.

        Raises:
            InputError: the space lacks one that was asked for.
        """
        asked = [key.strip() for key in self.mutate.split(",") if key.strip()] or list(space)
        if missing := [key for key in asked if key not in space]:
            raise InputError(f"{option('scheduler_options', f'mutate={self.mutate}')}: the space has no {missing[0]}")
        named = {key for domain in space.values() for key in domain.conditions}
        return [key for key in asked if key in config and key not in named and not space[key].is_constant]


def mutated(domain: Domain, value: ConfigValue, drawn: ConfigValue, again: float, random: Random) -> ConfigValue:
    """A value near another one, or with the probability ``again`` the one that was drawn from the domain.

    A number of a range is multiplied by 0.8 or 1.2. Of a list it is the neighbour on one side.
    """
    if random.random() < again or value == AUTO:
        return drawn
    if domain.kind == "choice":
        listed = {value_key(one): one for one in domain.values}
        keys, own = list(listed), value_key(value)
        place = keys.index(own) + random.choice((-1, 1)) if own in listed else 0
        return listed[keys[min(max(place, 0), len(keys) - 1)]]
    low, high = domain.ends
    factor = random.choice(FACTORS)
    moved = float(value) * factor
    if domain.kind in WHOLE:  # by one at least
        moved = round(moved) if round(moved) != value else float(value) + (1 if factor > 1 else -1)
    moved = min(max(moved, low), high)
    return domain.nearest(int(moved) if domain.kind in WHOLE else moved)
