"""Study files: which arms are compared, on which seeds and held-out tasks, and what is claimed."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from env_wrappers.files import check_name, json_hash
from hgpo_rllib.config import RunConfig, as_override, load_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.results.runs import SAME_EXPERIMENT
from hgpo_rllib.run.grid import Axis, Sweep, Trial
from hgpo_rllib.run_files import EXAMPLES, parse_yaml
from hgpo_rllib.section import Name, Section, Seed

STUDIES = EXAMPLES / "studies"
ARM = "arm"
STUDY_KEYS = {"seed": "seeds", "iterations": "iterations", "evaluation.splits": "splits"}
"""Settings of runs that a study sets itself, with its own keys for them."""


class Claim(Section):
    """The claim that A is larger than B, or that A - B is larger than C - D."""

    text: str = Field(min_length=1)
    """The claim in words."""
    a: str
    """An arm."""
    b: str
    """Another arm."""
    minus: tuple[str, str] | None = None
    """The arms C and D of a difference in differences."""
    measure: Literal["final", "area"] = "final"
    """`final`: success in the last evaluation. `area`: mean success over training, the area under
    the learning curve divided by the iterations (sample efficiency)."""

    @property
    def arms(self) -> tuple[str, ...]:
        """A, B, and C and D if there are any."""
        return (self.a, self.b, *(self.minus or ()))


class Analysis(Section):
    """What the report computes."""

    baseline: str | None = None
    """Arm with which all other arms are compared."""
    claims: list[Claim] = []
    """Claims that get a verdict. Their p-values are corrected for their number."""
    fidelity: str | None = None
    """Name of a result of `hgpo bench credit` in docs/results/credit/, measured with the model from
    which the trials start: the report compares the fidelity of estimators with their success."""
    difference: float = Field(0.05, gt=0, le=1)
    """Difference of success, from 0 to 1, for which the required number of seeds is stated."""
    assumed_sd: float = Field(0.06, gt=0, le=1)
    """Assumed standard deviation over seeds of a paired difference of success, until enough trials
    have finished to estimate it."""


class Study(Section):
    """A study: every arm with every seed, evaluated on the same held-out tasks."""

    title: str = Field(min_length=1)
    """Title of the study's section in docs/results.md."""
    question: str = Field(min_length=1)
    """The question in one line."""
    base: str
    """Run file, or the name of one in tuned_examples/. A relative path is relative to the working
    directory."""
    iterations: int = Field(ge=1)
    """Training iterations of each trial."""
    splits: list[str] = Field(min_length=1)
    """Splits that are evaluated; the result of a trial is the success rate on their tasks."""
    seeds: list[Seed] = [0, 1, 2, 3, 4]
    """Number of seeds, which are then 0, 1, …, or a list of them."""
    overrides: dict[str, Any] = {}
    """Settings of all trials, `section.key: value`, in addition to those of the run file."""
    arms: dict[Name, dict[str, Any]] = Field(min_length=1)
    """Settings of each arm by its name."""
    analysis: Analysis = Analysis()

    @field_validator("seeds", mode="before")
    @classmethod
    def _as_list(cls, seeds: Any) -> Any:
        return list(range(seeds)) if type(seeds) is int else seeds  # true is an int too

    @field_validator("seeds")
    @classmethod
    def _each_once(cls, seeds: list[int]) -> list[int]:
        if not seeds or len(set(seeds)) < len(seeds):
            raise ValueError("name at least one seed, each once")
        return seeds

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        for name, settings in {"overrides": self.overrides, **self.arms}.items():
            if taken := STUDY_KEYS.keys() & settings.keys():
                key = min(taken)
                raise ValueError(
                    f"{name}: {key} is set by the study: use its key {STUDY_KEYS[key]}"
                )
        compared = [arm for claim in self.analysis.claims for arm in claim.arms]
        if self.analysis.baseline is not None:
            compared.append(self.analysis.baseline)
        for arm in compared:
            if arm not in self.arms:
                raise ValueError(f"analysis: no arm {arm!r}; available: {', '.join(self.arms)}")
        return self

    @property
    def size(self) -> int:
        """Number of trials."""
        return len(self.arms) * len(self.seeds)

    def config(self, arm: str, seed: int) -> RunConfig:
        """Return the settings of a trial.

        Raises:
            ConfigError: the run file or a setting is invalid; the message names the arm.
        """
        settings = self.overrides | self.arms[arm]
        settings |= {"seed": seed, "iterations": self.iterations, "evaluation.splits": self.splits}
        try:
            listed = [as_override(key, value) for key, value in settings.items()]
            return load_config(Path(self.base), listed)
        except (ConfigError, TypeError) as error:  # JSON has no dates
            raise ConfigError(f"arm {arm}: {error}") from error

    def sweep(self) -> Sweep:
        """Return all trials, seed by seed, so that a part of them is of all arms.

        Raises:
            ConfigError: the settings of an arm are invalid, or arms are not evaluated alike.
        """
        configs = {arm: self.config(arm, self.seeds[0]) for arm in self.arms}
        first, *_ = configs.values()
        for arm, config in configs.items():
            if config.evaluation != first.evaluation or config.minutes is not None:
                raise ConfigError(
                    f"arm {arm}: all arms need the same section evaluation and minutes=null, so "
                    "that their learning curves can be compared"
                )
        trials = [
            Trial(f"{arm}-seed{seed}", {ARM: arm}, config.model_copy(update={"seed": seed}))
            for seed in self.seeds
            for arm, config in configs.items()
        ]
        return Sweep((Axis(ARM, tuple(self.arms)),), tuple(trials))


def parse_study(data: Any, source: str) -> Study:
    """Validate the content of a study file; `source` begins an error.

    Raises:
        ConfigError: names the first wrong key.
    """
    try:
        return Study.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            # Its location is (key,), ("analysis", key) or ("analysis", "claims", number, key).
            sections: dict[int, type[Section]] = {1: Study, 2: Analysis, 4: Claim}
            known = ", ".join(sections[len(first["loc"])].model_fields)
            raise ConfigError(f"{source}: unknown key {key}; available: {known}") from error
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{source}: {key}{': ' if key else ''}{message}") from error


def find_study(name: str) -> Path:
    """Return the path of a study file, given its path or its name in tuned_examples/studies/.

    Raises:
        ConfigError: there is none.
    """
    path = Path(name)
    if path.suffix != ".yaml":
        path = STUDIES / f"{name}.yaml"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in STUDIES.glob("*.yaml"))) or "none"
        raise ConfigError(f"no study {name}: no such file (in tuned_examples/studies/: {names})")
    return path


def load_study(path: Path) -> Study:
    """Read a study file.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or not a valid study.
    """
    check_name(path.stem)
    try:
        data = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the study {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    return parse_study(data, str(path))


def settings_hash(config: RunConfig) -> str:
    """Return a hash of the settings that affect the results of a trial.

    It is over values that differ from the defaults, so it does not change if a setting is added.
    """
    own = set(SAME_EXPERIMENT) - {"seed"}
    content = config.model_dump(mode="json", exclude=own, exclude_defaults=True)
    return json_hash(content)[:16]
